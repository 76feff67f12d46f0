"""Transformer: any Hugging Face checkpoint, mean or CLS pooling, optionally fewer layers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xcutils.core.costs import FLOAT, FRAGMENTATION
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged
from xcutils.core.runtime import mixed_precision
from xcutils.model.checkpoints import check_transformer, checkpoint_folder, load_config, weight_files
from xcutils.model.costs import TRANSFORMERS, Network, number, shorter
from xcutils.model.encoder import Encoder
from xcutils.model.packed import TOKENS, Packed, packable
from xcutils.model.padding import by_length


class Transformer(Encoder):
    """A Hugging Face encoder with mean or CLS pooling."""

    def __init__(self, model: Any, *, pooling: str, cls: int, sep: int):
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.cls = cls
        self.sep = sep
        self.dim = model.config.hidden_size
        self.tables = []
        self.packed = Packed(model) if packable(model) else None

    @classmethod
    def build(cls, p, texts: Iterable[Ragged], special: dict) -> "Transformer":
        return build_transformer(p.model, special, pooling=p.pooling, layers=p.layers, dropout=p.dropout)

    @classmethod
    def rebuild(cls, config: dict, state: dict[str, Tensor]) -> "Transformer":
        from transformers import AutoConfig, AutoModel

        settings = dict(config["model"])
        model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        model.load_state_dict(state)
        return cls(model, pooling=config["pooling"], cls=config["cls"], sep=config["sep"])

    @staticmethod
    def check(p, max_tokens: int) -> None:
        """Refuse more layers or tokens than the checkpoint has."""
        check_transformer(p.model, p.layers, max_tokens)

    @staticmethod
    def network(p, section: str) -> "TransformerNetwork":
        return transformer_network(p.model, p.layers, f"{section}.model")

    def embed(self, texts: Ragged) -> Tensor:
        framed = _frame(texts, self.cls, self.sep)
        device = next(self.model.parameters()).device
        if self.packed is None or not len(framed):
            return by_length(framed, 0, self._pool, device)
        with mixed_precision(device):
            return self.packed.pool(framed, self.pooling, device)

    def _pool(self, ids: Tensor, mask: Tensor) -> Tensor:
        with mixed_precision(ids.device):
            states = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        states = states.float()
        if self.pooling == "cls":
            return states[:, 0]
        mask = mask.unsqueeze(2).to(states.dtype)
        return (states * mask).sum(dim=1) / mask.sum(dim=1)

    def config(self) -> dict:
        model = self.model.config.to_dict()
        return {"kind": "transformer", "pooling": self.pooling, "cls": self.cls, "sep": self.sep, "model": model}

    def state(self) -> dict[str, Tensor]:
        return self.model.state_dict()


def _frame(tokens: Ragged, first: int, last: int) -> Ragged:
    """The rows with the special tokens put around them."""
    values = np.empty(len(tokens.values) + 2 * len(tokens), dtype=np.int64)
    offsets = tokens.offsets + 2 * np.arange(len(tokens) + 1)
    values[offsets[:-1]], values[offsets[1:] - 1] = first, last
    values[np.arange(len(tokens.values)) + 2 * tokens.row_ids() + 1] = tokens.values
    return Ragged(values, offsets)


def build_transformer(checkpoint: str, special: dict, *, pooling: str, layers: int, dropout: float) -> Transformer:
    """The checkpoint as an encoder; `layers` > 0 keeps that many layers, spread evenly, the last one among them."""
    from transformers import AutoModel  # slow to import: only where it is used
    from transformers.utils import logging

    check_transformer(checkpoint, layers, special.get("max_tokens", 0))
    weight_files(checkpoint)
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(
        checkpoint_folder(checkpoint), trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, dropout)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
    if layers > 0:
        _keep_layers(model, layers, checkpoint)
    # from_pretrained leaves the model in evaluation mode, in which dropout would do nothing while training.
    return Transformer(model, pooling=pooling, cls=special["cls"], sep=special["sep"]).train()


def _keep_layers(model: Any, layers: int, checkpoint: str) -> None:
    for part in model.modules():
        stack = getattr(part, "layer", None)
        if isinstance(stack, nn.ModuleList):
            if layers > len(stack):
                raise UserError(f"{checkpoint} has {len(stack)} layers, not {layers}: lower `layers`.")
            kept = [round((i + 1) * len(stack) / layers) - 1 for i in range(layers)]
            part.layer = nn.ModuleList(stack[i] for i in kept)
            break
    else:
        raise UserError(f"the layers of {checkpoint} could not be found: set `layers` to 0 to keep them all.")
    for name in ("num_hidden_layers", "n_layers"):
        if name in model.config.to_dict():
            setattr(model.config, name, layers)


@dataclass(frozen=True)
class TransformerNetwork(Network):
    """The cost of a transformer."""

    layers: int = 0
    inner: int = 0

    def step(self, texts: float, tokens: float) -> float:
        activations = FLOAT * self.layers * (tokens + 2 * texts) * (10 * self.dim + 2 * self.inner)
        return FRAGMENTATION * (6 * FLOAT * texts * self.dim + activations) + self.weights

    def chunk(self, texts: float, tokens: float) -> float:
        """The inputs of all tokens, and twice the layers' work on some: each thread keeps the blocks it has freed."""
        inputs = 3 * (tokens + 2 * texts) * self.dim
        return FRAGMENTATION * FLOAT * (inputs + 2 * TOKENS * (6 * self.dim + 2 * self.inner))

    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        """2.2 instead of 2 operations per weight: it is not quite as fast as a large matrix product."""
        return 2.2 * (3 if train else 1) * self.dense * (tokens + 2 * texts), 0.0


def transformer_network(checkpoint: str, layers: int, parameter: str) -> TransformerNetwork:
    """The cost of a checkpoint with so many of its layers (0 = all); `parameter` is what names the checkpoint."""
    config = load_config(checkpoint)
    dim, inner = number(config, "hidden_size", "dim"), number(config, "intermediate_size", "hidden_dim")
    layers = layers or number(config, "num_hidden_layers", "n_layers")
    rows = number(config, "vocab_size") + config.get("max_position_embeddings", 0)
    dense = layers * (4 * dim * dim + 2 * dim * inner + 9 * dim + inner)
    fewer = shorter(parameter, dim)
    return TransformerNetwork(dim, rows, dim, dense, fewer, fewer, TRANSFORMERS, layers=layers, inner=inner)
