"""The weights of the parts of a score. Imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

PARTS = ("classifier", "similarity", "memory", "propensity")
WEIGHTS = (*PARTS, "overlap")


@dataclass(frozen=True)
class Fusion:
    """Weights of the parts, and the points of the line that turns a score into a probability (calibration.py).

    The score is rest + m * max(0, memory - overlap * rest), where m is the memory's share of a label, from 0 to 1, and
    rest the weighted sum of the other parts. With an overlap what both know counts less than twice, as in the
    probability of one event or another, p + q - p q.
    """

    classifier: float = 1.0
    similarity: float = 0.0
    memory: float = 0.0
    propensity: float = 0.0
    overlap: float = 0.0
    curve: dict[str, list[float]] = field(default_factory=lambda: {"scores": [0.0, 1.0], "probabilities": [0.0, 1.0]})

    @classmethod
    def of(cls, weights: Sequence[float]) -> "Fusion":
        """The fusion with these weights, in the order of WEIGHTS."""
        return cls(**dict(zip(WEIGHTS, map(float, weights), strict=True)))  # type: ignore[arg-type]

    def scores(self, parts: np.ndarray) -> np.ndarray:
        """(M,) float64: the score of each pair by its parts (M, 4), in the order of PARTS."""
        return scores(parts.astype(np.float64), self.weights().values())

    def remembered(self, rest: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """What the memory adds to the weighted sum of the other parts."""
        return remembered(rest, shares, self.memory, self.overlap)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each score; 0 where a score is -inf."""
        found = np.interp(scores, self.curve["scores"], self.curve["probabilities"])
        return np.where(scores == -np.inf, 0.0, found)

    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in WEIGHTS}

    def as_dict(self) -> dict:
        return asdict(self)


def scores(parts: np.ndarray, weights: Iterable[float]) -> np.ndarray:
    """(M,) the score of each pair by its parts (M, 4), in the order of PARTS, with these weights."""
    classifier, similarity, memory, propensity, overlap = weights
    rest = parts @ np.array([classifier, similarity, 0.0, propensity])
    return rest + remembered(rest, parts[:, PARTS.index("memory")], memory, overlap)


def remembered(rest: np.ndarray, shares: np.ndarray, memory: float, overlap: float) -> np.ndarray:
    """What the memory adds to the weighted sum of the other parts."""
    return shares * np.maximum(memory - overlap * rest, 0) if overlap else shares * memory
