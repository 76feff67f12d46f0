"""What clients ask a model, as the batcher passes it on."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from longtail.models import Model
from longtail.serving import System


@dataclass(frozen=True)
class Ranked:
    """The labels of one text: their places in `system`, best first, and probabilities.

    known  false where no word is known
    """

    system: System
    known: bool
    places: list[int]
    probabilities: list[float]

    def labelled(self, least: float) -> list[dict]:
        """The labels as they are sent: {id, text, probability} of each that is at least so likely."""
        found = []
        for place, probability in zip(self.places, self.probabilities):
            if place >= 0 and probability >= least:
                id, text = self.system.named(place)
                found.append({"id": id, "text": text, "probability": round(probability, 6)})
        return found


@dataclass(frozen=True, eq=False)
class Ranking:
    """The k best labels of each text, of those `among` (ids) if they are given, by the model's labels as they are."""

    model: Model
    k: int
    among: tuple[str, ...] | None = None

    @property
    def key(self) -> Hashable:
        return id(self.model), self.k, self.among

    def ask(self, texts: list[str]) -> Sequence[Ranked]:
        """Changes of labels, by whichever process, are looked for here, once for all texts, in the batcher's thread:
        in the loop's one the question to the system would wait for the other thread's turn to end.
        """
        self.model.refresh()
        system = self.model.system
        among = None
        if self.among is not None:
            among = np.array(sorted({system.place(id) for id in self.among}), dtype=np.int64)
        known, places, probabilities = system.rank(texts, self.k, among)
        return [Ranked(system, *row) for row in zip(known.tolist(), places.tolist(), probabilities.tolist())]
