"""Hard negatives: labels near a document that are no positives of it, searched every few epochs [ANCE, UniDEC]."""

import numpy as np
import torch
from scipy import sparse

from xcutils.core.ragged import Ragged, starts
from xcutils.search.metrics import hits
from xcutils.search.searcher import nearest


class Miner:
    """The nearest wrong labels of each document, as they were at the last refresh.

    known  (N, L) binary  pairs that are no negatives: positives, and pairs that may not be predicted
    depth  how many nearest labels are kept
    among  how many are searched, of which wrong ones are kept; 0: no more than `depth`, so that fewer may be left
    device where exact search is made
    """

    def __init__(self, known: sparse.csr_matrix, depth: int, device: torch.device | str = "cpu", *, among: int = 0):
        self.known = known
        self.depth = depth
        self.among = max(among, depth)
        self.device = device
        self.near = np.full((known.shape[0], depth), -1, dtype=np.int32)

    def refresh(self, docs: np.ndarray, embeddings: np.ndarray, labels: np.ndarray, *, seed: int) -> None:
        """Search the labels (L, D) with the embeddings (n, D) of the documents `docs`."""
        ids = nearest(embeddings, labels, self.among, seed=seed, device=self.device)
        wrong = np.where(hits(ids, self.known[docs]), -1, ids)
        if self.among > self.depth:  # wrong ones first, the nearest of them before the others
            wrong = np.take_along_axis(wrong, np.argsort(wrong < 0, axis=1, kind="stable"), axis=1)[:, : self.depth]
        self.near[docs] = wrong

    def draw(self, docs: np.ndarray, count: int, rng: np.random.Generator) -> Ragged:
        """Up to `count` different hard negatives of each document, drawn uniformly."""
        near = self.near[docs]
        order = np.where(near >= 0, rng.random(near.shape), 2.0)
        count = min(count, self.depth)
        kept = np.argpartition(order, count - 1, axis=1)[:, :count]
        drawn = np.take_along_axis(near, kept, axis=1)
        return Ragged(drawn[drawn >= 0], starts((drawn >= 0).sum(axis=1)))
