"""The encoder as it is before training: its vectors cluster the labels, and zero-shot search is by them."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from xcutils.core import artifacts, runtime
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import Architecture, move
from xcutils.model.pretrained import build_pretrained

UNTRAINED = "untrained"  # value of embed.model: the encoder of the section `encoder`


def build_untrained(first: Architecture, train: Path, labels: Path, special: dict) -> Encoder:
    """The encoder that training starts from; the words of the first fit's documents and of labels weight a bag's.

    train, labels  prepared documents and labels
    special        the tokenizer's special tokens
    """
    torch.manual_seed(0)  # for an encoder that starts at random
    fitted = np.flatnonzero(~artifacts.load_array(train, "is_validation"))
    texts = [artifacts.load_ragged(train, "tokens").take(fitted), artifacts.load_ragged(labels, "tokens")]
    return move(first.build(texts, special), runtime.device())


def facts_of(first: Architecture) -> dict:
    """What embed.json says of the untrained encoder."""
    return {UNTRAINED: {f.name: getattr(first, f.name) for f in fields(Architecture) if f.name != "dropout"}}


def build_zero_shot(facts: dict, train: Path, labels: Path, special: dict) -> Encoder:
    """The encoder whose vectors the stage `embed` wrote.

    facts  embed.json
    """
    if UNTRAINED not in facts:
        return build_pretrained(facts, special)
    return build_untrained(Architecture(**facts[UNTRAINED], dropout=0.0), train, labels, special).eval()
