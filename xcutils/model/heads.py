"""An encoder with two heads, one to be compared with label texts and one with classifiers [UniDEC]."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xcutils.core.ragged import Ragged
from xcutils.model.costs import Network
from xcutils.model.encoder import Encoder


class TwoHeads(Encoder):
    """Phi_D = tanh(linear(E)) for label texts and Phi_C = linear(E) for classifiers; [DePSL] has the first alone.

    As an encoder it gives [n(Phi_D) ; n(Phi_C)], so that one dot product is the sum of both cosines.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        dim: int,
        classifier: bool,
        dropouts: tuple[float, float] = (0.0, 0.0),
        normalise_first: bool = True,
    ):
        """The heads start as the encoder's own space.

        dropouts         of each head's output while training
        normalise_first  E is brought to length one, so that the heads of every encoder start alike, and tanh is nearly
                         linear until training has made Phi_D's weights larger. Differs from the source's code
        """
        super().__init__()
        self.normalise_first = normalise_first
        self.encoder = encoder
        self.tables = encoder.tables
        self.size = dim
        self.dropouts = dropouts
        self.text = _linear(encoder.dim, dim)
        self.label = _linear(encoder.dim, dim) if classifier else None
        self.dim = dim * (2 if classifier else 1)

    @classmethod
    def rebuild(
        cls, config: dict, state: dict[str, Tensor], rebuild: Callable[[dict, dict[str, Tensor]], Encoder]
    ) -> "TwoHeads":
        inner = {name.removeprefix("encoder."): t for name, t in state.items() if name.startswith("encoder.")}
        facts = {name: config[name] for name in ("dim", "classifier", "normalise_first")}
        encoder = cls(rebuild(config["encoder"], inner), **facts)
        encoder.load_heads(state)
        return encoder

    def read(self, tokens: Ragged) -> Any:
        return self.encoder.read(tokens)

    def both(self, texts: Any, normalise: bool = True) -> tuple[Tensor, Tensor | None]:
        """(n(Phi_D), n(Phi_C) or, without a classifier head, None) of texts that were `read`, each (rows, d).

        normalise  the second one; False: Phi_C as it is, which the source trains and does not search
        """
        raw = self.encoder.embed(texts).float()
        if self.normalise_first:
            raw = F.normalize(raw, dim=1)
        text = F.dropout(torch.tanh(self.text(raw)), self.dropouts[0], self.training)
        if self.label is None:
            return F.normalize(text, dim=1), None
        label = F.dropout(self.label(raw), self.dropouts[1], self.training)
        return F.normalize(text, dim=1), F.normalize(label, dim=1) if normalise else label

    def embed(self, texts: Any) -> Tensor:
        return torch.cat([part for part in self.both(texts) if part is not None], dim=1)

    def config(self) -> dict:
        facts = {"kind": "two-heads", "dim": self.size, "classifier": self.label is not None}
        facts["normalise_first"] = self.normalise_first
        return facts | {"encoder": self.encoder.config()}

    def state(self) -> dict[str, Tensor]:
        tensors = self.state_dict()
        heads = {f"head.{name}": tensor for name, tensor in tensors.items() if not name.startswith("encoder.")}
        return heads | {f"encoder.{name}": tensor for name, tensor in self.encoder.state().items()}

    def start_at_random(self) -> None:
        """Xavier's uniform weights for the heads, biases at zero, as the source's code has them."""
        for head in (self.text, self.label):
            if head is not None:
                nn.init.xavier_uniform_(head.weight)
                nn.init.zeros_(head.bias)

    def load_heads(self, state: dict[str, Tensor]) -> None:
        heads = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
        self.load_state_dict({**self.state_dict(), **heads})


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map that starts as the identity, or as a projection that keeps angles as well as it can.

    Differs from: the source does not say how heads start. As the identity they start with the encoder's own space.
    """
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight) if inputs != outputs else layer.weight.copy_(torch.eye(inputs))
        layer.bias.zero_()
    return layer


def network_with_heads(encoder: Network, *, inputs: int, dim: int, heads: int, parameter: str) -> Network:
    """The cost of the encoder with so many heads on it.

    inputs  dimensions that a head reads
    dim     dimensions that it gives, set by `parameter`; 0: as many as it reads
    """
    size = dim or inputs
    fewer = f"lower {parameter} ({heads * size} dimensions in all)"
    return replace(encoder, dim=heads * size, dense=encoder.dense + heads * (inputs + 1) * size, fewer=fewer)
