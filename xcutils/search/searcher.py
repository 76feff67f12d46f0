"""One interface to search: the k nearest of some unit vectors, exactly or through an index.

What a finished model searches with is in indexes.py; this is for training and scoring, with torch.
"""

import numpy as np
import torch

from xcutils.core.costs import FLOAT, Part
from xcutils.core.errors import UserError
from xcutils.search.exact import SCORES, exact
from xcutils.search.graphs import alive
from xcutils.search.index import Building, Index
from xcutils.search.indexes import INDEXES

MINED_EXACTLY = 1 << 16  # vectors up to which exact search is as fast as building an index first
MINED_LINKS = 16  # per vector of such an index
MINED_WITH = "hnsw"  # the index that finds hard negatives where there are many labels


class Searcher:
    """The k nearest of some unit vectors to a query: through an index where there is one, exactly otherwise.

    Zero vectors are never found; queries that are not finite are refused.
    """

    def __init__(self, vectors: np.ndarray, index: Index | None = None, device: torch.device | str = "cpu"):
        """device  where exact search is made"""
        self.vectors = vectors
        self.index = index
        self.device = device
        self._alive: np.ndarray | None = None  # computed at the first use

    @property
    def alive(self) -> np.ndarray:
        """Ids of the vectors that can be found, ascending."""
        if self._alive is None:
            self._alive = alive(self.vectors)
        return self._alive

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, scores) as `exact` gives them."""
        queries = np.asarray(queries, dtype=np.float32)
        if not np.isfinite(queries).all():
            raise UserError("a text's embedding holds values that are not finite: the model has diverged, train again.")
        count = 0 if self.index is None else min(k, len(self.index))
        if self.index is None or count == 0 or len(queries) == 0:
            return self._exact(queries, k)
        answer = self.index.search(queries, count, torch.get_num_threads())
        if answer is None:
            return self._exact(queries, k)
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        ids[:, :count], scores[:, :count] = answer
        return ids, scores

    def _exact(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        if len(self.alive) == len(self.vectors):
            return exact(queries, self.vectors, k, device=self.device)
        places, scores = exact(queries, self.vectors[self.alive], k, device=self.device)
        return np.where(places >= 0, np.append(self.alive, -1)[places], -1), scores


def nearest(
    queries: np.ndarray, vectors: np.ndarray, k: int, *, seed: int, device: torch.device | str = "cpu"
) -> np.ndarray:
    """(Q, k) ids of the nearest unit vectors, -1 where there are fewer; through an index where there are many."""
    if len(vectors) <= MINED_EXACTLY:
        return exact(queries, vectors, k, device=device)[0]
    index = INDEXES[MINED_WITH].over(vectors, Building(m=MINED_LINKS, ef_construction=100, seed=seed), ef=2 * k)
    return Searcher(vectors, index, device).search(queries, k)[0]


def nearest_cost(queries: float, count: int, dim: int) -> list[Part]:
    """What `nearest` holds besides queries and vectors."""
    if count <= MINED_EXACTLY:
        return [Part("scores", FLOAT * min(queries * count, SCORES))]
    return INDEXES[MINED_WITH].cost(count, dim, MINED_LINKS)


def recall(found: np.ndarray, true: np.ndarray) -> float:
    """Share of the true neighbours (Q, k) that were found, in percent; a -1 is no neighbour."""
    hits = sum(len(np.intersect1d(f[f >= 0], t[t >= 0])) for f, t in zip(found, true))
    return 100.0 * hits / max(1, int((true >= 0).sum()))
