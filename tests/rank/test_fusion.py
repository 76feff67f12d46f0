import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xcutils.rank.fusion import (
    ALONE,
    CURVE,
    FORBIDDEN,
    GIVEN,
    SAME,
    Shortlist,
    Weighing,
    _Padded,
    entries,
    fit_weights,
    memory_scores,
    pair_scores,
    rank,
    scaled,
    tail_curve,
    top_of,
    union,
)
from xcutils.rank.weights import PARTS, WEIGHTS, Fusion, remembered
from xcutils.search.metrics import Judged, Truth, pair_matrix

steady = settings(derandomize=True, deadline=None)
LABELS = 6
RANKED = st.lists(st.integers(-1, LABELS - 1), min_size=3, max_size=3)
SCORES = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0])  # few values, so that ties are common
PAIRS = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LABELS - 1)), SCORES)


def random_sparse(rows: int, columns: int, seed: int, density: float = 0.3) -> sparse.csr_matrix:
    rng = np.random.default_rng(seed)
    return sparse.csr_matrix(np.where(rng.random((rows, columns)) < density, rng.uniform(0.1, 1, (rows, columns)), 0))


def random_shortlist(seed: int, docs: int = 30, labels: int = 12) -> tuple[Shortlist, np.ndarray]:
    """Pairs with random parts, and which of them are right: each part knows something of it."""
    rng = np.random.default_rng(seed)
    rows, chosen = np.nonzero(rng.random((docs, labels)) < 0.7)
    truth = rng.random(len(rows)) < 0.25
    parts = rng.standard_normal((len(rows), 4)) + truth[:, None] * rng.uniform(0, 1.5, 4)
    return Shortlist(rows, chosen, parts.astype(np.float32), docs), truth


def rank_by_hand(pairs: dict[tuple[int, int], float], count: int, k: int) -> tuple[list, list]:
    """Sort each doc's pairs by score, then label; pad with -1 and -inf."""
    ids, scores = [], []
    for row in range(count):
        best = sorted(((-score, label) for (r, label), score in pairs.items() if r == row))[:k]
        ids.append([label for _, label in best] + [-1] * (k - len(best)))
        scores.append([-score for score, _ in best] + [-math.inf] * (k - len(best)))
    return ids, scores


# --- shortlists -------------------------------------------------------------------------------------------------------


@steady
@given(st.lists(st.tuples(RANKED, RANKED), min_size=1, max_size=5))
def test_the_union_holds_each_pair_once_in_order(rows):
    rankings = [np.array([row[side] for row in rows]) for side in (0, 1)]
    found = union(rankings)
    expected = sorted({(i, label) for i, row in enumerate(rows) for side in row for label in side if label >= 0})
    assert list(zip(*(part.tolist() for part in found))) == expected


def test_the_union_of_rankings_of_different_width_or_of_nothing():
    rows, labels = union([np.array([[5, 2], [-1, -1]]), np.array([[2], [9]])])
    assert rows.tolist() == [0, 0, 1] and labels.tolist() == [2, 5, 9]
    assert [part.tolist() for part in union([np.full((2, 3), -1)])] == [[], []]
    assert [part.tolist() for part in union([np.zeros((0, 3), dtype=np.int64)])] == [[], []]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_pair_scores_are_dot_products(chunk):
    rng = np.random.default_rng(0)
    queries, vectors = rng.standard_normal((4, 3)).astype(np.float32), rng.standard_normal((9, 3)).astype(np.float32)
    rows, labels = rng.integers(0, 4, 25), rng.integers(0, 9, 25)
    found = pair_scores(queries, vectors, rows, labels, chunk)
    expected = [sum(float(a) * float(b) for a, b in zip(queries[r], vectors[l_])) for r, l_ in zip(rows, labels)]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert pair_scores(queries, vectors, rows[:0], labels[:0]).shape == (0,)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_entries_are_the_dense_matrixs(density):
    matrix = random_sparse(5, 7, 0, density)
    rows, labels = (part.ravel() for part in np.indices((5, 7)))
    found = entries(matrix, rows, labels)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, matrix.toarray().ravel().astype(np.float32))
    back = np.arange(35)[::-3]  # any order, not all
    np.testing.assert_array_equal(entries(matrix, rows[back], labels[back]), found[back])


def test_entries_of_a_matrix_whose_columns_are_not_in_order():
    matrix = sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([4, 0, 2]), np.array([0, 2, 3])), (2, 5))
    found = entries(matrix, np.array([0, 0, 0, 1, 1]), np.array([0, 4, 2, 2, 4]))
    assert found.tolist() == [2, 1, 0, 3, 0]
    assert matrix.indices.tolist() == [4, 0, 2]  # as it was


@steady
@given(PAIRS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_ranking_is_by_score_then_label(pairs, k, random):
    shuffled = list(pairs.items())
    random.shuffle(shuffled)
    rows = np.array([row for (row, _), _ in shuffled], dtype=np.int64)
    labels = np.array([label for (_, label), _ in shuffled], dtype=np.int64)
    scores = np.array([score for _, score in shuffled], dtype=np.float64)
    ids, values = rank(rows, labels, scores, 5, k)
    assert (ids.tolist(), values.tolist()) == rank_by_hand(pairs, 5, k)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("values", [1, 3, 30, 10**6])  # different scores: from nothing but ties to none
@pytest.mark.parametrize("share", [0.0, 0.05, 0.8])
def test_the_partial_sort_of_the_weights_search_ranks_alike(values, share, k):
    rng = np.random.default_rng(0)
    rows, labels = np.nonzero(rng.random((20, 60)) < share)
    scores = rng.integers(0, values, len(rows)) / values
    table = _Padded(Shortlist(rows, labels, np.zeros((len(rows), 4), np.float32), 20))
    pairs = {(row, label): score for row, label, score in zip(rows.tolist(), labels.tolist(), scores.tolist())}
    assert table.top(scores, k).tolist() == rank_by_hand(pairs, 20, k)[0]


def test_the_top_of_a_sparse_matrix():
    dense = random_sparse(6, 9, 3).toarray()
    dense[4] = 0
    matrix = sparse.csr_matrix(dense)
    pairs = {(int(r), int(c)): float(dense[r, c]) for r, c in zip(*np.nonzero(dense))}
    ids, scores = top_of(matrix, 4)
    assert (ids.tolist(), scores.tolist()) == rank_by_hand(pairs, 6, 4)
    assert (ids[4] == -1).all()


def memory_by_hand(ids, scores, labels, tau) -> np.ndarray:
    """Each neighbour's labels, weighted by its share of the exponentials."""
    out = np.zeros((len(ids), labels.shape[1]))
    for q, (row, similarity) in enumerate(zip(ids, scores)):
        there = [(doc, s) for doc, s in zip(row, similarity) if doc >= 0]
        norm = sum(math.exp(s / tau) for _, s in there)
        for doc, s in there:
            out[q] += math.exp(s / tau) / norm * labels[doc]
    return out


@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0])
def test_the_memory_is_a_softmax_over_neighbours(tau):
    rng = np.random.default_rng(0)
    positives = (random_sparse(15, 8, 1) > 0).astype(np.float32).tocsr()
    ids = np.array([rng.choice(15, 4, replace=False) for _ in range(6)])
    scores = rng.uniform(-1, 1, (6, 4)).astype(np.float32)
    ids[2, 2:], scores[2, 2:] = -1, -np.inf
    ids[4], scores[4] = -1, -np.inf  # no neighbour at all
    found = memory_scores(ids, scores, positives, tau=tau)
    assert sparse.isspmatrix_csr(found) and found.dtype == np.float32 and found.shape == (6, 8)
    np.testing.assert_allclose(found.toarray(), memory_by_hand(ids, scores, positives.toarray(), tau), atol=1e-6)
    assert found[4].nnz == 0


# --- weights ----------------------------------------------------------------------------------------------------------


def test_a_fusion_is_the_weighted_sum():
    shortlist, _ = random_shortlist(0)
    fusion = Fusion(classifier=0.5, similarity=2.0, memory=-1.0, propensity=0.25)
    expected = [0.5 * a + 2.0 * b - 1.0 * c + 0.25 * d for a, b, c, d in shortlist.parts.tolist()]
    np.testing.assert_allclose(fusion.scores(shortlist.parts), expected, rtol=1e-12)
    assert Fusion(**fusion.as_dict()) == fusion


def test_with_an_overlap_the_memory_adds_less_where_the_rest_is_high():
    shortlist, _ = random_shortlist(0)
    fusion = Fusion(classifier=0.5, similarity=2.0, memory=0.9, propensity=0.25, overlap=0.6)
    expected = []
    for a, b, m, d in shortlist.parts.tolist():
        rest = 0.5 * a + 2.0 * b + 0.25 * d
        expected.append(rest + m * max(0.0, 0.9 - 0.6 * rest))
    np.testing.assert_allclose(fusion.scores(shortlist.parts), expected, rtol=1e-12)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=20), st.floats(0, 1), st.floats(0, 5), st.floats(0, 1))
def test_a_label_never_falls_behind_by_what_speaks_for_it(rests, share, memory, overlap):
    """The bound of the served model relies on it: with the same memory a higher rest is a higher score."""
    rests = np.sort(np.array(rests))
    scores = rests + remembered(rests, np.full(len(rests), share), memory, overlap)
    assert (np.diff(scores) >= -1e-9).all()
    assert (scores >= rests).all() and (scores <= rests + share * np.maximum(0, memory - overlap * rests) + 1e-9).all()


def test_an_overlap_is_found_where_parts_say_the_same_twice():
    """Right is what one part or the other says; where both speak they may know it from each other."""
    rng = np.random.default_rng(0)
    rows, labels = np.divmod(np.arange(300 * 20), 20)
    parts = np.zeros((len(rows), 4), dtype=np.float32)
    parts[:, :2] = rng.random((len(rows), 1))
    parts[:, 2] = rng.random(len(rows))
    rest, memory = parts[:, 0], parts[:, 2]
    chance = rest + memory - rest * memory
    best = rank(rows, labels, chance, 300, 5)[0]
    shortlist = Shortlist(rows, labels, parts, 300)
    truth = truth_of(shortlist, (labels[:, None] == best[rows]).any(axis=1))
    found = fitted(shortlist, truth)
    assert found.overlap > 0.3 and value_of(found, shortlist, truth) > 97
    without = Fusion.of([*found.weights().values()][:-1] + [0.0])
    assert value_of(found, shortlist, truth) > value_of(without, shortlist, truth)


def truth_of(shortlist: Shortlist, is_right: np.ndarray, inverse: np.ndarray | None = None) -> Truth:
    """The right pairs. inverse  (labels,) what a hit of each label counts in PSN"""
    labels = int(shortlist.labels.max()) + 1
    pairs = np.stack([shortlist.rows[is_right], shortlist.labels[is_right]], axis=1)
    return Truth(pair_matrix(pairs, (shortlist.count, labels)), inverse)


def fitted(shortlist: Shortlist, truth: Truth, tail: float = 0.0) -> Fusion:
    return fit_weights(Weighing(shortlist, truth), tail)


def value_of(fusion: Fusion, shortlist: Shortlist, truth: Truth, figure: str = "N@5") -> float:
    found = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist.parts), shortlist.count, 5)[0]
    return Judged(found, truth).figures()[figure]


def alone(part: str) -> Fusion:
    return Fusion(**{**dict.fromkeys(PARTS, 0.0), part: 1.0})


@pytest.mark.parametrize("seed", range(5))
def test_the_quick_figures_are_those_of_the_metrics(seed):
    shortlist, is_right = random_shortlist(seed, docs=40, labels=30)
    truth = truth_of(shortlist, is_right, np.random.default_rng(seed).uniform(1, 5, 30))
    weighing = Weighing(shortlist, truth)
    for weights in np.random.default_rng(seed).uniform(0, 1, (5, len(WEIGHTS))):
        found = weighing.figures(weights)
        expected = Judged(weighing.ranking(weights), truth).figures()
        assert found == pytest.approx({name: expected[name] for name in ("N@5", "PSN@5")})


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([-2.0, 0.0, 0.3, 3.0]), min_size=4, max_size=4))
def test_the_fitted_weights_are_hardly_worse_than_a_part_alone(seed, scales):
    shortlist, is_right = random_shortlist(seed, docs=12)
    shortlist = Shortlist(shortlist.rows, shortlist.labels, shortlist.parts * np.float32(scales), shortlist.count)
    truth = truth_of(shortlist, is_right)
    found = fitted(shortlist, truth)
    best = max(value_of(alone(part), shortlist, truth) for part in ALONE)
    assert value_of(found, shortlist, truth) >= best - SAME - 1e-9
    assert all(weight >= 0 for weight in found.weights().values())  # the served model relies on it


def test_parts_that_know_different_things_are_better_together():
    shortlist, is_right = random_shortlist(1, docs=100)
    truth = truth_of(shortlist, is_right)
    singles = [value_of(alone(part), shortlist, truth) for part in PARTS]
    assert value_of(fitted(shortlist, truth), shortlist, truth) > 1.05 * max(singles)


@pytest.mark.parametrize("part", ALONE)
def test_a_part_that_is_always_right_is_found(part):
    shortlist, is_right = random_shortlist(2)
    parts = 0.01 * shortlist.parts
    parts[:, PARTS.index(part)] = is_right
    shortlist = Shortlist(shortlist.rows, shortlist.labels, parts, shortlist.count)
    truth = truth_of(shortlist, is_right)
    best = value_of(alone(part), shortlist, truth)
    found = value_of(fitted(shortlist, truth), shortlist, truth)
    assert found >= best - SAME > value_of(alone(PARTS[3]), shortlist, truth)


def test_equal_fits_keep_the_classifier_alone():
    shortlist, is_right = random_shortlist(3)
    assert fitted(shortlist, truth_of(shortlist, np.zeros_like(is_right))) == Fusion()  # nothing is right


@pytest.mark.parametrize(("weight", "part"), [(7.0, "memory"), (3.0, "similarity"), (0.9, "propensity")])
def test_the_search_has_no_edge(weight, part):
    """A weight far beyond those that are drawn is found: the best ranking is that of the sum with this weight."""
    rng = np.random.default_rng(0)
    rows, labels = np.divmod(np.arange(200 * 20), 20)
    parts = rng.standard_normal((len(rows), 4)).astype(np.float32)
    ideal = Fusion(classifier=1.0, **{part: weight})
    best = rank(rows, labels, ideal.scores(parts), 200, 3)[0]
    shortlist = Shortlist(rows, labels, parts, 200)
    truth = truth_of(shortlist, (labels[:, None] == best[rows]).any(axis=1))
    found = fitted(shortlist, truth)
    ratio = getattr(found, part) / found.classifier if found.classifier else np.inf
    assert ratio > weight / 2
    assert value_of(found, shortlist, truth) > 0.93 * value_of(ideal, shortlist, truth)


def frequent_or_rare(seed: int) -> tuple[Shortlist, Truth]:
    """One part is best at N@5: it knows the frequent labels. Another is best at PSN@5: it knows the rare ones."""
    rng = np.random.default_rng(seed)
    docs, labels = 400, 40
    is_rare = np.arange(labels) >= 20
    rows, columns = np.divmod(np.arange(docs * labels), labels)
    is_right = rng.random(len(rows)) < np.where(is_rare[columns], 0.02, 0.12)
    parts = rng.standard_normal((len(rows), 4)).astype(np.float32)
    parts[:, 0] += 3.0 * is_right * ~is_rare[columns]
    parts[:, 1] += 3.0 * is_right * is_rare[columns]
    parts[:, 2] *= 0
    parts[:, 3] = is_rare[columns]
    shortlist = Shortlist(rows, columns, parts, docs)
    return shortlist, truth_of(shortlist, is_right, np.where(is_rare, 30.0, 1.0))


@pytest.mark.parametrize("seed", range(3))
def test_where_parts_disagree_the_tail_gains_only_what_precision_can_give(seed):
    shortlist, truth = frequent_or_rare(seed)
    n, psn = ({part: value_of(alone(part), shortlist, truth, name) for part in ALONE} for name in ("N@5", "PSN@5"))
    assert n["classifier"] > n["similarity"] + 1 and psn["similarity"] > psn["classifier"] + 1
    weighing = Weighing(shortlist, truth)
    plain, middle, most = (fit_weights(weighing, tail) for tail in (0.0, 0.5, 1.0))
    for fusion in (plain, middle, most):
        assert value_of(fusion, shortlist, truth) >= max(n.values()) - GIVEN - SAME / FORBIDDEN - 1e-9
    assert value_of(plain, shortlist, truth) >= value_of(most, shortlist, truth) - SAME
    gained = value_of(most, shortlist, truth, "PSN@5")
    assert gained > psn["classifier"] + 1 and gained >= value_of(plain, shortlist, truth, "PSN@5") - SAME
    # Without the bound the similarity alone, or nearly so, would be chosen at this end: it costs too much.
    assert value_of(alone("similarity"), shortlist, truth) < max(n.values()) - 1


def test_the_curve_of_the_tail_falls_in_n_and_rises_in_psn():
    shortlist, truth = frequent_or_rare(0)
    weighing = Weighing(shortlist, truth)
    rows = tail_curve(weighing, fit_weights(weighing, 0.3), truth)
    assert [row["tail"] for row in rows] == list(CURVE)
    n, psn = (np.array([row[name] for row in rows]) for name in ("N@5", "PSN@5"))
    assert n[0] > n[-1] + SAME and psn[-1] > psn[0] + SAME
    assert (np.diff(n) <= 3 * SAME).all() and (np.diff(psn) >= -3 * SAME).all()  # middles may differ by a little
    assert n.min() >= weighing.least - SAME / FORBIDDEN - 1e-9


def test_scaled_weights_rank_alike():
    shortlist, _ = random_shortlist(0)
    weights = np.array([0.3, 0.6, 0.1, 0.2, 0.7])
    assert scaled(weights) == pytest.approx((0.5, 1.0, 1 / 6, 1 / 3, 0.7))
    one, other = (Fusion.of(w).scores(shortlist.parts) for w in (scaled(weights), weights))
    np.testing.assert_allclose(0.6 * one, other, rtol=1e-9, atol=1e-9)
    assert scaled((0.0, 0.0, 0.0, 1.0, 0.5)) == (0.0, 0.0, 0.0, 1.0, 0.5)


def test_of_weights_that_are_as_good_the_middle_is_taken():
    """The first part alone decides; how much of the others is added makes no difference up to a bound."""
    rows, labels = np.divmod(np.arange(50 * 12), 12)
    rng = np.random.default_rng(0)
    is_right = rng.random(len(rows)) < 0.2
    parts = 0.5 * rng.random((len(rows), 4)).astype(np.float32)
    parts[:, 0] = is_right
    shortlist = Shortlist(rows, labels, parts, 50)
    truth = truth_of(shortlist, is_right)
    weighing = Weighing(shortlist, truth)
    found = fit_weights(weighing, 0.0)
    assert found == Fusion()  # nothing is better than the part alone
    most = weighing.figures(alone_weights("classifier"))["N@5"]
    weighing.tried[alone_weights("classifier")] = {"N@5": 0.0, "PSN@5": 0.0}
    found = weighing.best(0.0)
    assert weighing.figures([*found.weights().values()])["N@5"] == pytest.approx(most)
    assert found.classifier == 1 and 0.1 < found.similarity < 0.9 and 0.1 < found.memory < 0.9


def alone_weights(part: str) -> tuple[float, ...]:
    return tuple(alone(part).weights().values())
