"""Scores turned into probabilities, and where to cut a ranking off, both learnt on validation documents."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

KNOTS = 64  # points of a curve, at most
TOGETHER = 30  # pairs of the highest scores that are looked at together; of lower ones more
PARTS = 300
POINTS = 200  # cut-offs that are stored, at most
BINS = 10  # of probabilities, to compare them with what was right


def fit_curve(scores: np.ndarray, is_right: np.ndarray) -> dict[str, list[float]]:
    """{scores, probabilities}: points of a line, which never falls, from scores to the share of pairs that are right.

    Isotonic regression gives the shares by levels; the line goes along each level and straight from one to the next.
    Pairs are put together first, so that no level hangs on a few: by tens at the top, where probabilities matter, by
    thousands below.

    scores    (M,) float  of pairs of documents and labels
    is_right  (M,) bool   whether the pair is a positive
    """
    if not len(scores):
        return {"scores": [0.0], "probabilities": [0.0]}
    best_first = np.argsort(-scores, kind="stable")
    edges = np.unique(np.geomspace(min(TOGETHER, len(scores)), len(scores), PARTS).astype(np.int64))
    parts = np.split(best_first, edges[:-1])[::-1]
    means, same = np.unique([scores[part].mean() for part in parts], return_inverse=True)
    sizes = np.bincount(same, [len(part) for part in parts])
    shares = np.bincount(same, [is_right[part].sum() for part in parts]) / sizes
    levels = isotonic_regression(shares, weights=sizes).x
    is_end = np.diff(levels, prepend=-1, append=2)  # where a level begins or ends; a level of one part is one point
    kept = np.flatnonzero((is_end[:-1] > 0) | (is_end[1:] > 0))
    if len(kept) > KNOTS:
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, KNOTS).round().astype(np.int64))]
    xs, ys = means[kept], np.clip(levels[kept], 0, 1)
    return {"scores": xs.tolist(), "probabilities": ys.tolist()}


@dataclass(frozen=True)
class Cutoffs:
    """Precision and recall of all pairs whose probability is at least a threshold, as on the validation documents.

    thresholds  (n,) float  falling;  precision, recall  (n,) float in 0..1
    """

    thresholds: list[float]
    precision: list[float]
    recall: list[float]

    @classmethod
    def of(cls, probabilities: np.ndarray, is_right: np.ndarray, positives: int) -> "Cutoffs":
        """
        probabilities  (M,) of pairs;  is_right  (M,) bool
        positives      how many pairs are right in all, those that are not among the M included
        """
        order = np.argsort(-probabilities, kind="stable")
        falling, right = probabilities[order], np.cumsum(is_right[order])
        last = np.flatnonzero(np.append(falling[1:] < falling[:-1], True))[: len(falling)]  # of equal ones the last
        if len(last) > POINTS:
            last = last[np.unique(np.geomspace(1, len(last), POINTS).round().astype(np.int64) - 1)]
        return cls(
            falling[last].tolist(),
            (right[last] / (last + 1)).tolist(),
            (right[last] / max(1, positives)).tolist(),
        )

    @property
    def f1(self) -> np.ndarray:
        precision, recall = np.array(self.precision), np.array(self.recall)
        return 2 * precision * recall / np.maximum(precision + recall, 1e-12)

    def best(self) -> int:
        """The place of the threshold whose F1 is highest."""
        return int(self.f1.argmax()) if self.thresholds else -1

    def at(self, precision: float) -> float | None:
        """The lowest threshold that keeps this precision on the validation documents; None where none does."""
        good = np.flatnonzero(np.array(self.precision) >= precision)
        return self.thresholds[good[-1]] if len(good) else None


def reliability(probabilities: np.ndarray, is_right: np.ndarray) -> tuple[list[dict], float]:
    """(a row per bin: mean probability, share that is right, pairs; expected calibration error), all in percent.

    Bins hold as many pairs each; the error is the mean distance of the two, weighted by the pairs of the bin.
    """
    order = np.argsort(probabilities, kind="stable")
    rows, error = [], 0.0
    for part in np.array_split(order, BINS):
        if len(part):
            said, right = 100 * float(probabilities[part].mean()), 100 * float(is_right[part].mean())
            rows.append({"probability": round(said, 4), "right": round(right, 4), "pairs": len(part)})
            error += abs(said - right) * len(part) / len(order)
    return rows, error
