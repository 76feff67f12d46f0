"""What clients ask a model, as the batcher passes it on."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from longtail.serving import System


@dataclass(frozen=True)
class Ranked:
    """The labels of one text: their places, best first, and probabilities; `known` is false where no word is known."""

    known: bool
    places: list[int]
    probabilities: list[float]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The k best labels of each text, of those `among` (places, ascending) if they are given."""

    system: System
    k: int
    among: tuple[int, ...] | None = None

    @property
    def key(self) -> Hashable:
        return id(self.system), self.k, self.among

    def ask(self, texts: list[str]) -> Sequence[Ranked]:
        among = None if self.among is None else np.array(self.among, dtype=np.int64)
        known, places, probabilities = self.system.rank(texts, self.k, among)
        return [Ranked(*row) for row in zip(known.tolist(), places.tolist(), probabilities.tolist())]


def places_of(system: System, ids: Sequence[str] | None) -> tuple[int, ...] | None:
    """The places of these labels, ascending; None where any label may be answered."""
    return None if ids is None else tuple(sorted({system.place(id) for id in ids}))


def labelled(system: System, ranked: Ranked, least: float) -> list[dict]:
    """The labels of a text as they are sent: {id, text, probability} of each that is at least so likely."""
    found = []
    for place, probability in zip(ranked.places, ranked.probabilities):
        if place >= 0 and probability >= least:
            id, text = system.named(place)
            found.append({"id": id, "text": text, "probability": round(probability, 6)})
    return found
