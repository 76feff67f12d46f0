import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xcutils.rank.fusion import (
    Shortlist,
    _Padded,
    calibrate,
    entries,
    fit_weights,
    memory_scores,
    pair_scores,
    rank,
    top_of,
    union,
)
from xcutils.rank.weights import PARTS, Fusion

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


def judge_of(shortlist: Shortlist, truth: np.ndarray):
    """Right labels among the five, the first places counting more."""
    right = set(zip(shortlist.rows[truth].tolist(), shortlist.labels[truth].tolist()))

    def judge(ranking: np.ndarray) -> float:
        assert ranking.shape == (shortlist.count, 5)
        hits = [[(row, label) in right for label in labels] for row, labels in enumerate(ranking.tolist())]
        return float((np.array(hits) / np.log2(np.arange(2, 7))).sum())

    return judge


def value_of(fusion: Fusion, shortlist: Shortlist, judge) -> float:
    return judge(rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist.parts), shortlist.count, 5)[0])


def alone(part: str) -> Fusion:
    return Fusion(**{**dict.fromkeys(PARTS, 0.0), part: 1.0})


@settings(derandomize=True, deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([-2.0, 0.0, 0.3, 3.0]), min_size=4, max_size=4))
def test_the_fitted_weights_are_never_worse_than_a_part_alone(seed, scales):
    shortlist, truth = random_shortlist(seed, docs=12)
    shortlist = Shortlist(shortlist.rows, shortlist.labels, shortlist.parts * np.float32(scales), shortlist.count)
    judge = judge_of(shortlist, truth)
    fitted = value_of(fit_weights(shortlist, judge), shortlist, judge)
    assert fitted >= max(value_of(alone(part), shortlist, judge) for part in ("classifier", "similarity", "memory"))


def test_parts_that_know_different_things_are_better_together():
    shortlist, truth = random_shortlist(1, docs=100)
    judge = judge_of(shortlist, truth)
    fitted = fit_weights(shortlist, judge)
    singles = [value_of(alone(part), shortlist, judge) for part in PARTS]
    assert value_of(fitted, shortlist, judge) > 1.05 * max(singles)


@pytest.mark.parametrize("part", ["classifier", "similarity", "memory"])
def test_a_part_that_is_always_right_is_found(part):
    shortlist, truth = random_shortlist(2)
    parts = 0.01 * shortlist.parts
    parts[:, PARTS.index(part)] = truth
    shortlist = Shortlist(shortlist.rows, shortlist.labels, parts, shortlist.count)
    judge = judge_of(shortlist, truth)
    best = value_of(alone(part), shortlist, judge)
    assert (
        value_of(fit_weights(shortlist, judge), shortlist, judge) >= best > value_of(alone(PARTS[3]), shortlist, judge)
    )


def test_equal_fits_keep_the_classifier_alone():
    shortlist, _ = random_shortlist(3)
    assert fit_weights(shortlist, lambda ranking: 1.0) == Fusion()


# --- calibration ------------------------------------------------------------------------------------------------------


def one_part(scores: np.ndarray) -> Shortlist:
    parts = np.zeros((len(scores), 4), dtype=np.float32)
    parts[:, 0] = scores
    return Shortlist(np.zeros(len(scores), dtype=np.int64), np.arange(len(scores)), parts, 1)


@pytest.mark.parametrize(("slope", "offset", "centre"), [(3.0, -1.0, 0.0), (20.0, -14.0, 0.5), (0.5, -4.0, 2.0)])
def test_calibration_recovers_a_known_curve(slope, offset, centre):
    rng = np.random.default_rng(0)
    shortlist = one_part(centre + rng.standard_normal(40_000) * 0.3)
    scores = Fusion().scores(shortlist.parts)
    truth = rng.random(len(scores)) < 1 / (1 + np.exp(-(slope * scores + offset)))
    fitted = calibrate(Fusion(), shortlist, truth)
    assert fitted.slope == pytest.approx(slope, rel=0.1, abs=0.25)
    assert fitted.offset == pytest.approx(offset, rel=0.1, abs=0.25)
    # At the optimum the residuals neither add up to anything nor lean on the score.
    residuals = truth - fitted.probabilities(scores)
    assert abs(residuals.sum()) < 1e-4 and abs((residuals * scores).sum()) < 1e-4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("draw", ["beta", "lognormal", "standard_t"])
def test_calibration_is_best_for_skewed_scores_too(seed, draw):
    rng = np.random.default_rng(seed)
    shape = {"beta": (0.3, 3), "lognormal": (0, 2), "standard_t": (2,)}[draw]
    shortlist = one_part(getattr(rng, draw)(*shape, 3000))
    scores = Fusion().scores(shortlist.parts)
    truth = rng.random(3000) < 1 / (1 + np.exp(3 - (scores - scores.mean()) / scores.std()))
    fitted = calibrate(Fusion(), shortlist, truth)
    residuals = truth - fitted.probabilities(scores)
    assert abs(residuals.sum()) < 1e-3 and abs((residuals * scores).sum()) < 1e-3 * scores.std()


def test_calibration_changes_no_weight_and_no_order():
    shortlist, truth = random_shortlist(4)
    fusion = Fusion(classifier=1.0, similarity=0.5, memory=0.2, propensity=0.01)
    fitted = calibrate(fusion, shortlist, truth)
    assert all(getattr(fitted, part) == getattr(fusion, part) for part in PARTS)
    probabilities = fitted.probabilities(fitted.scores(shortlist.parts))
    assert (np.diff(probabilities[np.argsort(fusion.scores(shortlist.parts))]) >= 0).all()
    assert probabilities.mean() == pytest.approx(truth.mean(), abs=1e-6)


@pytest.mark.parametrize("kind", ["backwards", "separable", "none right", "all right", "one right", "all alike"])
def test_a_higher_score_is_never_less_probable(kind):
    scores = np.linspace(-1, 1, 201) if kind != "all alike" else np.full(201, 0.5)
    truth = {
        "backwards": scores < 0,
        "separable": scores > 0.3,
        "none right": np.zeros(201, dtype=bool),
        "all right": np.ones(201, dtype=bool),
        "one right": np.arange(201) == 200,
        "all alike": np.arange(201) % 4 == 0,
    }[kind]
    fitted = calibrate(Fusion(), one_part(scores), truth)
    probabilities = fitted.probabilities(Fusion().scores(one_part(scores).parts))
    assert fitted.slope > 0 and np.isfinite([fitted.slope, fitted.offset]).all()
    assert (np.diff(probabilities) >= 0).all() and (probabilities >= 0).all() and (probabilities <= 1).all()
    assert probabilities.mean() == pytest.approx(truth.mean(), abs=0.01)
