"""HNSW graphs in eight bits by usearch, which no other module imports. Memory-mapped: opening one costs nothing.

A vector is held as whole numbers from -127 to 127 times a step that all vectors of the graph share; a query has a step
of its own. Products of whole numbers are exact, so that a graph comes out the same on every machine.
"""

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
from xcutils.core.vectors import finite
from xcutils.search.graphs import Graph
from xcutils.search.index import Building

Library: Any = usearch.index.Index
LEVELS = 127  # of eight bits, on either side of zero
FAR = 6  # root mean squares of the widest dimension beyond which a value is cut off: one outlier costs all others
HEAD = struct.Struct("<II")  # how a file begins: vectors, bytes of each; then the vectors in the order of insertion
ROUNDED = 1 << 14  # vectors rounded or hashed at once
CACHE = 32e6  # bytes of vectors that fit into the processor's cache


class Eight(Graph):
    """A graph that holds its vectors in eight bits.

    Equal vectors are in the graph once: a graph can fall apart where many of them link to each other alone. Beside the
    graph stands which ids have each of its vectors, unless that is each id its own.
    """

    def __init__(self, graph: Any, file: Path | None = None):
        """file  where the graph is mapped from"""
        self.graph = graph
        self.file = file
        self.step = 1.0  # what a whole number of its vectors stands for
        self.members: Ragged | None = None  # a row per vector of the graph: the ids that have it

    @classmethod
    def over(cls, vectors: np.ndarray, building: Building, *, ef: int) -> "Eight":
        codes, step = rounded(vectors)
        index = super().over(codes, building, ef=ef)
        index.members, index.step = members_of(codes), step
        return index

    @classmethod
    def build(cls, vectors: np.ndarray, file: Path, building: Building, **options) -> None:
        codes, step = rounded(vectors)
        super().build(codes, file, building, **options)
        artifacts.save_json(file.parent, f"{file.name}.json", {"step": step})
        members = members_of(codes)
        if members is not None:
            artifacts.save_ragged(file.parent, _beside(file), members)

    @classmethod
    def open(cls, file: Path, *, count: int, dim: int, ef: int) -> "Eight":
        index = super().open(file, count=count, dim=dim, ef=ef)
        index.step = artifacts.load_json(file.parent, f"{file.name}.json")["step"]
        if len(index.graph) < count:
            index.members = artifacts.load_ragged(file.parent, _beside(file))
        return index

    @staticmethod
    def stored(vectors: np.ndarray) -> np.ndarray:
        return vectors if vectors.dtype == np.int8 else rounded(vectors)[0]

    @classmethod
    def empty(cls, dim: int, count: int, building: Building) -> "Eight":
        """The levels of vectors are drawn in an order of the library's own: the seed is not used."""
        wanted = {"connectivity": building.m, "expansion_add": building.ef_construction}
        return cls(Library(ndim=dim, metric="ip", dtype="i8", **wanted))

    @classmethod
    def read(cls, file: Path, *, dim: int, count: int, building: Building | None = None) -> "Eight":
        with open(file, "rb") as opened:
            head = opened.read(HEAD.size)
        inside, width = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0)
        if inside > count or (inside and width != dim):
            raise ValueError(f"it has {inside} vectors of {width} dimensions, not {count} of {dim}")
        graph = Library.restore(str(file), view=building is None)
        if graph is None or len(graph) != inside:
            raise ValueError("it is damaged")
        if building is not None:
            graph.expansion_add = building.ef_construction
        return cls(graph, None if building else file)

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
        self.graph.add(places, vectors, threads=threads)

    def write(self, file: Path) -> int:
        self.graph.save(str(file))
        return self.graph.serialized_length

    def __len__(self) -> int:
        return len(self.graph) if self.members is None else len(self.members.values)

    def seen(self, queries: np.ndarray) -> np.ndarray:
        codes, steps = _codes(queries)
        return codes * steps

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, scores), both (Q, k); every vector is looked at where the graph does not reach k."""
        codes, steps = _codes(queries)
        width = min(k, len(self.graph))
        places, products, counts = self._search(codes, width, threads)
        if counts is not None:
            short = np.flatnonzero(counts < width)
            places[short], products[short], _ = self._search(codes[short], width, threads, exact=True)
        scores = products * (steps * np.float32(self.step))
        if self.members is None:
            return places, scores
        lengths = self.copies[places]
        if width == k and lengths.max(initial=1) == 1:
            return self.firsts[places], scores
        rows = starts(lengths.sum(axis=1))
        ids = Ragged(self.members.take(places.ravel()).values, rows).cut(k)
        spread = Ragged(np.repeat(scores.ravel(), lengths.ravel()), rows).cut(k)
        return ids.values.astype(np.int64).reshape(-1, k), spread.values.reshape(-1, k)

    def _search(
        self, codes: np.ndarray, k: int, threads: int, exact: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(places (Q, k), products (Q, k), how many of each row were found; None: all k)"""
        found = self.graph.search(codes, k, threads=threads, exact=exact)
        if len(codes) == 1:
            counts = np.array([len(found.keys)])  # of one query, the library gives what it found alone
            if counts[0] == k:
                return found.keys.astype(np.int64)[None], 1 - found.distances[None], None
        else:
            counts = np.asarray(found.counts)
            if counts.min(initial=k) == k:
                return found.keys.astype(np.int64), 1 - found.distances, None
        places, products = np.zeros((len(codes), k), dtype=np.int64), np.zeros((len(codes), k), dtype=np.float32)
        is_found = np.arange(k) < counts[:, None]
        given = slice(None) if len(codes) == 1 else is_found
        places[is_found], products[is_found] = found.keys[given], 1 - found.distances[given]
        return places, products, counts

    def take(self, ids: np.ndarray) -> np.ndarray:
        if self.members is None:
            return self.codes[ids] * np.float32(self.step)
        if not len(self.graph):
            return np.zeros((len(ids), self.graph.ndim), dtype=np.float32)
        places = self.places[np.minimum(ids, len(self.places) - 1)]
        return np.where(places[:, None] >= 0, self.codes[places] * np.float32(self.step), np.float32(0))

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
    def codes(self) -> np.ndarray:
        """(n, D) int8: the vectors of the graph, mapped from where they stand in its file."""
        shape = (len(self.graph), self.graph.ndim)
        if not len(self.graph):
            return np.zeros(shape, np.int8)
        if self.file is None:
            return np.stack(self.graph.get(np.arange(len(self.graph), dtype=np.uint64)))
        return np.memmap(self.file, np.int8, "r", HEAD.size, shape).view(np.ndarray)

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        """What graphs over so many vectors hold while they are built: the vectors, once more inside, and links."""
        return [
            Part("vectors in the graphs", 2 * count * dim, "set index.search to exact"),
            Part("links", count * link_bytes(m), f"lower index.m ({m})"),
        ]

    @staticmethod
    def disk(count: int, dim: int, m: int) -> float:
        """Bytes of a saved graph."""
        return count * (dim + 8 * m + 20)

    @staticmethod
    def seconds(ef: int, m: int, count: int, dim: int) -> float:
        """Seconds of one search or insertion on one thread; twice as many where the vectors exceed the cache."""
        far = 2 if count * dim > CACHE else 1
        return 3e-10 * far * ef * (m / 24) ** 0.5 * log2(max(2, count)) * dim


def rounded(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """(codes (n, D) int8, step): the vectors are about codes * step. Values that are not finite are refused."""
    squares, peak = np.zeros(vectors.shape[1]), 0.0
    parts = range(0, len(vectors), ROUNDED)
    for start in parts:
        some = finite(vectors[start : start + ROUNDED], start)
        squares += np.einsum("nd,nd->d", some, some)
        peak = max(peak, float(np.abs(some).max(initial=0)))
    step = min(peak, FAR * float(np.sqrt(squares.max(initial=0) / max(1, len(vectors))))) / LEVELS or 1.0
    codes = np.empty(vectors.shape, dtype=np.int8)
    for start in parts:
        some = vectors[start : start + ROUNDED] / np.float32(step)
        codes[start : start + ROUNDED] = np.rint(np.clip(some, -LEVELS, LEVELS))
    return codes, step


def _codes(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(codes (Q, D) int8, steps (Q, 1) float32): each query with a step of its own."""
    steps = np.abs(queries).max(axis=1, keepdims=True) * np.float32(1 / LEVELS)
    steps[steps == 0] = 1
    return np.rint(queries / steps).astype(np.int8), steps


def members_of(codes: np.ndarray) -> Ragged | None:
    """A row per different vector, in the order of their first ids: the ids that have it.

    Zero vectors are left out. None where all vectors are different and none is zero.
    """
    ids = np.flatnonzero(codes.any(axis=1))
    keys = np.concatenate([_keys(codes[some]) for some in _parts(ids)]) if len(ids) else np.zeros(0, np.uint64)
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(codes):
        return None
    group = np.argsort(np.argsort(first))[group]  # numbered by their first ids
    return Ragged(ids[np.argsort(group, kind="stable")], starts(np.bincount(group, minlength=len(first))))


def _keys(codes: np.ndarray) -> np.ndarray:
    """(n,) uint64: a hash of each vector."""
    bits = np.ascontiguousarray(codes).view(np.uint8).astype(np.uint64)
    return ((bits + np.uint64(1)) * _factors(bits.shape[1])).sum(axis=1, dtype=np.uint64)


def _factors(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1 << 63, count, dtype=np.uint64) | np.uint64(1)


def _parts(ids: np.ndarray) -> Iterator[np.ndarray]:
    return (ids[start : start + ROUNDED] for start in range(0, len(ids), ROUNDED))


def _beside(file: Path) -> str:
    """The name of the arrays that stand beside a graph."""
    return f"{file.name}.members"


def link_bytes(m: int) -> float:
    """Bytes of a vector in a graph besides itself: its links, m more for 1 in m, its id, its place, a lock."""
    return 2 * m * FLOAT + m * FLOAT / max(1, m - 1) + 64
