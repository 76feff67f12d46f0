"""Vectors shared by clusters of labels, added to the label embeddings while the encoder trains [DEXA section 4]."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xcutils.model.rows import RowTable
from xcutils.train.clustering import balanced_clusters


class Auxiliary:
    """K vectors and which label has which; with K = 0 it adds nothing, and training is NGAME's.

    label_to_aux  (L,) int32  -1 everywhere when K = 0
    start         zero: training starts as NGAME; xavier: drawn at random, as the reference code has it
    """

    def __init__(
        self,
        label_to_aux: np.ndarray,
        dim: int,
        *,
        lr: float,
        normalise_first: bool,
        device: torch.device,
        start: str = "zero",
    ):
        self.label_to_aux = np.array(label_to_aux)
        self.normalise_first = normalise_first
        values = torch.zeros(int(label_to_aux.max(initial=-1)) + 1, dim)
        if start == "xavier" and len(values):
            torch.nn.init.xavier_uniform_(values)
        self.table = RowTable(values.to(device), lr=lr)

    def __len__(self) -> int:
        return len(self.table.values)

    def add(self, z: Tensor, labels: np.ndarray) -> Tensor:
        """(P, D) E(z) + a of these labels, not yet normalised."""
        if len(self) == 0:
            return z
        used, places = np.unique(self.label_to_aux[labels], return_inverse=True)
        rows = self.table.rows(self._ids(used))
        # Not rows[places]: the order in which threads add up its gradient is not the same every time.
        aux = rows.index_select(0, self._ids(places))
        return (F.normalize(z, dim=1) if self.normalise_first else z) + aux

    def recluster(self, embeddings: np.ndarray, seed: int) -> None:
        """Share the vectors again, among labels that are near each other now.

        A vector starts as the mean of the vectors that its new labels had.
        embeddings  (L, D) float32  the labels' present embeddings
        """
        alone = np.bincount(self.label_to_aux)[self.label_to_aux] == 1  # head labels and singletons keep their vector
        shared = np.flatnonzero(~alone)
        if len(shared) == 0:
            return
        slots = np.unique(self.label_to_aux[shared])
        new_slots = slots[balanced_clusters(embeddings[shared], len(slots), seed=seed)]
        old = self.table.values[self._ids(self.label_to_aux[shared])]
        total = torch.zeros_like(self.table.values).index_add_(0, self._ids(new_slots), old)
        count = torch.bincount(self._ids(new_slots), minlength=len(self)).unsqueeze(1)
        rows = self._ids(slots)
        self.table.values[rows] = total[rows] / count[rows]
        for moment in (self.table.first, self.table.second):
            if moment is not None:
                moment[rows] = 0
        self.label_to_aux[shared] = new_slots

    def _ids(self, ids: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(self.table.values.device)
