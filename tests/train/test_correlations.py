"""Label correlations against loops over documents and labels."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xcutils.train.correlations import choose_labels, co_occurrence, glas, keep_own, random_walk

steady = settings(derandomize=True, deadline=None, max_examples=60)
LABELS = 7
DOCS = st.lists(st.sets(st.integers(0, LABELS - 1), max_size=5), max_size=9)


def matrix(docs: list[set[int]]) -> sparse.csr_matrix:
    dense = np.zeros((len(docs), LABELS), dtype=np.float32)
    for row, labels in enumerate(docs):
        dense[row, sorted(labels)] = 1
    return sparse.csr_matrix(dense)


def counts_by_hand(docs: list[set[int]]) -> Counter:
    return Counter((j, i) for labels in docs for j in labels for i in labels)


def co_occurrence_by_hand(docs: list[set[int]], delta: float) -> np.ndarray:
    """P(i | j) by counting, 1 on the diagonal."""
    count, made = counts_by_hand(docs), np.eye(LABELS)
    for j in range(LABELS):
        for i in range(LABELS):
            if i != j and count[j, j] and count[j, i] / count[j, j] > delta:
                made[j, i] = count[j, i] / count[j, j]
    return made


def glas_by_hand(docs: list[set[int]], delta: float) -> np.ndarray:
    count, made = counts_by_hand(docs), np.zeros((LABELS, LABELS))
    for j in range(LABELS):
        for i in range(LABELS):
            strength = 1.0 if i == j else 0.0
            if i != j and count[j, i]:
                strength = (count[j, i] / count[j, j] + count[j, i] / count[i, i]) / 2
            if strength > delta or i == j:
                made[j, i] = 1 / (1 + math.exp(-strength))
    return made


@steady
@given(docs=DOCS, delta=st.sampled_from([0.0, 0.1, 0.34, 0.5, 0.9]), pairs=st.sampled_from([1, 5, 20, 1000]))
def test_co_occurrence_is_the_share_of_a_labels_documents(docs, delta, pairs):
    made = co_occurrence(matrix(docs), delta, pairs)
    np.testing.assert_allclose(made.toarray(), co_occurrence_by_hand(docs, delta), rtol=1e-6)
    assert made.has_sorted_indices and made.dtype == np.float32


@steady
@given(docs=DOCS, delta=st.sampled_from([0.0, 0.1, 0.5]), pairs=st.sampled_from([1, 20, 1000]))
def test_glas_is_the_sigmoid_of_the_symmetric_strength(docs, delta, pairs):
    np.testing.assert_allclose(glas(matrix(docs), delta, pairs).toarray(), glas_by_hand(docs, delta), rtol=1e-6)


@steady
@given(docs=DOCS, share=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), chunk=st.sampled_from([1, 3, 100]))
def test_others_are_weakened_until_the_own_label_has_its_share(docs, share, chunk):
    chosen = np.array([0, 2, 5])
    plain = co_occurrence(matrix(docs), 0.1)[chosen]
    made = plain.copy()
    keep_own(made, chosen, share, chunk)
    for row, label in enumerate(chosen):
        before, after = (part.toarray()[row] for part in (plain, made))
        others = before.sum() - before[label]
        allowed = (1 - share) / share if share else math.inf  # the own target is 1
        expected = before * (min(1, allowed / others) if others else 1)
        expected[label] = 1
        np.testing.assert_allclose(after, expected, rtol=1e-5)


def test_the_threshold_is_strict():
    docs = [{0, 1}] + [{0}] * 9  # P(1 | 0) is exactly a tenth
    assert co_occurrence(matrix(docs), 0.1)[0, 1] == 0
    assert co_occurrence(matrix(docs), 0.09)[0, 1] == pytest.approx(0.1)


def test_a_label_without_documents_has_only_itself():
    made = co_occurrence(matrix([{0, 1}]), 0.1)
    assert made[3].indices.tolist() == [3] and made[3, 3] == 1
    walk = random_walk(matrix([{0, 1}]), 0.1, length=20, reset=0.5, top=5, seed=0)
    assert walk[3].indices.tolist() == [3] and walk[3, 3] == 1


def visits_by_hand(docs: list[set[int]], start: int, length: int, reset: float) -> np.ndarray:
    """The expected visits of a walk, by following the probabilities of where it is."""
    step = np.zeros((LABELS, LABELS))
    for here in range(LABELS):
        rows = [labels for labels in docs if here in labels]
        for labels in rows:
            for there in labels:
                step[here, there] += 1 / len(rows) / len(labels)
    begin = np.eye(LABELS)[start]
    where, visits = begin, begin.copy()
    for number in range(length):
        if number:
            where = reset * begin + (1 - reset) * where
        where = where @ step
        visits += where
    return visits


def test_walks_visit_labels_as_often_as_probability_says():
    docs = [{0, 1}, {1, 2}, {2, 3, 4}, {0, 4}, {4, 5, 6}, {6}]
    length, reset = 40_000, 0.3
    made = random_walk(matrix(docs), 0.0, length=length, reset=reset, top=LABELS, seed=1).toarray()
    for start in range(LABELS):
        visits = visits_by_hand(docs, start, length, reset)
        expected = np.minimum(1, visits / visits[start])
        np.testing.assert_allclose(made[start], expected, atol=0.03)


def test_walks_keep_the_top_and_what_is_above_the_threshold():
    docs = [{0, 1}, {1, 2}, {2, 3, 4}, {0, 4}, {4, 5, 6}]
    full = random_walk(matrix(docs), 0.0, length=300, reset=0.5, top=LABELS, seed=0).toarray()
    few = random_walk(matrix(docs), 0.0, length=300, reset=0.5, top=2, seed=0).toarray()
    strong = random_walk(matrix(docs), 0.4, length=300, reset=0.5, top=LABELS, seed=0).toarray()
    for row in range(LABELS):
        others = np.delete(np.arange(LABELS), row)
        kept = others[few[row, others] > 0]
        assert len(kept) <= 2 and full[row, kept].min(initial=1) >= full[row, np.setdiff1d(others, kept)].max(initial=0)
        np.testing.assert_array_equal(strong[row], np.where(full[row] > 0.4, full[row], 0))


def test_the_same_seed_walks_the_same_way():
    docs = matrix([{0, 1}, {1, 2}, {2, 3, 4}])
    one, same, other = (random_walk(docs, 0, length=50, reset=0.2, top=5, seed=s).toarray() for s in (0, 0, 1))
    assert (one == same).all() and (one != other).any()


@steady
@given(
    frequency=st.lists(st.integers(0, 4), max_size=20),
    share=st.floats(0, 1),
    order=st.sampled_from(["uniform", "tail"]),
)
def test_a_share_of_the_labels_is_chosen(frequency, share, order):
    frequency = np.array(frequency, dtype=np.int64)
    chosen = choose_labels(frequency, share, order, seed=0)
    assert len(chosen) == round(share * len(frequency)) and (np.diff(chosen) > 0).all()
    left = np.setdiff1d(np.arange(len(frequency)), chosen)
    if order == "tail" and len(chosen) and len(left):
        assert frequency[chosen].max() <= frequency[left].min()


def test_labels_are_drawn_uniformly_and_by_the_seed():
    seen = Counter(tuple(choose_labels(np.arange(5), 0.4, "uniform", seed)) for seed in range(4000))
    assert set(seen) == set(combinations(range(5), 2))
    assert sum((count - 400) ** 2 / 400 for count in seen.values()) < 27.9  # chi-square, 9 degrees, p = 0.001
    assert np.array_equal(*(choose_labels(np.arange(50), 0.4, "uniform", 7) for _ in range(2)))


def test_chance_decides_among_labels_of_one_frequency():
    frequency = np.array([3, 1, 3, 0, 3, 9])  # of four, the two rarest are certain, and two of those with 3
    seen = Counter(tuple(choose_labels(frequency, 4 / 6, "tail", seed)) for seed in range(3000))
    assert set(seen) == {tuple(sorted({1, 3, *pair})) for pair in combinations((0, 2, 4), 2)}
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 13.9  # chi-square, 2 degrees, p = 0.001
