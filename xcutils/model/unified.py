"""The cost of the unified method's model: a trained encoder, perhaps a pretrained one beside it, and heads on both."""

from xcutils.model.costs import Network
from xcutils.model.encoders import network
from xcutils.model.heads import network_with_heads
from xcutils.model.transformer import TransformerNetwork, transformer_network

NO_CLASSIFIERS = "none"  # value of train.classifier_loss: the encoder alone [DePSL]


def pretrained_network(train: dict) -> TransformerNetwork | None:
    """The cost of the pretrained encoder, assumed to be as large as `train.model`; None where there is none."""
    return transformer_network(train["model"], 0, "train.model") if train["pretrained"] else None


def unified_network(train: dict) -> Network:
    """The cost of the whole model that the section `train` of the parameters describes."""
    inner = network(train, "train")
    pretrained = pretrained_network(train)
    inputs = inner.dim + (pretrained.dim if pretrained else 0)
    heads = 1 if train["classifier_loss"] == NO_CLASSIFIERS else 2
    return network_with_heads(inner, inputs=inputs, dim=train["dim"], heads=heads, parameter="train.dim")
