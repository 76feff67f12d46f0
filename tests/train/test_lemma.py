"""DEXA's Lemma 1 as a numerical test, in a corrected form; the printed form fails, see the two counter-examples.

Labels have gaps Delta_l between their best representation w_l = E* z_l + Delta_l and what the encoder E* makes of them.
The loss of encoder and auxiliary vectors is the mean of ((E z_l + a_c(l))' E x_i - w_l' E* x_i)^2 over docs and labels.
The lemma bounds its gradient at E*: without auxiliary vectors by the size of the gaps, with them by the gaps' spread
within clusters alone. So what the gaps of a cluster have in common no longer pulls the encoder away from E*.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

CASES = range(200)


@dataclass
class Case:
    """docs (N, P), labels (L, P) of length at most one; encoder (D, P); gaps (L, D); clusters (L,)."""

    docs: np.ndarray
    labels: np.ndarray
    encoder: np.ndarray
    gaps: np.ndarray
    clusters: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """(N, L): what the best representations score."""
        return self.docs @ self.encoder.T @ (self.labels @ self.encoder.T + self.gaps).T

    @property
    def means(self) -> np.ndarray:
        """(K, D): the mean gap of each cluster."""
        return np.stack([self.gaps[self.clusters == c].mean(axis=0) for c in range(self.clusters.max() + 1)])

    def bound(self, deviations: np.ndarray, constant: float = 4) -> float:
        """constant * s^2 * root mean square of the deviations (L, D), s the encoder's spectral norm."""
        return constant * np.linalg.norm(self.encoder, 2) ** 2 * math.sqrt((deviations**2).sum() / len(self.labels))


def at_most_unit(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * rng.uniform(0.2, 1, (len(rows), 1))


def make_case(seed: int, spread: float | None = None) -> Case:
    """A random case; `spread` scales what the gaps of one cluster do not have in common."""
    rng = np.random.default_rng(seed)
    n, n_labels, p, d = rng.integers(1, 12, 4)
    clusters = np.unique(rng.integers(0, rng.integers(1, n_labels + 1), n_labels), return_inverse=True)[1]
    common, own = rng.standard_normal((clusters.max() + 1, d)), rng.standard_normal((n_labels, d))
    gaps = common[clusters] + own * (10 ** rng.uniform(-3, 1) if spread is None else spread)
    docs, labels = (at_most_unit(rng.standard_normal((rows, p)), rng) for rows in (n, n_labels))
    encoder = rng.standard_normal((d, p)) * 10 ** rng.uniform(-1, 1)
    size = np.linalg.norm(labels @ encoder.T + gaps, axis=1).max()  # the best representations have length at most one
    return Case(docs, labels, encoder / size, gaps / size, clusters)


def loss(case: Case, encoder: np.ndarray, aux: np.ndarray) -> float:
    total = 0.0
    for i, x in enumerate(case.docs):
        for label, z in enumerate(case.labels):
            total += ((encoder @ z + aux[case.clusters[label]]) @ (encoder @ x) - case.targets[i, label]) ** 2
    return total / case.targets.size


def gradient(case: Case, aux: np.ndarray) -> np.ndarray:
    """(D, P): of the loss by the encoder, at the case's encoder, for given auxiliary vectors (K, D)."""
    encoder = case.encoder
    represented = case.labels @ encoder.T + aux[case.clusters]  # (L, D)
    encoded = case.docs @ encoder.T  # (N, D)
    residuals = encoded @ represented.T - case.targets  # (N, L)
    pulls = represented.T @ residuals.T @ case.docs + encoded.T @ residuals @ case.labels
    return 2 * pulls / residuals.size


def norms(case: Case) -> tuple[float, float]:
    """Of the gradient without auxiliary vectors, and with the clusters' mean gaps."""
    return tuple(float(np.linalg.norm(gradient(case, aux))) for aux in (np.zeros_like(case.means), case.means))


@pytest.mark.parametrize("seed", range(10))
def test_the_gradient_is_right(seed):
    case = make_case(seed)
    aux = np.random.default_rng(seed).standard_normal(case.means.shape)
    found = gradient(case, aux)

    by_differences, step = np.zeros_like(found), 1e-5
    for place in np.ndindex(found.shape):
        move = np.zeros_like(found)
        move[place] = step
        ends = loss(case, case.encoder + move, aux), loss(case, case.encoder - move, aux)
        by_differences[place] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(found, by_differences, rtol=1e-5, atol=1e-6)

    encoder = torch.tensor(case.encoder, requires_grad=True)
    docs, labels, targets = map(torch.from_numpy, (case.docs, case.labels, case.targets))
    represented = labels @ encoder.T + torch.from_numpy(aux[case.clusters])
    ((docs @ encoder.T @ represented.T - targets) ** 2).mean().backward()
    np.testing.assert_allclose(found, encoder.grad, rtol=1e-9, atol=1e-12)


def test_without_auxiliary_vectors_the_gaps_bound_the_gradient():
    for seed in CASES:
        case = make_case(seed)
        assert norms(case)[0] <= case.bound(case.gaps) * (1 + 1e-9)


def test_with_auxiliary_vectors_the_spread_within_clusters_bounds_the_gradient():
    for seed in CASES:
        case = make_case(seed)
        assert norms(case)[1] <= case.bound(case.gaps - case.means[case.clusters]) * (1 + 1e-9) + 1e-12


def test_gaps_that_clusters_share_vanish_from_gradient_and_loss():
    for seed in CASES:
        case = make_case(seed, spread=0.0)
        without, with_aux = norms(case)
        assert with_aux <= 1e-12 and loss(case, case.encoder, case.means) <= 1e-24
        assert without > 1e-6 * case.bound(case.gaps) > 0


def test_the_gain_grows_as_clusters_get_tighter():
    for seed in CASES:
        cases = [make_case(seed, spread) for spread in (1e-1, 1e-2, 1e-3, 1e-4)]
        if len(cases[0].gaps) == len(cases[0].means):
            continue  # every label has a vector of its own: nothing is left to shrink
        ratios = [with_aux / without for without, with_aux in map(norms, cases)]
        assert all(later < 0.5 * earlier for earlier, later in zip(ratios, ratios[1:]))
        assert ratios[-1] < 0.05


def test_counter_example_to_the_printed_sign():
    """The lemma takes minus the mean gap: then the gradient is not bounded by the spread within clusters at all."""
    worst = {-1: 0.0, 1: 0.0}
    for seed in CASES:
        case = make_case(seed, spread=1e-4)
        allowed = case.bound(case.gaps - case.means[case.clusters], constant=1)
        if len(case.gaps) > len(case.means):
            for sign in worst:
                ratio = float(np.linalg.norm(gradient(case, sign * case.means))) / allowed
                worst[sign] = max(worst[sign], ratio)
    assert worst[-1] > 1000 and worst[1] <= 4


def test_counter_example_to_the_printed_constant():
    """The lemma bounds the gradient without auxiliary vectors by 2 s^2 rms; here it is 4 s^2 rms."""
    unit = np.array([[1.0, 0.0]])
    case = Case(docs=unit, labels=unit, encoder=0.5 * np.eye(1, 2), gaps=np.array([[0.5]]), clusters=np.array([0]))
    assert np.linalg.norm(case.labels @ case.encoder.T + case.gaps) == 1
    assert norms(case)[0] == pytest.approx(0.5)
    assert case.bound(case.gaps, constant=2) == pytest.approx(0.25)
    assert case.bound(case.gaps, constant=4) == pytest.approx(0.5)
