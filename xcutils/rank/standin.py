"""The vector of a label that was not trained: made of its text, scored as the trained ones are.

A stand-in is a line of the similarity of document and text: score = scale * similarity + offset, fitted so that its
probabilities are right for labels of which the model had seen nothing but the text; with example documents, the
vector is a mean of the text's and the documents', and the memory adds what it remembers.
"""

from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import minimize

from xcutils.core.vectors import unit
from xcutils.rank.served import constant
from xcutils.rank.weights import Fusion

LEAST = 20  # right pairs, below which a line is not fitted
SURE = 1e-5  # a probability is at least this far from 0 and 1
LOWEST = 0.05  # the least scale: a text that is nearer is never less likely
DOWN = 0.3  # how far below the trained labels' scores a second search for the line starts
NEAR = 10_000  # wrong pairs of the highest similarity that are all looked at; of the others one in EVERY
EVERY = 50
BLENDS = (0.0, 0.25, 0.5, 0.75)  # shares of the example documents that are tried


@dataclass(frozen=True)
class Line:
    """score = scale * similarity + offset; pairs: the right ones it was fitted on, 0 where it was not."""

    scale: float
    offset: float
    pairs: int = 0


@dataclass(frozen=True)
class StandIn:
    """How labels that are added are scored.

    text      of labels without example documents
    examples  of labels with some;  blend  the share of the documents' mean in their vectors
    """

    text: Line
    examples: Line
    blend: float = 0.5

    @classmethod
    def of(cls, values: dict) -> "StandIn":
        return cls(Line(**values["text"]), Line(**values["examples"]), values["blend"])

    @classmethod
    def unfitted(cls, fusion: Fusion) -> "StandIn":
        """A text scored as if it were the label's embedding and its classifier at once."""
        line = Line(fusion.classifier + fusion.similarity, 0.0)
        return cls(line, line)

    def as_dict(self) -> dict:
        return asdict(self)

    def vectors(self, texts: np.ndarray, means: np.ndarray, has_examples: np.ndarray, dim: int) -> np.ndarray:
        """(n, dim) float32: vectors for the index of labels.

        texts         (n, D) of length one, of the labels' texts;  means  (n, D) of their example documents
        has_examples  (n,) bool
        dim           D, and the dimensions in which every query has the same value
        """
        width = texts.shape[1]
        out = np.zeros((len(texts), dim), dtype=np.float32)
        blended = blend(texts, means, self.blend)
        mixed = np.where(has_examples[:, None], blended, texts)
        scales = np.where(has_examples, self.examples.scale, self.text.scale)
        offsets = np.where(has_examples, self.examples.offset, self.text.offset)
        out[:, :width] = scales[:, None] * mixed
        out[:, width:] = (offsets / (constant(width) * max(1, dim - width)))[:, None]
        out[~mixed.any(axis=1)] = 0  # nothing is known of such a label
        return out


def blend(texts: np.ndarray, means: np.ndarray, share: float) -> np.ndarray:
    """(n, D) of length one: the mean of a text's vector and its documents', who count for this share."""
    return unit((1 - share) * texts + share * unit(means))


def fit_line(similarity: np.ndarray, shares: np.ndarray, is_right: np.ndarray, fusion: Fusion) -> tuple[Line, float]:
    """(the line whose probabilities are likeliest, their mean log likelihood).

    similarity  (M,) float  of pairs of documents and labels
    shares      (M,) float  the memory's share of the label
    is_right    (M,) bool
    """
    first = (fusion.classifier + fusion.similarity, 0.0)
    kept, weights = _some(similarity, is_right)
    similarity, shares, is_right = similarity[kept], shares[kept], is_right[kept]

    def loss(line) -> float:
        rest = max(line[0], LOWEST) * similarity + line[1]
        said = fusion.probabilities(rest + fusion.remembered(rest, shares)).clip(SURE, 1 - SURE)
        return -float(np.average(np.where(is_right, np.log(said), np.log1p(-said)), weights=weights))

    right = int(is_right.sum())
    if right < LEAST:
        return Line(*first), -loss(first) if len(kept) else 0.0
    starts = [first, (first[0], first[1] - DOWN)]
    best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda found: found.fun)
    return Line(float(max(best.x[0], LOWEST)), float(best.x[1]), right), -float(best.fun)


def _some(similarity: np.ndarray, is_right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places, weights) of the right pairs, the wrong ones of highest similarity, and some of the others for all."""
    wrong = np.flatnonzero(~is_right)
    wrong = wrong[np.argsort(-similarity[wrong], kind="stable")]
    near, far = wrong[:NEAR], wrong[NEAR:][::EVERY]
    places = np.concatenate([np.flatnonzero(is_right), near, far])
    weights = np.ones(len(places))
    weights[len(places) - len(far) :] = EVERY
    return places, weights
