"""Nearest neighbours by cosine, exact or through an HNSW graph; the searcher knows no model.

Answers are always (Q, k): padded with id -1 and score -inf where there are fewer than k vectors.
"""

import errno
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import hnswlib
import numpy as np
import torch

from xcutils.core import artifacts
from xcutils.core.errors import UserError

CHUNK = 1 << 11  # vectors copied at once while a graph is built, between two looks at `stop`
BLOCKS = 16  # drafts of one graph, at most: each costs as much time as the graph has vectors by then


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


def alive(vectors: np.ndarray, chunk: int = 1 << 16) -> np.ndarray:
    """The rows that can be found: a zero row is near nothing. Rows that are not finite are refused."""
    parts = [
        start + np.flatnonzero(np.linalg.norm(unit(vectors[start : start + chunk]), axis=1) > 0)
        for start in range(0, len(vectors), chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def build_graph(
    vectors: np.ndarray,
    *,
    m: int,
    ef_construction: int,
    seed: int,
    threads: int = 1,
    block: int = 1 << 16,
    drafts: "GraphDrafts | None" = None,
    stop: threading.Event | None = None,
) -> hnswlib.Index:
    """An HNSW graph over the unit rows that can be found; with one thread it is the same every time.

    block   vectors after which a draft is saved and read again, at most BLOCKS times in all: hnswlib does not save its
            generator, and a graph that is always read again there is the same whether or not it was interrupted
    drafts  where they are saved; building goes on from the newest
    stop    ends the building soon when it is set from another thread
    """
    there = alive(vectors)
    block = max(block, -(-len(there) // BLOCKS))
    graph, done = (None, 0) if drafts is None else drafts.load(vectors.shape[1], len(there))
    if graph is None:
        graph = hnswlib.Index(space="ip", dim=vectors.shape[1])
        graph.init_index(max_elements=max(1, len(there)), M=m, ef_construction=ef_construction, random_seed=seed)
    for start in range(done, len(there), block):
        some = there[start : start + block]
        for few in np.split(some, range(CHUNK, len(some), CHUNK)):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            graph.add_items(np.asarray(vectors[few]), few, num_threads=threads)
        if drafts is not None and start + len(some) < len(there):
            graph = drafts.renew(graph, len(there))
    return graph


class GraphDrafts:
    """Unfinished graphs, each saved whole or not at all; the newest whole one is gone on from."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None):
        self.folder, self.say = Path(folder), say

    def load(self, dim: int, count: int) -> tuple[hnswlib.Index | None, int]:
        """(the newest whole draft, vectors in it), or (None, 0)."""
        for folder in sorted(self.folder.glob("[0-9]*"), reverse=True):
            try:
                graph = load_graph(artifacts.check(folder) / "graph.hnsw", dim=dim, count=count)
            except UserError as error:
                self.say(f"snapshot passed over: {error}")
                continue
            self.say(f"goes on after {graph.get_current_count():,} of {count:,} vectors, where it was interrupted")
            return graph, graph.get_current_count()
        return None, 0

    def renew(self, graph: hnswlib.Index, count: int) -> hnswlib.Index:
        """The graph, saved and read again."""
        folder = self.folder / f"{graph.get_current_count():012d}"
        with artifacts.writing(folder) as draft:
            save_graph(graph, draft / "graph.hnsw")
        for old in sorted(self.folder.glob("[0-9]*"))[:-2]:
            shutil.rmtree(old)
        return load_graph(folder / "graph.hnsw", dim=graph.dim, count=count)


class Searcher:
    """The k nearest of some unit vectors to a query: through a graph where there is one, exact otherwise.

    Zero and deleted vectors are never found; queries that are not finite are refused.
    """

    def __init__(self, vectors: np.ndarray, graph: hnswlib.Index | None = None, *, ef: int = 300):
        self.vectors, self.graph, self.ef = vectors, graph, ef
        self._alive: np.ndarray | None = None  # found out when it is needed

    @property
    def alive(self) -> np.ndarray:
        """The vectors that can be found, ascending."""
        if self._alive is None:
            self._alive = alive(self.vectors)
        return self._alive

    def delete(self, ids: np.ndarray) -> None:
        """Never find these vectors again."""
        gone = np.intersect1d(self.alive, ids)
        self._alive = np.setdiff1d(self.alive, gone, assume_unique=True)
        for id in gone.tolist() if self.graph is not None else ():
            self.graph.mark_deleted(id)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, scores) as `exact` gives them."""
        queries = np.asarray(queries, dtype=np.float32)
        if not np.isfinite(queries).all():
            raise UserError("a text's embedding holds values that are not finite: the model has diverged, train again.")
        count = self.graph.get_current_count() if self.graph is not None and self._alive is None else len(self.alive)
        found = min(k, count)
        if self.graph is None or found == 0 or len(queries) == 0:
            return self._exact(queries, k)
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        self.graph.set_ef(max(self.ef, found))
        try:
            labels, distances = self.graph.knn_query(queries, k=found)
        except RuntimeError:  # the graph could not reach `found` neighbours
            return self._exact(queries, k)
        ids[:, :found], scores[:, :found] = labels.astype(np.int64), 1 - distances
        return ids, scores

    def _exact(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if len(self.alive) == len(self.vectors):
            return exact(queries, self.vectors, k)
        places, scores = exact(queries, self.vectors[self.alive], k)
        return np.where(places >= 0, np.append(self.alive, -1)[places], -1), scores


def save_graph(graph: hnswlib.Index, path: Path) -> None:
    """Save the graph; hnswlib itself does not notice when the disk is full."""
    graph.save_index(str(path))
    size = path.stat().st_size
    if size != graph.index_file_size():
        raise OSError(errno.ENOSPC, f"{path.name} came out {size} bytes long instead of {graph.index_file_size()}")


def load_graph(path: Path, *, dim: int, count: int) -> hnswlib.Index:
    """A saved graph; the caller has checked that the file is the one that was written: hnswlib does not."""
    graph = hnswlib.Index(space="ip", dim=dim)
    try:
        graph.load_index(str(path), max_elements=max(1, count))
    except RuntimeError as error:
        raise UserError(f"{path} is not a usable index ({error}): {artifacts.remedy(path)}.") from None
    return graph


def recall(found: np.ndarray, true: np.ndarray) -> float:
    """Share of the true neighbours (Q, k) that were found, in percent; -1 pads are no neighbours."""
    hits = sum(len(np.intersect1d(f[f >= 0], t[t >= 0])) for f, t in zip(found, true))
    return 100.0 * hits / max(1, int((true >= 0).sum()))
