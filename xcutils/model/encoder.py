"""The interface of every encoder: ragged token ids in, one vector per text out, not normalised."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from xcutils.core.ragged import Ragged
from xcutils.model.rows import RowTable

T = TypeVar("T")


class Texts(Protocol):
    """Some texts as an encoder reads them."""

    def __len__(self) -> int: ...

    def take(self: T, rows: np.ndarray) -> T:
        """The named texts, in the order given."""


class Encoder(nn.Module):
    """All that training, scoring and prediction know of an encoder.

    dim     D of its embeddings
    tables  its vectors, of which a step reads only some rows
    """

    dim: int
    tables: list[RowTable]

    def read(self, tokens: Ragged) -> Any:
        """The texts as `embed` takes them (a Texts): done once for texts that are embedded many times."""
        return tokens

    def embed(self, texts: Any) -> Tensor:
        """(rows, D): the vectors of texts that were `read`."""
        raise NotImplementedError

    def forward(self, tokens: Ragged) -> Tensor:
        return self.embed(self.read(tokens))

    def config(self) -> dict:
        """What it is, without its weights; `kind` names its class in encoders.KINDS."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Its live weights."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        values = next((table.values for table in self.tables), None)
        return next(self.parameters()).device if values is None else values.device
