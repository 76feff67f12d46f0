"""The parts of the fused score, each by itself and exactly: what the fusion is fitted on, and rows of the metrics."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from xcutils.core.ragged import Ragged
from xcutils.core.vectors import unit
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import encode
from xcutils.rank.fusion import Shortlist, entries, memory_scores, pair_scores, top_of, union
from xcutils.search.searcher import Searcher

Found = tuple[np.ndarray, np.ndarray]  # ids (Q, k), scores (Q, k)


# Searcher -> the part of the fusion that its scores are; concatenated vectors only have a row in the metrics.
SEARCHER_TO_PART = {"concatenated": "concatenated", "classifiers": "classifier", "labels": "similarity"}


@dataclass
class Predictor:
    """Encoder and searchers over each set of vectors.

    searchers   "labels", "docs", and where classifiers were trained "classifiers" ("concatenated" has a row only)
    views       searcher -> the columns of the embeddings that it uses; all of them where it has none
    positives   (N, L) of the documents that the memory knows
    propensity  (L,) ln of the inverse propensity
    neighbours  documents the memory looks at; 0: there is no memory
    tau         temperature of the memory's weights
    """

    encoder: Encoder
    searchers: dict[str, Searcher]
    views: dict[str, slice]
    positives: sparse.csr_matrix
    propensity: np.ndarray
    neighbours: int
    tau: float

    def seen_by(self, name: str, queries: np.ndarray) -> np.ndarray:
        """The columns of the embeddings (Q, D) that this search uses, at length one."""
        return unit(queries[:, self.views[name]]) if name in self.views else queries

    def embed(self, tokens: Ragged) -> np.ndarray:
        """(Q, D) embeddings of the texts: the queries of the searches."""
        return encode(self.encoder, tokens)

    def memory(self, queries: np.ndarray) -> sparse.csr_matrix:
        """(Q, L) sparse: labels of the nearest training documents."""
        if not self.neighbours:
            return sparse.csr_matrix((len(queries), self.positives.shape[1]), dtype=np.float32)
        near, similarity = self.searchers["docs"].search(queries, self.neighbours)
        return memory_scores(near, similarity, self.positives, tau=self.tau)

    def search(self, queries: np.ndarray, k: int) -> tuple[dict[str, Found], sparse.csr_matrix]:
        """(part -> the k best labels by it alone, the memory's scores (Q, L) sparse)."""
        memory = self.memory(queries)
        found = {
            part: self.searchers[name].search(self.seen_by(name, queries), k)
            for name, part in SEARCHER_TO_PART.items()
            if name in self.searchers
        }
        return {**found, **({"memory": top_of(memory, k)} if self.neighbours else {})}, memory

    def shortlist(self, queries: np.ndarray, k: int) -> Shortlist:
        """The union of the k best labels by each part, with every part's score."""
        found, memory = self.search(queries, k)
        rows, labels = union([ids for ids, _ in found.values()])
        parts = np.stack(
            [
                self._scores("classifiers" if "classifiers" in self.searchers else "labels", queries, rows, labels),
                self._scores("labels", queries, rows, labels),
                entries(memory, rows, labels),
                self.propensity[labels].astype(np.float32),
            ],
            axis=1,
        )
        return Shortlist(rows, labels, parts, len(queries))

    def _scores(self, name: str, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return pair_scores(self.seen_by(name, queries), self.searchers[name].vectors, rows, labels)
