"""A trained system: token ids in, a fused shortlist out. Scoring and prediction go through the same code."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from xcutils.core.ragged import Ragged
from xcutils.core.vectors import unit
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import encode
from xcutils.rank.fusion import Fusion, Shortlist, entries, memory_scores, pair_scores, rank, top_of, union
from xcutils.search.searcher import Searcher

Found = tuple[np.ndarray, np.ndarray]  # ids (Q, k), scores (Q, k)


# Searcher -> the part of the fusion that its scores are; concatenated vectors only have a row in the metrics.
SEARCHER_TO_PART = {"concatenated": "concatenated", "classifiers": "classifier", "labels": "similarity"}


@dataclass
class Predictor:
    """The encoder, what it searches, and how the searches' answers are weighted.

    searchers   labels and classifiers, each (L, D); docs (N, D), the retrieval memory; for two heads also concatenated
    views       search -> the columns of an embedding that it uses; all of them where it is not named
    positives   (N, L)  labels of the documents
    propensity  (L,)    ln of the inverse propensity
    """

    encoder: Encoder
    searchers: dict[str, Searcher]
    views: dict[str, slice]
    positives: sparse.csr_matrix
    propensity: np.ndarray
    shortlist: int  # labels taken from each search
    neighbours: int  # documents the memory looks at
    tau: float  # temperature of the memory's weights

    def seen_by(self, name: str, queries: np.ndarray) -> np.ndarray:
        """The columns of the embeddings (Q, D) that this search uses, at length one."""
        return unit(queries[:, self.views[name]]) if name in self.views else queries

    def embed(self, tokens: Ragged) -> np.ndarray:
        """(Q, D) embeddings of the texts: the queries of the searches."""
        return encode(self.encoder, tokens)

    def search(self, queries: np.ndarray) -> tuple[dict[str, Found], sparse.csr_matrix]:
        """(each search's answer, the memory's scores (Q, L) sparse)."""
        near, similarity = self.searchers["docs"].search(queries, self.neighbours)
        memory = memory_scores(near, similarity, self.positives, tau=self.tau)
        found = {
            part: self.searchers[name].search(self.seen_by(name, queries), self.shortlist)
            for name, part in SEARCHER_TO_PART.items()
            if name in self.searchers
        }
        return {**found, "memory": top_of(memory, self.shortlist)}, memory

    def pairs(self, queries: np.ndarray) -> tuple[Shortlist, dict[str, Found]]:
        """(the union of what the searches found, with every part's score; each search's own answer)."""
        found, memory = self.search(queries)
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
        return Shortlist(rows, labels, parts, len(queries)), found

    def _scores(self, name: str, queries: np.ndarray, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return pair_scores(self.seen_by(name, queries), self.searchers[name].vectors, rows, labels)

    def predict(self, tokens: Ragged, fusion: Fusion, k: int) -> Found:
        """(ids (Q, k), probabilities (Q, k)), best first, padded with -1 and 0."""
        shortlist, _ = self.pairs(self.embed(tokens))
        ids, scores = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist), shortlist.count, k)
        return ids, np.where(ids >= 0, fusion.probabilities(np.where(ids >= 0, scores, 0)), 0.0)
