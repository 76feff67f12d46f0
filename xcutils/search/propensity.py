"""Inverse propensities of labels: how much more a hit counts when its label is rarely annotated [Jain 2016]."""

import re
from pathlib import Path

import numpy as np

from xcutils.core import artifacts

# family -> (A, B). PSP is comparable between papers only where these agree: some published code gives WikiSeeAlso the
# constants of Wikipedia or of Amazon; here it belongs to "other", as in the benchmark's own evaluation script.
CONSTANTS: dict[str, tuple[float, float]] = {
    "amazon": (0.6, 2.6),
    "wikipedia": (0.5, 0.4),
    "other": (0.55, 1.5),
}


def family_of(dataset_name: str) -> str:
    """The key of CONSTANTS for a dataset, by its name; case and punctuation do not matter.

    "wikipedia" is Wikipedia-500K and WikiTitles-500K under any of their spellings; WikiSeeAlso, Wiki10 and the like are
    "other", as is every name that is not recognised.
    """
    name = re.sub(r"[^a-z0-9]", "", dataset_name.lower())
    if "amazon" in name:
        return "amazon"
    if "seealso" not in name and re.search(r"wiki(pedia|titles|500k)", name):
        return "wikipedia"
    return "other"


def inverse_propensity(frequency: np.ndarray, n_docs: int, a: float, b: float) -> np.ndarray:
    """1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A, the weight of a hit of label l [Jain 2016].

    frequency  (L,) int      train docs that have the label
    n_docs     int           train docs, N
    returns    (L,) float64  never below 1
    """
    frequency = np.asarray(frequency, dtype=np.float64)
    if b <= 0 or (frequency.size and frequency.min() < 0):
        raise ValueError("b must be above 0 and no frequency below 0")
    # Differs from the formula for N < e, where C would be negative and a hit worth less than one: C is 0 there.
    c = max(np.log(max(n_docs, 1)) - 1, 0) * (b + 1) ** a
    return 1 + c * (frequency + b) ** -a


def inverse_propensities(train: Path, labels: Path) -> np.ndarray:
    """(L,) float64 inverse propensities of prepared labels, with the constants of the dataset's family [Jain 2016]."""
    frequency = artifacts.load_array(labels, "frequency")
    n_docs = len(artifacts.load_array(train, "is_validation"))
    return inverse_propensity(np.asarray(frequency), n_docs, *constants_of(train))


def constants_of(train: Path) -> tuple[float, float]:
    """(A, B) for the prepared dataset."""
    return CONSTANTS[family_of(artifacts.load_json(train, "meta.json")["dataset"])]
