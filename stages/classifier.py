"""M4: one linear classifier per label, started from the augmented label embeddings [DEXA Eq. 6].

reads   augment {choose,final}/{docs (N, D), labels, plain (L, D)}; encoder {choose,final}/; gandalf {choose,final}/;
        prepare/train tokens, positives; prepare/labels tokens
writes  {choose,final}/: classifiers (L, D), docs (N, D) unit float32, encoder.{json,safetensors};
        curve-{choose,final}.csv
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import torch
from torch.nn import functional as F

from xcutils import artifacts, estimates, runtime
from xcutils.encoders import encode, move
from xcutils.fitting import fit_folds, save_outcome
from xcutils.folds import Fold, folds
from xcutils.losses import decoupled_softmax, hardest_positives, triplet
from xcutils.metrics import evaluate, most_per_row, pair_matrix, without
from xcutils.models import load_encoder, save_encoder
from xcutils.neighbours import exact, unit
from xcutils.params import load_params, load_top, value
from xcutils.ragged import Ragged, concatenate
from xcutils.samplers import ClusteredEpochs, LabelPool
from xcutils.scratch import Snapshots
from xcutils.tables import RowTable
from xcutils.training import Optimisers, Outcome, Plan, put_finite, train


@dataclass(frozen=True)
class Params:
    labels: Literal["all", "batch"]  # score every label, or the positives of the batch's documents as in the papers
    loss: Literal["decoupled-softmax", "triplet"]
    tau: float = value(above=0)  # decoupled softmax: temperature
    margin: float = value(low=0, high=2)  # triplet
    positives: int = value(low=1)  # triplet: hardest positives per document
    negatives: int = value(low=1)  # triplet: hardest negatives per document
    weighting: float = value(low=0)  # triplet: temperature of the negatives' weights; 0 = all alike
    dropout: float = value(low=0, high=0.95)  # of the document embedding
    epochs: int = value(low=1)
    patience: int = value(low=0)  # epochs without a gain on validation before stopping; 0 = never
    batch_size: int = value(low=2)
    lr: float = value(above=0)
    encoder_lr: float = value(low=0)  # 0 keeps the encoder frozen; above 0 it is fine-tuned along
    warmup: int = value(low=0)  # steps
    cluster_from: int = value(low=0)  # first epoch (from 0) with clustered batches; before it they are random
    cluster_first: int = value(low=1)  # documents per cluster at first
    cluster_double: int = value(low=1)  # epochs after which the clusters double
    cluster_last: int = value(low=1)  # documents per cluster at most
    refresh: int = value(low=1)  # epochs between two clusterings of the documents

    def __post_init__(self):
        if self.cluster_last < self.cluster_first:
            raise ValueError(
                f"cluster_last is {self.cluster_last} and cluster_first {self.cluster_first}: clusters grow from the "
                "first size to the last, which must be at least as large."
            )


@dataclass(frozen=True)
class Points:
    """What is trained on: all training documents, then the label texts of Gandalf, if any.

    tokens      (N + m rows)       of their texts
    embeddings  (N + m, D)         by the frozen encoder
    positives   (N + m rows)       labels of each
    weights     (positives,) or None  their soft targets
    n_docs      N
    """

    tokens: Ragged
    embeddings: np.ndarray
    positives: Ragged
    weights: np.ndarray | None
    n_docs: int


def load_points(train: Path, labels: Path, augment: Path, gandalf: Path) -> Points:
    """The documents of `train` and the label texts that `gandalf` (a fit's folder) names."""
    tokens, positives = (artifacts.load_ragged(train, name) for name in ("tokens", "positives"))
    embeddings = artifacts.load_array(augment, "docs")
    chosen, n_docs = artifacts.load_array(gandalf, "points"), len(tokens)
    if len(chosen) == 0:
        return Points(tokens, np.array(embeddings), positives, None, n_docs)
    weights = np.concatenate([np.ones(len(positives.values), np.float32), artifacts.load_array(gandalf, "weights")])
    return Points(
        concatenate(tokens, artifacts.load_ragged(labels, "tokens").take(chosen)),
        np.concatenate([embeddings, artifacts.load_array(augment, "plain")[chosen]]),
        concatenate(positives, artifacts.load_ragged(gandalf, "targets")),
        weights,
        n_docs,
    )


class OneVsAll:
    """A classifier row per label over document embeddings that are frozen or trained along."""

    def __init__(self, encoder, points: Points, labels: np.ndarray, p: Params):
        self.encoder, self.tokens, self.positives, self.p = encoder, points.tokens, points.positives, p
        self.device = runtime.device()
        self.docs, self.n_docs = points.embeddings, points.n_docs  # written as the encoder moves on
        self.table = RowTable(torch.from_numpy(np.array(labels)).to(self.device), lr=p.lr)
        self.pool, self.every = LabelPool(points.positives, len(labels), points.weights), np.arange(len(labels))
        for table in encoder.tables:
            table.lr = p.encoder_lr

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss over all labels, or over the union of its documents' positives."""
        pool = self.every if self.p.labels == "all" else np.unique(self.positives.take(docs).values)
        ids = None if pool is self.every else torch.from_numpy(pool.astype(np.int64)).to(self.device)
        labels = F.normalize(self.table.rows(ids), dim=1)
        x = F.normalize(F.dropout(self.embed(docs), self.p.dropout), dim=1)
        targets = self.pool.targets(docs, pool)
        rows, columns, soft = (None if part is None else torch.from_numpy(part).to(self.device) for part in targets)
        p = self.p
        if p.loss == "decoupled-softmax":
            return decoupled_softmax(x, labels, rows, columns, soft, tau=p.tau)
        scores = x @ labels.T
        is_positive = torch.zeros(scores.shape, dtype=torch.bool, device=self.device)
        is_positive[rows, columns] = True
        positive, places = hardest_positives(scores, is_positive, p.positives)
        if soft is not None:
            every = torch.zeros_like(scores)
            every[rows, columns] = soft
            soft = every.gather(1, places)
        return triplet(scores, is_positive, positive, soft, margin=p.margin, k=p.negatives, tau=p.weighting)

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        moving = self.encoder.state() if self.p.encoder_lr else {}
        return {"classifiers": self.table.values} | {f"encoder.{name}": tensor for name, tensor in moving.items()}

    def embed(self, docs: np.ndarray) -> torch.Tensor:
        """(B, D) document embeddings; with a moving encoder the latest ones also go into the bank."""
        if self.p.encoder_lr == 0:
            return torch.from_numpy(self.docs[docs]).to(self.device)
        x = F.normalize(self.encoder(self.tokens.take(docs)).float(), dim=1)
        put_finite(self.docs, docs, x)
        return x

    def embed_all(self, docs: np.ndarray) -> np.ndarray:
        """(n, D) unit embeddings by the encoder as it is now."""
        return encode(self.encoder, self.tokens.take(docs)) if self.p.encoder_lr else self.docs[docs]


def fit(model: OneVsAll, fold: Fold, todo, excluded, p: Params, seed: int, snapshots: Snapshots) -> Outcome:
    """Train on the points `todo` of the fold.

    todo      (n,) int       documents, and beyond N label texts
    excluded  (N, L) binary  pairs that may not be predicted
    """
    n_labels = len(model.table.values)

    def validate(_: int) -> dict[str, float]:
        left_out = excluded[fold.validation]
        docs, wanted = model.embed_all(fold.validation), 5 + most_per_row(left_out)
        ranking = without(exact(docs, unit(model.table.numpy()), wanted)[0], left_out)
        figures = evaluate(ranking, model.positives.take(fold.validation).csr(n_labels), np.ones(n_labels))
        return {name: figures[name] for name in ("N@5", "P@1", "P@5")}

    optimisers = [Optimisers(None, p.lr, tables=[model.table])]
    if p.encoder_lr:
        optimisers.append(Optimisers(model.encoder, p.encoder_lr, tables=model.encoder.tables))
    curriculum = {"first_epoch": p.cluster_from, "first": p.cluster_first, "double_every": p.cluster_double}
    batches = ClusteredEpochs(
        todo, model.docs, batch_size=p.batch_size, refresh=p.refresh, seed=seed, last=p.cluster_last, **curriculum
    )
    plan = Plan(fold.epochs(p.epochs), p.warmup, seed, schedule=p.epochs, patience=p.patience, device=model.device)
    return train(
        plan,
        optimisers,
        batches,
        model.loss,
        weights=model.weights,
        memory=batches.memory,
        validate=validate if len(fold.validation) else None,
        watch=runtime.epochs(f"classifier ({fold.name})"),
        snapshots=snapshots,
    )


def save_fold(folder: Path, model: OneVsAll, outcome: Outcome) -> None:
    """The classifiers, the encoder they belong to, and its embeddings of all training documents; how training went."""
    save_outcome(folder, outcome)
    artifacts.save_array(folder, "classifiers", unit(model.table.numpy()))
    artifacts.save_array(folder, "docs", model.embed_all(np.arange(model.n_docs)))
    save_encoder(folder, model.encoder)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder_dir", metavar="ENCODER", type=click.Path(exists=True, path_type=Path))
@click.argument("augment", type=click.Path(exists=True, path_type=Path))
@click.argument("gandalf", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(train_dir: Path, labels_dir: Path, encoder_dir: Path, augment: Path, gandalf: Path, out: Path) -> None:
    p, seed = load_params(Params, "classifier"), load_top().seed
    device = runtime.start(seed)
    inputs = [train_dir, labels_dir, encoder_dir, augment, gandalf]
    artifacts.check_together(*inputs)
    estimates.announce("classifier", estimates.prepared(train_dir, labels_dir))
    is_validation = artifacts.load_array(train_dir, "is_validation")

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(seed)
        encoder = move(load_encoder(encoder_dir / fold.name), device)
        points = load_points(train_dir, labels_dir, augment / fold.name, gandalf / fold.name)
        labels = artifacts.load_array(augment / fold.name, "labels")
        model = OneVsAll(encoder, points, labels, p)
        excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (points.n_docs, len(labels)))
        texts = points.n_docs + np.arange(len(points.tokens) - points.n_docs)
        todo = np.concatenate([artifacts.load_array(gandalf / fold.name, "docs"), texts])
        save_fold(folder, model, fit(model, fold, todo, excluded, p, seed, snapshots))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable("classifier", p, inputs, seed=seed) as scratch,
        artifacts.writing(out, name="classifier", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    main()
