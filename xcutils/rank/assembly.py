"""A Predictor from the artifacts of the stages, which the caller has checked (artifacts.check_together)."""

from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from xcutils.core import artifacts
from xcutils.core.folds import CHOOSE, last_fit
from xcutils.model.encoders import load_encoder
from xcutils.rank.predictor import Predictor
from xcutils.search.searched import vectors_of
from xcutils.search.searcher import Searcher, open_searchers


def final_predictor(
    prepare: Path, stages: list[Path], index: Path, settings: dict, inverse: np.ndarray, device: torch.device
) -> Predictor:
    """The predictor for new texts: the models of the last fit, searched through the index.

    stages    the folders of the stages whose vectors are searched; the last one has the encoder
    settings  shortlist, neighbours, tau and ef of the score stage
    inverse   (L,) inverse propensities
    """
    fit = last_fit(artifacts.load_json(prepare / "train", "meta.json")["refit"])
    searchers = open_searchers(vectors_of(stages, fit), index, settings["ef"], device)
    positives = artifacts.load_ragged(prepare / "train", "positives").csr(len(inverse))
    return _assemble(stages[-1] / fit, searchers, positives, settings, inverse, device)


def choosing_predictor(
    prepare: Path, stages: list[Path], settings: dict, inverse: np.ndarray, device: torch.device
) -> Predictor:
    """The predictor for choices: models that have not seen the validation documents, searched exactly."""
    searchers = open_searchers(vectors_of(stages, CHOOSE), None, settings["ef"], device)
    fitted = np.flatnonzero(~artifacts.load_array(prepare / "train", "is_validation"))
    searchers["docs"] = Searcher(searchers["docs"].vectors[fitted], device=device)
    positives = artifacts.load_ragged(prepare / "train", "positives").take(fitted).csr(len(inverse))
    return _assemble(stages[-1] / CHOOSE, searchers, positives, settings, inverse, device)


def _assemble(
    folder: Path,
    searchers: dict[str, Searcher],
    positives: sparse.csr_matrix,
    settings: dict,
    inverse: np.ndarray,
    device: torch.device,
) -> Predictor:
    views = {}
    if "concatenated" in searchers:
        half = searchers["labels"].vectors.shape[1]
        views = {"labels": slice(0, half), "classifiers": slice(half, 2 * half)}
    numbers = {name: settings[name] for name in ("shortlist", "neighbours", "tau")}
    return Predictor(load_encoder(folder, device), searchers, views, positives, np.log(inverse), **numbers)
