"""Labels that come and go without training: what the journal asks for, put on a model.

A label that is added stands in by its text and its example documents, which the memory learns as well; one that is
removed is passed over; a new name is shown in place of the old one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from longtail.journal import ADD, REMOVE, RENAME, Entry
from longtail.serving import System
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, concatenate, from_rows, from_strings, starts, to_strings
from xcutils.rank.changed import Changed
from xcutils.rank.served import Model, search
from xcutils.rank.standin import StandIn

SAME = 0.05  # over the root of D: two vectors that differ by less in every dimension are of the same document
VECTORS = "vectors"  # the folder of the vectors of added texts, beside the journal
SHOWN = 3


@dataclass(frozen=True)
class NewLabel:
    """A label to add: its id, its text, and documents that have it, if any are known."""

    id: str
    text: str
    examples: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        return {"id": self.id, "text": self.text, "examples": list(self.examples)}


@dataclass
class Wanted:
    """What a model's labels shall be, said by ids.

    added    labels that stand in by their text, in the order they came
    removed  trained labels that are gone;  renamed  trained labels with another text
    """

    added: dict[str, NewLabel] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed)

    def has(self, id: str, base: System) -> bool:
        return id in self.added or (id in base.places and id not in self.removed)

    def apply(self, kind: str, what, base: System) -> None:
        """Make a change; what does not fit the model's labels, after it was trained anew, is passed over."""
        if kind == ADD:
            for label in what:
                self._add(NewLabel(label["id"], label["text"], tuple(label["examples"])), base)
        elif kind == REMOVE:
            for id in what:
                if self.added.pop(id, None) is None and id in base.places:
                    self.removed.add(id)
                    self.renamed.pop(id, None)
        elif kind == RENAME:
            for id, text in what.items():
                if id in self.added:
                    self.added[id] = replace(self.added[id], text=text)
                elif self.has(id, base):
                    self.renamed[id] = text

    def _add(self, label: NewLabel, base: System) -> None:
        if self.has(label.id, base):
            return
        if label.id in self.removed and not label.examples and label.text == base.text_of(label.id):
            self.removed.discard(label.id)  # the trained label comes back
        else:
            self.added[label.id] = label


def wanted_by(entries: Iterable[Entry], base: System) -> Wanted:
    """What these changes, made one after the other, ask for."""
    wanted = Wanted()
    for entry in entries:
        wanted.apply(entry.kind, entry.what, base)
    return wanted


# --- what may be asked for --------------------------------------------------------------------------------------------


def as_items(given: Any, said: str) -> Iterable:
    """What is given, after a look at whether it is several things and not one text or none; a sentence begins so."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{said} {'the text ' * isinstance(given, str)}{given!r}: give a list of them.")
    return given


def checked_labels(labels: Iterable, wanted: Wanted, base: System) -> list[dict]:
    """The labels to add as the journal has them: NewLabel, (id, text), (id, text, examples) or a dict each."""
    found = [_as_label(label) for label in as_items(labels, "the labels to add are")]
    if not found:
        raise UserError("there is no label to add: give at least one.")
    _refuse_twice([label.id for label in found])
    there = [label.id for label in found if wanted.has(label.id, base)]
    if there:
        raise UserError(f"{_named(there)} there already: rename a label to change its text, or remove it first.")
    return [label.as_dict() for label in found]


def checked_ids(ids: Iterable[str], wanted: Wanted, base: System) -> list[str]:
    """The ids of labels that are there."""
    found = list(as_items(ids, "the ids are"))
    if not found:
        raise UserError("no label is named: give at least one id.")
    for id in found:
        if not isinstance(id, str):
            raise UserError(f"the id of a label is {id!r}: give a string.")
    _refuse_twice(found)
    missing = [id for id in found if not wanted.has(id, base)]
    if missing:
        raise UserError(f"{_named(missing)} not among the labels: search for the text to find the id.")
    return found


def _as_label(given) -> NewLabel:
    if isinstance(given, NewLabel):
        label = given
    elif isinstance(given, Mapping):
        unknown = set(given) - {"id", "text", "examples"}
        if unknown or not {"id", "text"} <= set(given):
            raise UserError(f"a label to add is {dict(given)!r}: it must have id and text, and may have examples.")
        label = NewLabel(given["id"], given["text"], _examples(given.get("examples") or ()))
    elif isinstance(given, Sequence) and not isinstance(given, str) and len(given) in (2, 3):
        label = NewLabel(given[0], given[1], _examples(given[2] if len(given) == 3 else ()))
    else:
        raise UserError(f"a label to add is {given!r}: give (id, text), (id, text, examples) or a dict of these.")
    for name, text in (("id", label.id), ("text", label.text), *(("example", text) for text in label.examples)):
        check_text(text, name, label.id)
    if not label.id.strip():
        raise UserError(f"the label {label.text!r} has an empty id: give it one.")
    return label


def _examples(given) -> tuple:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"the examples of a label are {given!r}: give a list of texts.")
    return tuple(given)


def check_text(text, name: str, id: str) -> None:
    """Refuse what is no text, and a label's text that nobody could read."""
    if not isinstance(text, str):
        raise UserError(f"the {name} of the label {id!r} is {text!r}: give a string.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the {name} of the label {id!r} is no Unicode text ({text!r}): mend it.") from None
    if name == "text" and not text.strip():
        raise UserError(f"the text of the label {id!r} is blank: give it one.")


def _refuse_twice(ids: list[str]) -> None:
    seen: set[str] = set()
    twice = [id for id in ids if id in seen or seen.add(id)]  # type: ignore[func-returns-value]
    if twice:
        raise UserError(f"{twice[0]!r} is named more than once: name each label once.")


def _named(ids: list[str]) -> str:
    """The first ids, as the beginning of a sentence."""
    more = f" and {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
    return ", ".join(map(repr, ids[:SHOWN])) + more + (" is" if len(ids) == 1 else " are")


# --- the model with its changes ---------------------------------------------------------------------------------------


class Vectors:
    """Vectors of texts that were embedded before, kept on the disk beside the journal: a cache, made again if lost."""

    def __init__(self, base: System, found: dict[str, np.ndarray] | None = None):
        self.base = base
        self.found = found or {}

    @classmethod
    def load(cls, folder: Path, base: System, model: str) -> "Vectors":
        """Those that were saved for the model of this hash; none where there are none, or of another one."""
        try:
            place = artifacts.check(folder / VECTORS)
            if artifacts.load_manifest(place)["parameters"] != {"model": model}:
                return cls(base)
            texts = to_strings(artifacts.load_ragged(place, "texts"))
            return cls(base, dict(zip(texts, artifacts.load_array(place, "vectors"))))
        except UserError:
            return cls(base)

    def save(self, folder: Path, model: str, wanted: Wanted) -> None:
        """Write those of the texts that are wanted; the others are forgotten."""
        labels = wanted.added.values()
        used = dict.fromkeys(text for label in labels for text in (label.text, *label.examples))
        self.found = {text: self.found[text] for text in used}
        with artifacts.writing(folder / VECTORS, name=VECTORS, params={"model": model}) as draft:
            artifacts.save_ragged(draft, "texts", from_strings(list(self.found)))
            rows = list(self.found.values())
            artifacts.save_array(draft, "vectors", np.stack(rows) if rows else np.zeros((0, 0), np.float32))

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """(n, D) float32 of length one."""
        fresh = [text for text in dict.fromkeys(texts) if text not in self.found]
        if fresh:
            self.found |= zip(fresh, self.base.embed(fresh))
        dim = self.base.model.settings.docs["dim"]
        return np.stack([self.found[text] for text in texts]) if texts else np.zeros((0, dim), np.float32)


def changed(base: System, wanted: Wanted, fit: StandIn, vectors: Vectors) -> System:
    """The system with these changes; the base itself where there are none."""
    if not wanted:
        return base
    labels = list(wanted.added.values())
    gone = np.array(sorted(base.places[id] for id in wanted.removed), dtype=np.int64)
    old = base.model
    count = old.n_labels
    texts = vectors.of([label.text for label in labels])
    docs = list(dict.fromkeys(text for label in labels for text in label.examples))
    place = {text: i for i, text in enumerate(docs)}
    members = from_rows([sorted({place[text] for text in label.examples}) for label in labels], np.int64)
    doc_vectors = vectors.of(docs)
    has_examples = members.lengths > 0
    means = np.zeros_like(texts)
    np.add.at(means, members.row_ids(), doc_vectors[members.values])
    added = fit.vectors(texts, means, has_examples, old.settings.labels["dim"])
    known, positives = _remember(old, doc_vectors, members, gone)
    settings = replace(
        old.settings,
        labels=old.settings.labels | {"count": count + len(labels)},
        docs=old.settings.docs | {"count": len(positives)},
    )
    n_docs = old.settings.docs["count"]
    fresh = doc_vectors[known < 0]
    model = Model(
        old.embed,
        Changed(old.labels, count, gone, added),
        Changed(old.docs, n_docs, np.zeros(0, np.int64), fresh) if len(fresh) else old.docs,
        positives,
        old.fusion,
        settings,
    )
    frequency = np.concatenate([base.frequency, members.lengths])
    frequency[gone] = -1
    renamed = {base.places[id]: text for id, text in wanted.renamed.items()}
    return System(
        model=model,
        tokenizer=base.tokenizer,
        unknown=base.unknown,
        label_ids=concatenate(base.label_ids, from_strings([label.id for label in labels])),
        label_texts=concatenate(_replaced(base.label_texts, renamed), from_strings([label.text for label in labels])),
        frequency=frequency,
        cutoffs=base.cutoffs,
        examples=tuple(text for text, i in zip(docs, known.tolist()) if i < 0),
    )


def _remember(old: Model, docs: np.ndarray, members: Ragged, gone: np.ndarray) -> tuple[np.ndarray, Ragged]:
    """(the training document that each example (n, D) is, -1 for a new one; labels of the memory's documents).

    members  a row per added label: its examples;  gone  labels that are removed
    """
    known = _already_there(old, docs)
    values, offsets = np.asarray(old.positives.values), np.asarray(old.positives.offsets)
    if len(gone):
        is_gone = np.zeros(old.n_labels, dtype=bool)
        is_gone[gone] = True
        kept = ~is_gone[values]
        lengths = np.bincount(old.positives.row_ids()[kept], minlength=len(old.positives))
        values, offsets = values[kept], starts(lengths)
    places = np.cumsum(known < 0) - 1 + len(offsets) - 1
    rows = np.where(known < 0, places, known)[members.values]
    labels = members.row_ids() + old.n_labels
    count = len(offsets) - 1 + int((known < 0).sum())
    lengths = np.concatenate([np.diff(offsets), np.zeros(count - len(offsets) + 1, np.int64)])
    ends = np.concatenate([offsets[1:], np.full(count - len(offsets) + 1, offsets[-1])])
    order = np.argsort(rows, kind="stable")  # the new labels of a document stand after its others
    values = np.insert(values.astype(np.int32), ends[rows[order]], labels[order])
    return known, Ragged(values, starts(lengths + np.bincount(rows, minlength=count)))


def _already_there(old: Model, docs: np.ndarray) -> np.ndarray:
    """(n,) int64: the training document with the same vector, as precise as the index holds it; -1: there is none."""
    if not len(docs) or not len(old.docs):
        return np.full(len(docs), -1, dtype=np.int64)
    near, _ = search(old.docs, docs, 1, len(old.positives))
    far = np.abs(old.docs.take(near[:, 0]) - docs).max(axis=1) * np.sqrt(docs.shape[1])
    return np.where((far < SAME) & docs.any(axis=1), near[:, 0], -1)


def _replaced(strings: Ragged, others: dict[int, str]) -> Ragged:
    """The strings, some rows replaced by others."""
    if not others:
        return strings
    order = np.arange(len(strings))
    order[list(others)] = len(strings) + np.arange(len(others))
    return concatenate(strings, from_strings(list(others.values()))).take(order)
