"""What a classifier trains on: the training documents and, with Gandalf, label texts with soft targets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.core.costs import Sizes
from xcutils.core.ragged import Ragged, concatenate


@dataclass(frozen=True)
class Points:
    """All training documents, then the label texts.

    tokens     N + m rows            token ids of each point's text
    positives  N + m rows            labels of each point
    weights    (positives,) float32  their soft targets; None when all are 1
    labels     (m,) int              the labels that the label texts belong to
    todo       (n,) int              the points that this fit trains on
    """

    tokens: Ragged
    positives: Ragged
    weights: np.ndarray | None
    labels: np.ndarray
    todo: np.ndarray

    @property
    def n_docs(self) -> int:
        return len(self.tokens) - len(self.labels)


def load_points(train: Path, labels: Path, gandalf: Path) -> Points:
    """The documents of `train` and the texts of `labels` that `gandalf`, a fit's folder, names."""
    tokens, positives = (artifacts.load_ragged(train, name) for name in ("tokens", "positives"))
    docs, chosen = (np.asarray(artifacts.load_array(gandalf, name)) for name in ("docs", "points"))
    todo = np.concatenate([docs, len(tokens) + np.arange(len(chosen))])
    if len(chosen) == 0:
        return Points(tokens, positives, None, chosen, todo)
    weights = np.concatenate([np.ones(len(positives.values), np.float32), artifacts.load_array(gandalf, "weights")])
    tokens = concatenate(tokens, artifacts.load_ragged(labels, "tokens").take(chosen))
    return Points(tokens, concatenate(positives, artifacts.load_ragged(gandalf, "targets")), weights, chosen, todo)


def count_points(s: Sizes, gandalf: dict) -> tuple[float, float, float]:
    """(label texts that are trained on, points of an epoch, targets of all these texts), by the parameters."""
    texts = gandalf["labels"] * s.labels
    points = s.docs + texts
    if gandalf["same_size"]:
        texts, points = texts * s.docs / points, s.docs
    return texts, points, texts * count_targets(s, gandalf)


def count_targets(s: Sizes, gandalf: dict) -> float:
    """The estimated number of targets of a label's text, its own label included.

    Let a document of label j have r other labels on average. The P(i | j) of all other labels i add up to r: at most
    r / delta of them can be above delta, and at most r times the frequency of j are not 0. In practice about half of
    r / delta are found (0.44 of it at delta 0.1, on the default dataset and on data made like LF-AmazonTitles-1.3M).
    """
    if gandalf["targets"] == "self":
        return 1
    if gandalf["targets"] == "random-walk":
        return min(s.labels, 1 + gandalf["top"])
    frequency = s.positives / max(1, s.labels)
    most = 0.5 / gandalf["delta"] if gandalf["delta"] else frequency
    return min(s.labels, 1 + min(frequency, most) * max(0, s.per_doc - 1))
