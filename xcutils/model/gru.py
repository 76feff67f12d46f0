"""Bi-GRU: one bidirectional GRU layer over a pretrained token table, masked mean [AttentionXML]."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xcutils.core.costs import FLOAT, FRAGMENTATION
from xcutils.core.ragged import Ragged
from xcutils.core.runtime import mixed_precision
from xcutils.model.checkpoints import load_config, token_table
from xcutils.model.costs import Network, number
from xcutils.model.encoder import Encoder
from xcutils.model.padding import PADDED, by_length
from xcutils.model.rows import RowTable


class BiGRU(Encoder):
    """Masked mean of a one-layer bidirectional GRU's states."""

    def __init__(self, vectors: Tensor, *, hidden: int, dropout: float):
        super().__init__()
        self.hidden = hidden
        self.dropout = dropout
        self.dim = 2 * hidden
        self.vectors = RowTable(vectors, lr=0.0)
        self.tables = [self.vectors]
        self.gru = nn.GRU(vectors.shape[1], hidden, batch_first=True, bidirectional=True)

    @classmethod
    def build(cls, p, texts: Iterable[Ragged], special: dict) -> "BiGRU":
        """Pretrained token vectors, a fresh GRU."""
        return cls(token_table(p.model), hidden=p.hidden, dropout=p.dropout)

    @classmethod
    def rebuild(cls, config: dict, state: dict[str, Tensor]) -> "BiGRU":
        encoder = cls(state["vectors"], hidden=config["hidden"], dropout=config["dropout"])
        gru = {name.removeprefix("gru."): tensor for name, tensor in state.items() if name.startswith("gru.")}
        encoder.gru.load_state_dict(gru)
        return encoder

    @staticmethod
    def check(p, max_tokens: int) -> None:
        """Any checkpoint's token table will do."""

    @staticmethod
    def network(p, section: str) -> "GRUNetwork":
        config = load_config(p.model)
        width = number(config, "hidden_size", "dim")
        dense = 6 * p.hidden * (width + p.hidden + 2)
        lower = f"lower {section}.hidden ({p.hidden})"
        return GRUNetwork(2 * p.hidden, number(config, "vocab_size"), width, dense, lower, lower)

    def embed(self, texts: Ragged) -> Tensor:
        used, places = np.unique(texts.values, return_inverse=True)
        device = self.vectors.values.device
        rows = self.vectors.rows(torch.from_numpy(used.astype(np.int64)).to(device))
        zero = torch.zeros((1, rows.shape[1]), dtype=rows.dtype, device=device)  # an empty text is one zero vector
        rows = F.dropout(torch.cat([rows, zero]), self.dropout, self.training)
        tokens = Ragged(places, texts.offsets)
        return by_length(tokens, len(used), lambda ids, mask: self._pool(rows, ids, mask), device)

    def _pool(self, rows: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        lengths = mask.sum(dim=1).clamp(min=1)
        padded = rows.index_select(0, ids.flatten()).unflatten(0, ids.shape)
        packed = nn.utils.rnn.pack_padded_sequence(padded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        with mixed_precision(lengths.device) if lengths.is_cuda else nullcontext():  # on a CPU always in float32
            out = self.gru(packed)[0]
        states = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].float()
        return F.dropout(states.sum(dim=1) / lengths.unsqueeze(1), self.dropout, self.training)

    def config(self) -> dict:
        return {"kind": "bi-gru", "hidden": self.hidden, "dropout": self.dropout}

    def state(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors.values, **{f"gru.{k}": v for k, v in self.gru.state_dict().items()}}


@dataclass(frozen=True)
class GRUNetwork(Network):
    """The cost of a bi-GRU."""

    def step(self, texts: float, tokens: float) -> float:
        states = FLOAT * tokens * (2 * self.width + 8 * self.dim)
        out = 6 * FLOAT * texts * self.dim
        return FRAGMENTATION * (out + 6 * self.picked(texts, tokens) + states) + FLOAT * self.dense

    def chunk(self, texts: float, tokens: float) -> float:
        return 2 * self.picked(texts, tokens) + FLOAT * PADDED * (2 * self.width + 8 * self.dim)

    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        passes = 3 if train else 1
        return 4 * passes * self.dense * tokens, passes * 10 * self.picked(texts, tokens)
