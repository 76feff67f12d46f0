"""Which labels go together in the training positives, as soft targets for the labels' own texts [Gandalf].

Every graph is a sparse (L, L) matrix T whose row j holds the targets of the point "text of label j", in (0, 1]. It is
made a block of rows at a time, and only what is above the threshold is kept: Y^T Y is never in memory as a whole.
"""

from collections.abc import Callable, Iterator

import numpy as np
from scipy import sparse

PAIRS = 1 << 22  # co-occurrences counted at once, at most, unless one label alone has more
WALKS = 1 << 14  # random walks at once

Strength = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def co_occurrence(positives: sparse.csr_matrix, delta: float, pairs: int = PAIRS) -> sparse.csr_matrix:
    """T[j, i] = P(i | j) = G[j, i] / G[j, j] with G = Y^T Y, where it is above delta; 1 on the diagonal.

    positives  (N, L) binary
    """
    return _from_counts(positives, lambda counts, frequency, rows, _: counts / frequency[rows], delta, pairs)


def glas(positives: sparse.csr_matrix, delta: float, pairs: int = PAIRS) -> sparse.csr_matrix:
    """T[j, i] = sigmoid(S), S = (G[j, i] / G[j, j] + G[j, i] / G[i, i]) / 2, where S is above delta [GLaS].

    Differs from: the source does not say which pairs have a target. Here they are the labels that occur together, with
    S above the threshold; over all pairs, sigmoid(0) would give every absent pair a target of a half.
    """

    def symmetric(counts: np.ndarray, frequency: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return (counts / frequency[rows] + counts / frequency[columns]) / 2

    targets = _from_counts(positives, symmetric, delta, pairs)
    targets.data = (1 / (1 + np.exp(-targets.data))).astype(np.float32)
    return targets


def _from_counts(positives, strength: Strength, delta: float, pairs: int) -> sparse.csr_matrix:
    """The strengths above delta, 1 on the diagonal, row block by row block.

    strength  (counts, frequency (L,), rows, columns) -> strength of each count
    """
    positives = positives.tocsr().astype(np.float32, copy=False)
    docs_of = positives.T.tocsr()  # (L, N)
    frequency = np.diff(docs_of.indptr).astype(np.float64)
    parts = []
    for start, stop in _row_blocks(docs_of, positives, pairs):
        counts = docs_of[start:stop] @ positives
        rows = np.repeat(np.arange(start, stop), np.diff(counts.indptr))
        columns = counts.indices
        values = strength(counts.data.astype(np.float64), frequency, rows, columns)
        kept = (values > delta) & (rows != columns)
        offsets = np.searchsorted(rows[kept], np.arange(start, stop + 1))
        block = (values[kept].astype(np.float32), columns[kept], offsets)
        parts.append(_with_diagonal(sparse.csr_matrix(block, (stop - start, positives.shape[1])), start))
    return sparse.vstack(parts, format="csr") if parts else sparse.csr_matrix((0, 0), dtype=np.float32)


def _row_blocks(docs_of: sparse.csr_matrix, positives: sparse.csr_matrix, pairs: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of consecutive labels that have at most `pairs` co-occurrences together."""
    lengths = np.diff(positives.indptr)
    work = np.asarray(docs_of @ lengths.astype(np.float64)).ravel()
    total = np.concatenate([[0], np.cumsum(work)])
    start = 0
    while start < len(work):
        stop = max(start + 1, int(np.searchsorted(total, total[start] + pairs, side="right")) - 1)
        yield start, stop
        start = stop


def _with_diagonal(rows: sparse.csr_matrix, start: int) -> sparse.csr_matrix:
    """Rows `start`, `start` + 1, ... of a matrix without a diagonal, now with 1 on it; sorted by column."""
    filled = (rows + sparse.eye(*rows.shape, k=start, dtype=np.float32, format="csr")).tocsr()
    filled.sort_indices()
    return filled


def random_walk(
    positives: sparse.csr_matrix,
    delta: float,
    *,
    length: int,
    reset: float,
    top: int,
    seed: int,
    chunk: int = WALKS,
) -> sparse.csr_matrix:
    """T[j, i] = visits to i / visits to j, at most 1, of a walk from label j, where above delta [ECLARE].

    A step goes to a random document of the label, then to a random label of that document; before each step but the
    first the walk jumps back to j with probability `reset`. The `top` most visited labels are kept.
    Differs from: the source does not say how visits become targets. Here they are divided by the visits to j itself,
    which are at least one, the start.
    """
    docs_of = positives.T.tocsr()
    n_labels = positives.shape[1]
    parts = []
    for start in range(0, n_labels, chunk):
        labels = np.arange(start, min(start + chunk, n_labels))
        rng = np.random.default_rng([seed, start])
        visits = _walks(labels, docs_of, positives, length, reset, rng)
        parts.append(_with_diagonal(_strongest(visits, labels, delta, top), start))
    return sparse.vstack(parts, format="csr") if parts else sparse.csr_matrix((0, 0), dtype=np.float32)


def _walks(starts: np.ndarray, docs_of, positives, length: int, reset: float, rng) -> sparse.csr_matrix:
    """(walks, L) counts: how often the walk from each label of `starts` was at each label, its start counted once."""
    has_docs = np.diff(docs_of.indptr)[starts] > 0  # the walk from a label without documents stays there
    here = starts.copy()
    visited = [starts.copy()]
    for step in range(length):
        if step:
            here = np.where(rng.random(len(starts)) < reset, starts, here)
        doc = _draw(docs_of, here, rng)
        here = np.where(has_docs, _draw(positives, np.where(has_docs, doc, 0), rng), starts)
        visited.append(here.copy())
    rows = np.tile(np.arange(len(starts)), len(visited))
    counts = sparse.coo_matrix((np.ones(len(rows)), (rows, np.concatenate(visited))), (len(starts), positives.shape[1]))
    return counts.tocsr()  # adds up equal places


def _draw(matrix: sparse.csr_matrix, rows: np.ndarray, rng) -> np.ndarray:
    """A random column of each row; any number for a row without one."""
    lengths = matrix.indptr[rows + 1] - matrix.indptr[rows]
    place = matrix.indptr[rows] + np.floor(rng.random(len(rows)) * np.maximum(lengths, 1)).astype(np.int64)
    return matrix.indices[np.minimum(place, len(matrix.indices) - 1)].astype(np.int64)


def _strongest(visits: sparse.csr_matrix, starts: np.ndarray, delta: float, top: int) -> sparse.csr_matrix:
    """Visits over visits to the start, where above delta, of each row's `top` most visited labels but its start."""
    counts = visits.tocoo()
    is_own = counts.col == starts[counts.row]
    base = np.zeros(len(starts))
    base[counts.row[is_own]] = counts.data[is_own]
    rows = counts.row[~is_own]
    columns = counts.col[~is_own]
    values = counts.data[~is_own]
    order = np.lexsort((columns, -values, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    strength = np.minimum(values / base[rows], 1)
    kept = (rank < top) & (strength > delta)
    return sparse.csr_matrix((strength[kept].astype(np.float32), (rows[kept], columns[kept])), visits.shape)


def keep_own(targets: sparse.csr_matrix, labels: np.ndarray, share: float, chunk: int = 1 << 14) -> None:
    """Weaken the other targets, in place, so that each label's own target has at least this share of its row.

    A softmax loss divides a point's weight among its targets, and a label that occurs with a hundred others would
    hardly be a target of its own text; binary cross-entropy [Gandalf] counts each target by itself and does not need
    this.
    targets  (m, L)    rows of some labels, each with a target for the label itself
    labels   (m,) int  the label of each row
    """
    for start in range(0, len(labels) if share else 0, chunk):
        of_rows = labels[start : start + chunk]
        ends = targets.indptr[start : start + len(of_rows) + 1]
        rows = np.repeat(np.arange(len(of_rows)), np.diff(ends))
        inside = slice(ends[0], ends[-1])
        data = targets.data[inside]  # a view
        is_own = targets.indices[inside] == of_rows[rows]
        own, others = (np.bincount(rows[part], data[part], minlength=len(of_rows)) for part in (is_own, ~is_own))
        scale = np.minimum(1, own * (1 - share) / share / np.maximum(others, 1e-30))
        data[~is_own] *= scale[rows[~is_own]]


def choose_labels(frequency: np.ndarray, share: float, order: str, seed: int) -> np.ndarray:
    """The share of the labels that become points, ascending: drawn uniformly, or the rarest first (`tail`).

    frequency  (L,) int  training documents of each label
    """
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(frequency))  # chance decides between labels of the same frequency
    if order == "tail":
        shuffled = shuffled[np.argsort(frequency[shuffled], kind="stable")]
    return np.sort(shuffled[: round(share * len(frequency))])
