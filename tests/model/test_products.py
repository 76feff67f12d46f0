"""Linear layers by oneDNN give what torch's give, and the same gradients; and only where they may be used."""

import pytest
import torch
from torch import nn

from xcutils.model import products
from xcutils.model.products import linear


@pytest.fixture
def calls(monkeypatch) -> list:
    """A list with an entry for each product by oneDNN."""
    made, product = [], products._product
    monkeypatch.setattr(products, "_product", lambda *args: made.append(1) or product(*args))
    return made


def by_hand(layer: nn.Linear, inputs: torch.Tensor) -> list[list[float]]:
    bias = [0.0] * len(layer.weight) if layer.bias is None else layer.bias.tolist()
    return [
        [sum(x * w for x, w in zip(row, weights)) + b for weights, b in zip(layer.weight.tolist(), bias)]
        for row in inputs.tolist()
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("portable", ["0", "1"])
def test_a_layer_is_the_sum_of_the_weighted_inputs(monkeypatch, calls, portable, bias):
    monkeypatch.setenv("XC_PORTABLE", portable)
    torch.manual_seed(0)
    layer, inputs = nn.Linear(5, 3, bias=bias), torch.randn(7, 5, requires_grad=True)
    weights = torch.randn(7, 3)
    found = linear(layer, inputs)
    torch.testing.assert_close(found, torch.tensor(by_hand(layer, inputs)), rtol=1e-5, atol=1e-6)
    ours, theirs = (
        torch.autograd.grad((out * weights).sum(), [inputs, *layer.parameters()]) for out in (found, layer(inputs))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert len(calls) == (3 if portable == "0" else 0)


def test_only_gradients_that_are_asked_for_are_computed(monkeypatch, calls):
    monkeypatch.setenv("XC_PORTABLE", "0")
    layer = nn.Linear(5, 3).requires_grad_(False)
    inputs = torch.randn(7, 5, requires_grad=True)
    linear(layer, inputs).sum().backward()
    assert len(calls) == 2 and layer.weight.grad is None
    torch.testing.assert_close(inputs.grad, layer.weight.sum(dim=0).expand(7, 5))


def test_other_numbers_are_left_to_torch(monkeypatch, calls):
    monkeypatch.setenv("XC_PORTABLE", "0")
    layer = nn.Linear(5, 3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert linear(layer, torch.randn(7, 5)).dtype == torch.bfloat16
    with torch.no_grad():
        assert linear(layer.double(), torch.randn(7, 5).double()).dtype == torch.float64
    assert calls == []
