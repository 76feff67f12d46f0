"""Encoders by their parameters, and trained ones in artifact folders: encoder.json says what it is, encoder.safetensors
holds its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from xcutils.core import artifacts
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.model.encoders import BiGRU, build_bag, build_transformer, rebuild, token_table
from xcutils.model.heads import TwoHeads
from xcutils.model.pretrained import BesidePretrained, Pretrained


@dataclass(frozen=True)
class Architecture:
    """The parameters of an encoder."""

    kind: Literal["bag-of-embeddings", "bi-gru", "transformer"]
    model: str  # transformer: the checkpoint; others: the checkpoint whose token table they start from
    pooling: Literal["mean", "cls"]  # transformer
    layers: int = value(low=0)  # transformer: layers kept; 0 = all
    hidden: int = value(low=1)  # bi-gru
    dropout: float = value(low=0, high=0.95)  # bi-gru, transformer
    ngrams: int = value(low=1, high=5)  # bag-of-embeddings: longest n-gram of tokens; 1 = tokens alone
    buckets: int = value(low=1)  # bag-of-embeddings: rows that n-grams are hashed into

    def build(self, texts: list[Ragged], special: dict) -> nn.Module:
        """A fresh encoder.

        texts    what it will read, for the bag's first weights
        special  the tokenizer's special tokens
        """
        if self.kind == "bag-of-embeddings":
            return build_bag(texts, self.model, ngrams=self.ngrams, buckets=self.buckets)
        if self.kind == "bi-gru":
            return BiGRU(token_table(self.model), hidden=self.hidden, dropout=self.dropout)
        return build_transformer(self.model, special, pooling=self.pooling, layers=self.layers, dropout=self.dropout)


def save_encoder(folder: Path, encoder: nn.Module) -> None:
    state = {name: tensor.detach().cpu().numpy() for name, tensor in encoder.state().items()}
    artifacts.save_json(folder, "encoder.json", encoder.config())
    artifacts.save_tensors(folder, "encoder.safetensors", state)


def load_encoder(folder: Path) -> nn.Module:
    config = artifacts.load_json(folder, "encoder.json")
    tensors = artifacts.load_tensors(folder, "encoder.safetensors")
    if config["kind"] != "two-heads":
        return _rebuild(config, tensors)
    inner = {name.removeprefix("encoder."): t for name, t in tensors.items() if name.startswith("encoder.")}
    model = TwoHeads(_rebuild(config["encoder"], inner), dim=config["dim"], classifier=config["classifier"])
    model.load_heads({name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()})
    return model


def _rebuild(config: dict, tensors: dict[str, np.ndarray]) -> nn.Module:
    if config["kind"] != "beside-pretrained":
        return rebuild(config, tensors)
    pretrained = Pretrained(config["pretrained"]["embed"], config["pretrained"]["special"])
    return BesidePretrained(rebuild(config["encoder"], tensors), pretrained, config["weight"])
