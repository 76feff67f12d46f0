"""What a batch holds: which documents, which labels, and which pairs of them are known positives."""

from collections.abc import Iterator

import numpy as np

from xcutils.core.ragged import Ragged, starts
from xcutils.train.clustering import balanced_clusters


def clustered_batches(doc_cluster: np.ndarray, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield batches of neighbouring documents, so that in-batch negatives are hard [NGAME M1].

    doc_cluster  (N,) int  cluster of each document; if all are different, batches are random
    yields       (B,) int  documents; each once per pass, clusters in random order, the last batch may be short
    """
    place = rng.permutation(int(doc_cluster.max()) + 1)
    order = np.argsort(place[doc_cluster], kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def cluster_size(epoch: int, *, first_epoch: int, first: int, double_every: int, last: int) -> int:
    """Size of the document clusters in this epoch; 1 (random batches) before `first_epoch` [NGAME's curriculum]."""
    if epoch < first_epoch:
        return 1
    return int(min(first * 2 ** min((epoch - first_epoch) // double_every, 40), max(last, first)))


class ClusteredEpochs:
    """Each epoch's batches: random at first, then clusters of documents, which grow and are made again [NGAME].

    docs        (n,) int  documents to train on
    bank        (N, D)    latest embeddings of all documents
    refresh     epochs between two clusterings
    after       epochs that the model has been trained before, which the curriculum counts
    curriculum  the keywords of cluster_size
    Differs from the reference code, where new clusters take effect one epoch late.
    """

    def __init__(
        self,
        docs: np.ndarray,
        bank: np.ndarray,
        *,
        batch_size: int,
        refresh: int,
        seed: int,
        after: int = 0,
        **curriculum,
    ):
        self.docs = docs
        self.bank = bank
        self.batch_size = batch_size
        self.refresh = refresh
        self.seed = seed
        self.after = after
        self.curriculum = curriculum
        self.clusters = np.arange(len(docs))

    def memory(self) -> dict[str, np.ndarray]:
        """The live arrays that an epoch's batches depend on."""
        return {"bank": self.bank, "clusters": self.clusters}

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        since = epoch + self.after - self.curriculum["first_epoch"]
        if since >= 0 and (since % self.refresh == 0 or epoch == 0):
            count = max(1, round(len(self.docs) / cluster_size(epoch + self.after, **self.curriculum)))
            self.clusters[:] = balanced_clusters(self.bank[self.docs], count, seed=self.seed + epoch)
        return [self.docs[batch] for batch in clustered_batches(self.clusters, self.batch_size, rng)]


def sample_positives(positives: Ragged, docs: np.ndarray, count: int, rng: np.random.Generator) -> Ragged:
    """Up to `count` different positives of each document, drawn uniformly.

    docs     (B,) int  documents
    returns  B rows of label ids
    """
    rows = positives.take(docs)
    shuffled = rows.values[np.lexsort((rng.random(len(rows.values)), rows.row_ids()))]
    return Ragged(shuffled, rows.offsets).cut(count)


def capped_pool(*fills: np.ndarray, cap: int, gap: int) -> np.ndarray:
    """(P,) int64, ascending: at most `cap` labels, of each fill in turn the most frequent ones [UniDEC code].

    fills  labels that a batch may be compared with, as often as they were drawn; the first ones come in any case
    gap    a later fill is left out where no more places than these are free
    """
    pool: np.ndarray = np.zeros(0, dtype=np.int64)
    for place, fill in enumerate(fills):
        free = cap - len(pool)
        if place and free <= gap:
            break
        labels, counts = np.unique(fill, return_counts=True)
        is_new = ~np.isin(labels, pool)
        often = np.argsort(-counts[is_new], kind="stable")[:free]
        pool = np.union1d(pool, labels[is_new][often]).astype(np.int64)
    return pool


class KnownPairs:
    """The labels of a batch, and which of them are known positives of which document.

    Keeps one scratch array of L entries, so that a batch costs its own pairs and not L.
    """

    def __init__(self, positives: Ragged, n_labels: int, weights: np.ndarray | None = None):
        """weights  (values of positives,) float32  their soft targets; None: all 1"""
        self.positives = positives
        self.soft = None if weights is None else Ragged(weights, positives.offsets)
        self.column = np.full(n_labels, -1, dtype=np.int32)

    def within(self, docs: np.ndarray, pool: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(rows, columns, soft targets) of every known positive of `docs` among the distinct labels `pool`.

        The soft targets are None where all are 1.
        """
        self.column[pool] = np.arange(len(pool), dtype=np.int32)
        rows = self.positives.take(docs)
        columns = self.column[rows.values]
        self.column[pool] = -1
        inside = columns >= 0
        soft = None if self.soft is None else self.soft.take(docs).values[inside]
        return rows.row_ids()[inside], columns[inside].astype(np.int64), soft


def first_columns(sampled: Ragged, pool: np.ndarray, width: int) -> np.ndarray:
    """(B, width) int64: places of each document's sampled labels in the sorted `pool`, -1 where it has fewer."""
    columns = np.full((len(sampled), width), -1, dtype=np.int64)
    place = np.arange(len(sampled.values)) - np.repeat(starts(sampled.lengths)[:-1], sampled.lengths)
    columns[sampled.row_ids(), place] = np.searchsorted(pool, sampled.values)
    return columns
