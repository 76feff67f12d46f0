"""Nearest neighbours by cosine, exact or through an HNSW graph; the searcher knows no model.

Answers are always (Q, k): padded with id -1 and score -inf where there are fewer than k vectors.
"""

import warnings
from pathlib import Path

import hnswlib
import numpy as np
import torch

from xcutils.errors import UserError

CHUNK = 1 << 14  # vectors copied at once while a graph is built


def unit(vectors: np.ndarray) -> np.ndarray:
    """The rows at length one; zero rows stay zero, rows that are not finite are refused."""
    vectors = np.asarray(vectors, dtype=np.float32)
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise UserError(f"vector {row} holds values that are not finite: the model that made it has diverged.")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def exact(queries: np.ndarray, vectors: np.ndarray, k: int, *, chunk: int = 1 << 26) -> tuple[np.ndarray, np.ndarray]:
    """(ids (Q, k) int64, scores (Q, k) float32) of the k nearest rows, best first; never Q x V in memory.

    chunk  scores held at once
    """
    found = min(k, len(vectors))
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    if found == 0 or len(queries) == 0:
        return ids, scores
    table = _tensor(vectors)
    step = min(len(queries), max(1, chunk // len(vectors)))
    held = torch.from_numpy(np.empty((step, len(vectors)), dtype=np.float32))  # once: see runtime on freed blocks
    for start in range(0, len(queries), step):
        some = _tensor(queries[start : start + step])
        best, place = torch.mm(some, table.T, out=held[: len(some)]).topk(found, dim=1)
        ids[start : start + step, :found], scores[start : start + step, :found] = place.numpy(), best.numpy()
    return ids, scores


def _tensor(vectors: np.ndarray) -> torch.Tensor:
    """The vectors as a tensor over the same memory, for reading: no copy of a memory map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a read-only array must not be written to
        return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))


def build_graph(vectors: np.ndarray, *, m: int, ef_construction: int, seed: int, threads: int = 1) -> hnswlib.Index:
    """An HNSW graph over the unit rows; zero rows are left out (they are near nothing). One thread is repeatable."""
    norms = np.zeros(len(vectors), dtype=np.float32)
    for start in range(0, len(vectors), CHUNK):
        norms[start : start + CHUNK] = np.linalg.norm(vectors[start : start + CHUNK], axis=1)
    there = np.flatnonzero(norms > 0)
    graph = hnswlib.Index(space="ip", dim=vectors.shape[1])
    graph.init_index(max_elements=max(1, len(there)), M=m, ef_construction=ef_construction, random_seed=seed)
    for start in range(0, len(there), CHUNK):
        some = there[start : start + CHUNK]
        graph.add_items(np.asarray(vectors)[some], some, num_threads=threads)
    return graph


class Searcher:
    """The k nearest of some unit vectors to a query: through a graph where there is one, exact otherwise."""

    def __init__(self, vectors: np.ndarray, graph: hnswlib.Index | None = None, *, ef: int = 300):
        self.vectors, self.graph, self.ef = vectors, graph, ef

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, scores) as `exact` gives them."""
        if self.graph is None:
            return exact(queries, self.vectors, k)
        found = min(k, self.graph.get_current_count())
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        if found == 0 or len(queries) == 0:
            return ids, scores
        self.graph.set_ef(max(self.ef, found))
        try:
            labels, distances = self.graph.knn_query(np.asarray(queries, dtype=np.float32), k=found)
        except RuntimeError:  # the graph could not reach `found` neighbours
            return exact(queries, self.vectors, k)
        ids[:, :found], scores[:, :found] = labels.astype(np.int64), 1 - distances
        return ids, scores


def load_graph(path: Path, *, dim: int, count: int) -> hnswlib.Index:
    """A saved graph; the caller has checked that the file is the one that was written."""
    graph = hnswlib.Index(space="ip", dim=dim)
    try:
        graph.load_index(str(path), max_elements=count)
    except RuntimeError as error:
        raise UserError(f"{path} is not a usable index ({error}): run `dvc repro` to make it again.") from None
    return graph


def recall(found: np.ndarray, true: np.ndarray) -> float:
    """Share of the true neighbours (Q, k) that were found, in percent; -1 pads are no neighbours."""
    hits = sum(len(np.intersect1d(f[f >= 0], t[t >= 0])) for f, t in zip(found, true))
    return 100.0 * hits / max(1, int((true >= 0).sum()))
