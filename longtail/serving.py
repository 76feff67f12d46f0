"""A finished run, ready to answer: plain text in, label ids, texts and probabilities out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from xcutils.core import artifacts, runtime
from xcutils.core.pipelines import MODULAR, Pipeline
from xcutils.core.ragged import Ragged, to_strings
from xcutils.model.tokens import tokenize, unknown_id
from xcutils.rank.assembly import final_predictor
from xcutils.rank.fusion import Fusion
from xcutils.rank.predictor import Predictor
from xcutils.search.propensity import inverse_propensities


@dataclass(frozen=True)
class Answer:
    """The labels of one text as {id, text, score}; `known` is false when no word of it is known."""

    known: bool
    labels: list[dict]


@dataclass
class System:
    predictor: Predictor
    fusion: Fusion
    tokenizer: Tokenizer
    max_tokens: int
    unknown: int | None  # the tokenizer's id for what it does not know
    label_ids: Ragged
    label_texts: Ragged
    frequency: np.ndarray

    def known(self, tokens: Ragged) -> np.ndarray:
        """(texts,) bool: does the tokenizer know any token of the text?"""
        return np.bincount(tokens.row_ids()[tokens.values != self.unknown], minlength=len(tokens)) > 0

    def answers(self, texts: list[str], k: int) -> list[Answer]:
        """An answer per text; a text without a known word gets the most frequent labels."""
        tokens = tokenize(self.tokenizer, texts, self.max_tokens)  # as they were when training and scoring
        known = self.known(tokens)
        ids, scores = self.predictor.predict(tokens, self.fusion, k)
        blank = np.flatnonzero(~known)
        if len(blank):
            frequent = np.argsort(-self.frequency, kind="stable")[:k]
            ids[blank] = -1
            ids[blank, : len(frequent)] = frequent
            scores[blank, : len(frequent)] = self.frequency[frequent] / self.predictor.positives.shape[0]
        return [Answer(bool(known[i]), self._labels(ids[i], scores[i])) for i in range(len(texts))]

    def _labels(self, ids: np.ndarray, scores: np.ndarray) -> list[dict]:
        kept = ids[ids >= 0].tolist()
        names = zip(to_strings(self.label_ids, kept), to_strings(self.label_texts, kept))
        return [{"id": i, "text": t, "score": round(float(s), 6)} for (i, t), s in zip(names, scores)]


def read_by_prediction(data: Path, pipeline: Pipeline = MODULAR) -> list[Path]:
    """The artifacts behind a prediction: the score, what prepare wrote, the vectors that are searched, the index."""
    made = pipeline.data(data)
    prepared = [data / "prepare" / part for part in ("train", "labels", "tokenizer")]
    return [made / "score", *prepared, *(made / stage for stage in pipeline.searched), made / "index"]


def load_system(data: Path, pipeline: Pipeline = MODULAR) -> System:
    """The system that the last run of the pipeline left."""
    parts = read_by_prediction(data, pipeline)
    artifacts.check_together(*parts)
    score, train, labels, folder, *stages, index = parts
    saved = artifacts.load_json(score, "fusion.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    inverse = inverse_propensities(train, labels)
    return System(
        predictor=final_predictor(data / "prepare", stages, index, saved["settings"], inverse, runtime.device()),
        fusion=Fusion(**saved["weights"]),
        tokenizer=tokenizer,
        max_tokens=artifacts.load_json(folder, "special.json")["max_tokens"],
        unknown=unknown_id(tokenizer),
        label_ids=artifacts.load_ragged(labels, "ids"),
        label_texts=artifacts.load_ragged(labels, "texts"),
        frequency=np.asarray(artifacts.load_array(labels, "frequency")),
    )
