"""HNSW graphs in half precision by usearch, which no other module imports. Memory-mapped: opening one costs nothing."""

import struct
from functools import cached_property
from math import log2
from pathlib import Path

import numpy as np
from usearch.index import Index as Library

from xcutils.core.costs import FLOAT, Part
from xcutils.search.graphs import Graph
from xcutils.search.index import Building

HALF = 2  # bytes
HEAD = struct.Struct("<II")  # how a file begins: vectors, bytes of each; then the vectors in the order of insertion
CACHE = 64e6  # bytes of vectors that fit into the processor's cache


class Half(Graph):
    """A graph that holds its vectors in float16; queries are rounded to float16 too, sums are made in float32."""

    def __init__(self, graph: Library, count: int, file: Path | None = None):
        """count  vectors, those included that cannot be found;  file  where a finished graph is mapped from"""
        self.graph = graph
        self.count = count
        self.file = file

    @classmethod
    def empty(cls, dim: int, count: int, building: Building) -> "Half":
        """The levels of vectors are drawn in an order of the library's own: the seed is not used."""
        wanted = {"connectivity": building.m, "expansion_add": building.ef_construction}
        return cls(Library(ndim=dim, metric="ip", dtype="f16", **wanted), 0)

    @classmethod
    def read(cls, file: Path, *, dim: int, count: int, building: Building | None = None) -> "Half":
        with open(file, "rb") as opened:
            head = opened.read(HEAD.size)
        inside, width = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
        if inside > count or (inside and width != HALF * dim):
            raise ValueError(f"it has {inside} vectors of {width // HALF} dimensions, not {count} of {dim}")
        graph = Library.restore(str(file), view=building is None)
        if graph is None or len(graph) != inside:
            raise ValueError("it is damaged")
        if building is not None:
            graph.expansion_add = building.ef_construction
            return cls(graph, len(graph))
        return cls(graph, count, file)

    @property
    def ef(self) -> int:  # type: ignore[override]
        return self.graph.expansion_search

    @ef.setter
    def ef(self, value: int) -> None:
        self.graph.expansion_search = value

    def add(self, vectors: np.ndarray, ids: np.ndarray, threads: int) -> None:
        self.graph.add(ids.astype(np.uint64), vectors.astype(np.float16), threads=threads)
        self.count = int(ids[-1]) + 1  # ids ascend
        self.__dict__.pop("places", None)

    def write(self, file: Path) -> int:
        self.graph.save(str(file))
        return self.graph.serialized_length

    def __len__(self) -> int:
        return len(self.graph)

    def search(
        self, queries: np.ndarray, k: int, threads: int = 1
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, scores), both (Q, k); every vector is looked at where the graph does not reach k."""
        queries = np.atleast_2d(np.asarray(queries, dtype=np.float16))
        ids, scores, counts = self._search(queries, k, threads)
        short = np.flatnonzero(counts < k)
        if len(short):
            ids[short], scores[short], _ = self._search(queries[short], k, threads, exact=True)
        return ids, scores

    def _search(self, queries: np.ndarray, k: int, threads: int, exact: bool = False) -> tuple[np.ndarray, ...]:
        found = self.graph.search(queries, k, threads=threads, exact=exact)
        if len(queries) == 1:  # the library then leaves out a dimension
            counts, shape = np.array([len(found.keys)]), (1, -1)
            padded = np.zeros((1, k), dtype=np.int64), np.zeros((1, k), dtype=np.float32)
            padded[0][:, : counts[0]], padded[1][:, : counts[0]] = found.keys.reshape(shape), found.distances.reshape(shape)
            return padded[0], 1 - padded[1], counts
        return found.keys.astype(np.int64), 1 - found.distances, np.asarray(found.counts)

    def take(self, ids: np.ndarray) -> np.ndarray:
        if self.places is None:
            return self.vectors[ids].astype(np.float32)
        places = self.places[ids]
        return np.where(places[:, None] >= 0, self.vectors[places].astype(np.float32), np.float32(0))

    @cached_property
    def places(self) -> np.ndarray | None:
        """(count,) int64: where each id was inserted, -1 where it was not; None if all ids were, in their order."""
        if len(self.graph) == self.count:
            return None
        inside = np.sort(np.asarray(self.graph.keys).astype(np.int64))  # they were inserted in this order
        places = np.full(self.count, -1, dtype=np.int64)
        places[inside] = np.arange(len(inside))
        return places

    @property
    def vectors(self) -> np.ndarray:
        """(n, D) float16: the vectors in the order of insertion."""
        if self.file is not None:
            return self._mapped
        ids = np.arange(self.count) if self.places is None else np.flatnonzero(self.places >= 0)
        return self.graph.get(ids.astype(np.uint64)).reshape(len(ids), self.graph.ndim)

    @cached_property
    def _mapped(self) -> np.ndarray:
        """The vectors where they stand in the graph's own file."""
        shape = (len(self.graph), self.graph.ndim)
        if not len(self.graph):
            return np.zeros(shape, np.float16)
        return np.memmap(self.file, np.float16, "r", HEAD.size, shape).view(np.ndarray)

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        """What graphs over so many vectors hold while they are built: the vectors themselves, and their links."""
        return [
            Part("vectors in the graphs", HALF * count * dim, "set index.search to exact"),
            Part("links", count * link_bytes(m), f"lower index.m ({m})"),
        ]

    @staticmethod
    def disk(count: int, dim: int, m: int) -> float:
        """Bytes of a saved graph."""
        return count * (HALF * dim + 8 * m + 20)

    @staticmethod
    def seconds(ef: int, m: int, count: int, dim: int) -> float:
        """Seconds of one search or insertion on one thread; twice as many where the vectors exceed the cache."""
        far = 2 if HALF * count * dim > CACHE else 1
        return 4e-10 * far * ef * (m / 24) ** 0.5 * log2(max(2, count)) * dim


def link_bytes(m: int) -> float:
    """Bytes of a vector in a graph besides itself: its links, m more for 1 in m, its id, its place, a lock."""
    return 2 * m * FLOAT + m * FLOAT / max(1, m - 1) + 64
