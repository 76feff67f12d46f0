import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.rank.calibration import BINS, Cutoffs, fit_curve, reliability
from xcutils.rank.weights import Fusion

steady = settings(derandomize=True, deadline=None, max_examples=50)
PAIRS = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.booleans()), min_size=1, max_size=40)


def probabilities(scores: np.ndarray, is_right: np.ndarray, asked: np.ndarray | None = None) -> np.ndarray:
    fusion = Fusion(curve=fit_curve(scores, is_right))
    return fusion.probabilities(scores if asked is None else asked)


@pytest.mark.parametrize(("slope", "offset"), [(3.0, -1.0), (20.0, -14.0), (0.5, -4.0)])
def test_the_curve_is_the_share_that_is_right(slope, offset):
    rng = np.random.default_rng(0)
    scores = 0.5 + 0.3 * rng.standard_normal(60_000)
    true = 1 / (1 + np.exp(-(slope * scores + offset)))
    found = probabilities(scores, rng.random(len(scores)) < true)
    middle = np.abs(scores - 0.5) < 0.6
    assert np.abs(found - true)[middle].mean() < 0.015 and np.abs(found - true)[middle].max() < 0.08


def test_a_curve_that_is_not_logistic_is_followed_too():
    rng = np.random.default_rng(1)
    scores = rng.random(60_000)
    true = np.where(scores < 0.5, 0.02, 0.02 + 1.2 * (scores - 0.5))
    found = probabilities(scores, rng.random(len(scores)) < true)
    assert np.abs(found - true).mean() < 0.01


@pytest.mark.parametrize("kind", ["backwards", "separable", "none right", "all right", "one right", "all alike"])
def test_a_higher_score_is_never_less_probable(kind):
    scores = np.linspace(-1, 1, 2001) if kind != "all alike" else np.full(2001, 0.5)
    truth = {
        "backwards": scores < 0,
        "separable": scores > 0.3,
        "none right": np.zeros(2001, dtype=bool),
        "all right": np.ones(2001, dtype=bool),
        "one right": np.arange(2001) == 2000,
        "all alike": np.arange(2001) % 4 == 0,
    }[kind]
    found = probabilities(scores, truth)
    assert (np.diff(found) >= 0).all() and (found >= 0).all() and (found <= 1).all()
    assert found.mean() == pytest.approx(truth.mean(), abs=0.02)


def test_scores_beyond_those_of_validation_get_the_probability_of_the_nearest():
    scores, truth = np.linspace(0, 1, 1000), np.arange(1000) % 10 < np.arange(1000) // 100
    low, high, none = probabilities(scores, truth, np.array([-50.0, 50.0, -np.inf]))
    assert none == 0 and 0 <= low < 0.1 and 0.8 < high <= 1


def test_without_pairs_nothing_is_probable():
    assert probabilities(np.zeros(0), np.zeros(0, dtype=bool), np.array([0.3, -np.inf])).tolist() == [0, 0]


@steady
@given(PAIRS, st.integers(0, 5))
def test_cut_offs_are_counted(pairs, missed):
    """Every threshold's precision and recall, counted pair by pair."""
    said, right = (np.array(column) for column in zip(*pairs))
    positives = int(right.sum()) + missed
    found = Cutoffs.of(said, right, positives)
    assert found.thresholds == sorted(set(said.tolist()), reverse=True)
    for threshold, precision, recall in zip(found.thresholds, found.precision, found.recall):
        kept = [r for p, r in pairs if p >= threshold]
        assert precision == pytest.approx(sum(kept) / len(kept))
        assert recall == pytest.approx(sum(kept) / max(1, positives))


@steady
@given(PAIRS, st.floats(0.05, 1))
def test_the_cut_off_for_a_precision_is_the_lowest_that_keeps_it(pairs, wanted):
    said, right = (np.array(column) for column in zip(*pairs))
    found = Cutoffs.of(said, right, int(right.sum()))
    good = [t for t in set(said.tolist()) if np.mean([r for p, r in pairs if p >= t]) >= wanted]
    assert found.at(wanted) == (min(good) if good else None)


@steady
@given(PAIRS)
def test_the_cut_off_for_f1_is_the_best(pairs):
    said, right = (np.array(column) for column in zip(*pairs))
    found = Cutoffs.of(said, right, int(right.sum()))

    def f1(threshold: float) -> float:
        kept = [r for p, r in pairs if p >= threshold]
        return 2 * sum(kept) / (len(kept) + right.sum()) if right.any() else 0.0

    assert f1(found.thresholds[found.best()]) == pytest.approx(max(f1(t) for t in said.tolist()))


def test_of_many_cut_offs_some_are_kept_and_few_of_them_are_low():
    rng = np.random.default_rng(0)
    said = rng.random(50_000)
    found = Cutoffs.of(said, rng.random(50_000) < said, 30_000)
    assert 100 <= len(found.thresholds) <= 200 and found.thresholds == sorted(found.thresholds, reverse=True)
    assert found.at(0.9) == pytest.approx(0.8, abs=0.03)


def test_reliability_by_hand():
    said = np.repeat([0.1, 0.6], 50)
    right = np.array([True] * 10 + [False] * 40 + [True] * 30 + [False] * 20)
    rows, error = reliability(said, right)
    assert len(rows) == BINS and sum(row["pairs"] for row in rows) == 100
    assert np.mean([row["right"] for row in rows[:5]]) == pytest.approx(20)
    assert error == pytest.approx(np.mean([abs(100 * p - row["right"]) for p, row in zip([0.1] * 5 + [0.6] * 5, rows)]))


def test_probabilities_that_are_right_have_a_small_error():
    rng = np.random.default_rng(0)
    said = rng.random(20_000)
    assert reliability(said, rng.random(20_000) < said)[1] < 1.5
    assert reliability(said, rng.random(20_000) < said**3)[1] > 15
    assert reliability(np.zeros(0), np.zeros(0, dtype=bool)) == ([], 0.0)
