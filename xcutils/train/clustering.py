"""Clusters of vectors by cosine: balanced hierarchical 2-means [NGAME, DEXA], plain spherical k-means [DEXA Table 7].

`balanced_clusters` never holds a copy of its input, so a memory map larger than the rest of the process is fine:
- a node of more than SUBTREE points is cut along a direction that was fitted on SUBTREE of its points; the scan that
  scores all points of a level reads the vectors in storage order;
- a smaller node is gathered once and clustered to the end, all nodes of a level in one batched matrix product.
Each node draws from a hash of (seed, its clusters) and is worked on by one thread: neither the number of threads nor
the order in which they finish changes a cluster.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from xcutils.core.costs import FLOAT, INT, LONG, Host, Part
from xcutils.core.errors import UserError

SUBTREE = 8192  # points clustered in one go: few enough to stay in cache, enough to fit a direction on
GRAM = 128  # nodes up to this size iterate on their Gram matrix, which makes more starts nearly free
STARTS = 8  # random starts of a node that has a Gram matrix, of which the best is kept; a larger node has one start
SCANNED = 4096  # rows per step of a scan over all vectors
SCORES = 1 << 24  # scores held at a time by k-means: 64 MB


Counts = TypeVar("Counts", int, np.ndarray)


class _Search(NamedTuple):
    """What every 2-means of one run shares."""

    seed: int
    tolerance: float
    max_iterations: int


@dataclass(frozen=True)
class _Node:
    """A node of the tree: points `ids`, ascending, to become clusters first .. first + count - 1."""

    ids: np.ndarray
    first: int
    count: int


class _Level(NamedTuple):
    """All nodes of one depth of a small subtree.

    order   (n,) int  points, node after node
    sizes   (b,) int  points of each node
    firsts  (b,) int  first cluster of each node
    counts  (b,) int  clusters of each node
    """

    order: np.ndarray
    sizes: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray


def balanced_clusters(
    vectors: np.ndarray, k: int, *, seed: int, tolerance: float = 1e-4, max_iterations: int = 50
) -> np.ndarray:
    """Return exactly k clusters whose sizes differ by at most one, by hierarchical spherical 2-means [NGAME].

    vectors         (n, D) float32  read only, of any length (the cosine counts); 1 <= k <= n
    tolerance       ()     float    a 2-means stops when the mean cosine of points to their centroid grows by less
    max_iterations  ()     int      ... or after so many iterations
    returns         (n,)   int32    cluster of each vector; neighbouring numbers are neighbours in the tree

    Differs from the published code: any k, not the next power of two; nodes of more than SUBTREE points are fitted on a
    sample; a node of up to GRAM points takes the best of STARTS starts.
    """
    _check(vectors, k, max_iterations)
    search = _Search(seed, tolerance, max_iterations)
    clusters = np.empty(len(vectors), dtype=np.int32)
    scales = _inverse_norms(vectors)

    def finish(node: _Node) -> None:
        if node.count == 1:
            clusters[node.ids] = node.first
        else:
            clusters[node.ids] = _finish(_unit_rows(vectors, scales, node.ids), node, search)

    nodes = [_Node(np.arange(len(vectors)), 0, k)]
    with _workers() as workers:
        while any(_is_large(node) for node in nodes):
            nodes = _split_large(vectors, scales, nodes, search, workers)
        list(workers.map(finish, nodes))
    return clusters


def kmeans_clusters(
    vectors: np.ndarray, k: int, *, seed: int, tolerance: float = 1e-4, max_iterations: int = 50
) -> np.ndarray:
    """Return k non-empty clusters of any size by spherical Lloyd k-means [DEXA Table 7].

    vectors         (n, D) float32  read only, of any length (the cosine counts); 1 <= k <= n
    tolerance       ()     float    stop when the mean cosine of vectors to their centroid grows by less
    max_iterations  ()     int      ... or after so many assignments
    returns         (n,)   int32    cluster of each vector

    Starts from k distinct random vectors. An empty cluster takes the vector that fits its own cluster worst.
    """
    _check(vectors, k, max_iterations)
    scales = _inverse_norms(vectors)
    start = np.random.default_rng(seed).choice(len(vectors), size=k, replace=False)
    centroids = _unit_rows(vectors, scales, start)
    before = -np.inf
    for _ in range(max_iterations):
        clusters, cosines = _nearest(vectors, scales, centroids)
        _fill_empty(clusters, cosines, k)
        sums = _cluster_sums(vectors, clusters, k, scales)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        value = lengths.sum(dtype=np.float64) / len(vectors)
        if value - before < tolerance:
            break
        before = value
        centroids = sums / np.maximum(lengths, np.finfo(np.float32).tiny)
    return clusters


def mean_cosine(vectors: np.ndarray, clusters: np.ndarray) -> float:
    """Return the mean cosine of each vector to its own cluster's centroid, the sum of its unit vectors.

    vectors   (n, D) float32  of any length; a zero vector counts as cosine 0
    clusters  (n,)   int      cluster of each vector
    """
    # The cosines of a cluster's unit vectors to the direction of their sum add up to the length of that sum.
    sums = _cluster_sums(vectors, clusters, int(clusters.max()) + 1, _inverse_norms(vectors))
    return float(np.linalg.norm(sums, axis=1).sum(dtype=np.float64) / len(vectors))


def balanced_cost(count: int, dim: int, host: Host) -> list[Part]:
    """What balanced_clusters holds in addition to its input."""
    rows = min(count, SUBTREE) * dim * FLOAT
    return [
        Part("subtrees", host.threads * 5 * rows, "lower XC_THREADS"),
        Part("tree", count * (3 * LONG + 4 * INT)),
    ]


def balanced_seconds(count: int, k: int, dim: int) -> float:
    """Seconds of balanced_clusters: 33 for a million vectors of 384 dimensions into 125,000 clusters."""
    return 33e-6 * count * dim / 384 * math.log2(max(2, k)) / 17


def kmeans_seconds(count: int, k: int, dim: int, host: Host) -> float:
    return 30 * 2 * count * k * dim / host.speed


# --- what both methods share ------------------------------------------------------------------------------------------


def _check(vectors: np.ndarray, k: int, max_iterations: int) -> None:
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise ValueError(f"vectors must be (n, D) float32, not {vectors.shape} {vectors.dtype}")
    if not 1 <= k <= len(vectors):
        raise ValueError(f"k must be between 1 and the number of vectors, {len(vectors)}, not {k}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, not {max_iterations}")


@contextlib.contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Yield as many threads as torch would use; inside each, torch uses that thread alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers
    finally:
        torch.set_num_threads(threads)


def _inverse_norms(vectors: np.ndarray) -> np.ndarray:
    """Return (n,) float32 the factor that makes each vector a unit vector: 1 / length, or 0 for a zero vector."""
    lengths = np.empty(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), SCANNED):
        rows = vectors[start : start + SCANNED]
        lengths[start : start + SCANNED] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    bad = np.flatnonzero(~np.isfinite(lengths))
    if len(bad):
        raise UserError(
            f"{len(bad)} of {len(vectors)} vectors to cluster are not finite (the first is row {bad[0]}): "
            "mend the step that wrote them."
        )
    return np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def _unit_rows(vectors: np.ndarray, scales: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Return the chosen rows as a new array of unit vectors."""
    return vectors[rows] * scales[rows, None]


def _cluster_sums(vectors: np.ndarray, clusters: np.ndarray, k: int, scales: np.ndarray) -> np.ndarray:
    """Return (k, D) float32 the sum of each cluster's vectors, each times its scale."""
    if clusters.shape != (len(vectors),):
        raise ValueError(f"clusters must be ({len(vectors)},), one for each vector, not {clusters.shape}")
    sums = np.zeros((k, vectors.shape[1]), dtype=np.float32)
    order = np.argsort(clusters, kind="stable")
    for start in range(0, len(order), SCANNED):
        ids = order[start : start + SCANNED]
        members, begins = np.unique(clusters[ids], return_index=True)
        sums[members] += np.add.reduceat(_unit_rows(vectors, scales, ids), begins, axis=0)
    return sums


# --- balanced: nodes too large to gather ------------------------------------------------------------------------------


def _is_large(node: _Node) -> bool:
    return node.count > 1 and len(node.ids) > SUBTREE


def _split_large(
    vectors: np.ndarray, scales: np.ndarray, nodes: list[_Node], search: _Search, workers: ThreadPoolExecutor
) -> list[_Node]:
    """Return the nodes with each large one cut in two: one direction per node, one scan over all vectors."""
    large = [node for node in nodes if _is_large(node)]
    directions = np.stack(list(workers.map(lambda node: _direction(vectors, scales, node, search), large)))
    slots = np.zeros(len(vectors), dtype=np.int32)  # the direction of each vector; any will do outside large nodes
    for slot, node in enumerate(large):
        slots[node.ids] = slot

    def score(start: int) -> np.ndarray:
        rows = slice(start, start + SCANNED)
        return np.einsum("nd,nd->n", vectors[rows], directions[slots[rows]]) * scales[rows]

    scores = np.concatenate(list(workers.map(score, range(0, len(vectors), SCANNED))))

    def cut(node: _Node) -> list[_Node]:
        if not _is_large(node):
            return [node]
        left, size = _shares(node.count, len(node.ids))
        lower = _lowest(scores[None, node.ids], np.array([size]))[0]
        return [
            _Node(node.ids[lower], node.first, left),
            _Node(node.ids[~lower], node.first + left, node.count - left),
        ]

    return [part for parts in workers.map(cut, nodes) for part in parts]


def _direction(vectors: np.ndarray, scales: np.ndarray, node: _Node, search: _Search) -> np.ndarray:
    """Return (D,) float32 along which to cut a large node: the difference of the two centroids of a sample."""
    key = _hash(search.seed, np.array([node.first]), np.array([node.count]))
    sample = np.random.default_rng(key).choice(len(node.ids), size=SUBTREE, replace=False, shuffle=False)
    rows = _unit_rows(vectors, scales, node.ids[np.sort(sample)])
    cuts = np.array([_shares(node.count, SUBTREE)[1]])
    lower = _bisect(rows[None], np.array([SUBTREE]), cuts, key, search)[0]
    sums = np.stack([rows[lower].sum(axis=0), rows[~lower].sum(axis=0)])
    low, high = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return high - low


# --- balanced: nodes that are gathered --------------------------------------------------------------------------------


def _finish(rows: np.ndarray, node: _Node, search: _Search) -> np.ndarray:
    """Return (n,) the cluster of each of a small node's unit vectors, rows (n, D)."""
    rows = np.concatenate([rows, np.zeros((1, rows.shape[1]), dtype=np.float32)])  # the last row is padding
    level = _Level(np.arange(len(node.ids)), *(np.array([x]) for x in (len(node.ids), node.first, node.count)))
    while level.counts.max() > 1:
        level = _split_level(rows, level, search)
    clusters = np.empty(len(node.ids), dtype=np.int32)
    clusters[level.order] = np.repeat(level.firsts, level.sizes)
    return clusters


def _split_level(rows: np.ndarray, level: _Level, search: _Search) -> _Level:
    """Return the next level: every node of several clusters cut in two, rows (n + 1, D) with a zero row at the end."""
    open_ = np.flatnonzero(level.counts > 1)
    sizes = level.sizes[open_]
    firsts = level.firsts[open_]
    counts = level.counts[open_]
    lefts, cuts = _shares(counts, sizes)
    columns = np.arange(sizes.max())
    real = columns < sizes[:, None]
    places = (np.cumsum(level.sizes) - level.sizes)[open_, None] + columns  # (b, m) places in level.order
    points = np.where(real, level.order[np.minimum(places, len(level.order) - 1)], len(rows) - 1)
    lower = _bisect(rows.take(points, axis=0), sizes, cuts, _hash(search.seed, firsts, counts), search)

    ranks = np.where(lower, 0, np.where(real, 1, 2)).astype(np.int8)
    moved = np.take_along_axis(points, np.argsort(ranks, axis=1, kind="stable"), axis=1)
    order = level.order.copy()
    order[places[real]] = moved[real]

    parts = np.where(level.counts > 1, 2, 1)
    left = (np.cumsum(parts) - parts)[open_]  # place of each cut node's left child
    children = _Level(order, *(np.repeat(x, parts) for x in level[1:]))
    children.sizes[left], children.sizes[left + 1] = cuts, sizes - cuts
    children.counts[left], children.counts[left + 1] = lefts, counts - lefts
    children.firsts[left + 1] = firsts + lefts
    return children


def _bisect(points: np.ndarray, sizes: np.ndarray, cuts: np.ndarray, keys: np.ndarray, search: _Search) -> np.ndarray:
    """Return which points of each node go to its first part: spherical 2-means with an exact cut [NGAME].

    points   (b, m, D) float32  unit vectors; the rows of a node past its size are zero
    sizes    (b,)      int      real rows of each node, at least 2
    cuts     (b,)      int      points of the first part
    keys     (b,)      uint64   random key of each node
    returns  (b, m)    bool     true cuts times in each row
    """
    kernel = _Kernel(points)
    halves = _first_halves(kernel, sizes, cuts, keys)
    totals = kernel.times(np.ones((len(points), 1, points.shape[1]), dtype=np.float32))
    best = np.zeros(points.shape[:2], dtype=bool)
    open_, before = np.arange(len(points)), np.float32(-np.inf)
    for iteration in range(search.max_iterations):
        lengths, scores = _score_halves(kernel, totals, halves)
        values = lengths / sizes[:, None]  # (b, r) mean cosine of a node's points to their own centroid
        done = (values - before < search.tolerance).all(axis=1) | (iteration + 1 == search.max_iterations)
        best[open_[done]] = halves[done, values[done].argmax(axis=1)]
        if done.all():
            break
        more = ~done
        kernel.keep(more)
        open_, before, totals, sizes, cuts = (x[more] for x in (open_, values, totals, sizes, cuts))
        halves = _cut(scores[more], sizes, cuts)
    return best


class _Kernel:
    """The products of b nodes' points with each other, (b, m, m): as a matrix if m is small, else as two factors."""

    def __init__(self, points: np.ndarray):
        self.points = torch.from_numpy(points)
        self.is_gram = points.shape[1] <= GRAM
        if self.is_gram:
            self.points = torch.bmm(self.points, self.points.mT)

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return (b, r, m) float32: each point's product with a sum of points, weights (b, r, m)."""
        products = torch.bmm(torch.from_numpy(weights), self.points)
        return (products if self.is_gram else torch.bmm(products, self.points.mT)).numpy()

    def keep(self, nodes: np.ndarray) -> None:
        """Forget the nodes that are false in nodes (b,) bool."""
        if not nodes.all():
            self.points = self.points[torch.from_numpy(nodes)]


def _first_halves(kernel: _Kernel, sizes: np.ndarray, cuts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return (b, r, m) bool the cut between two distinct random points, for each of r starts."""
    starts = np.arange(STARTS if kernel.is_gram else 1)
    limits = sizes[:, None].astype(np.uint64)
    one = (_hash(keys[:, None], 2 * starts) % limits).astype(np.int64)
    other = (_hash(keys[:, None], 2 * starts + 1) % (limits - np.uint64(1))).astype(np.int64)
    other += other >= one
    weights = np.zeros((len(sizes), len(starts), kernel.points.shape[1]), dtype=np.float32)
    np.put_along_axis(weights, one[:, :, None], -1, axis=2)
    np.put_along_axis(weights, other[:, :, None], 1, axis=2)
    return _cut(kernel.times(weights), sizes, cuts)


def _score_halves(kernel: _Kernel, totals: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of each cut, and what to order the points by for the next.

    totals   (b, 1, m) float32  each point's product with the sum of all points of its node
    halves   (b, r, m) bool     the points of the first part
    returns  (b, r)    float32  sum of the cosines of all points to the centroid of their part
             (b, r, m) float32  cosine to the second centroid minus cosine to the first
    """
    weights = halves.astype(np.float32)
    low = kernel.times(weights)
    high = totals - low
    low_length = np.sqrt(np.maximum(np.einsum("brm,brm->br", weights, low), 1e-12))
    high_length = np.sqrt(np.maximum(np.einsum("brm,brm->br", 1 - weights, high), 1e-12))
    return low_length + high_length, high / high_length[:, :, None] - low / low_length[:, :, None]


def _cut(scores: np.ndarray, sizes: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return (b, r, m) bool the cuts (b,) lowest of the first sizes (b,) scores (b, r, m) of each row."""
    nodes, starts, width = scores.shape
    if sizes.min() < width:
        scores = np.where(np.arange(width) < sizes[:, None, None], scores, np.float32(np.inf))
    return _lowest(scores.reshape(-1, width), np.repeat(cuts, starts)).reshape(nodes, starts, width)


def _lowest(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return (b, m) bool exactly counts (b,) lowest scores of each row (b, m); of equal scores the earlier first."""
    bounds = np.partition(scores, np.unique(counts) - 1, axis=1)[np.arange(len(counts)), counts - 1, None]
    lowest = scores <= bounds
    tied = np.flatnonzero(lowest.sum(axis=1) != counts)
    if len(tied):
        below, equal = scores[tied] < bounds[tied], scores[tied] == bounds[tied]
        wanted = counts[tied] - below.sum(axis=1)
        lowest[tied] = below | (equal & (np.cumsum(equal, axis=1) <= wanted[:, None]))
    return lowest


def _shares(counts: Counts, sizes: Counts) -> tuple[Counts, Counts]:
    """Return clusters and points of a node's first part.

    The points are the clusters' share, rounded down: if a node has q * count to (q + 1) * count points, so does each of
    its parts with its own count, and in the end every cluster has q or q + 1 points.
    """
    lefts = counts // 2
    return lefts, sizes * lefts // counts


def _hash(*keys: int | np.ndarray) -> np.ndarray:
    """Return uint64 random bits that depend on all keys, which are broadcast (splitmix64 steps)."""
    bits: np.ndarray = np.zeros(1, dtype=np.uint64)
    for key in keys:
        bits = bits ^ (np.uint64(key % (1 << 64)) if isinstance(key, int) else key.astype(np.uint64))
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits


# --- k-means ----------------------------------------------------------------------------------------------------------


def _nearest(vectors: np.ndarray, scales: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest centroid (k, D) of each vector, (n,) int32, and its cosine, (n,) float32."""
    clusters = np.empty(len(vectors), dtype=np.int32)
    cosines = np.empty(len(vectors), dtype=np.float32)
    columns = torch.from_numpy(centroids).T
    step = max(1, min(SCANNED, SCORES // len(centroids)))
    for start in range(0, len(vectors), step):
        rows = slice(start, start + step)
        best = (torch.from_numpy(_unit_rows(vectors, scales, rows)) @ columns).max(dim=1)
        clusters[rows], cosines[rows] = best.indices.numpy(), best.values.numpy()
    return clusters, cosines


def _fill_empty(clusters: np.ndarray, cosines: np.ndarray, k: int) -> None:
    """Move the worst fitting vector of a cluster of several into each empty cluster, in place."""
    sizes = np.bincount(clusters, minlength=k)
    empty = iter(np.flatnonzero(sizes == 0))
    target = next(empty, None)
    for point in np.argsort(cosines, kind="stable") if target is not None else ():
        if sizes[clusters[point]] > 1:
            sizes[clusters[point]] -= 1
            clusters[point] = target
            target = next(empty, None)
            if target is None:
                break
