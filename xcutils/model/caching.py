"""Gradient caching: texts are encoded chunk by chunk without a graph, and once more when the gradient is needed.

However many texts a step encodes, only the activations of one chunk are in memory [DEXML].
"""

import numpy as np
import torch
from torch import Tensor

from xcutils.model.encoder import Encoder, Texts


def embed_cached(encoder: Encoder, texts: Texts, chunk: int) -> Tensor:
    """(rows, D): what encoder.embed(texts) gives, with its gradient."""
    if not torch.is_grad_enabled():
        return _Cached.forward(None, None, encoder, texts, chunk)
    # Autograd follows only tensors: this one stands for the encoder's weights, whose gradients `backward` adds itself.
    return _Cached.apply(torch.zeros((), device=encoder.device, requires_grad=True), encoder, texts, chunk)


class _Cached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, encoder, texts, chunk):
        states, parts = [], []
        with torch.no_grad():
            for rows in _pieces(len(texts), chunk):
                states.append(_random_state())  # both passes must drop the same values
                parts.append(encoder.embed(texts.take(rows)).float())
        if ctx is not None:
            ctx.call = encoder, texts, chunk, states
        return torch.cat(parts) if parts else torch.zeros(0, encoder.dim)

    @staticmethod
    def backward(ctx, gradient):
        encoder, texts, chunk, states = ctx.call
        after = _random_state()
        for rows, state in zip(_pieces(len(texts), chunk), states):
            _set_random_state(state)
            with torch.enable_grad():
                out = encoder.embed(texts.take(rows)).float()
            torch.autograd.backward(out, gradient[rows[0] : rows[-1] + 1])
            for table in encoder.tables:
                table.merge()
        _set_random_state(after)
        return None, None, None, None


def _pieces(count: int, chunk: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + chunk, count)) for start in range(0, count, chunk)]


def _random_state() -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _set_random_state(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
