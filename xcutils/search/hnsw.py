"""HNSW graphs in single precision by hnswlib, which no other module imports."""

from math import log2
from pathlib import Path

import hnswlib
import numpy as np

from xcutils.core.costs import FLOAT, INT, LONG, Part
from xcutils.search.graphs import Graph
from xcutils.search.index import Building

CACHE = 64e6  # bytes of vectors that fit into the processor's cache


class Hnsw(Graph):
    """A graph that holds its vectors in float32, all of it in memory."""

    def __init__(self, graph: hnswlib.Index):
        self.graph = graph

    @classmethod
    def empty(cls, dim: int, count: int, building: Building) -> "Hnsw":
        graph = hnswlib.Index(space="ip", dim=dim)
        settings = {"M": building.m, "ef_construction": building.ef_construction, "random_seed": building.seed}
        graph.init_index(max_elements=max(1, count), **settings)
        return cls(graph)

    @classmethod
    def read(cls, file: Path, *, dim: int, count: int, building: Building | None = None) -> "Hnsw":
        graph = hnswlib.Index(space="ip", dim=dim)
        graph.load_index(str(file), max_elements=max(1, count))
        return cls(graph)

    def add(self, vectors: np.ndarray, ids: np.ndarray, threads: int) -> None:
        self.graph.add_items(vectors, ids, num_threads=threads)

    def write(self, file: Path) -> int:
        self.graph.save_index(str(file))
        return self.graph.index_file_size()

    def __len__(self) -> int:
        return self.graph.get_current_count()

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, scores), both (Q, k); None where the graph does not reach k."""
        self.graph.set_ef(max(self.ef, k))
        try:
            labels, distances = self.graph.knn_query(np.asarray(queries, dtype=np.float32), k=k, num_threads=threads)
        except RuntimeError:
            return None
        return labels.astype(np.int64), 1 - distances

    def seen(self, queries: np.ndarray) -> np.ndarray:
        return np.asarray(queries, dtype=np.float32)

    def take(self, ids: np.ndarray) -> np.ndarray:
        known = np.isin(ids, self.graph.get_ids_list())  # zero vectors are not in the graph
        out = np.zeros((len(ids), self.graph.dim), dtype=np.float32)
        if known.any():
            out[known] = self.graph.get_items(ids[known], return_type="numpy")
        return out

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        """What graphs over so many vectors hold: the vectors themselves, and their links."""
        return [
            Part("vectors in the graphs", FLOAT * count * dim, "set index.search to hnsw"),
            Part("links", count * (graph_bytes(dim, m) - FLOAT * dim), f"lower index.m ({m})"),
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
