"""What graphs of every library share: they grow in blocks, and an interrupted one is resumed from its newest draft."""

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xcutils.core import artifacts
from xcutils.core.costs import FLOAT, Part
from xcutils.core.errors import UserError
from xcutils.core.vectors import unit
from xcutils.search.index import Building

INSERTED = 1 << 11  # vectors copied at once while a graph is built; then `stop` is looked at
BLOCKS = 16  # drafts of one graph, at most: saving one takes time in proportion to the vectors that are in it
VECTORS = 1 << 16  # vectors whose lengths are looked at together
DRAFT = "graph"  # the file of a draft

G = TypeVar("G", bound="Graph")


class Graph:
    """An HNSW graph. A library's class gives `empty`, `read`, `add`, `write`, `search`, `take` and its costs."""

    exhaustive = False
    ef = 64

    @classmethod
    def empty(cls: type[G], dim: int, count: int, building: Building) -> G:
        """A graph without vectors that has room for `count`."""
        raise NotImplementedError

    @classmethod
    def read(cls: type[G], file: Path, *, dim: int, count: int, building: Building | None = None) -> G:
        """A saved graph; with `building` it can grow. RuntimeError, OSError or ValueError if it cannot be read."""
        raise NotImplementedError

    def add(self, vectors: np.ndarray, ids: np.ndarray, threads: int) -> None:
        raise NotImplementedError

    @staticmethod
    def stored(vectors: np.ndarray) -> np.ndarray:
        """The vectors as the graph holds them."""
        return vectors

    @staticmethod
    def kept(vectors: np.ndarray) -> np.ndarray:
        """Ids of the vectors that go into the graph, ascending."""
        return alive(vectors)

    def write(self, file: Path) -> int:
        """Save the graph; the bytes that the file must have, since a library may not notice that the disk is full."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    @classmethod
    def over(cls: type[G], vectors: np.ndarray, building: Building, *, ef: int) -> G:
        """A graph that is not saved."""
        graph = grow(cls, vectors, building)
        graph.ef = ef
        return graph

    @classmethod
    def build(
        cls,
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
        saved = None if drafts is None else Drafts(cls, drafts, say)
        save(grow(cls, vectors, building, drafts=saved, stop=stop), file)

    @classmethod
    def open(cls: type[G], file: Path, *, count: int, dim: int, ef: int) -> G:
        """The graph in a file that the caller has checked."""
        graph = load(cls, file, dim=dim, count=count)
        graph.ef = ef
        return graph

    @staticmethod
    def building_cost(sizes: list[int], dim: int) -> list[Part]:
        """What building graphs of these sizes side by side holds in addition."""
        chunks = sum(min(size, INSERTED) for size in sizes)
        return [
            Part("vectors", FLOAT * sum(sizes) * dim, mapped=True),
            Part("vectors on their way", 2 * FLOAT * chunks * dim),
        ]


def alive(vectors: np.ndarray, chunk: int = VECTORS) -> np.ndarray:
    """Ids of the rows that can be found: a zero row is near nothing. Rows that are not finite are refused."""
    parts = [
        start + np.flatnonzero(np.linalg.norm(unit(vectors[start : start + chunk]), axis=1) > 0)
        for start in range(0, len(vectors), chunk)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def grow(
    kind: type[G],
    vectors: np.ndarray,
    building: Building,
    *,
    drafts: "Drafts | None" = None,
    stop: threading.Event | None = None,
) -> G:
    """A graph over the rows that can be found; with one thread it is the same every time.

    After each block, at most BLOCKS times in all, a draft is saved and read again, whether or not the work is ever
    interrupted: libraries do not save the state of their generators, and so a resumed graph comes out the same.
    """
    vectors = kind.stored(vectors)
    ids = kind.kept(vectors)
    block = max(building.block, -(-len(ids) // BLOCKS))
    dim = vectors.shape[1]
    graph: Any = None if drafts is None else drafts.load(dim, len(ids), building)
    graph = graph or kind.empty(dim, len(ids), building)
    for start in range(len(graph), len(ids), block):
        in_block = ids[start : start + block]
        for some in np.split(in_block, range(INSERTED, len(in_block), INSERTED)):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            graph.add(np.asarray(vectors[some]), some, building.threads)
        if drafts is not None and start + len(in_block) < len(ids):
            graph = drafts.renew(graph, dim, len(ids), building)
    return graph


class Drafts:
    """Unfinished graphs, each saved whole or not at all; building is resumed from the newest whole one."""

    def __init__(self, kind: type[Graph], folder: Path, say: Callable[[str], None] = lambda text: None):
        self.kind = kind
        self.folder = Path(folder)
        self.say = say

    def load(self, dim: int, count: int, building: Building) -> Graph | None:
        """The newest whole draft of a graph that will have `count` vectors."""
        for folder in sorted(self.folder.glob("[0-9]*"), reverse=True):
            try:
                graph = load(self.kind, artifacts.check(folder) / DRAFT, dim=dim, count=count, building=building)
            except UserError as error:
                self.say(f"snapshot passed over: {error}")
                continue
            self.say(f"goes on after {len(graph):,} of {count:,} vectors, where it was interrupted")
            return graph
        return None

    def renew(self, graph: Graph, dim: int, count: int, building: Building) -> Graph:
        """The graph, saved and read again."""
        folder = self.folder / f"{len(graph):012d}"
        with artifacts.writing(folder) as draft:
            save(graph, draft / DRAFT)
        for old in sorted(self.folder.glob("[0-9]*"))[:-2]:
            shutil.rmtree(old)
        return load(self.kind, folder / DRAFT, dim=dim, count=count, building=building)


def save(graph: Graph, file: Path) -> None:
    """Save the graph, or say that the disk is full."""
    try:
        expected = graph.write(file)
    except RuntimeError as error:  # a library's word for what the system refused
        raise OSError(errno.ENOSPC, f"{file.name}: {error}") from None
    size = file.stat().st_size
    if size != expected:
        raise OSError(errno.ENOSPC, f"{file.name} came out {size} bytes long instead of {expected}")


def load(kind: type[G], file: Path, *, dim: int, count: int, building: Building | None = None) -> G:
    """A saved graph; libraries do not notice a damaged file, so the caller must have checked it."""
    try:
        return kind.read(file, dim=dim, count=count, building=building)
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{file} is not a usable index ({error}): {artifacts.remedy(file)}.") from None
