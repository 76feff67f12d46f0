"""Linear layers in float32 by oneDNN where the user lets the libraries use what the processor has (XC_PORTABLE=0).

torch multiplies float32 by MKL, which on an AMD processor with AVX-512 was no faster than with AVX2; oneDNN was. How
oneDNN cuts a product into blocks may depend on the processor's caches, so it is not used where machines have to agree.
"""

from typing import Any

import torch
from torch import Tensor, nn

from xcutils.core import processor


def linear(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """(rows, outputs): what the layer gives for inputs (rows, D)."""
    if processor.portable() or not _for_onednn(inputs):
        return layer(inputs)
    return _Linear.apply(inputs, layer.weight, layer.bias)


def _for_onednn(inputs: Tensor) -> bool:
    """Whether the inputs are float32 on a CPU, to be multiplied as such, by a torch that brings oneDNN."""
    if inputs.device.type != "cpu" or inputs.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """(n, m): left (n, k) times the transpose of right (m, k), and the bias (m,)."""
    return torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """The three products of a linear layer; torch has no gradient of oneDNN's."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (inputs, weight), wanted = gradients, ctx.saved_tensors, ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if wanted[0] else None,
            _product(gradient.t(), inputs.t()) if wanted[1] else None,
            gradient.sum(dim=0) if wanted[2] else None,
        )
