"""What an encoder takes: memory and work of a training step and of a pass. Each kind states its own beside its code."""

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

    dim: int  # D of what it gives
    rows: int  # token and n-gram vectors
    width: int  # dimensions of those
    dense: int  # other weights
    fewer: str = ""  # what makes its vectors shorter
    smaller: str = ""  # what makes its weights fewer
    imports: float = 0.0  # bytes of the libraries it needs

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return FLOAT * (self.rows * self.width + self.dense)

    def features(self, texts: float, tokens: float) -> float:
        """What that many texts consist of: their tokens, and whatever else has a row."""
        return tokens

    def used(self, texts: float, tokens: float) -> float:
        """Different rows among them, by Heaps' law, as in the default dataset."""
        return min(self.rows, self.features(texts, tokens) ** 0.78)

    def picked(self, texts: float, tokens: float) -> float:
        """Bytes of the rows that these texts read."""
        return self.used(texts, tokens) * self.width * FLOAT

    @abstractmethod
    def step(self, texts: float, tokens: float) -> float:
        """Bytes of a forward and backward pass over that many texts at once, the weights' gradients included."""

    @abstractmethod
    def chunk(self, texts: float, tokens: float) -> float:
        """Bytes of one chunk of texts on its way through, without gradients."""

    @abstractmethod
    def work(self, texts: float, tokens: float, *, train: bool) -> tuple[float, float]:
        """(floating-point operations, bytes moved) of embedding that many texts, with gradients or without."""

    def forward(self, texts: float, tokens: float, threads: int, chunk: int) -> float:
        """Bytes of embedding that many texts without gradients, by chunks, one per thread."""
        share = min(1.0, chunk / max(texts, 1))
        return min(threads, ceil(texts / chunk)) * self.chunk(share * texts, share * tokens)

    def prepared(self, texts: float, tokens: float) -> float:
        """Bytes of that many texts as the encoder reads them, kept while it trains; 0 where these are the tokens."""
        return 0.0

    def start(self, sets: Sequence[tuple[float, float]]) -> list[Part]:
        """What it holds while it is built, besides its weights; sets of (texts, tokens) it looks at."""
        return []


def shorter(parameter: str, dim: int) -> str:
    """The remedy where a checkpoint decides on the dimensions."""
    return f"choose an {parameter} of fewer dimensions than {dim}"


def number(config: dict, *names: str) -> int:
    """The first of these numbers that a checkpoint's config.json has."""
    for name in names:
        if isinstance(config.get(name), int):
            return config[name]
    raise UserError(f"the checkpoint's config.json has no {' or '.join(names)}: name another checkpoint.")
