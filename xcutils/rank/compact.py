"""A trained bag of embeddings as it is served: one small table, numpy alone. Imports no torch.

A row of the table is the vector of a token or of a bucket of n-grams times its weight, in eight bits and a scale of its
own. All tokens of the vocabulary are kept, since a new text may have any of them; of the buckets those that training
has touched: the others are zero.
"""

from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.core.ragged import Ragged
from xcutils.model.ngrams import bag_features

LEVELS = 127  # of eight bits, on either side of zero
FIRST = np.zeros(1, dtype=np.int64)
PACKED = 1 << 13  # rows packed at once
TEXTS = 512  # texts encoded at once: their rows stay in the processor's cache


class CompactBag:
    """Unit embeddings of texts."""

    def __init__(self, rows: np.ndarray, scales: np.ndarray, buckets: np.ndarray, *, vocabulary: int, ngrams: int):
        """
        rows     (R, D) int8     tokens, then buckets; the last row is zero
        scales   (R,)   float32  what a row is multiplied by
        buckets  (b,)   int32    the row of each bucket
        """
        self.rows = rows
        self.scales = scales
        self.buckets = buckets
        self.vocabulary = vocabulary
        self.ngrams = ngrams
        self.dim = rows.shape[1]

    @classmethod
    def of(cls, vectors: np.ndarray, weights: np.ndarray, *, vocabulary: int, ngrams: int) -> "CompactBag":
        """The bag with these token and n-gram vectors (V + b, D) and weights (V + b, 1)."""
        parts = [slice(start, start + PACKED) for start in range(0, len(vectors), PACKED)]
        peaks = np.concatenate([np.abs(vectors[some] * weights[some]).max(axis=1, initial=0) for some in parts])
        is_used = peaks[vocabulary:] > 0
        places = np.where(is_used, vocabulary + np.cumsum(is_used) - 1, vocabulary + is_used.sum()).astype(np.int32)
        kept = np.concatenate([np.arange(vocabulary), vocabulary + np.flatnonzero(is_used)])
        scales = np.append(peaks[kept], 0) / np.float32(LEVELS)
        rows = np.zeros((len(kept) + 1, vectors.shape[1]), dtype=np.int8)  # the last one is zero
        for start in range(0, len(kept), PACKED):
            some = kept[start : start + PACKED]
            steps = scales[start : start + len(some)]
            rows[start : start + len(some)] = np.rint(
                vectors[some] * weights[some] / np.where(steps > 0, steps, 1)[:, None]
            )
        return cls(rows, scales.astype(np.float32), places, vocabulary=vocabulary, ngrams=ngrams)

    def embed(self, tokens: Ragged) -> np.ndarray:
        """(texts, D) float32 of length one; zero where a text has no token."""
        out = np.zeros((len(tokens), self.dim), dtype=np.float32)
        for start in range(0, len(tokens), TEXTS):
            some = tokens if len(tokens) <= TEXTS else tokens.take(np.arange(start, min(start + TEXTS, len(tokens))))
            self._sum(some, out[start : start + TEXTS])
        lengths = np.sqrt(np.einsum("td,td->t", out, out))[:, None]
        return np.divide(out, lengths, out=out, where=lengths > 0)

    def _sum(self, tokens: Ragged, out: np.ndarray) -> None:
        """Write the sums of each text's rows into out (texts, D), zero before."""
        features = bag_features(tokens, self.vocabulary, self.ngrams, self.vocabulary + len(self.buckets))
        ids = features.values
        if not len(ids):
            return
        places = np.where(ids < self.vocabulary, ids, self.buckets[ids - self.vocabulary]) if len(self.buckets) else ids
        rows = self.rows[places] * self.scales[places, None]
        if len(out) == 1:
            np.add.reduceat(rows, FIRST, axis=0, out=out)
            return
        has_some = features.lengths > 0
        out[has_some] = np.add.reduceat(rows, features.offsets[:-1][has_some], axis=0)

    def save(self, folder: Path) -> None:
        artifacts.save_array(folder, "rows", self.rows)
        artifacts.save_array(folder, "scales", self.scales)
        artifacts.save_array(folder, "buckets", self.buckets)
        artifacts.save_json(
            folder, "encoder.json", {"kind": KIND, "vocabulary": self.vocabulary, "ngrams": self.ngrams}
        )

    @classmethod
    def load(cls, folder: Path) -> "CompactBag":
        facts = artifacts.load_json(folder, "encoder.json")
        arrays = (artifacts.load_array(folder, name).view(np.ndarray) for name in ("rows", "scales", "buckets"))
        return cls(*arrays, vocabulary=facts["vocabulary"], ngrams=facts["ngrams"])


KIND = "compact-bag"
