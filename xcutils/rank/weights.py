"""The weights of the parts of a score. Imports no torch."""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import expit

PARTS = ("classifier", "similarity", "memory", "propensity")


@dataclass(frozen=True)
class Fusion:
    """Weights of the parts, and the logistic curve that turns the sum into a probability."""

    classifier: float = 1.0
    similarity: float = 0.0
    memory: float = 0.0
    propensity: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def scores(self, parts: np.ndarray) -> np.ndarray:
        """(M,) float64: the weighted sum of each pair's parts (M, 4), in the order of PARTS."""
        return parts.astype(np.float64) @ np.array([getattr(self, part) for part in PARTS])

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """0 where a score is -inf."""
        return expit(self.slope * scores + self.offset)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
