"""A finished run, ready to answer: plain text in, label ids, texts and probabilities out. No torch by itself."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, Pipeline
from xcutils.core.ragged import Ragged, to_strings
from xcutils.model.tokens import tokenize, unknown_id
from xcutils.rank.calibration import Cutoffs
from xcutils.rank.served import Model, load

PREPARED = ("train", "labels", "tokenizer")


@dataclass(frozen=True)
class Answer:
    """The labels of one text as {id, text, score}; `known` is false when no word of it is known."""

    known: bool
    labels: list[dict]


@dataclass
class System:
    """All that an answer depends on; it does not change once it is made, but for what it remembers of what it read."""

    model: Model
    tokenizer: Tokenizer
    unknown: int | None  # the tokenizer's id for what it does not know
    label_ids: Ragged
    label_texts: Ragged
    frequency: np.ndarray  # (L,) training documents that have the label; -1 for one that was removed
    cutoffs: Cutoffs
    examples: tuple[str, ...] = ()  # texts of the memory's documents that come after those of the training
    names: dict[int, tuple[str, str]] = field(default_factory=dict)

    def tokens(self, texts: list[str]) -> Ragged:
        """Token ids of the texts, as when training and scoring."""
        return tokenize(self.tokenizer, texts, self.model.settings.max_tokens)

    def embed(self, texts: list[str]) -> np.ndarray:
        """(texts, D) float32 of length one; zero where a text has no token."""
        return self.model.embed(self.tokens(texts))

    def known(self, tokens: Ragged) -> np.ndarray:
        """(texts,) bool: does the tokenizer know any token of the text?"""
        is_known = tokens.values != self.unknown
        if len(tokens) == 1:
            return is_known.any(keepdims=True)
        return np.bincount(tokens.row_ids()[is_known], minlength=len(tokens)) > 0

    def rank(
        self, texts: list[str], k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(known (Q,) bool, ids (Q, k), probabilities (Q, k)); a text of unknown words gets the frequent labels.

        among  (n,) labels that may be answered, ascending, each with its exact score; None: all, searched
        """
        tokens = self.tokens(texts)
        known = self.known(tokens)
        ids, scores = self.model.predict(tokens, k) if among is None else self.model.predict_among(tokens, k, among)
        if not known.all():
            blank = np.flatnonzero(~known)
            frequent = self._frequent(k, among)
            ids[blank], scores[blank] = -1, 0
            ids[blank, : len(frequent)] = frequent
            scores[blank, : len(frequent)] = self.frequency[frequent] / max(1, len(self.model.positives))
        return known, ids, scores

    def _frequent(self, k: int, among: np.ndarray | None) -> np.ndarray:
        """The k most frequent labels, of those that may be answered."""
        allowed = self.alive if among is None else among
        return allowed[np.argsort(-self.frequency[allowed], kind="stable")[:k]]

    def answers(self, texts: list[str], k: int, threshold: float = 0.0) -> list[Answer]:
        """An answer per text, with at most k labels, of at least this probability."""
        known, ids, scores = self.rank(texts, k)
        if threshold:
            ids = np.where(scores >= threshold, ids, -1)
        return [Answer(*answer) for answer in zip(known.tolist(), self._labels(ids, scores))]

    def threshold(self, precision: float) -> float:
        """The probability from which on labels have this precision, as it was on the validation documents."""
        found = self.cutoffs.at(precision)
        if found is None:
            most = max(self.cutoffs.precision, default=0.0)
            raise UserError(
                f"no cut-off of this model has a precision of {precision:g}: the highest on its validation documents "
                f"is {most:.3f}; ask for less."
            )
        return found

    def best_threshold(self) -> float:
        """The probability from which on labels have the best F1, as it was on the validation documents."""
        return self.cutoffs.thresholds[self.cutoffs.best()] if self.cutoffs.thresholds else 0.0

    def named(self, label: int) -> tuple[str, str]:
        """The label's id and text, kept when they have been read once."""
        named = self.names.get(label)
        if named is None:
            id, text = (to_strings(strings, [label])[0] for strings in (self.label_ids, self.label_texts))
            named = self.names[label] = (id, text)
        return named

    @cached_property
    def alive(self) -> np.ndarray:
        """The places of the labels that can be predicted, ascending."""
        return np.flatnonzero(self.frequency >= 0)

    @property
    def count(self) -> int:
        """How many labels can be predicted."""
        return len(self.alive)

    @cached_property
    def ids(self) -> list[str]:
        """The id of each label."""
        return to_strings(self.label_ids)

    @cached_property
    def texts(self) -> list[str]:
        """The text of each label."""
        return to_strings(self.label_texts)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each label that can be predicted, by its id."""
        ids = self.ids
        return {ids[place]: place for place in self.alive.tolist()}

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """(place, id and text in small letters) of each label that can be predicted, to search in."""
        ids, texts = self.ids, self.texts
        return [(place, f"{ids[place]} {texts[place]}".lower()) for place in self.alive.tolist()]

    def text_of(self, id: str) -> str:
        """The text of the label of this id."""
        return self.named(self.place(id))[1]

    def place(self, id: str) -> int:
        """The place of the label of this id."""
        found = self.places.get(id)
        if found is None:
            raise UserError(f"there is no label {id!r}: search for its text to find its id.")
        return found

    def _labels(self, ids: np.ndarray, scores: np.ndarray) -> list[list[dict]]:
        """The labels of each row of ids (Q, k), -1 where there are fewer."""
        rows = zip(ids.tolist(), np.round(scores, 6).tolist())
        return [[_labelled(*self.named(i), score) for i, score in zip(*row) if i >= 0] for row in rows]


def _labelled(id: str, text: str, score: float) -> dict:
    return {"id": id, "text": text, "score": score}


def model_of(data: Path, pipeline: Pipeline = MODULAR) -> Path:
    """The folder that holds all that predictions of this pipeline's last run need."""
    return pipeline.data(data) / "index"


def load_system(data: Path, pipeline: Pipeline = MODULAR) -> System:
    """The system that the last run of the pipeline left."""
    made = pipeline.data(data)
    sources = [*(data / "prepare" / part for part in PREPARED), *(made / stage for stage in pipeline.searched)]
    return open_system(artifacts.check_origin(model_of(data, pipeline), sources))


def open_system(folder: Path) -> System:
    """The system in a folder that the caller has checked."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return System(
        model=load(folder),
        tokenizer=tokenizer,
        unknown=unknown_id(tokenizer),
        label_ids=artifacts.load_ragged(folder, "ids"),
        label_texts=artifacts.load_ragged(folder, "texts"),
        frequency=np.asarray(artifacts.load_array(folder, "frequency")),
        cutoffs=Cutoffs(**artifacts.load_json(folder, "cutoffs.json")),
    )
