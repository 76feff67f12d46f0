"""Texts side by side without padding: one matrix of tokens goes through the layers, attention stays within each text.

Texts are sorted by length, so that those of one length lie together: attention over n of them, T tokens each, is one
call on a view of shape (n, heads, T, D / heads). The weights stay those of the Hugging Face model, which is asked for
the embeddings of the tokens and for its layers' modules. Models of a layout that is not in LAYOUTS are padded instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xcutils.core.ragged import Ragged
from xcutils.model.products import linear

TOKENS = 4096  # tokens that go through the layers at once: what a layer computes stays in the processor's cache
Group = tuple[int, int]  # (texts, tokens of each): neighbours of one length


@dataclass(frozen=True)
class Layer:
    """The modules of one layer, whatever the model calls them; each sum is normalised after it."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mixed: nn.Linear  # what follows attention
    mixed_dropout: nn.Module
    mixed_norm: nn.Module
    inner: nn.Linear
    activation: Callable[[Tensor], Tensor]
    outer: nn.Linear
    outer_dropout: nn.Module
    outer_norm: nn.Module
    heads: int
    dropout: nn.Dropout  # of the attention's weights


def _bert(model: Any) -> list[Layer]:
    return [
        Layer(
            *(part.attention.self.query, part.attention.self.key, part.attention.self.value),
            *(part.attention.output.dense, part.attention.output.dropout, part.attention.output.LayerNorm),
            *(part.intermediate.dense, part.intermediate.intermediate_act_fn),
            *(part.output.dense, part.output.dropout, part.output.LayerNorm),
            *(part.attention.self.num_attention_heads, part.attention.self.dropout),
        )
        for part in model.encoder.layer
    ]


def _mpnet(model: Any) -> list[Layer]:
    return [
        Layer(
            *(part.attention.attn.q, part.attention.attn.k, part.attention.attn.v),
            *(part.attention.attn.o, part.attention.dropout, part.attention.LayerNorm),
            *(part.intermediate.dense, part.intermediate.intermediate_act_fn),
            *(part.output.dense, part.output.dropout, part.output.LayerNorm),
            *(part.attention.attn.num_attention_heads, part.attention.attn.dropout),
        )
        for part in model.encoder.layer
    ]


def _distilbert(model: Any) -> list[Layer]:
    return [
        Layer(
            *(part.attention.q_lin, part.attention.k_lin, part.attention.v_lin),
            *(part.attention.out_lin, nn.Identity(), part.sa_layer_norm),
            *(part.ffn.lin1, part.ffn.activation),
            *(part.ffn.lin2, part.ffn.dropout, part.output_layer_norm),
            *(part.attention.n_heads, part.attention.dropout),
        )
        for part in model.transformer.layer
    ]


# Class of the model -> its layers.
LAYOUTS: dict[str, Callable[[Any], list[Layer]]] = {
    "BertModel": _bert,
    "RobertaModel": _bert,
    "XLMRobertaModel": _bert,
    "DistilBertModel": _distilbert,
    "MPNetModel": _mpnet,
}
AFTER_PADDING = {"RobertaModel", "XLMRobertaModel", "MPNetModel"}  # positions count from the padding's id


def packable(model: Any) -> bool:
    """Whether the model's layout is known, and each token sees all tokens of its text."""
    return type(model).__name__ in LAYOUTS and not getattr(model.config, "is_decoder", False)


class Packed:
    """The layers of a model, applied to texts without padding.

    Not a module: it holds the model's own.
    """

    def __init__(self, model: Any):
        kind = type(model).__name__
        self.layers = LAYOUTS[kind](model)
        self.embeddings = model.embeddings
        self.pad = model.embeddings.padding_idx if kind in AFTER_PADDING else None
        self.bias = model.encoder.compute_position_bias if kind == "MPNetModel" else None

    def pool(self, tokens: Ragged, pooling: str, device: torch.device, most: int = TOKENS) -> Tensor:
        """(rows, D) float32: the mean of each text's states, or the first one; no text may be empty.

        pooling  mean or cls
        most     tokens that go through the layers at once
        """
        order = np.argsort(tokens.lengths, kind="stable")
        tokens = tokens.take(order)
        ids, positions = (torch.from_numpy(part).to(device) for part in (_ids(tokens), _positions(tokens, self.pad)))
        states = self.embeddings(input_ids=ids[None], position_ids=positions[None])[0]  # (all tokens, D)
        chunks = list(_chunks(tokens.lengths, most))
        parts = []
        # `split` gives views whose gradients are joined at once; of slices each would fill an array of full size.
        for groups, chunk in zip(chunks, states.split([_size(groups) for groups in chunks]), strict=True):
            parts += [_pooled(part, pooling) for part in _by_text(self._run(chunk, groups), groups)]
        back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
        return torch.cat(parts).index_select(0, back)

    def _run(self, states: Tensor, groups: list[Group]) -> Tensor:
        """(T, D) states after the last layer; T tokens in all."""
        biases = [None if self.bias is None else self.bias(states[None, :length]) for _, length in groups]
        for layer in self.layers:
            mixed = linear(layer.mixed, _attention(layer, states, groups, biases))
            states = layer.mixed_norm(layer.mixed_dropout(mixed) + states)
            outer = linear(layer.outer, layer.activation(linear(layer.inner, states)))
            states = layer.outer_norm(layer.outer_dropout(outer) + states)
        return states.float()


def _attention(layer: Layer, states: Tensor, groups: list[Group], biases: list[Tensor | None]) -> Tensor:
    """(T, D): what each token takes from the tokens of its text."""
    drop = layer.dropout.p if layer.dropout.training else 0.0
    sides = [_by_text(linear(part, states), groups) for part in (layer.query, layer.key, layer.value)]
    parts = []
    for *group, bias in zip(*sides, biases, strict=True):
        query, key, value = (side.unflatten(2, (layer.heads, -1)).transpose(1, 2) for side in group)
        taken = F.scaled_dot_product_attention(query, key, value, bias, drop)  # (n, heads, T, D / heads)
        parts.append(taken.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(parts)


def _by_text(states: Tensor, groups: list[Group]) -> list[Tensor]:
    """The rows of each group as (texts, tokens of each, D)."""
    parts = states.split([texts * length for texts, length in groups])
    return [part.unflatten(0, group) for part, group in zip(parts, groups, strict=True)]


def _pooled(states: Tensor, pooling: str) -> Tensor:
    """(n, D) of the states (n, T, D) of n texts."""
    return states[:, 0] if pooling == "cls" else states.mean(dim=1)


def _size(groups: list[Group]) -> int:
    return sum(texts * length for texts, length in groups)


def _chunks(lengths: np.ndarray, most: int) -> Iterator[list[Group]]:
    """The groups of each chunk of at most so many tokens, or of one text that has more.

    lengths  (rows,) of the texts, ascending
    """
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        found, counts = np.unique(lengths[start:stop], return_counts=True)
        yield list(zip(counts.tolist(), found.tolist(), strict=True))
        start = stop


def _ids(tokens: Ragged) -> np.ndarray:
    return np.asarray(tokens.values).astype(np.int64)


def _positions(tokens: Ragged, pad: int | None) -> np.ndarray:
    """(all tokens,) int64: each token's place in its text.

    pad  where it is given, places count from the one after it, and a token with this id has none and is at `pad`
    """
    if pad is None:
        return np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], tokens.lengths)
    is_token = tokens.values != pad
    count = np.concatenate([[0], np.cumsum(is_token)])
    return np.where(is_token, count[1:] - np.repeat(count[tokens.offsets[:-1]], tokens.lengths), 0) + pad
