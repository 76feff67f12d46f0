"""A trained system: token ids in, a fused shortlist out. Scoring and prediction go through the same code."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from xcutils.encoders import encode
from xcutils.fusion import Fusion, Shortlist, entries, memory_scores, pair_scores, rank, top_of, union
from xcutils.neighbours import Searcher
from xcutils.ragged import Ragged

Found = tuple[np.ndarray, np.ndarray]  # ids (Q, k), scores (Q, k)


@dataclass
class Predictor:
    """The encoder, what it searches, and how the searches' answers are weighted.

    labels       over (L, D) augmented label embeddings
    classifiers  over (L, D) classifiers
    docs         over (N, D) training documents: the retrieval memory
    positives    (N, L)      their labels
    propensity   (L,)        ln of the inverse propensity
    """

    encoder: object
    labels: Searcher
    classifiers: Searcher
    docs: Searcher
    positives: sparse.csr_matrix
    propensity: np.ndarray
    shortlist: int  # labels taken from each search
    neighbours: int  # documents the memory looks at
    tau: float  # temperature of the memory's weights

    def search(self, tokens: Ragged) -> tuple[np.ndarray, dict[str, Found], sparse.csr_matrix]:
        """(embeddings (Q, D), each search's answer, the memory's scores (Q, L) sparse)."""
        queries = encode(self.encoder, tokens)
        near, similarity = self.docs.search(queries, self.neighbours)
        memory = memory_scores(near, similarity, self.positives, tau=self.tau)
        found = {
            "classifier": self.classifiers.search(queries, self.shortlist),
            "similarity": self.labels.search(queries, self.shortlist),
            "memory": top_of(memory, self.shortlist),
        }
        return queries, found, memory

    def pairs(self, tokens: Ragged) -> tuple[Shortlist, dict[str, Found]]:
        """(the union of the searches with every part's score, each search's own answer)."""
        queries, found, memory = self.search(tokens)
        rows, labels = union([ids for ids, _ in found.values()])
        parts = np.stack(
            [
                pair_scores(queries, self.classifiers.vectors, rows, labels),
                pair_scores(queries, self.labels.vectors, rows, labels),
                entries(memory, rows, labels),
                self.propensity[labels].astype(np.float32),
            ],
            axis=1,
        )
        return Shortlist(rows, labels, parts, len(tokens)), found

    def predict(self, tokens: Ragged, fusion: Fusion, k: int) -> Found:
        """(ids (Q, k), probabilities (Q, k)), best first, padded with -1 and 0."""
        shortlist, _ = self.pairs(tokens)
        ids, scores = rank(shortlist.rows, shortlist.labels, fusion.scores(shortlist), shortlist.count, k)
        return ids, np.where(ids >= 0, fusion.probabilities(np.where(ids >= 0, scores, 0)), 0.0)
