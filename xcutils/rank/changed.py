"""An index with vectors added and taken out, without building it anew. Array in, array out.

What is added stands in a segment beside the index and is compared with every query; what is taken out stays in the
index and is passed over: the search asks for more until enough are left.
"""

import numpy as np

from xcutils.rank.served import Searchable

SCORES = 1 << 24  # scores of the segment held at once
MORE = 8  # vectors asked for beyond those that are wanted, where some are passed over
MANY = 1 << 14  # vectors looked at together


class Changed:
    """An index over the vectors of another one, those without that are dead, and over added ones, whose ids follow.

    Scores of the index's own vectors are as the index gives them.
    """

    def __init__(self, index: Searchable, count: int, dead: np.ndarray, added: np.ndarray):
        """
        count  vectors of the index, those included that cannot be found
        dead   (d,) int      ids that cannot be found any more
        added  (a, D) float  vectors of the ids from `count` on; a zero one cannot be found
        """
        self.index = index
        self.count = count
        self.added = np.ascontiguousarray(added, dtype=np.float32)
        self.found = np.flatnonzero(self.added.any(axis=1))
        self.segment = self.added if len(self.found) == len(self.added) else self.added[self.found]
        self.is_dead = np.zeros(count, dtype=bool)
        self.is_dead[dead] = True
        gone = np.flatnonzero(self.is_dead)
        parts = [gone[start : start + MANY] for start in range(0, len(gone), MANY)]
        self.gone = sum(int(index.take(part).any(axis=1).sum()) for part in parts)  # that could be found before

    def __len__(self) -> int:
        return len(self.index) - self.gone + len(self.segment)

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids int64, scores float32), both (Q, k), best first; None where the index cannot answer so many."""
        own = min(k, len(self.index) - self.gone)
        found = self._alive(queries, own, threads)
        if found is None or not len(self.segment):
            return found
        added = self._among_added(queries, min(k, len(self.segment)))
        ids, scores = (np.concatenate(pair, axis=1) for pair in zip(found, added))
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _alive(self, queries: np.ndarray, k: int, threads: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The k best of the index's own vectors that are not dead."""
        if not k:
            return np.zeros((len(queries), 0), dtype=np.int64), np.zeros((len(queries), 0), dtype=np.float32)
        width = min(k + MORE, len(self.index)) if self.gone else k
        while True:
            answer = self.index.search(queries, width, threads)
            if answer is None or not self.gone:
                return answer
            ids, scores = answer
            is_alive = ~self.is_dead[ids]
            if width == len(self.index) or is_alive.sum(axis=1).min(initial=k) >= k:
                break
            width = min(2 * width, len(self.index))
        order = np.argsort(~is_alive, axis=1, kind="stable")[:, :k]  # those alive first, as they stand
        return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _among_added(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best of the segment."""
        ids, scores = np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k), dtype=np.float32)
        seen = self.seen(queries)
        step = max(1, SCORES // len(self.segment))
        for start in range(0, len(queries), step):
            some = slice(start, start + step)
            products = seen[some] @ self.segment.T
            best = np.argpartition(-products, k - 1, axis=1)[:, :k]
            values = np.take_along_axis(products, best, axis=1)
            order = np.lexsort((best, -values), axis=1)
            ids[some] = self.count + self.found[np.take_along_axis(best, order, axis=1)]
            scores[some] = np.take_along_axis(values, order, axis=1)
        return ids, scores

    def seen(self, queries: np.ndarray) -> np.ndarray:
        return self.index.seen(queries)

    def take(self, ids: np.ndarray) -> np.ndarray:
        """(n, D) float32: the vectors of these ids; zero for a dead one."""
        ids = np.asarray(ids, dtype=np.int64)
        out = np.zeros((len(ids), self.added.shape[1]), dtype=np.float32)
        is_own = ids < self.count
        own = np.flatnonzero(is_own)[~self.is_dead[ids[is_own]]]
        out[own] = self.index.take(ids[own])
        out[~is_own] = self.added[ids[~is_own] - self.count]
        return out
