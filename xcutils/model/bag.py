"""Bag of embeddings: a weighted sum of token and hashed n-gram vectors, from a pretrained token table [Astec]."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xcutils.core.costs import FLOAT, FRAGMENTATION, LONG, Part
from xcutils.core.ragged import Ragged, concatenate
from xcutils.model.checkpoints import load_config, token_table
from xcutils.model.costs import Network, number, shorter
from xcutils.model.encoder import Encoder
from xcutils.model.ngrams import bag_features
from xcutils.model.rows import RowTable

COUNTED = 1 << 16  # texts whose n-grams are counted at once


class BagOfEmbeddings(Encoder):
    """Sum of the vectors of a text's tokens and n-grams, each times a learnt weight."""

    def __init__(self, vectors: Tensor, weights: Tensor, *, vocabulary: int, ngrams: int):
        super().__init__()
        self.vocabulary = vocabulary
        self.ngrams = ngrams
        self.dim = vectors.shape[1]
        self.vectors = RowTable(vectors, lr=0.0)
        self.weights = RowTable(weights, lr=0.0)
        self.tables = [self.vectors, self.weights]

    @classmethod
    def build(cls, p, texts: Iterable[Ragged], special: dict) -> "BagOfEmbeddings":
        """Pretrained token vectors, zero n-gram vectors, weights by inverse frequency in these texts."""
        table = token_table(p.model)
        rows = len(table) + (p.buckets if p.ngrams > 1 else 0)
        vectors = torch.cat([table, torch.zeros(rows - len(table), table.shape[1])])
        chunks = (tokens.take(ids) for tokens in texts for ids in _chunks(len(tokens)))
        weights = idf_weights((bag_features(chunk, len(table), p.ngrams, rows) for chunk in chunks), rows)
        return cls(vectors, weights, vocabulary=len(table), ngrams=p.ngrams)

    @classmethod
    def rebuild(cls, config: dict, state: dict[str, Tensor]) -> "BagOfEmbeddings":
        return cls(state["vectors"], state["weights"], vocabulary=config["vocabulary"], ngrams=config["ngrams"])

    @staticmethod
    def check(p, max_tokens: int) -> None:
        """Any checkpoint's token table will do."""

    @staticmethod
    def network(p, section: str) -> "BagNetwork":
        config = load_config(p.model)
        width = number(config, "hidden_size", "dim")
        rows = number(config, "vocab_size") + (p.buckets if p.ngrams > 1 else 0)
        fewer = shorter(f"{section}.model", width)
        smaller = f"lower {section}.buckets ({p.buckets})" if p.ngrams > 1 else fewer
        lower = f"lower {section}.ngrams ({p.ngrams})" if p.ngrams > 1 else ""
        return BagNetwork(width, rows, width, rows, fewer, smaller, ngrams=p.ngrams, fewer_ngrams=lower)

    def read(self, tokens: Ragged) -> Ragged:
        """Each text's rows of the table: n-grams are hashed here, and never again for these texts."""
        rows = len(self.vectors.values)
        parts = [bag_features(tokens.take(ids), self.vocabulary, self.ngrams, rows) for ids in _chunks(len(tokens))]
        return concatenate(*parts) if parts else bag_features(tokens, self.vocabulary, self.ngrams, rows)

    def embed(self, texts: Ragged) -> Tensor:
        used, places = np.unique(texts.values, return_inverse=True)
        device = self.vectors.values.device
        ids = torch.from_numpy(used.astype(np.int64)).to(device)
        rows = self.vectors.rows(ids) * self.weights.rows(ids)
        offsets = torch.from_numpy(texts.offsets[:-1]).to(device)
        return F.embedding_bag(torch.from_numpy(places).to(device), rows, offsets, mode="sum")

    def config(self) -> dict:
        return {"kind": "bag-of-embeddings", "vocabulary": self.vocabulary, "ngrams": self.ngrams}

    def state(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors.values, "weights": self.weights.values}


def idf_weights(parts: Iterable[Ragged], rows: int) -> Tensor:
    """(rows, 1) float: ln((n + 1) / (df + 1)) of each table row over these texts, scaled to mean 1 over what occurs.

    parts  the features of some texts each, so that those of all texts are never in memory together
    """
    count = 0
    frequency: np.ndarray = np.zeros(rows, dtype=np.int64)
    for features in parts:
        seen = np.unique(features.row_ids() * np.int64(rows) + features.values) % rows
        count += len(features)
        frequency += np.bincount(seen, minlength=rows)
    weights = np.log((count + 1) / (frequency + 1))
    weights /= max(weights[frequency > 0].mean(), 1e-6)  # where every text has every word, all weights are 0
    return torch.from_numpy(weights).float().unsqueeze(1)


def _chunks(count: int, size: int = COUNTED) -> Iterator[np.ndarray]:
    """0 .. count - 1 in pieces."""
    return (np.arange(start, min(start + size, count)) for start in range(0, count, size))


@dataclass(frozen=True)
class BagNetwork(Network):
    """The cost of a bag of embeddings."""

    ngrams: int = 1
    fewer_ngrams: str = ""  # the remedy that makes its features fewer

    def features(self, texts: float, tokens: float) -> float:
        return sum(max(0.0, tokens - (n - 1) * texts) for n in range(1, self.ngrams + 1))

    def used(self, texts: float, tokens: float) -> float:
        """By Heaps' law: n ** 0.78 words, n ** 0.86 n-grams (as in the default dataset)."""
        return min(self.rows, self.features(texts, tokens) ** (0.86 if self.ngrams > 1 else 0.78))

    def step(self, texts: float, tokens: float) -> float:
        """The output; rows, product, gradients of both, the update and its two moments; places of the features."""
        out = 6 * FLOAT * texts * self.dim
        return FRAGMENTATION * (out + 7 * self.picked(texts, tokens)) + 7 * LONG * self.features(texts, tokens)

    def chunk(self, texts: float, tokens: float) -> float:
        places_and_output = 7 * LONG * self.features(texts, tokens) + 2 * FLOAT * texts * self.dim
        return 2 * self.picked(texts, tokens) + places_and_output

    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        moved = 6 * self.picked(texts, tokens) + self.features(texts, tokens) * (20 * LONG + 2 * FLOAT * self.width)
        return 0.0, (3 if train else 1) * moved

    def prepared(self, texts: float, tokens: float) -> float:
        return FLOAT * self.features(texts, tokens) + LONG * texts

    def start(self, sets: Sequence[tuple[float, float]]) -> list[Part]:
        counted = max(min(1, COUNTED / max(1, texts)) * self.features(texts, tokens) for texts, tokens in sets)
        return [Part("n-grams of some texts", 10 * LONG * counted, self.fewer_ngrams)]
