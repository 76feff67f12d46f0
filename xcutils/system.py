"""Assembles a Predictor from the stages' artifacts, which the caller has checked (artifacts.check_together)."""

from pathlib import Path

import numpy as np

from xcutils import artifacts
from xcutils.errors import UserError
from xcutils.folds import CHOOSE, last_fold
from xcutils.models import load_encoder
from xcutils.neighbours import Searcher, load_graph
from xcutils.predictor import Predictor
from xcutils.propensity import CONSTANTS, family_of, inverse_propensity

# What prediction reads, beside what the score stage wrote.
PARTS = ("prepare/train", "prepare/labels", "prepare/tokenizer", "augment", "classifier", "index")


def inverse_propensities(train: Path, labels: Path) -> np.ndarray:
    """(L,) float64: by the constants of the dataset's family [Jain 2016]."""
    frequency = artifacts.load_array(labels, "frequency")
    family = family_of(artifacts.load_json(train, "meta.json")["dataset"])
    n_docs = len(artifacts.load_array(train, "is_validation"))
    return inverse_propensity(np.asarray(frequency), n_docs, *CONSTANTS[family])


def searchers(augment: Path, classifier: Path, fit: str, index: Path | None, ef: int) -> dict[str, Searcher]:
    """A searcher over labels, classifiers and documents; exact where there is no index."""
    vectors = {
        "labels": artifacts.load_array(augment / fit, "labels"),
        "classifiers": artifacts.load_array(classifier / fit, "classifiers"),
        "docs": artifacts.load_array(classifier / fit, "docs"),
    }
    if index is None or artifacts.load_json(index, "index.json")["search"] == "exact":
        return {name: Searcher(np.asarray(v)) for name, v in vectors.items()}
    facts = artifacts.load_json(index, "index.json")["vectors"]
    for name, v in vectors.items():
        if v.shape != (facts[name]["count"], facts[name]["dim"]):  # hnswlib would read beyond its memory
            raise UserError(f"{index} was not built over the {name} in {augment} and {classifier}: run `dvc repro`.")
    return {
        name: Searcher(np.asarray(v), load_graph(index / f"{name}.hnsw", **facts[name]), ef=ef)
        for name, v in vectors.items()
    }


def final_predictor(prepare: Path, augment: Path, classifier: Path, index: Path, settings: dict) -> Predictor:
    """The system for new texts: models of the last fit, searched through the index.

    settings  shortlist, neighbours, tau, ef: as the score stage was run with
    """
    train, labels = prepare / "train", prepare / "labels"
    fit = last_fold(artifacts.load_json(train, "meta.json")["refit"])
    found = searchers(augment, classifier, fit, index, settings["ef"])
    positives = artifacts.load_ragged(train, "positives").csr(len(found["labels"].vectors))
    return _assemble(classifier / fit, found, positives, inverse_propensities(train, labels), settings)


def choosing_predictor(prepare: Path, augment: Path, classifier: Path, settings: dict) -> Predictor:
    """The system that has not seen the validation documents, searched exactly: what choices are made with."""
    train, labels = prepare / "train", prepare / "labels"
    found = searchers(augment, classifier, CHOOSE, None, settings["ef"])
    fit = np.flatnonzero(~artifacts.load_array(train, "is_validation"))
    found["docs"] = Searcher(found["docs"].vectors[fit])
    positives = artifacts.load_ragged(train, "positives").take(fit).csr(len(found["labels"].vectors))
    return _assemble(classifier / CHOOSE, found, positives, inverse_propensities(train, labels), settings)


def _assemble(folder: Path, found: dict, positives, inverse: np.ndarray, settings: dict) -> Predictor:
    kept = {name: settings[name] for name in ("shortlist", "neighbours", "tau")}
    return Predictor(encoder=load_encoder(folder), positives=positives, propensity=np.log(inverse), **found, **kept)
