"""An encoder with two heads, one to be compared with label texts and one with classifiers [UniDEC]."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xcutils.core.ragged import Ragged


class TwoHeads(nn.Module):
    """Phi_D = tanh(linear(E)) for label texts and Phi_C = linear(E) for classifiers; [DePSL] has the first alone.

    As an encoder it gives [n(Phi_D) ; n(Phi_C)], so that one dot product is the sum of both cosines.
    Differs from: the source normalises Phi_C and the classifiers when it searches only; here also while training. It
    says nothing of E's length; here E is at length one, so that the heads of any encoder start alike, and tanh bends
    little until training has made Phi_D's weights larger.
    """

    def __init__(self, encoder: nn.Module, *, dim: int, classifier: bool, dropouts: tuple[float, float] = (0.0, 0.0)):
        """dropouts  of each head's output while training"""
        super().__init__()
        self.encoder, self.tables = encoder, encoder.tables
        self.size, self.dropouts = dim, dropouts
        self.text = _linear(encoder.dim, dim)
        self.label = _linear(encoder.dim, dim) if classifier else None

    @property
    def dim(self) -> int:
        return self.size * (1 if self.label is None else 2)

    def both(self, tokens: Ragged) -> tuple[Tensor, Tensor | None]:
        """(n(Phi_D), n(Phi_C)) of the texts, each (rows, d); the second is None without a classifier head."""
        raw = F.normalize(self.encoder(tokens).float(), dim=1)
        text = F.dropout(torch.tanh(self.text(raw)), self.dropouts[0], self.training)
        if self.label is None:
            return F.normalize(text, dim=1), None
        label = F.dropout(self.label(raw), self.dropouts[1], self.training)
        return F.normalize(text, dim=1), F.normalize(label, dim=1)

    def forward(self, tokens: Ragged) -> Tensor:
        return torch.cat([part for part in self.both(tokens) if part is not None], dim=1)

    def config(self) -> dict:
        facts = {"kind": "two-heads", "dim": self.size, "classifier": self.label is not None}
        return facts | {"encoder": self.encoder.config()}

    def state(self) -> dict[str, Tensor]:
        heads = {f"head.{name}": tensor for name, tensor in self.state_dict().items() if not _is_inner(name)}
        return heads | {f"encoder.{name}": tensor for name, tensor in self.encoder.state().items()}

    def load_heads(self, state: dict[str, Tensor]) -> None:
        own = {name.removeprefix("head."): tensor for name, tensor in state.items() if name.startswith("head.")}
        self.load_state_dict({**self.state_dict(), **own})


def _is_inner(name: str) -> bool:
    return name.startswith("encoder.")


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map that starts as the identity, or as a projection that keeps angles as well as it can.

    Differs from: the source says nothing of the start. From the identity the heads begin with the encoder's own space.
    """
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight) if inputs != outputs else layer.weight.copy_(torch.eye(inputs))
        layer.bias.zero_()
    return layer
