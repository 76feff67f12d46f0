"""The weights of the parts of a score. Imports no torch."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

PARTS = ("classifier", "similarity", "memory", "propensity")


@dataclass(frozen=True)
class Fusion:
    """Weights of the parts, and the points of the line that turns the sum into a probability (calibration.py)."""

    classifier: float = 1.0
    similarity: float = 0.0
    memory: float = 0.0
    propensity: float = 0.0
    curve: dict[str, list[float]] = field(default_factory=lambda: {"scores": [0.0, 1.0], "probabilities": [0.0, 1.0]})

    @classmethod
    def of(cls, weights: Sequence[float]) -> "Fusion":
        """The fusion with these weights, in the order of PARTS."""
        classifier, similarity, memory, propensity = map(float, weights)
        return cls(classifier, similarity, memory, propensity)

    def scores(self, parts: np.ndarray) -> np.ndarray:
        """(M,) float64: the weighted sum of each pair's parts (M, 4), in the order of PARTS."""
        return parts.astype(np.float64) @ np.array([getattr(self, part) for part in PARTS])

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each score; 0 where a score is -inf."""
        found = np.interp(scores, self.curve["scores"], self.curve["probabilities"])
        return np.where(scores == -np.inf, 0.0, found)

    def weights(self) -> dict[str, float]:
        return {part: getattr(self, part) for part in PARTS}

    def as_dict(self) -> dict:
        return asdict(self)
