"""A model in Python: texts in, labels out. Safe to use from many threads at once.

model = longtail.load("bundle")
model.predict("a text", k=5)
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from longtail import explain as explaining
from longtail.bundling import write_bundle
from longtail.changes import Vectors, Wanted, as_items, changed, check_text, checked_ids, checked_labels, wanted_by
from longtail.journal import ADD, REMOVE, RENAME, UNDO, Entry, Journal
from longtail.places import Documents, Place, find_place
from longtail.serving import System
from longtail.views import LabelInfo, LabelsView, check_count
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, concatenate, from_strings
from xcutils.rank.calibration import Cutoffs
from xcutils.rank.standin import StandIn

F1 = "f1"  # the threshold that is best for F1

__all__ = ["Label", "LabelInfo", "Model", "load"]


@dataclass(frozen=True)
class Label:
    """A label that was predicted, and the chance that it is right."""

    id: str
    text: str
    probability: float


class Replaced(UserError):
    """The files in the model's folder are not those that it was read from."""


class Model:
    """A finished run or a bundle, ready to answer.

    One `System` holds all that an answer depends on. A change of the labels makes a new one and puts it in the old
    one's place at once, so that an answer is from before the change or from after it.

    What a model says is of the files that it was read from. When others are put in their place it answers as before,
    and changes no labels: the journal is then another model's.
    """

    def __init__(self, place: Place, check: bool = True):
        """check  compare each file's hash with what was written"""
        self.place = place
        self._hash = ""
        while (now := place.hash()) != self._hash or not now:  # again if the files are replaced meanwhile
            self._base = self._system = place.load(check)
            self._info, self._documents = place.info(), place.documents()
            self._hash = now
        self._changing = threading.Lock()
        self._fit: StandIn | None = None
        self._vectors: Vectors | None = None
        self._stamp: tuple[int, int] | None = None
        with self._changing:
            self._follow()

    @property
    def system(self) -> System:
        """What answers at this moment."""
        return self._system

    @overload
    def predict(  # type: ignore[overload-overlap]  # a string is a sequence of strings
        self, texts: str, k: int = ..., threshold: float | str | None = ..., precision: float | None = ...,
                among: Iterable[str] | None = ...) -> list[Label]: ...  # fmt: skip

    @overload
    def predict(self, texts: Sequence[str], k: int = ..., threshold: float | str | None = ...,
                precision: float | None = ..., among: Iterable[str] | None = ...) -> list[list[Label]]: ...  # fmt: skip

    def predict(
        self,
        texts: str | Sequence[str],
        k: int = 10,
        threshold: float | str | None = None,
        precision: float | None = None,
        among: Iterable[str] | None = None,
    ) -> list[Label] | list[list[Label]]:
        """The labels of a text, best first, with their probabilities; a list of them for a list of texts.

        k          labels per text, at most
        threshold  only labels of at least this probability; "f1": of the one that is best for F1
        precision  only so many labels that this share of them was right on the validation documents
        among      ids of labels: only these may be answered, each by its exact score
        """
        if isinstance(texts, str):
            return self.predict([texts], k, threshold, precision, among)[0]
        system = self._system
        checked_texts, k = as_texts(texts), as_count(k, system)
        least = cutoff(system, threshold, precision)
        allowed = None
        if among is not None:
            allowed = np.array(sorted({system.place(id) for id in as_ids(among, "among")}), dtype=np.int64)
        _, ids, scores = system.rank(checked_texts, k, allowed)
        return [
            [Label(*system.named(i), score) for i, score in zip(*row) if i >= 0 and score >= least]
            for row in zip(ids.tolist(), scores.tolist())
        ]

    def embed(self, texts: str | Sequence[str]) -> np.ndarray:
        """(n, D) float32: a vector of length one per text; zero where a text has no token."""
        return self._system.embed(as_texts([texts] if isinstance(texts, str) else texts))

    def explain(self, text: str, labels: Sequence[str] | None = None, k: int = 5) -> list[explaining.Explanation]:
        """Why the text gets the labels of these ids, or its k best: words that weigh, parts of the score, documents."""
        system, documents = self._system, self.documents
        reader = explaining.reader(documents) if documents else None
        chosen = None if labels is None else as_ids(labels, "labels")
        return explaining.explain(system, as_texts([text])[0], chosen, as_count(k, system), reader)

    def known(self, texts: Sequence[str]) -> list[bool]:
        """Whether any word of each text is known; where none is, `predict` answers with the most frequent labels."""
        system = self._system
        return system.known(system.tokens(as_texts(texts))).tolist()

    @property
    def labels(self) -> LabelsView:
        """The labels that can be predicted at this moment."""
        return LabelsView(self._system)

    @property
    def cutoffs(self) -> Cutoffs:
        """Precision and recall by threshold, as they were on the validation documents."""
        return self._system.cutoffs

    @property
    def info(self) -> dict:
        """What the model is: version, hash, pipeline, dataset, data, metrics, parameters, created."""
        return deepcopy(self._info)

    @property
    def documents(self) -> Documents | None:
        """Ids and texts of the documents that the memory knows; None where a bundle was written without them.

        Example documents of added labels come last, without an id.
        """
        found, more = self._documents, self._system.examples
        if found is None or not more:
            return found
        return Documents(
            concatenate(found.ids, from_strings([""] * len(more))), concatenate(found.texts, from_strings(more))
        )

    @property
    def positives(self) -> Ragged:
        """N rows  places of the labels of each document that the memory knows."""
        return self._system.model.positives

    # --- labels that come and go ---

    def add_labels(self, labels: Iterable) -> None:
        """Add labels without training: each stands in by its text, and by its example documents if it has any.

        labels  (id, text), (id, text, examples), or a dict of id, text and perhaps examples, each
        """
        self._change(ADD, lambda wanted: checked_labels(labels, wanted, self._base))

    def remove_labels(self, ids: Iterable[str]) -> None:
        """Take labels out of all answers; one that is added again with its old text is what it was."""
        self._change(REMOVE, lambda wanted: checked_ids(ids, wanted, self._base))

    def rename_labels(self, texts: Mapping[str, str]) -> None:
        """Give labels, by their ids, another text; one that was added is scored by its new text."""

        def checked(wanted: Wanted) -> dict[str, str]:
            if not isinstance(texts, Mapping):
                raise UserError(f"the new texts are {texts!r}: give a dict of them by the labels' ids.")
            for id in checked_ids(list(texts), wanted, self._base):
                check_text(texts[id], "text", id)
            return dict(texts)

        self._change(RENAME, checked)

    def undo(self) -> str:
        """Undo the last change that holds; what it was, in words."""
        self._refuse_none(self.place.journal().effective())
        with self._writing() as journal:
            entries = journal.effective()
            self._refuse_none(entries)
            wanted = wanted_by(entries[:-1], self._base)
            self._commit(journal, UNDO, entries[-1].number, wanted)
            return entries[-1].said()

    def changes(self) -> list[Entry]:
        """Every change of labels that was made, oldest first."""
        return self.place.journal().entries()

    @property
    def is_behind(self) -> bool:
        """Whether another process has changed labels since; costs next to nothing."""
        return self.place.journal().stamp != self._stamp

    def refresh(self) -> bool:
        """Take over changes that another process has made; whether there were any. Costs next to nothing if not."""
        if not self.is_behind:
            return False
        with self._changing:
            return self._follow()

    @contextmanager
    def _writing(self) -> Iterator[Journal]:
        """The journal, which nobody else writes to within the block."""
        self._refuse_others()  # first: the lock is a file, too
        with self._changing, self.place.journal().locked():
            self._refuse_others()
            yield self.place.journal()

    def _refuse_others(self) -> None:
        """Refuse if the files are not those that the model was read from."""
        if self.place.hash() != self._hash:
            raise Replaced(f"the files of the model in {self.place.folder} were replaced: load it again.")

    @staticmethod
    def _refuse_none(entries: list[Entry]) -> None:
        if not entries:
            raise UserError("there is no change of labels to undo.")

    def _change(self, kind: str, checked: Callable[[Wanted], Any]) -> None:
        """Write a change and put it in force.

        checked  what the labels are -> the change as the journal has it; it refuses what cannot be done
        """
        with self._writing() as journal:
            wanted = wanted_by(journal.effective(), self._base)
            what = checked(wanted)
            wanted.apply(kind, what, self._base)
            self._commit(journal, kind, what, wanted)

    def _commit(self, journal: Journal, kind: str, what: Any, wanted: Wanted) -> None:
        """Write the change to the journal, with which it is there, then keep the vectors, and answer by it."""
        system = self._with(wanted)
        journal.append(kind, what)
        self._stamp = journal.stamp
        self._system = system
        if self._vectors is not None:
            with suppress(UserError, OSError):  # the change is made; these are made again where they are missing
                self._vectors.save(self.place.changes, self._hash, wanted)

    def _follow(self) -> bool:
        """Answer by what the journal says; False where it is another model's, and the labels are left as they are."""
        journal = self.place.journal()
        stamp, entries = journal.stamp, journal.effective()
        try:
            self._refuse_others()
            system = self._with(wanted_by(entries, self._base))
        except Replaced:
            return False
        self._system, self._stamp = system, stamp
        return True

    def _with(self, wanted: Wanted) -> System:
        """The system with these changes."""
        if not wanted:
            return self._base
        if self._fit is None or self._vectors is None:
            fit = self.place.stand_in()
            vectors = Vectors.load(self.place.changes, self._base, self._hash)
            self._refuse_others()  # both are of the files that were there before this line
            self._fit, self._vectors = fit, vectors
        return changed(self._base, wanted, self._fit, self._vectors)

    def save(self, folder: str | Path, with_documents: bool = True, keep_changes: bool = False) -> None:
        """Write a bundle, with the changes of labels; written whole or not at all.

        with_documents  ids and texts of the training documents go with it
        keep_changes    a bundle that is replaced hands its changes of labels on to this one
        """
        self._refuse_others()
        write_bundle(self.place, Path(folder), with_documents=with_documents, keep_changes=keep_changes)

    def __repr__(self) -> str:
        return f"<longtail.Model {self.place.folder} with {len(self.labels):,} labels>"


def load(path: str | Path = ".", pipeline: str = "", check: bool = True) -> Model:
    """The model in a bundle, or of the finished run in a folder.

    path      a bundle; or a checkout, or its data/ folder, in which the pipeline has run
    pipeline  of a run: "unidec" for the second pipeline
    check     compare each file's hash with what was written; without it a damaged file goes unnoticed
    """
    return Model(find_place(Path(path), pipeline), check)


def as_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list, after a look at whether they are texts; what is no Unicode is replaced."""
    found = list(as_items(texts, "the texts are"))
    for text in found:
        if not isinstance(text, str):
            raise UserError(f"a text is {text!r}, of type {type(text).__name__}: give strings.")
    return [text.encode("utf-8", "replace").decode("utf-8") for text in found]


def as_ids(ids: Iterable[str], name: str) -> list[str]:
    """The ids as a list, after a look at whether they are ids and not a single one."""
    found = list(as_items(ids, f"the ids of {name} are"))
    for id in found:
        if not isinstance(id, str):
            raise UserError(f"an id of {name} is {id!r}, of type {type(id).__name__}: give strings.")
    return found


def as_count(k: int, system: System) -> int:
    """How many labels are looked for: k, and no more than there are."""
    return min(check_count(k, "k"), max(1, system.count))


def cutoff(system: System, threshold: float | str | None, precision: float | None) -> float:
    """The least probability of a label that is answered."""
    if threshold is not None and precision is not None:
        raise UserError("threshold and precision both say where to cut off: give one of them.")
    if precision is not None:
        return system.threshold(_share(precision, "precision"))
    if threshold == F1:
        return system.best_threshold()
    return 0.0 if threshold is None else _share(threshold, "threshold")


def _share(given: float | str, name: str) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {given!r}; it must be a number from 0 to 1{', or f1' * (name == 'threshold')}.")
    return value
