"""One score from four parts: classifier, similarity, memory and propensity, weighted on validation documents.

A shortlist is the union of what the searches found; every part is computed exactly for every pair in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import sparse
from scipy.special import expit

from xcutils.rank.weights import Fusion

# Weights that are tried with 1 for the classifier: every second one in all combinations, then those between.
GRID = {
    "similarity": (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8),
    "memory": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    "propensity": (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04),
}


@dataclass(frozen=True)
class Shortlist:
    """Pairs of documents and labels, sorted by document, with the score of each part.

    rows    (M,) int64     document of each pair
    labels  (M,) int64     label of each pair
    parts   (M, 4) float32 in the order of PARTS; propensity is ln of the inverse propensity
    count   documents, those without a pair included
    """

    rows: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    count: int


def union(rankings: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, labels) of the different pairs in the rankings (Q, k), sorted by row, then label; -1 pads are left out."""
    stacked = np.concatenate(rankings, axis=1)
    rows = np.repeat(np.arange(len(stacked)), stacked.shape[1])
    labels = stacked.ravel()
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    span = int(labels.max(initial=0)) + 1
    keys = np.unique(rows * span + labels)
    return keys // span, keys % span


def pair_scores(
    queries: np.ndarray, vectors: np.ndarray, rows: np.ndarray, labels: np.ndarray, chunk: int = 1 << 16
) -> np.ndarray:
    """(M,) float32: the dot product of query and vector of each pair."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), chunk):
        some = slice(start, start + chunk)
        np.einsum("md,md->m", queries[rows[some]], vectors[labels[some]], out=out[some])
    return out


def memory_scores(
    ids: np.ndarray, scores: np.ndarray, positives: sparse.csr_matrix, *, tau: float
) -> sparse.csr_matrix:
    """(Q, L) sparse: labels of the nearest training documents, weighted by softmax(similarity / tau) [RAE-XMC].

    ids, scores  (Q, n) nearest documents, padded with -1
    positives    (N, L) their labels
    """
    is_doc = ids >= 0
    best = np.where(is_doc, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(np.where(is_doc, (scores - np.where(np.isfinite(best), best, 0)) / tau, -np.inf))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    rows = np.repeat(np.arange(len(ids)), ids.shape[1])[is_doc.ravel()]
    matrix = sparse.csr_matrix((weights[is_doc], (rows, ids[is_doc])), (len(ids), positives.shape[0]))
    return (matrix @ positives).tocsr().astype(np.float32)


def top_of(matrix: sparse.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids (Q, k), scores (Q, k)): the largest entries of each sparse row, best first, padded with -1 and -inf."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rank(rows, matrix.indices.astype(np.int64), matrix.data, matrix.shape[0], k)


def entries(matrix: sparse.csr_matrix, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(M,) float32: the matrix's entries at these pairs, 0 where it has none."""
    matrix = matrix.sorted_indices()
    width = np.int64(matrix.shape[1])
    keys = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * width + matrix.indices
    wanted = rows * width + labels
    place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
    found = keys[place] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
    return np.where(found, matrix.data[place] if len(keys) else 0, 0).astype(np.float32)


def rank(rows: np.ndarray, labels: np.ndarray, scores: np.ndarray, count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids (count, k), scores (count, k)): each row's best pairs, ties by label, padded with -1 and -inf."""
    order = np.lexsort((labels, -scores, rows))
    rows, labels, scores = rows[order], labels[order], scores[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, np.arange(count))[rows]
    kept = place < k
    ids = np.full((count, k), -1, dtype=np.int64)
    values = np.full((count, k), -np.inf)
    ids[rows[kept], place[kept]] = labels[kept]
    values[rows[kept], place[kept]] = scores[kept]
    return ids, values


def fit_weights(shortlist: Shortlist, judge: Callable[[np.ndarray], float]) -> Fusion:
    """The weights of the best ranking that a coarse grid, and then a finer search along each weight, find.

    Classifier, similarity and memory alone are tried too: the fusion is never worse than the best of them.
    judge  ranking (Q, 5) -> how good it is, on documents no part was trained on
    """
    table = _Padded(shortlist)
    judged: dict[Fusion, float] = {}

    def score(fusion: Fusion) -> float:
        if fusion not in judged:
            judged[fusion] = judge(table.top(fusion.scores(shortlist.parts), 5))
        return judged[fusion]

    coarse = product(*(grid[::2] for grid in GRID.values()))
    best = max((Fusion(**dict(zip(GRID, weights))) for weights in coarse), key=score)
    for part, grid in GRID.items():
        best = max([best, *(replace(best, **{part: weight}) for weight in grid)], key=score)
    return max([best, Fusion(classifier=0.0, similarity=1.0), Fusion(classifier=0.0, memory=1.0)], key=score)


class _Padded:
    """A shortlist laid out as a matrix, so that each of many weightings is ranked by one partial sort."""

    def __init__(self, shortlist: Shortlist):
        first = np.searchsorted(shortlist.rows, np.arange(shortlist.count))
        self.place = shortlist.rows, np.arange(len(shortlist.rows)) - first[shortlist.rows]
        width = max(5, int(self.place[1].max(initial=-1)) + 1)
        self.labels = np.full((shortlist.count, width), -1, dtype=np.int64)
        self.labels[self.place] = shortlist.labels

    def top(self, scores: np.ndarray, k: int) -> np.ndarray:
        """(Q, k) labels of the highest scores (M,), best first, ties by label."""
        lowest = np.full(self.labels.shape, np.inf)
        lowest[self.place] = -scores
        bound = np.partition(lowest, k - 1, axis=1)[:, k - 1, None]
        better, tied = lowest < bound, lowest == bound  # labels ascend in a row: of the tied ones the first are kept
        kept = better | (tied & (np.cumsum(tied, axis=1) <= k - better.sum(axis=1, keepdims=True)))
        columns = np.nonzero(kept)[1].reshape(-1, k)
        order = np.argsort(np.take_along_axis(lowest, columns, axis=1), axis=1, kind="stable")
        return np.take_along_axis(self.labels, np.take_along_axis(columns, order, axis=1), axis=1)


def calibrate(fusion: Fusion, shortlist: Shortlist, truth: np.ndarray) -> Fusion:
    """The fusion with a logistic curve fitted to the pairs' truth (Platt), which turns a score into a probability.

    truth  (M,) bool  whether the pair is a positive
    """
    scores = fusion.scores(shortlist.parts)
    slope, offset = 1.0, 0.0
    centre, spread = scores.mean(), scores.std() + 1e-12
    x = (scores - centre) / spread

    def loss(slope: float, offset: float) -> float:
        z = slope * x + offset
        return float((np.logaddexp(0, z) - truth * z).sum())

    for _ in range(50):  # Newton's method on two parameters
        p = expit(slope * x + offset)
        w = np.maximum(p * (1 - p), 1e-9)
        gradient = np.array([((truth - p) * x).sum(), (truth - p).sum()])
        hessian = np.array([[(w * x * x).sum(), (w * x).sum()], [(w * x).sum(), w.sum()]]) + 1e-6 * np.eye(2)
        change = np.linalg.solve(hessian, gradient)
        while np.abs(change).max() >= 1e-10 and loss(slope + change[0], offset + change[1]) > loss(slope, offset):
            change /= 2  # where scores are skewed, full steps may overshoot further and further
        slope, offset = slope + change[0], offset + change[1]
        if np.abs(change).max() < 1e-10:
            break
    if slope < 1e-3:  # a higher score must not be less probable: all pairs get about the same probability
        share = np.clip(truth.mean(), 1e-9, 1 - 1e-9)
        slope, offset = 1e-3, np.log(share / (1 - share))
    return Fusion(**{**fusion.as_dict(), "slope": slope / spread, "offset": offset - slope * centre / spread})
