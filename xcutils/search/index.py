"""The interface of an index: what the stage `index`, prediction and mining know of a search library."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from xcutils.core.costs import Part


@dataclass(frozen=True)
class Building:
    """How a graph is built."""

    m: int  # links per vector
    ef_construction: int  # vectors looked at per insertion
    block: int = 1 << 16  # vectors after which a draft is saved
    threads: int = 1  # several are faster, but the graph is not the same every time
    seed: int = 0


class Index(Protocol):
    """An index over vectors that are compared by their inner product, built once, saved in one file.

    exhaustive  every vector is compared with every query
    ef          vectors that an approximate search looks at, at least
    """

    exhaustive: bool
    ef: int

    @classmethod
    def over(cls, vectors: np.ndarray, building: Building, *, ef: int) -> "Index":
        """An index that is not saved."""

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        file: Path,
        building: Building,
        *,
        drafts: Path | None = None,
        say: Callable[[str], None] = ...,
        stop: threading.Event | None = None,
    ) -> None:
        """Write an index over the vectors to `file`, resumed from what is in `drafts`."""

    @classmethod
    def open(cls, file: Path, *, count: int, dim: int, ef: int) -> "Index":
        """The index in a file that the caller has checked."""

    def __len__(self) -> int:
        """The number of vectors that can be found: those that are not zero."""

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids int64, scores float32), both (Q, k), best first; None where exact search has to answer.

        queries  (Q, D) finite;  k  at most the number of vectors that can be found
        """

    def seen(self, queries: np.ndarray) -> np.ndarray:
        """(Q, D) float32: the queries as precise as `search` compares them."""

    def take(self, ids: np.ndarray) -> np.ndarray:
        """(n, D) float32: the vectors of these ids, as precise as the index holds them."""

    @staticmethod
    def cost(count: int, dim: int, m: int) -> list[Part]:
        """What it holds over so many vectors."""

    @staticmethod
    def building_cost(sizes: list[int], dim: int) -> list[Part]:
        """What building indexes of these sizes side by side holds in addition."""

    @staticmethod
    def disk(count: int, dim: int, m: int) -> float:
        """Bytes of its files."""

    @staticmethod
    def seconds(ef: int, m: int, count: int, dim: int) -> float:
        """Seconds of one search or insertion on one thread."""
