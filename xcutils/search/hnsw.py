"""HNSW graphs over unit vectors: the only module that imports hnswlib."""

import errno
import shutil
import threading
from collections.abc import Callable
from math import log2
from pathlib import Path

import hnswlib
import numpy as np

from xcutils.core import artifacts
from xcutils.core.costs import FLOAT, INT, LONG, Part
from xcutils.core.errors import UserError
from xcutils.search.exact import alive
from xcutils.search.index import Building

INSERTED = 1 << 11  # vectors copied at once while a graph is built; then `stop` is looked at
BLOCKS = 16  # drafts of one graph, at most: saving one takes time in proportion to the vectors that are in it
CACHE = 64e6  # bytes of vectors that fit into the processor's cache


class Hnsw:
    """A graph over vectors, searched approximately."""

    exhaustive = False

    def __init__(self, graph: hnswlib.Index, *, ef: int):
        self.graph = graph
        self.ef = ef

    @classmethod
    def over(cls, vectors: np.ndarray, building: Building, *, ef: int) -> "Hnsw":
        """A graph that is not saved."""
        return cls(build_graph(vectors, building), ef=ef)

    @staticmethod
    def build(
        vectors: np.ndarray,
        file: Path,
        building: Building,
        *,
        drafts: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Write a graph over the vectors to `file`.

        drafts  the folder where unfinished graphs are saved; building is resumed from the newest
        stop    set by another thread to end the building soon
        """
        saved = None if drafts is None else Drafts(drafts, say)
        save_graph(build_graph(vectors, building, drafts=saved, stop=stop), file)

    @classmethod
    def open(cls, file: Path, *, count: int, dim: int, ef: int) -> "Hnsw":
        """The graph in a file that the caller has checked."""
        return cls(load_graph(file, dim=dim, count=count), ef=ef)

    def __len__(self) -> int:
        """The number of vectors that can be found."""
        return self.graph.get_current_count()

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, scores), both (Q, k), k at most the number of vectors; None where the graph does not reach k."""
        self.graph.set_ef(max(self.ef, k))
        try:
            labels, distances = self.graph.knn_query(queries, k=k)
        except RuntimeError:
            return None
        return labels.astype(np.int64), 1 - distances

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        """What graphs over so many vectors hold: the vectors themselves, and their links."""
        return [
            Part("vectors in the graphs", FLOAT * count * dim, "set index.search to exact"),
            Part("links", count * (graph_bytes(dim, m) - FLOAT * dim), f"lower index.m ({m})"),
        ]

    @staticmethod
    def building_cost(sizes: list[int], dim: int) -> list[Part]:
        """What building graphs of these sizes side by side holds in addition."""
        chunks = sum(min(size, INSERTED) for size in sizes)
        return [
            Part("vectors", FLOAT * sum(sizes) * dim, mapped=True),
            Part("vectors on their way", 2 * FLOAT * chunks * dim),
        ]

    @staticmethod
    def disk(count: int, dim: int, m: int) -> float:
        """Bytes of a saved graph."""
        return count * (FLOAT * dim + 8 * m + 24)

    @staticmethod
    def seconds(ef: int, m: int, count: int, dim: int) -> float:
        """Seconds of one search or insertion on one thread; four times as many where the vectors exceed the cache."""
        far = 4 if FLOAT * count * dim > CACHE else 1
        return 4e-10 * far * ef * (m / 24) ** 0.5 * log2(max(2, count)) * dim


def graph_bytes(dim: int, m: int) -> float:
    """Bytes of a vector in a graph: itself, its id, 2 m links (m more for 1 in m), lock, level and table of ids."""
    return FLOAT * dim + LONG + (2 * m + 1) * INT + (m * INT + 40) / (m - 1 or 1) + 40 + 48 + LONG + INT + 2


def build_graph(
    vectors: np.ndarray,
    building: Building,
    *,
    drafts: "Drafts | None" = None,
    stop: threading.Event | None = None,
) -> hnswlib.Index:
    """An HNSW graph over the unit rows that can be found; with one thread it is the same every time.

    After each block, at most BLOCKS times in all, a draft is saved and read again, whether or not the work is ever
    interrupted: hnswlib does not save the state of its generator, and so a resumed graph comes out the same.
    """
    ids = alive(vectors)
    block = max(building.block, -(-len(ids) // BLOCKS))
    graph, done = (None, 0) if drafts is None else drafts.load(vectors.shape[1], len(ids))
    if graph is None:
        graph = hnswlib.Index(space="ip", dim=vectors.shape[1])
        settings = {"M": building.m, "ef_construction": building.ef_construction, "random_seed": building.seed}
        graph.init_index(max_elements=max(1, len(ids)), **settings)
    for start in range(done, len(ids), block):
        in_block = ids[start : start + block]
        for some in np.split(in_block, range(INSERTED, len(in_block), INSERTED)):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            graph.add_items(np.asarray(vectors[some]), some, num_threads=building.threads)
        if drafts is not None and start + len(in_block) < len(ids):
            graph = drafts.renew(graph, len(ids))
    return graph


class Drafts:
    """Unfinished graphs, each saved whole or not at all; building is resumed from the newest whole one."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None):
        self.folder = Path(folder)
        self.say = say

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


def save_graph(graph: hnswlib.Index, path: Path) -> None:
    """Save the graph; hnswlib itself does not notice when the disk is full."""
    graph.save_index(str(path))
    size = path.stat().st_size
    if size != graph.index_file_size():
        raise OSError(errno.ENOSPC, f"{path.name} came out {size} bytes long instead of {graph.index_file_size()}")


def load_graph(path: Path, *, dim: int, count: int) -> hnswlib.Index:
    """A saved graph; hnswlib does not notice a damaged file, so the caller must have checked it."""
    graph = hnswlib.Index(space="ip", dim=dim)
    try:
        graph.load_index(str(path), max_elements=max(1, count))
    except RuntimeError as error:
        raise UserError(f"{path} is not a usable index ({error}): {artifacts.remedy(path)}.") from None
    return graph
