"""The cost of an encoder: memory and work of a training step and of a pass. Each kind states its own in its file."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from xcutils.core.costs import FLOAT, Part
from xcutils.core.errors import UserError

VOCABULARY = 0.05e9  # a tokenizer and its vocabulary
TRANSFORMERS = 0.17e9  # what importing the library transformers and a vocabulary adds


@dataclass(frozen=True)
class Network(ABC):
    """An encoder by its sizes."""

    dim: int  # D of the embeddings
    rows: int  # token and n-gram vectors
    width: int  # dimensions of these vectors
    dense: int  # number of all other weights
    fewer: str = ""  # the remedy that makes the embeddings shorter
    smaller: str = ""  # the remedy that makes the weights fewer
    imports: float = 0.0  # bytes of the libraries it needs

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return FLOAT * (self.rows * self.width + self.dense)

    def features(self, texts: float, tokens: float) -> float:
        """How many features so many texts have: their tokens, and whatever else has a row."""
        return tokens

    def used(self, texts: float, tokens: float) -> float:
        """How many different rows these features have, by Heaps' law, as in the default dataset."""
        return min(self.rows, self.features(texts, tokens) ** 0.78)

    def picked(self, texts: float, tokens: float) -> float:
        """Bytes of the rows that so many texts read."""
        return self.used(texts, tokens) * self.width * FLOAT

    @abstractmethod
    def step(self, texts: float, tokens: float) -> float:
        """Bytes of a forward and backward pass over so many texts at once, the weights' gradients included."""

    @abstractmethod
    def chunk(self, texts: float, tokens: float) -> float:
        """Bytes of encoding one chunk of so many texts without gradients."""

    @abstractmethod
    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        """(floating-point operations, bytes moved) of encoding so many texts, with gradients or without."""

    def forward(self, texts: float, tokens: float, threads: int, chunk: int) -> float:
        """Bytes of encoding so many texts without gradients, in chunks, one per thread."""
        share = min(1.0, chunk / max(texts, 1))
        return min(threads, ceil(texts / chunk)) * self.chunk(share * texts, share * tokens)

    def prepared(self, texts: float, tokens: float) -> float:
        """Bytes of so many texts as `read` gives them, kept while the encoder trains; 0 where these are the tokens."""
        return 0.0

    def start(self, sets: Sequence[tuple[float, float]]) -> list[Part]:
        """What it holds while it is built, besides its weights.

        sets  (texts, tokens) of each set of texts it is built on
        """
        return []


def shorter(parameter: str, dim: int) -> str:
    """The remedy where a checkpoint decides the dimensions."""
    return f"choose an {parameter} of fewer dimensions than {dim}"


def number(config: dict, *names: str) -> int:
    """The first of these numbers that a checkpoint's config.json has."""
    for name in names:
        if isinstance(config.get(name), int):
            return config[name]
    raise UserError(f"the checkpoint's config.json has no {' or '.join(names)}: name another checkpoint.")
