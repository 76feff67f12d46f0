"""Assembles a Predictor from the stages' artifacts, which the caller has checked (artifacts.check_together)."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.folds import CHOOSE, last_fold
from xcutils.model.stored import load_encoder
from xcutils.rank.predictor import Predictor
from xcutils.search.neighbours import Searcher, load_graph
from xcutils.search.propensity import inverse_propensities

VECTORS = ("concatenated", "labels", "classifiers", "docs")  # what can be searched


def vectors_of(folders: Iterable[Path], fit: str) -> dict[str, np.ndarray]:
    """What is searched: every set of vectors that a fit of these stages wrote, the last one's of a name."""
    folders = [folder / fit for folder in folders]
    places = {name: folder for folder in folders for name in VECTORS if (folder / f"{name}.npy").is_file()}
    return {name: artifacts.load_array(places[name], name) for name in VECTORS if name in places}


def searchers(vectors: dict[str, np.ndarray], index: Path | None, ef: int) -> dict[str, Searcher]:
    """A searcher over each set of vectors; exact where there is no index."""
    if index is None or artifacts.load_json(index, "index.json")["search"] == "exact":
        return {name: Searcher(np.asarray(v)) for name, v in vectors.items()}
    facts = artifacts.load_json(index, "index.json")["vectors"]
    for name, v in vectors.items():
        if name not in facts or v.shape != (
            facts[name]["count"],
            facts[name]["dim"],
        ):  # hnswlib reads beyond its memory
            raise UserError(f"{index} was not built over the {name} that are there now: {artifacts.remedy(index)}.")
    return {
        name: Searcher(np.asarray(v), load_graph(index / f"{name}.hnsw", **facts[name]), ef=ef)
        for name, v in vectors.items()
    }


def final_predictor(prepare: Path, stages: list[Path], index: Path, settings: dict) -> Predictor:
    """The system for new texts: models of the last fit, searched through the index.

    stages    the folders of the stages whose vectors are searched; the last one has the encoder
    settings  shortlist, neighbours, tau, ef: as the score stage was run with
    """
    train = prepare / "train"
    fit = last_fold(artifacts.load_json(train, "meta.json")["refit"])
    found = searchers(vectors_of(stages, fit), index, settings["ef"])
    positives = artifacts.load_ragged(train, "positives").csr(len(found["labels"].vectors))
    return _assemble(prepare, stages[-1] / fit, found, positives, settings)


def choosing_predictor(prepare: Path, stages: list[Path], settings: dict) -> Predictor:
    """The system that has not seen the validation documents, searched exactly: what choices are made with."""
    train = prepare / "train"
    found = searchers(vectors_of(stages, CHOOSE), None, settings["ef"])
    fit = np.flatnonzero(~artifacts.load_array(train, "is_validation"))
    found["docs"] = Searcher(found["docs"].vectors[fit])
    positives = artifacts.load_ragged(train, "positives").take(fit).csr(len(found["labels"].vectors))
    return _assemble(prepare, stages[-1] / CHOOSE, found, positives, settings)


def _assemble(prepare: Path, folder: Path, found: dict, positives, settings: dict) -> Predictor:
    kept = {name: settings[name] for name in ("shortlist", "neighbours", "tau")}
    inverse, encoder = inverse_propensities(prepare / "train", prepare / "labels"), load_encoder(folder)
    views = {}
    if "concatenated" in found:
        half = found["labels"].vectors.shape[1]
        views = {"labels": slice(0, half), "classifiers": slice(half, 2 * half)}
    return Predictor(encoder, found, views, positives, np.log(inverse), **kept)
