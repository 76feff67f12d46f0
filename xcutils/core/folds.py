"""Which documents a model is fitted on: first without the validation documents, to choose; then with them (final)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

CHOOSE, FINAL = "choose", "final"
CONTINUE = "continue"  # value of prepare.refit: the final fit goes on from the first one
Refit = Literal["continue", True, False]
WATCHED = 4096  # validation documents that training is watched on, at most: enough to tell one epoch from another


@dataclass
class Fold:
    """One fit: on the `training` documents, watched on the `validation` documents (none in the final fit)."""

    name: str
    training: np.ndarray
    validation: np.ndarray
    chosen: dict = field(default_factory=dict)  # what the first fit chose, for the second to follow
    may_continue: bool = False

    def epochs(self, most: int) -> int:
        """Epochs to train: `most` while choosing, the chosen number in the final fit, unless it goes on."""
        return most if self.name == CHOOSE else self.chosen["epochs"]

    def goes_on(self, more: int) -> bool:
        """Does it start from what the first fit has learnt? Where `more` epochs are fewer than it would train anew."""
        return self.may_continue and 0 < more < self.chosen["epochs"]

    @property
    def first(self) -> Path:
        """The folder of the first fit's models."""
        return self.chosen["folder"]

    def done(self, epochs: int, folder: Path = Path()) -> None:
        """Note the epochs behind the kept weights, which the final fit repeats, and where these weights are."""
        self.chosen |= {"epochs": epochs, "folder": folder}


def folds(is_validation: np.ndarray, refit: Refit) -> Iterator[Fold]:
    """The fit that chooses, and with `refit` the one on all training documents that follows its choices or goes on.

    is_validation  (N,) bool  documents held out of the first fit, which is watched on WATCHED of them at most
    """
    chosen: dict = {}  # one dict for both: the second fit reads what the first wrote
    held_out = np.flatnonzero(is_validation)
    yield Fold(CHOOSE, np.flatnonzero(~is_validation), spread(held_out, WATCHED), chosen)
    if refit:
        yield Fold(FINAL, np.arange(len(is_validation)), np.zeros(0, dtype=np.int64), chosen, refit == CONTINUE)


def spread(docs: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the documents, evenly over all of them: their order may mean something, such as their age."""
    return docs[np.linspace(0, len(docs) - 1, min(most, len(docs))).astype(np.int64)]


def fit_names(refit: Refit) -> list[str]:
    """The names of the fits that a training stage makes."""
    return [CHOOSE, FINAL] if refit else [CHOOSE]


def last_fit(refit: Refit) -> str:
    """The name of the fit whose models are used on new texts."""
    return FINAL if refit else CHOOSE
