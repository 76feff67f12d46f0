"""Texts of similar length are encoded together, so that there is little padding."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from xcutils.core.ragged import Ragged

PADDED = 4096  # tokens, padding included, that go through an encoder at once


def by_length(
    tokens: Ragged, pad: int, encode: Callable[[Tensor, Tensor], Tensor], device: torch.device, most: int = PADDED
) -> Tensor:
    """(rows, D): `encode` applied to chunks of texts of similar length.

    encode  (ids (n, T) int64, mask (n, T) bool) -> (n, D)
    most    padded tokens of a chunk
    """
    order = np.argsort(tokens.lengths, kind="stable")
    lengths = np.maximum(tokens.lengths[order], 1)
    parts = []
    start = 0
    while start < len(order):
        stop = start + 1  # as many texts as fit into `most` padded tokens
        while stop < len(order) and int(lengths[stop]) * (stop + 1 - start) <= most:
            stop += 1
        chunk = tokens.take(order[start:stop])
        mask = np.arange(int(lengths[stop - 1])) < chunk.lengths[:, None]
        ids = np.full(mask.shape, pad, dtype=np.int64)
        ids[mask] = chunk.values
        parts.append(encode(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)))
        start = stop
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(device)
    return torch.cat(parts).index_select(0, back)
