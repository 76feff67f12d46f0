"""The labels of a model as people look at them: searched by words, one by its id, with those near it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from longtail.serving import System
from xcutils.core.errors import UserError
from xcutils.rank.served import search

FAR = 4  # labels that are looked at for one neighbour


def check_count(count: int, name: str) -> int:
    """The number, after a look at whether it is a whole one of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise UserError(f"{name} is {count!r}; it must be a whole number of at least 1.")
    return int(count)


@dataclass(frozen=True)
class LabelInfo:
    """A label that can be predicted.

    docs  training documents that have it; of a label that was added, its example documents
    """

    id: str
    text: str
    docs: int


class LabelsView:
    """The labels of a system, as they were when it was asked for."""

    def __init__(self, system: System):
        self._system = system

    def __len__(self) -> int:
        return self._system.count

    def __iter__(self) -> Iterator[LabelInfo]:
        return (self._info(place) for place in self._system.alive.tolist())

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and id in self._system.places

    def get(self, id: str) -> LabelInfo:
        """The label of this id."""
        return self._info(self._place(id))

    def search(self, query: str, limit: int = 20) -> list[LabelInfo]:
        """Labels whose id or text holds every word of the query, the likeliest first.

        That is: the very id or text, then texts that begin with the query, then the others, each by frequency.
        """
        if not isinstance(query, str):
            raise UserError(f"the query is {query!r}: give words of the label's text, or its id.")
        limit = check_count(limit, "limit")
        wanted = " ".join(query.lower().split())
        words = wanted.split()
        system = self._system
        found = [place for place, line in system.lines if all(word in line for word in words)]
        ids, texts = system.ids, system.texts

        def order(place: int) -> tuple:
            text = texts[place].lower()
            exact = wanted in (ids[place].lower(), text)
            return not exact, not text.startswith(wanted), -system.frequency[place], place

        return [self._info(place) for place in sorted(found, key=order)[:limit]]

    def neighbours(self, id: str, k: int = 10) -> list[LabelInfo]:
        """The k labels whose vectors point most nearly where this label's does, nearest first."""
        system = self._system
        model, place = system.model, self._place(id)
        k = min(check_count(k, "k"), system.count)
        dim = model.settings.docs["dim"]
        own = model.labels.take(np.array([place])).copy()
        own[:, dim:] = 0  # what does not depend on the document
        near, _ = search(model.labels, own, min(FAR * (k + 1), model.n_labels), model.n_labels)
        others = near[0][(near[0] >= 0) & (near[0] != place)]
        vectors = model.labels.take(others)[:, :dim]
        lengths = np.linalg.norm(vectors, axis=1)
        cosines = vectors @ own[0, :dim] / np.where(lengths > 0, lengths, 1)
        return [self._info(label) for label in others[np.argsort(-cosines, kind="stable")[:k]].tolist()]

    def _place(self, id: str) -> int:
        if not isinstance(id, str):
            raise UserError(f"the id of a label is {id!r}: give a string.")
        return self._system.place(id)

    def _info(self, place: int) -> LabelInfo:
        return LabelInfo(*self._system.named(place), int(self._system.frequency[place]))
