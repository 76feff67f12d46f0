"""The fits of a training stage, one after another: each is whole or absent, and an interrupted one is resumed."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import sparse

from xcutils.core import artifacts, console
from xcutils.core.costs import BANDWIDTH, FLOAT, Host, Part, Sizes
from xcutils.core.folds import WATCHED, Fold
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.core.scratch import Scratch, Snapshots
from xcutils.model.costs import Network
from xcutils.model.encoders import TEXTS
from xcutils.search.exact import SCORES, exact
from xcutils.search.metrics import evaluate, goal, most_per_row, without
from xcutils.train.training import KEEP, SCHEDULES, Optimisers, Outcome, Plan, train


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The parameters of every stage that trains."""

    epochs: int = value(low=1)
    patience: int = value(low=0)
    tail: float = value(low=0, high=1)
    batch_size: int = value(low=2)
    warmup: int = value(low=0)
    schedule: str = value(among=SCHEDULES)
    validate_every: int = value(low=1)
    keep: str = value(among=KEEP)


@dataclass(frozen=True, kw_only=True)
class Clustered(Trained):
    """The parameters of stages whose batches are clusters of documents, which grow from epoch to epoch [NGAME]."""

    cluster_from: int = value(low=0)
    cluster_first: int = value(low=1)
    cluster_double: int = value(low=1)
    cluster_last: int = value(low=1)
    refresh: int = value(low=1)
    refit_epochs: int = value(low=0)
    refit_lr: float = value(above=0, high=1)

    def __post_init__(self):
        if self.cluster_last < self.cluster_first:
            raise ValueError(
                f"cluster_last is {self.cluster_last} and cluster_first {self.cluster_first}: clusters grow from the "
                "first size to the last, which must be at least as large."
            )

    def batches(self) -> dict[str, int]:
        """The keywords of samplers.ClusteredEpochs."""
        sizes = {"first": self.cluster_first, "double_every": self.cluster_double, "last": self.cluster_last}
        return {"batch_size": self.batch_size, "refresh": self.refresh, "first_epoch": self.cluster_from, **sizes}


def fit_folds(folds: Iterable[Fold], fit: Callable[[Fold, Snapshots, Path], None], scratch: Scratch, out: Path) -> None:
    """Fit each fold, or take it from an interrupted run; its files go into out/<fold>, its curve beside them.

    fit  (fold, its snapshots, folder)  trains, and writes the fold's files and `save_outcome`'s into the folder
    """
    for fold in folds:
        part = scratch.part(fold.name, partial(fit, fold, scratch.snapshots(fold.name)))
        fold.done(artifacts.load_json(part, "fit.json")["epochs"], out / fold.name)
        artifacts.adopt(part, out / fold.name)
        os.replace(out / fold.name / "curve.csv", out / f"curve-{fold.name}.csv")


def fit_model(
    name: str,
    model,
    fold: Fold,
    p: Trained,
    seed: int,
    *,
    batches,
    optimisers: list[Optimisers],
    validate: Callable[[int], dict[str, float]],
    snapshots: Snapshots,
    average_after: int = 0,
    more: Clustered | None = None,
) -> Outcome:
    """Train the model on one fold; returns how that went.

    model    has loss(docs, generator), weights() and device
    batches  (epoch, generator) -> batches of documents; has memory()
    more     the parameters again, if the model comes from the first fit and is trained for refit_epochs more
    """
    plan = Plan(
        more.refit_epochs if more else fold.epochs(p.epochs),
        p.warmup,
        seed,
        schedule=p.schedule,
        decay=0 if more else p.epochs,
        rate=more.refit_lr if more else 1.0,
        patience=p.patience,
        validate_every=p.validate_every,
        keep=p.keep,
        average_after=average_after,
        device=model.device,
    )
    return train(
        plan,
        optimisers,
        batches,
        model.loss,
        weights=model.weights,
        memory=batches.memory,
        validate=validate if len(fold.validation) else None,
        watch=console.epochs(f"{name} ({fold.name})"),
        snapshots=snapshots,
    )


@dataclass(frozen=True)
class Judge:
    """Figures of a model's answers for held-out documents.

    positives  N rows         labels of all training documents
    excluded   (N, L) binary  pairs that may not be predicted
    inverse    (L,) float     inverse propensities
    tail       how much of the goal is PSN@5; the rest is N@5
    device     where the search is made
    """

    positives: Ragged
    excluded: sparse.csr_matrix
    inverse: np.ndarray
    tail: float
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __call__(self, docs: np.ndarray, queries: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """The goal, which decides which epoch is kept, and other figures, by exact search.

        docs     (Q,) int  documents
        queries  (Q, D)    their embeddings
        labels   (L, D)    what is searched
        """
        excluded = self.excluded[docs]
        truth = self.positives.take(docs).csr(len(labels))
        nearest = exact(queries, labels, 5 + most_per_row(excluded), device=self.device)[0]
        figures = evaluate(without(nearest, excluded), truth, self.inverse)
        shown = {name: figures[name] for name in ("N@5", "PSN@5", "P@1", "P@5")}
        return {"goal": goal(figures, self.tail)} | shown


def validations(p: dict) -> int:
    """How many validations a training stage with these parameters makes."""
    return -(-p["epochs"] // p["validate_every"])


def validation_seconds(s: Sizes, net: Network, host: Host) -> float:
    """Seconds of a validation: encoding labels and validation documents, and comparing all with all."""
    watched = min(s.validation, WATCHED)
    texts = s.labels + watched
    tokens = s.label_tokens + watched * s.doc_tokens / max(1, s.docs)
    flops, moved = net.work(min(texts, TEXTS), tokens * min(1, TEXTS / max(1, texts)), train=False)
    passes = max(1, texts / TEXTS) * (flops / host.speed + moved / BANDWIDTH)
    return passes + 2 * watched * s.labels * net.dim / host.speed + 2 * FLOAT * watched * s.labels / BANDWIDTH


def validation_cost(s: Sizes, net: Network) -> list[Part]:
    """What a search with the validation documents holds, besides the vectors that are searched."""
    watched = min(s.validation, WATCHED)
    return [
        Part("scores", FLOAT * min(watched * s.labels, SCORES)),
        Part("validation documents", FLOAT * watched * net.dim, "lower prepare.validation"),
    ]


def goes_on(name: str, fold: Fold, p: Clustered) -> bool:
    """Does the fold's fit start from what the first one has learnt? Says so in a line, where it is the final fit."""
    if not fold.may_continue or not fold.chosen["epochs"]:
        return False
    kept, yes = fold.chosen["epochs"], fold.goes_on(p.refit_epochs)
    going_on = f"goes on from the first one for {p.refit_epochs} epochs; anew it would train {kept}"
    anew = f"trains anew for {kept} epochs; {name}.refit_epochs ({p.refit_epochs}) would be none or not fewer"
    console.say(f"{name}: the final fit {going_on if yes else anew}.")
    return yes


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Write how training went: the epochs behind the kept weights, and the curve."""
    artifacts.save_json(folder, "fit.json", {"epochs": outcome.epochs})
    artifacts.save_rows(folder, "curve.csv", outcome.curve)
