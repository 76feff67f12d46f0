"""A pretrained encoder that stays as it is, beside one that is trained.

The trained one is small and learns what the data can teach; the pretrained one knows words that few documents have. Its
vectors of documents and labels are those of the stage `embed`, looked up by the text, so that training does not encode
them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xcutils.core import artifacts, runtime
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, concatenate
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.encoder import Encoder, Texts
from xcutils.model.transformer import Transformer, build_transformer

ODD, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)  # multiplicative hashing


def build_pretrained(facts: dict, special: dict) -> Transformer:
    """The encoder that the stage `embed` used.

    facts    embed.json: checkpoint, pooling, sha256
    special  the tokenizer's special tokens
    """
    if checkpoint_hash(facts["checkpoint"]) != facts["sha256"]:
        raise UserError(
            f"{facts['checkpoint']} has changed since its embeddings were made: run `dvc repro --force embed`."
        )
    encoder = build_transformer(facts["checkpoint"], special, pooling=facts["pooling"], layers=0, dropout=0.0)
    return encoder.to(runtime.device()).eval()


def text_keys(tokens: Ragged) -> np.ndarray:
    """(rows,) uint64: a hash of each text's tokens and their places."""
    places = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], tokens.lengths)
    mixed = (np.asarray(tokens.values).astype(np.uint64) + np.uint64(1)) * ODD
    mixed = ((mixed ^ (mixed >> SHIFT)) + places.astype(np.uint64)) * ODD
    mixed ^= mixed >> SHIFT
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed * ODD, dtype=np.uint64)])  # overflow is fine
    return sums[tokens.offsets[1:]] - sums[tokens.offsets[:-1]]


class KnownTexts:
    """Vectors of texts that were encoded before, looked up by the text.

    sets  (tokens, (rows, D) float32 vectors) of some texts each
    """

    def __init__(self, *sets: tuple[Ragged, np.ndarray]):
        self.tokens = concatenate(*(tokens for tokens, _ in sets))
        self.vectors = [vectors for _, vectors in sets]
        self.ends = np.cumsum([len(vectors) for vectors in self.vectors])
        keys = text_keys(self.tokens)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    @property
    def dim(self) -> int:
        return self.vectors[0].shape[1]

    def find(self, tokens: Ragged) -> np.ndarray:
        """(rows,) int: the text's place among the known ones, -1 where it is not known."""
        keys = text_keys(tokens)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        candidates = self.order[place]
        rows = np.flatnonzero(self.keys[place] == keys)
        # Different texts may have the same hash: their tokens are compared too.
        rows = rows[self.tokens.lengths[candidates[rows]] == tokens.lengths[rows]]
        asked, known = tokens.take(rows), self.tokens.take(candidates[rows])
        differ = np.unique(asked.row_ids()[np.asarray(asked.values) != np.asarray(known.values)])
        rows = np.delete(rows, differ)
        places = np.full(len(tokens), -1, dtype=np.int64)
        places[rows] = candidates[rows]
        return places

    def take(self, places: np.ndarray) -> np.ndarray:
        """(rows, D) float32: the vectors of known texts."""
        out = np.empty((len(places), self.dim), np.float32)
        set_of = np.searchsorted(self.ends, places, side="right")
        for i, vectors in enumerate(self.vectors):
            rows = np.flatnonzero(set_of == i)
            out[rows] = vectors[places[rows] - (self.ends[i] - len(vectors))]
        return out


class Pretrained:
    """Unit vectors of a pretrained encoder: known texts are looked up, others are encoded.

    Not a module: it is not trained, and only its name is saved.
    """

    def __init__(self, facts: dict, special: dict, known: KnownTexts | None = None):
        self.facts = facts
        self.special = special
        self.known = known
        self._encoder: Transformer | None = None
        self._lock = threading.Lock()  # several chunks are encoded side by side
        self.dim = known.dim if known else self.encoder().dim

    def encoder(self) -> Transformer:
        with self._lock:
            if self._encoder is None:
                self._encoder = build_pretrained(self.facts, self.special)
            return self._encoder

    def find(self, tokens: Ragged) -> np.ndarray:
        """(rows,) int: the text's place among the known ones, -1 where it is not known."""
        return np.full(len(tokens), -1) if self.known is None else self.known.find(tokens)

    def vectors(self, tokens: Ragged, places: np.ndarray) -> np.ndarray:
        """(rows, D) float32 of length one; `places` is what `find` gave for the texts."""
        missing = np.flatnonzero(places < 0)
        if self.known is None or len(missing) == len(places):
            return self._encode(tokens)
        out = self.known.take(np.maximum(places, 0))
        if len(missing):
            out[missing] = self._encode(tokens.take(missing))
        return out

    def __call__(self, tokens: Ragged) -> np.ndarray:
        """(rows, D) float32 of length one."""
        return self.vectors(tokens, self.find(tokens))

    def _encode(self, tokens: Ragged) -> np.ndarray:
        with torch.no_grad():
            return F.normalize(self.encoder()(tokens).float(), dim=1).cpu().numpy()

    def config(self) -> dict:
        return {"embed": self.facts, "special": self.special}


@dataclass(frozen=True)
class FoundTexts:
    """Texts as the trained encoder reads them (`own`), their tokens, and their places among the known texts."""

    own: Texts
    tokens: Ragged
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: np.ndarray) -> FoundTexts:
        return FoundTexts(self.own.take(rows), self.tokens.take(rows), self.places[rows])


class BesidePretrained(Encoder):
    """[n(E(x)) ; weight x n(S(x))] of a trained encoder E and a pretrained one S that stays as it is."""

    def __init__(self, encoder: Encoder, pretrained: Pretrained, weight: float):
        super().__init__()
        self.encoder = encoder
        self.tables = encoder.tables
        self.pretrained = pretrained
        self.weight = weight
        self.dim = encoder.dim + pretrained.dim

    @classmethod
    def rebuild(
        cls, config: dict, state: dict[str, Tensor], rebuild: Callable[[dict, dict[str, Tensor]], Encoder]
    ) -> BesidePretrained:
        pretrained = Pretrained(config["pretrained"]["embed"], config["pretrained"]["special"])
        return cls(rebuild(config["encoder"], state), pretrained, config["weight"])

    def read(self, tokens: Ragged) -> FoundTexts:
        return FoundTexts(self.encoder.read(tokens), tokens, self.pretrained.find(tokens))

    def embed(self, texts: FoundTexts) -> Tensor:
        trained = F.normalize(self.encoder.embed(texts.own).float(), dim=1)
        pretrained = torch.from_numpy(self.pretrained.vectors(texts.tokens, texts.places)).to(trained.device)
        return torch.cat([trained, self.weight * pretrained], dim=1)

    def config(self) -> dict:
        facts = {"kind": "beside-pretrained", "weight": self.weight, "pretrained": self.pretrained.config()}
        return facts | {"encoder": self.encoder.config()}

    def state(self) -> dict[str, Tensor]:
        return self.encoder.state()


def load_pretrained(embed: Path, train: Path, labels: Path, special: dict) -> Pretrained:
    """The encoder of the stage `embed`, with the vectors that the stage wrote for documents and labels."""
    sets = ((artifacts.load_ragged(train, "tokens"), "docs"), (artifacts.load_ragged(labels, "tokens"), "labels"))
    known = KnownTexts(*((tokens, artifacts.load_array(embed, name)) for tokens, name in sets))
    return Pretrained(artifacts.load_json(embed, "embed.json"), special, known)
