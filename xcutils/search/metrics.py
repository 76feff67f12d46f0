"""Metrics of ranked labels, all in percent: P, N (nDCG), PSP, PSN, R (recall) and C (coverage) at k.

A ranking is (N, k) int, label ids best first, each at most once in a row, -1 where a doc has fewer than k predictions.
Positives are a scipy CSR (N, L): any stored value but 0 is a positive. Nothing here changes its inputs, and nothing is
larger than the ranking or the positives: a metric is a sum over hits (a ranked label that is a positive of its doc).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse

LOOKED_UP = 1 << 20  # ranked labels looked up at once


class _Placed(NamedTuple):
    """Positives in a ranking: parallel arrays, one item per (doc, label), places counted from 0."""

    docs: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def of(self, is_kept: np.ndarray) -> "_Placed":
        """The items whose label is kept, at the places they had. is_kept (L,) bool."""
        keep = is_kept[self.labels]
        return _Placed(*(items[keep] for items in self))


class Truth:
    """The positives of some docs and the weight of each hit, prepared once for all rankings of these docs.

    positives       (N, L) CSR
    inv_propensity  (L,)   float  weight of a hit in PSP and PSN; None: all 1
    """

    def __init__(self, positives: sparse.csr_matrix, inv_propensity: np.ndarray | None = None):
        self.positives = _binary(positives)
        n_labels = self.positives.shape[1]
        self.weights = np.ones(n_labels) if inv_propensity is None else np.asarray(inv_propensity, dtype=np.float64)
        if self.weights.shape != (n_labels,):
            raise ValueError(f"inv_propensity must have one item for each of {n_labels} labels")

    @cached_property
    def best(self) -> _Placed:
        """The ranking that is best for PSP and PSN."""
        return _best_order(self.positives, self.weights)

    def hits(self, ranking: np.ndarray) -> np.ndarray:
        """(N, k) bool: is the ranked label a positive of its doc? A -1 never is."""
        ranking = np.asarray(ranking)
        truth = self.positives
        n_docs, n_labels = truth.shape
        if ranking.ndim != 2 or len(ranking) != n_docs:
            raise ValueError(f"ranking {ranking.shape} does not fit positives {truth.shape}")
        if ranking.size and (ranking.min() < -1 or ranking.max() >= n_labels):
            raise ValueError(f"ranking holds ids outside -1..{n_labels - 1}")
        is_hit = np.zeros(ranking.shape, dtype=bool)
        step = max(1, LOOKED_UP // max(1, ranking.shape[1]))
        for start in range(0, n_docs, step):
            part = ranking[start : start + step].astype(np.int64)
            indptr = truth.indptr[start : start + len(part) + 1]
            offsets = np.arange(len(part), dtype=np.int64) * n_labels  # a key is doc * L + label, in 64 bits
            known = np.repeat(offsets, np.diff(indptr)) + truth.indices[indptr[0] : indptr[-1]]
            known = np.append(known, np.iinfo(np.int64).max)  # so that searchsorted never points past the end
            keys = part + offsets[:, None]
            # Without the mask a -1 would be the key of the previous doc's last label.
            is_hit[start : start + step] = (known[np.searchsorted(known, keys)] == keys) & (part >= 0)
        return is_hit


def hits(ranking: np.ndarray, positives: sparse.csr_matrix) -> np.ndarray:
    """(N, k) bool: is the ranked label a positive of its doc? A -1 never is.

    ranking    (N, k) int  label ids, -1 for none
    positives  (N, L) CSR
    """
    return Truth(positives).hits(ranking)


def pair_matrix(pairs: np.ndarray, shape: tuple[int, int]) -> sparse.csr_matrix:
    """The binary matrix with ones at the pairs (F, 2) of doc and label."""
    pairs = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return sparse.csr_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape)


def most_per_row(excluded: sparse.csr_matrix) -> int:
    """The largest number of excluded pairs of one doc."""
    return int(np.diff(excluded.indptr).max(initial=0))


def without(ranking: np.ndarray, excluded: sparse.csr_matrix) -> np.ndarray:
    """The ranking (N, k) with the excluded pairs (N, L) taken out, the rest moved up, -1 at the end."""
    if excluded.nnz == 0:
        return ranking
    out = (ranking < 0) | hits(ranking, excluded)
    order = np.argsort(out, axis=1, kind="stable")
    return np.where(np.take_along_axis(out, order, axis=1), -1, np.take_along_axis(ranking, order, axis=1))


def goal(figures: dict[str, float], tail: float) -> float:
    """The figure by which epochs and weights are chosen: N@5, mixed with the share `tail` of PSN@5."""
    return (1 - tail) * figures["N@5"] + tail * figures["PSN@5"]


class Judged:
    """A ranking and the truth: its hits are found once for all metrics.

    ranking  (N, k) int  label ids, -1 for none; places beyond its last column count as -1
    """

    def __init__(self, ranking: np.ndarray, truth: Truth):
        self.ranking = np.asarray(ranking)
        self.truth = truth
        self.is_hit = truth.hits(self.ranking)

    def figures(self, *, ks: Sequence[int] = (1, 3, 5), recall_ks: Sequence[int] = (10, 100)) -> dict[str, float]:
        """{"P@1": percent, ...}: P, N, PSP, PSN at ks, R at recall_ks, C at ks, in this order.

        Docs without positives count as misses; only R leaves them out.
        """
        one_bin = np.zeros(len(self.truth.weights), dtype=np.int64)
        return self.figures_by_bin(one_bin, 1, ks=ks, recall_ks=recall_ks)[0]

    def figures_by_bin(
        self,
        label_bin: np.ndarray,
        n_bins: int,
        *,
        ks: Sequence[int] = (1, 3, 5),
        recall_ks: Sequence[int] = (10, 100),
    ) -> list[dict[str, float]]:
        """What `figures` gives for each bin of labels, counting only the bin's labels as positives.

        The ranking stays whole, so the bins' P@k add up to the P@k of all labels. R is over docs with a positive in the
        bin, C over the bin's labels. A bin without labels or positives gives zeros.

        label_bin  (L,) int  bin of each label, 0..n_bins-1
        """
        label_bin = np.asarray(label_bin)
        n_docs, n_labels = self.truth.positives.shape
        if label_bin.shape != (n_labels,):
            raise ValueError(f"label_bin must have one item for each of {n_labels} labels")
        if n_labels and not (0 <= label_bin.min() and label_bin.max() < n_bins):
            raise ValueError(f"label_bin holds bins outside 0..{n_bins - 1}")
        docs, places = np.nonzero(self.is_hit)
        labels = self.ranking[docs, places]
        placed = _Placed(docs, places, labels, self.truth.weights[labels])
        reports = []
        for bin_ in range(n_bins):
            in_bin = label_bin == bin_
            best_of_bin = _close_up(self.truth.best.of(in_bin), n_docs)
            reports.append(_report(placed.of(in_bin), best_of_bin, n_docs, int(in_bin.sum()), ks, recall_ks))
        return reports

    def per_label(self, k: int = 5) -> dict[str, np.ndarray]:
        """Three (L,) int arrays: true_positives and predicted count in each doc's top k, relevant counts positives."""
        top = self.ranking[:, :k]
        is_hit = self.is_hit[:, :k]
        truth = self.truth.positives
        counted = {"true_positives": top[is_hit], "predicted": top[top >= 0], "relevant": truth.indices}
        return {name: np.bincount(labels, minlength=truth.shape[1]) for name, labels in counted.items()}


def evaluate(ranking: np.ndarray, positives: sparse.csr_matrix, inv_propensity: np.ndarray, **ks) -> dict[str, float]:
    """What Judged.figures gives for one ranking.

    ranking         (N, k) int
    positives       (N, L) CSR
    inv_propensity  (L,)   float
    """
    return Judged(ranking, Truth(positives, inv_propensity)).figures(**ks)


def frequency_bins(frequency: np.ndarray, n_bins: int) -> np.ndarray:
    """(L,) int: bin of each label, 0 = head, cut so that each bin holds about the same number of train positives.

    Labels are in order of descending frequency, ties by id; a label belongs to the bin into which its first positive
    falls. A label larger than a bin's share may leave the next bin empty; labels without a training document are in the
    last bin.

    frequency  (L,) int  train docs that have the label
    """
    frequency = np.asarray(frequency).astype(np.int64)
    if n_bins < 1:
        raise ValueError("n_bins must be at least 1")
    order = np.argsort(-frequency, kind="stable")
    before = np.cumsum(frequency[order]) - frequency[order]  # positives of all labels ahead in the order
    total = int(frequency.sum())
    bins = np.empty(len(frequency), dtype=np.int64)
    bins[order] = np.minimum(before * n_bins // total, n_bins - 1) if total else n_bins - 1
    return bins


def _binary(positives: sparse.csr_matrix) -> sparse.csr_matrix:
    """A new CSR with every positive once, labels ascending within a doc, all values True."""
    positives = sparse.csr_matrix(positives)
    keep = positives.data != 0
    indptr = np.concatenate(([0], np.cumsum(keep)))[positives.indptr]
    indices = positives.indices[keep]
    truth = sparse.csr_matrix((np.ones(len(indices), dtype=bool), indices, indptr), shape=positives.shape)
    truth.sum_duplicates()
    return truth


def _best_order(truth: sparse.csr_matrix, weights: np.ndarray) -> _Placed:
    """The ranking that is best for PSP and PSN: each doc's positives by descending weight."""
    docs = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
    labels = truth.indices[np.lexsort((-weights[truth.indices], docs))]  # docs ascend already: only labels move
    return _Placed(docs, np.arange(len(docs)) - truth.indptr[docs], labels, weights[labels])


def _close_up(placed: _Placed, n_docs: int) -> _Placed:
    """The same items, in the same order, at places 0, 1, ... of each doc: no gaps where labels were left out."""
    counts = np.bincount(placed.docs, minlength=n_docs)
    return placed._replace(places=np.arange(len(placed.docs)) - (np.cumsum(counts) - counts)[placed.docs])


def _discounts(placed: _Placed, positives_per_doc: np.ndarray, k: int) -> np.ndarray:
    """Share of each item in its doc's nDCG@k: 1/log2(rank + 1) over the most the doc can reach, 0 below rank k.

    Only docs with items are looked up; these have positives, so that nothing is divided by 0.
    """
    reachable = np.concatenate(([0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))))
    most = reachable[np.minimum(positives_per_doc[placed.docs], k)]
    return (placed.places < k) / np.log2(placed.places + 2) / most


def _report(
    found: _Placed, best: _Placed, n_docs: int, n_labels: int, ks: Sequence[int], recall_ks: Sequence[int]
) -> dict[str, float]:
    """All metrics from the hits of a ranking (found) and all positives in the best order (best)."""
    per_doc = np.bincount(best.docs, minlength=n_docs)
    metrics: dict[str, dict[int, float]] = {name: {} for name in ("P", "N", "PSP", "PSN", "R", "C")}
    for k in ks:
        top, best_top = found.places < k, best.places < k
        discounts, best_discounts = _discounts(found, per_doc, k), _discounts(best, per_doc, k)
        metrics["P"][k] = _percent(top.sum(), n_docs * k)
        metrics["N"][k] = _percent(discounts.sum(), n_docs)
        # Ratios of means, not means of ratios: the k or N under both means cancels.
        metrics["PSP"][k] = _percent(found.weights[top].sum(), best.weights[best_top].sum())
        metrics["PSN"][k] = _percent((found.weights * discounts).sum(), (best.weights * best_discounts).sum())
        metrics["C"][k] = _percent(np.count_nonzero(np.bincount(found.labels[top])), n_labels)
    for k in recall_ks:
        docs = found.docs[found.places < k]
        metrics["R"][k] = _percent((1 / per_doc[docs]).sum(), np.count_nonzero(per_doc))
    return {f"{name}@{k}": value for name, values in metrics.items() for k, value in values.items()}


def _percent(part: float, whole: float) -> float:
    """100 part / whole, and 0 where there is nothing to reach."""
    return 100 * float(part) / float(whole) if whole else 0.0
