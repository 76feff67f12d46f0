"""HNSW graphs in half precision by usearch, which no other module imports. Memory-mapped: opening one costs nothing."""

import struct
from collections.abc import Iterator
from functools import cached_property
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import usearch.index

from xcutils.core import artifacts
from xcutils.core.costs import FLOAT, Part
from xcutils.core.ragged import Ragged, starts
from xcutils.search.graphs import Graph, alive
from xcutils.search.index import Building

Library: Any = usearch.index.Index
HALF = 2  # bytes
HEAD = struct.Struct("<II")  # how a file begins: vectors, bytes of each; then the vectors in the order of insertion
HASHED = 1 << 14  # vectors hashed at once
CACHE = 64e6  # bytes of vectors that fit into the processor's cache


class Half(Graph):
    """A graph that holds its vectors in float16; queries are rounded to float16 too, sums are made in float32.

    Equal vectors are in the graph once: a graph can fall apart where many of them link to each other alone. Beside the
    graph stands which ids have each of its vectors, unless that is each id its own.
    """

    def __init__(self, graph: Any, members: Ragged | None = None, file: Path | None = None):
        """members  a row per vector of the graph: the ids that have it;  file  where the graph is mapped from"""
        self.graph = graph
        self.members = members
        self.file = file

    @classmethod
    def over(cls, vectors: np.ndarray, building: Building, *, ef: int) -> "Half":
        index = super().over(vectors, building, ef=ef)
        index.members = members_of(vectors)
        return index

    @classmethod
    def build(cls, vectors: np.ndarray, file: Path, building: Building, **options) -> None:
        super().build(vectors, file, building, **options)
        members = members_of(vectors)
        if members is not None:
            artifacts.save_ragged(file.parent, _beside(file), members)

    @classmethod
    def open(cls, file: Path, *, count: int, dim: int, ef: int) -> "Half":
        index = super().open(file, count=count, dim=dim, ef=ef)
        if len(index.graph) < count:
            index.members = artifacts.load_ragged(file.parent, _beside(file))
        return index

    @classmethod
    def empty(cls, dim: int, count: int, building: Building) -> "Half":
        """The levels of vectors are drawn in an order of the library's own: the seed is not used."""
        wanted = {"connectivity": building.m, "expansion_add": building.ef_construction}
        return cls(Library(ndim=dim, metric="ip", dtype="f16", **wanted))

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
        return cls(graph, file=None if building else file)

    @property
    def ef(self) -> int:
        return self.graph.expansion_search

    @ef.setter
    def ef(self, value: int) -> None:
        self.graph.expansion_search = value

    @staticmethod
    def kept(vectors: np.ndarray) -> np.ndarray:
        members = members_of(vectors)
        return np.arange(len(vectors)) if members is None else members.values[members.offsets[:-1]]

    def add(self, vectors: np.ndarray, ids: np.ndarray, threads: int) -> None:
        places = np.arange(len(self.graph), len(self.graph) + len(vectors), dtype=np.uint64)
        self.graph.add(places, vectors.astype(np.float16), threads=threads)

    def write(self, file: Path) -> int:
        self.graph.save(str(file))
        return self.graph.serialized_length

    def __len__(self) -> int:
        return len(self.graph) if self.members is None else len(self.members.values)

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, scores), both (Q, k); every vector is looked at where the graph does not reach k."""
        queries = np.atleast_2d(np.asarray(queries, dtype=np.float16))
        width = min(k, len(self.graph))
        places, scores, counts = self._search(queries, width, threads)
        short = np.flatnonzero(counts < width)
        if len(short):
            places[short], scores[short], _ = self._search(queries[short], width, threads, exact=True)
        if self.members is None:
            return places, scores
        lengths = self.copies[places]
        if width == k and lengths.max(initial=1) == 1:
            return self.firsts[places], scores
        rows = starts(lengths.sum(axis=1))
        ids = Ragged(self.members.take(places.ravel()).values, rows).cut(k)
        spread = Ragged(np.repeat(scores.ravel(), lengths.ravel()), rows).cut(k)
        return ids.values.astype(np.int64).reshape(-1, k), spread.values.reshape(-1, k)

    def _search(self, queries: np.ndarray, k: int, threads: int, exact: bool = False) -> tuple[np.ndarray, ...]:
        """(places (Q, k), scores (Q, k), how many of each row were found)"""
        found = self.graph.search(queries, k, threads=threads, exact=exact)
        counts = np.array([len(found.keys)]) if len(queries) == 1 else np.asarray(found.counts)
        if counts.min(initial=k) == k:
            return found.keys.astype(np.int64).reshape(-1, k), 1 - found.distances.reshape(-1, k), counts
        places, scores = np.zeros((len(queries), k), dtype=np.int64), np.zeros((len(queries), k), dtype=np.float32)
        is_found = np.arange(k) < counts[:, None]
        given = slice(None) if len(queries) == 1 else is_found  # of one query, the library gives what it found alone
        places[is_found], scores[is_found] = found.keys[given], 1 - found.distances[given]
        return places, scores, counts

    def take(self, ids: np.ndarray) -> np.ndarray:
        if self.members is None:
            return self.vectors[ids].astype(np.float32)
        if not len(self.graph):
            return np.zeros((len(ids), self.graph.ndim), dtype=np.float32)
        places = self.places[np.minimum(ids, len(self.places) - 1)]
        return np.where(places[:, None] >= 0, self.vectors[places].astype(np.float32), np.float32(0))

    @cached_property
    def firsts(self) -> np.ndarray:
        """(n,) int64: the first id of each vector of the graph."""
        assert self.members is not None
        return self.members.values[self.members.offsets[:-1]].astype(np.int64)

    @cached_property
    def copies(self) -> np.ndarray:
        """(n,) int64: how many ids have each vector of the graph."""
        assert self.members is not None
        return self.members.lengths

    @cached_property
    def places(self) -> np.ndarray:
        """(n,) int64: the place of each id's vector in the graph, -1 for a zero vector; the last is for all others."""
        assert self.members is not None
        places = np.full(int(self.members.values.max(initial=-1)) + 2, -1, dtype=np.int64)
        places[self.members.values] = self.members.row_ids()
        return places

    @cached_property
    def vectors(self) -> np.ndarray:
        """(n, D) float16: the vectors of the graph, mapped from where they stand in its file."""
        shape = (len(self.graph), self.graph.ndim)
        if not len(self.graph):
            return np.zeros(shape, np.float16)
        if self.file is None:
            return np.stack(self.graph.get(np.arange(len(self.graph), dtype=np.uint64)))
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


def members_of(vectors: np.ndarray) -> Ragged | None:
    """A row per different vector in half precision, in the order of their first ids: the ids that have it.

    Zero vectors are left out. None where all vectors are different and none is zero.
    """
    ids = alive(vectors)
    keys = np.concatenate([_keys(vectors[some]) for some in _parts(ids)]) if len(ids) else np.zeros(0, np.uint64)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(vectors):
        return None
    group = np.argsort(np.argsort(first))[group]  # numbered by their first ids
    return Ragged(ids[np.argsort(group, kind="stable")], starts(np.bincount(group, minlength=len(first))))


def _keys(vectors: np.ndarray) -> np.ndarray:
    """(n,) uint64: a hash of each vector in half precision."""
    bits = np.ascontiguousarray(vectors, dtype=np.float16).view(np.uint16).astype(np.uint64)
    return ((bits + np.uint64(1)) * _factors(bits.shape[1])).sum(axis=1, dtype=np.uint64)


def _factors(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 63, count, dtype=np.uint64) | np.uint64(1)


def _parts(ids: np.ndarray) -> Iterator[np.ndarray]:
    return (ids[start : start + HASHED] for start in range(0, len(ids), HASHED))


def _beside(file: Path) -> str:
    """The name of the arrays that stand beside a graph."""
    return f"{file.name}.members"


def link_bytes(m: int) -> float:
    """Bytes of a vector in a graph besides itself: its links, m more for 1 in m, its id, its place, a lock."""
    return 2 * m * FLOAT + m * FLOAT / max(1, m - 1) + 64
