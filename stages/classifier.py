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

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.folds import Fold, folds
from xcutils.core.params import load_params, load_top, value
from xcutils.core.scratch import Snapshots
from xcutils.model.encoders import encode, move
from xcutils.model.rows import RowTable
from xcutils.model.stored import load_encoder, save_encoder
from xcutils.search.metrics import pair_matrix
from xcutils.search.neighbours import unit
from xcutils.search.propensity import inverse_propensities
from xcutils.train.fitting import Clustered, Judge, fit_folds, fit_model, save_outcome
from xcutils.train.losses import bce, decoupled_softmax, hardest_positives, triplet
from xcutils.train.points import Points, load_points
from xcutils.train.samplers import ClusteredEpochs, LabelPool
from xcutils.train.training import Optimisers, Outcome, put_finite


@dataclass(frozen=True)
class Params(Clustered):
    labels: Literal["all", "batch"]  # score every label, or the positives of the batch's documents as in the papers
    loss: Literal["decoupled-softmax", "triplet", "bce"]
    start: Literal["labels", "random"]  # the classifiers' first values: the label embeddings, or small random ones
    normalise: bool  # score by cosine; false: by the dot product
    tau: float = value(above=0)  # decoupled softmax, bce: temperature
    margin: float = value(low=0, high=2)  # triplet
    positives: int = value(low=1)  # triplet: hardest positives per document
    negatives: int = value(low=1)  # triplet: hardest negatives per document
    weighting: float = value(low=0)  # triplet: temperature of the negatives' weights; 0 = all alike
    dropout: float = value(low=0, high=0.95)  # of the document embedding
    lr: float = value(above=0)
    optimizer: Literal["adam", "sgd"]  # of the classifiers
    momentum: float = value(low=0, high=0.999)  # sgd
    weight_decay: float = value(low=0)  # sgd
    encoder_lr: float = value(low=0)  # 0 keeps the encoder frozen; above 0 it is fine-tuned along


RANDOM = 0.02  # spread of random first values [Renee]
FORMED = 1024  # labels on which the value of the binary cross-entropy is formed, for the curve


class OneVsAll:
    """A classifier row per label over document embeddings that are frozen or trained along."""

    def __init__(self, encoder, points: Points, embeddings: np.ndarray, labels: np.ndarray, p: Params):
        self.encoder, self.points, self.tokens, self.positives = encoder, points, points.tokens, points.positives
        self.p, self.device = p, runtime.device()
        self.docs = embeddings  # written as the encoder moves on
        start = torch.from_numpy(np.array(labels)) if p.start == "labels" else RANDOM * torch.randn(labels.shape)
        sgd = {"momentum": p.momentum, "weight_decay": p.weight_decay} if p.optimizer == "sgd" else {}
        self.table = RowTable(start.to(self.device), lr=p.lr, **sgd)
        self.pool, self.every = LabelPool(points.positives, len(labels), points.weights), np.arange(len(labels))
        for table in encoder.tables:
            table.lr = p.encoder_lr

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss over all labels, or over the union of its documents' positives."""
        pool = self.every if self.p.labels == "all" else np.unique(self.positives.take(docs).values)
        ids = None if pool is self.every else torch.from_numpy(pool.astype(np.int64)).to(self.device)
        labels, x = self.table.rows(ids), F.dropout(self.embed(docs), self.p.dropout)
        if self.p.normalise:
            labels, x = F.normalize(labels, dim=1), F.normalize(x, dim=1)
        targets = self.pool.targets(docs, pool)
        rows, columns, soft = (None if part is None else torch.from_numpy(part).to(self.device) for part in targets)
        p = self.p
        if p.loss == "decoupled-softmax":
            return decoupled_softmax(x, labels, rows, columns, soft, tau=p.tau)
        if p.loss == "bce":
            return bce(x, labels, rows, columns, soft, tau=p.tau, formed=FORMED)
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
        raw = self.encoder(self.tokens.take(docs)).float()
        x = F.normalize(raw, dim=1)
        put_finite(self.docs, docs, x)
        return x if self.p.normalise else raw

    def vectors(self) -> np.ndarray:
        """(L, D) classifiers as they are searched: at length one, or where length counts, of length one on average."""
        values = self.table.numpy()
        if self.p.normalise:
            return unit(values)
        return values / max(float(np.linalg.norm(values, axis=1).mean()), 1e-12)

    def embed_all(self, docs: np.ndarray) -> np.ndarray:
        """(n, D) unit embeddings by the encoder as it is now."""
        return encode(self.encoder, self.tokens.take(docs)) if self.p.encoder_lr else self.docs[docs]


def fit(model: OneVsAll, fold: Fold, judge: Judge, p: Params, seed: int, snapshots: Snapshots) -> Outcome:
    """Train on the fold's points."""

    def validate(_: int) -> dict[str, float]:
        return judge(fold.validation, model.embed_all(fold.validation), model.vectors())

    optimisers = [Optimisers(None, p.lr, tables=[model.table])]
    if p.encoder_lr:
        optimisers.append(Optimisers(model.encoder, p.encoder_lr, tables=model.encoder.tables))
    return fit_model(
        "classifier",
        model,
        fold,
        p,
        seed,
        batches=ClusteredEpochs(model.points.todo, model.docs, seed=seed, **p.batches()),
        optimisers=optimisers,
        validate=validate,
        snapshots=snapshots,
    )


def save_fold(folder: Path, model: OneVsAll, outcome: Outcome) -> None:
    """The classifiers, the encoder they belong to, and its embeddings of all training documents; how training went."""
    save_outcome(folder, outcome)
    artifacts.save_array(folder, "classifiers", model.vectors())
    artifacts.save_array(folder, "docs", model.embed_all(np.arange(model.points.n_docs)))
    save_encoder(folder, model.encoder)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder_dir", metavar="ENCODER", type=click.Path(exists=True, path_type=Path))
@click.argument("augment", type=click.Path(exists=True, path_type=Path))
@click.argument("gandalf", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
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
        points = load_points(train_dir, labels_dir, gandalf / fold.name)
        labels, plain, docs = (artifacts.load_array(augment / fold.name, name) for name in ("labels", "plain", "docs"))
        model = OneVsAll(encoder, points, np.concatenate([docs, plain[points.labels]]), labels, p)
        excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (points.n_docs, len(labels)))
        judge = Judge(points.positives, excluded, inverse_propensities(train_dir, labels_dir), p.tail)
        save_fold(folder, model, fit(model, fold, judge, p, seed, snapshots))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable("classifier", p, inputs, seed=seed) as scratch,
        artifacts.writing(out, name="classifier", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    main()
