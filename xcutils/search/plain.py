"""No graph: the vectors alone, in half precision, each compared with every query. Imports no torch."""

from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.core.costs import Part
from xcutils.core.errors import UserError
from xcutils.search.graphs import alive
from xcutils.search.index import Building

SCORES = 1 << 24  # scores held at once
HALF = 2  # bytes


class Exact:
    """Vectors in float16, memory-mapped; queries are rounded to float16 too."""

    exhaustive = True
    ef = 0

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors
        self.alive = alive(vectors)

    @classmethod
    def over(cls, vectors: np.ndarray, building: Building, *, ef: int) -> "Exact":
        return cls(np.asarray(vectors, dtype=np.float16))

    @classmethod
    def build(cls, vectors: np.ndarray, file: Path, building: Building, **options) -> None:
        with open(file, "wb") as opened:
            np.save(opened, np.asarray(vectors, dtype=np.float16), allow_pickle=False)

    @classmethod
    def open(cls, file: Path, *, count: int, dim: int, ef: int) -> "Exact":
        try:
            vectors = np.load(file, mmap_mode="r" if count else None, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise UserError(f"{file} is not a usable index ({error}): {artifacts.remedy(file)}.") from None
        if vectors.shape != (count, dim):
            raise UserError(f"{file} has vectors of {vectors.shape}, not {(count, dim)}: {artifacts.remedy(file)}.")
        return cls(vectors)

    def __len__(self) -> int:
        return len(self.alive)

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        ids = np.empty((len(queries), k), dtype=np.int64)
        scores = np.empty((len(queries), k), dtype=np.float32)
        queries = self.seen(queries)
        step = max(1, SCORES // max(1, len(self.vectors)))
        for start in range(0, len(queries), step):
            some = slice(start, start + step)
            all_scores = self._scores(queries[some])
            best = np.argpartition(-all_scores, k - 1, axis=1)[:, :k]
            values = np.take_along_axis(all_scores, best, axis=1)
            order = np.lexsort((best, -values), axis=1)
            ids[some] = self.alive[np.take_along_axis(best, order, axis=1)]
            scores[some] = np.take_along_axis(values, order, axis=1)
        return ids, scores

    def _scores(self, queries: np.ndarray) -> np.ndarray:
        """(q, alive) float32: the products with all vectors that can be found, some vectors at a time."""
        step = max(1, SCORES // 4 // max(1, self.vectors.shape[1]))
        parts = [self.alive[start : start + step] for start in range(0, len(self.alive), step)]
        return np.concatenate([queries @ self.vectors[part].astype(np.float32).T for part in parts], axis=1)

    def seen(self, queries: np.ndarray) -> np.ndarray:
        return np.asarray(queries, dtype=np.float16).astype(np.float32)

    def take(self, ids: np.ndarray) -> np.ndarray:
        return self.vectors[ids].astype(np.float32)

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        return [Part("vectors in half precision", HALF * count * dim, mapped=True)]

    @staticmethod
    def building_cost(sizes: list[int], dim: int) -> list[Part]:
        return []

    @staticmethod
    def disk(count: int, dim: int, m: int) -> float:
        return HALF * count * dim

    @staticmethod
    def seconds(ef: int, m: int, count: int, dim: int) -> float:
        """Seconds of one search on one thread; nothing is inserted."""
        return count * dim * 3e-11
