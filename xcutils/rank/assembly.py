"""A Predictor from the artifacts of the stages, which the caller has checked (artifacts.check_together)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from xcutils.core import artifacts
from xcutils.core.folds import CHOOSE, last_fit
from xcutils.model.encoders import load_encoder
from xcutils.rank.predictor import Predictor
from xcutils.search.propensity import constants_of, inverse_propensity
from xcutils.search.searched import vectors_of
from xcutils.search.searcher import Searcher


def final_predictor(train: Path, stages: list[Path], p: Any, inverse: np.ndarray, device: torch.device) -> Predictor:
    """The predictor of the last fit, whose parts have rows of their own in the metrics.

    train    the prepared training documents
    stages   the folders of the stages whose vectors are searched; the last one has the encoder
    p        neighbours and tau of the memory
    inverse  (L,) inverse propensities
    """
    fit = last_fit(artifacts.load_json(train, "meta.json")["refit"])
    return _assemble(train, stages, fit, None, p, inverse, device)


def choosing_predictor(train: Path, stages: list[Path], p: Any, inverse: np.ndarray, device: torch.device) -> Predictor:
    """The predictor for choices: models that have not seen the validation documents.

    Nor has the propensity: what it says of a label would otherwise depend on the documents that it is weighed by.
    """
    fitted = np.flatnonzero(~artifacts.load_array(train, "is_validation"))
    return _assemble(train, stages, CHOOSE, fitted, p, inverse, device)


def views_of(vectors: dict[str, np.ndarray]) -> dict[str, slice]:
    """name -> the dimensions of a document that these vectors are compared with; empty where that is all of them."""
    if "concatenated" not in vectors:
        return {}
    half = vectors["labels"].shape[1]
    return {"labels": slice(0, half), "classifiers": slice(half, 2 * half)}


def _assemble(
    train: Path,
    stages: list[Path],
    fit: str,
    docs: np.ndarray | None,
    p: Any,
    inverse: np.ndarray,
    device: torch.device,
) -> Predictor:
    """docs  (n,) the training documents that the memory knows; None: all"""
    vectors = vectors_of(stages, fit)
    positives = artifacts.load_ragged(train, "positives")
    if docs is not None:
        vectors["docs"] = vectors["docs"][docs]
        positives = positives.take(docs)
        frequency = np.bincount(positives.values, minlength=len(inverse))
        inverse = inverse_propensity(frequency, len(docs), *constants_of(train))
    searchers = {name: Searcher(np.asarray(v), device=device) for name, v in vectors.items()}
    return Predictor(
        load_encoder(stages[-1] / fit, device),
        searchers,
        views_of(vectors),
        positives.csr(len(inverse)),
        np.log(inverse),
        p.neighbours,
        p.tau,
    )
