"""M4: one linear classifier per label, started from the augmented label embeddings [DEXA Eq. 6].

reads   augment {choose,final}/{docs (N, D), labels, plain (L, D)}; encoder {choose,final}/; gandalf {choose,final}/;
        prepare/train tokens, positives; prepare/labels tokens
writes  {choose,final}/: classifiers (L, D), docs (N, D) unit float32, encoder.{json,safetensors};
        curve-{choose,final}.csv
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import click
import numpy as np
import torch
from torch.nn import functional as F

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import (
    BANDWIDTH,
    FLOAT,
    FRAGMENTATION,
    INT,
    INTERPRETER,
    LONG,
    STEP_SECONDS,
    Estimate,
    Host,
    Part,
    Sizes,
)
from xcutils.core.folds import CHOOSE, Fold, folds
from xcutils.core.params import value
from xcutils.core.rules import follow
from xcutils.core.scratch import Snapshots
from xcutils.core.vectors import mean_length, unit
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import encode, load_encoder, network, save_encoder
from xcutils.model.rows import RowTable
from xcutils.search.metrics import pair_matrix
from xcutils.search.propensity import inverse_propensities
from xcutils.train.clustering import balanced_cost, balanced_seconds
from xcutils.train.fitting import (
    Clustered,
    Judge,
    fit_folds,
    fit_model,
    goes_on,
    save_outcome,
    validation_cost,
    validation_seconds,
    validations,
)
from xcutils.train.losses import LOSSES, Pairs, offered
from xcutils.train.points import Points, count_points, load_points
from xcutils.train.samplers import ClusteredEpochs, KnownPairs
from xcutils.train.training import Optimisers, Outcome, put_finite

OPTIONS = ("tau", "margin", "positives", "negatives", "weighting")  # of losses
RANDOM = 0.02  # standard deviation of classifiers that start at random [Renee]
# Documents times labels up to which `auto` scores every label. Above it, a pool is several times faster and as good.
PRODUCTS = 250_000_000


@dataclass(frozen=True, kw_only=True)
class Params(Clustered):
    labels: Literal["auto", "all", "batch", "pool"]
    random: int = value(low=1)
    loss: str = value(among=offered(OPTIONS))
    start: Literal["labels", "random"]
    normalise: bool
    tau: float = value(above=0)
    margin: float = value(low=0, high=2)
    positives: int = value(low=1)
    negatives: int = value(low=1)
    weighting: float = value(low=0)
    dropout: float = value(low=0, high=0.95)
    lr: float = value(above=0)
    optimizer: Literal["adam", "sgd"]
    momentum: float = value(low=0, high=0.999)
    weight_decay: float = value(low=0)
    encoder_lr: float = value(low=0)

    def decided(self, docs: float, labels: float) -> "Params":
        """The parameters with another value than `auto` for `labels`, for so many documents and labels.

        Labels of a pool are few and must be hard ones: its batches are clusters of documents from the first epoch.
        """
        if self.labels != "auto":
            return self
        if docs * labels <= PRODUCTS:
            return replace(self, labels="all")
        return replace(self, labels="pool", cluster_from=0)


def reason(p: Params, docs: int, labels: int) -> str:
    """Why `auto` was decided as it was, in a line; p  the decided parameters."""
    compared = "every label" if p.labels == "all" else f"its batch's labels and {p.random:,} others drawn at random"
    relation = "at most" if p.labels == "all" else "above"
    return (
        f"classifier: {docs:,} documents x {labels:,} labels are {docs * labels:.1e} products an epoch, {relation} "
        f"{PRODUCTS:.1e}: a document is compared with {compared} (classifier.labels: auto is {p.labels})."
    )


class OneVsAll:
    """A classifier row per label, over document embeddings that are frozen or trained too."""

    def __init__(self, encoder: Encoder, points: Points, embeddings: np.ndarray, labels: np.ndarray, p: Params):
        self.encoder = encoder
        self.points = points
        self.positives = points.positives
        self.p = p
        self.device = runtime.device()
        self.texts = encoder.read(points.tokens) if p.encoder_lr else None
        self.docs = embeddings  # the bank: changes as the encoder is trained
        start = torch.from_numpy(np.array(labels)) if p.start == "labels" else RANDOM * torch.randn(labels.shape)
        momentum = p.momentum if p.optimizer == "sgd" else None
        self.table = RowTable(start.to(self.device), lr=p.lr, momentum=momentum, weight_decay=p.weight_decay)
        self.known = KnownPairs(points.positives, len(labels), points.weights)
        self.every = np.arange(len(labels))
        for table in encoder.tables:
            table.lr = p.encoder_lr

    def pool(self, docs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(P,) the different labels that the batch is compared with, ascending."""
        if self.p.labels == "all":
            return self.every
        own = self.positives.take(docs).values
        if self.p.labels == "batch":
            return np.unique(own)
        return np.unique(np.concatenate([own, rng.integers(0, len(self.every), self.p.random)]))

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss over all labels, over the union of its documents' positives, or over a pool."""
        pool = self.pool(docs, rng)
        ids = None if pool is self.every else torch.from_numpy(pool.astype(np.int64)).to(self.device)
        labels = self.table.rows(ids)
        x = F.dropout(self.embed(docs), self.p.dropout)
        if self.p.normalise:
            labels = F.normalize(labels, dim=1)
            x = F.normalize(x, dim=1)
        rows, columns, weights = self.known.within(docs, pool)
        soft = None if weights is None else self._to_device(weights)
        return LOSSES[self.p.loss](Pairs(x, labels, self._to_device(rows), self._to_device(columns), soft), self.p)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        encoder = self.encoder.state() if self.p.encoder_lr else {}
        return {"classifiers": self.table.values} | {f"encoder.{name}": tensor for name, tensor in encoder.items()}

    def embed(self, docs: np.ndarray) -> torch.Tensor:
        """(B, D) document embeddings; if the encoder is trained, the bank takes them over."""
        if self.texts is None:
            return torch.from_numpy(self.docs[docs]).to(self.device)
        raw = self.encoder.embed(self.texts.take(docs)).float()
        x = F.normalize(raw, dim=1)
        put_finite(self.docs, docs, x)
        return x if self.p.normalise else raw

    def vectors(self) -> np.ndarray:
        """(L, D) classifiers as they are searched: at length one or, where length matters, of length one on average."""
        values = self.table.numpy()
        return unit(values) if self.p.normalise else values / self.length

    @property
    def length(self) -> float:
        """What the classifiers are divided by to be searched, where their length matters."""
        return 1.0 if self.p.normalise else mean_length(self.table.numpy())

    def move_as(self, first: Path, encoder: Path, labels: np.ndarray) -> None:
        """Change encoder and classifiers by what the first fit has changed them.

        first    its folder
        encoder  the folder of the encoder that it started from
        labels   (L, D) the label embeddings that it started from
        """
        before, after = (load_encoder(folder, self.device).state() for folder in (encoder, first))
        for name, weights in self.encoder.state().items():
            if weights.is_floating_point():
                weights.detach().add_(after[name].detach() - before[name].detach())
        learnt = artifacts.load_json(first, "classifiers.json")["length"] * artifacts.load_array(first, "classifiers")
        learnt = torch.from_numpy(learnt).to(self.device)
        if self.p.start == "labels":
            self.table.values.add_(learnt - self._to_device(np.array(labels)))
        else:
            self.table.values.copy_(learnt)
        if self.texts is not None:
            self.docs[:] = self.embed_all(np.arange(len(self.docs)))

    def embed_all(self, docs: np.ndarray) -> np.ndarray:
        """(n, D) unit embeddings of these documents by the encoder as it is now."""
        return self.docs[docs] if self.texts is None else encode(self.encoder, self.texts.take(docs), read=True)


def fit(
    model: OneVsAll, fold: Fold, judge: Judge, p: Params, seed: int, snapshots: Snapshots, goes_on: bool = False
) -> Outcome:
    """Train on the fold's points; returns how that went. goes_on  the model is the first fit's"""

    def validate(_: int) -> dict[str, float]:
        return judge(fold.validation, model.embed_all(fold.validation), model.vectors())

    after = fold.chosen["epochs"] if goes_on else 0
    optimisers = [Optimisers(None, p.lr, tables=[model.table])]
    if p.encoder_lr:
        optimisers.append(Optimisers(model.encoder, p.encoder_lr, tables=model.encoder.tables))
    return fit_model(
        "classifier",
        model,
        fold,
        p,
        seed,
        batches=ClusteredEpochs(model.points.todo, model.docs, seed=seed, after=after, **p.batches()),
        optimisers=optimisers,
        validate=validate,
        snapshots=snapshots,
        more=p if goes_on else None,
    )


def save_fold(folder: Path, model: OneVsAll, outcome: Outcome) -> None:
    """Write the classifiers, their encoder, its embeddings of all training documents, and how training went."""
    save_outcome(folder, outcome)
    artifacts.save_array(folder, "classifiers", model.vectors())
    artifacts.save_json(folder, "classifiers.json", {"length": model.length})
    artifacts.save_array(folder, "docs", model.embed_all(np.arange(model.points.n_docs)))
    save_encoder(folder, model.encoder)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """A row per label with two moments and a copy of the best epoch, and what a step makes of the rows it reads."""
    net = network(params["encoder"], "encoder")
    texts, points, targets = count_points(s, params["gandalf"])
    p = asdict(Params(**params["classifier"]).decided(s.docs, s.labels))
    bank = s.docs + texts
    positives = s.positives + targets
    table = FLOAT * s.labels * net.dim
    all_tokens = s.doc_tokens + texts * s.label_tokens / max(1, s.labels)
    docs = min(p["batch_size"], points)
    every = p["labels"] == "all"
    moving = p["encoder_lr"] > 0  # the encoder is trained too
    drawn = docs * positives / max(1, bank) + (p["random"] if p["labels"] == "pool" else 0)
    pool = s.labels if every else costs.distinct(drawn, s.labels)
    tokens = docs * all_tokens / max(1, bank)
    batch = f"lower classifier.batch_size ({p['batch_size']})"
    kept = [
        Part("interpreter", INTERPRETER + net.imports),
        Part("documents and labels to start from", FLOAT * (bank + s.labels) * net.dim, mapped=True),
        Part("bank of documents", FLOAT * s.docs * net.dim, net.fewer),
        Part("pairs and offsets", LONG * (2 * s.docs + s.labels) + 20 * s.filtered + INT * s.labels),
        Part("texts", net.prepared(bank, all_tokens) if moving else 0.0),
        Part("classifiers, moments and best epoch", 4 * table, net.fewer),
        Part("encoder", (4 if moving else 1) * net.weights, "set classifier.encoder_lr to 0" if moving else ""),
    ]
    if texts:
        held = FLOAT * texts * net.dim + INT * all_tokens + (INT + FLOAT) * positives + 2 * LONG * bank
        lower = f"lower gandalf.labels ({params['gandalf']['labels']:g})"
        kept.append(Part("label texts and their targets", held, lower))
    fewer_labels = "set classifier.labels to pool" if every else batch
    moments = [
        [
            Part("step's labels", 6 * FRAGMENTATION * FLOAT * pool * net.dim, fewer_labels),
            Part("scores", LOSSES[p["loss"]].step_bytes(docs, pool), batch),
            Part("batch", net.step(docs, tokens) if moving else 6 * FRAGMENTATION * FLOAT * docs * net.dim, batch),
        ],
        [Part("unit classifiers", table, net.fewer), *validation_cost(s, net)],
    ]
    clusters = 0.0
    if p["cluster_from"] < p["epochs"]:
        copy = Part("copy of the bank", FLOAT * points * net.dim, net.fewer)
        moments.append([copy, *balanced_cost(int(points), net.dim, host)])
        once = balanced_seconds(int(points), int(points // 8), net.dim)
        clusters = (p["epochs"] - p["cluster_from"]) / p["refresh"] * once
    flops, moved = net.work(docs, tokens, train=moving)
    moved += 20 * FLOAT * pool * net.dim + 6 * FLOAT * docs * pool
    step = (flops + 6 * docs * pool * net.dim) / host.speed + moved / BANDWIDTH + STEP_SECONDS
    fits = s.trained(p["epochs"], p["refit_epochs"]) / p["epochs"]
    seconds = 4 + fits * (p["epochs"] * points / docs * step + clusters)
    seconds += validations(p) * validation_seconds(s, net, host)
    disk = s.fits * (table + FLOAT * s.docs * net.dim + net.weights)
    return Estimate("classifier", costs.fullest(kept, moments), seconds, disk, on_device=True)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder_dir", metavar="ENCODER", type=click.Path(exists=True, path_type=Path))
@click.argument("augment", type=click.Path(exists=True, path_type=Path))
@click.argument("gandalf", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train_dir: Path, labels_dir: Path, encoder_dir: Path, augment: Path, gandalf: Path, out: Path) -> None:
    settings = parameters()
    device = runtime.start(settings.top.seed)
    inputs = [train_dir, labels_dir, encoder_dir, augment, gandalf]
    artifacts.check_together(*inputs)
    sizes = costs.sizes_of(train_dir, labels_dir)
    settings = follow(settings, sizes, "classifier")
    given, seed = settings.section("classifier", Params), settings.top.seed
    costs.announce(cost, sizes, settings.values)
    p = given.decided(sizes.docs, sizes.labels)
    if p is not given:
        console.say(reason(p, sizes.docs, sizes.labels))
    is_validation = artifacts.load_array(train_dir, "is_validation")

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(seed)
        more = goes_on("classifier", fold, p)
        encoder = load_encoder(encoder_dir / fold.name, device)
        points = load_points(train_dir, labels_dir, gandalf / fold.name)
        labels, plain, docs = (artifacts.load_array(augment / fold.name, name) for name in ("labels", "plain", "docs"))
        model = OneVsAll(encoder, points, np.concatenate([docs, plain[points.labels]]), labels, p)
        if more:
            model.move_as(fold.first, encoder_dir / CHOOSE, artifacts.load_array(augment / CHOOSE, "labels"))
        excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (points.n_docs, len(labels)))
        judge = Judge(points.positives, excluded, inverse_propensities(train_dir, labels_dir), p.tail, device)
        save_fold(folder, model, fit(model, fold, judge, p, seed, snapshots, more))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable(Path(__file__), p, inputs, seed=seed) as scratch,
        artifacts.writing(out, name="classifier", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    run(main)
