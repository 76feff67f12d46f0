"""The fits of a training stage: one after another, each whole or not at all, an interrupted one gone on with."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from xcutils import artifacts
from xcutils.folds import Fold
from xcutils.scratch import Scratch, Snapshots, move_part
from xcutils.training import Outcome


def fit_folds(folds: Iterable[Fold], fit: Callable[[Fold, Snapshots, Path], None], scratch: Scratch, out: Path) -> None:
    """Fit each fold, or take it from an interrupted run; its files go into out/<fold>, its curve beside them.

    fit  (fold, its snapshots, folder)  trains and writes the fold's files, `save_outcome` among them
    """
    for fold in folds:
        part = scratch.part(fold.name, partial(fit, fold, scratch.snapshots(fold.name)))
        fold.done(artifacts.load_json(part, "fit.json")["epochs"])
        move_part(part, out / fold.name)
        os.replace(out / fold.name / "curve.csv", out / f"curve-{fold.name}.csv")


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """How training went: the epochs behind the kept weights, and the curve."""
    artifacts.save_json(folder, "fit.json", {"epochs": outcome.epochs})
    artifacts.save_rows(folder, "curve.csv", outcome.curve)
