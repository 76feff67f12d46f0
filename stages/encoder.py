"""M1: Siamese training of the encoder, helped by K shared auxiliary vectors [DEXA Eq. 5], on NGAME's batches.

reads   prepare/train tokens, positives (N, L); prepare/labels tokens; prepare/tokenizer; cluster label_to_aux (L,)
writes  choose/ and, with prepare.refit, final/: encoder.{json,safetensors}, aux (K, D), label_to_aux (L,), aux.json;
        labels-encoder.{json,safetensors} where labels have one of their own; curve-{choose,final}.csv
"""

from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import torch
from torch.nn import functional as F

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, LONG, STEP_SECONDS, Estimate, Host, Part, Sizes
from xcutils.core.errors import UserError
from xcutils.core.folds import Fold, folds
from xcutils.core.params import value
from xcutils.core.ragged import Ragged, concatenate
from xcutils.core.rules import follow
from xcutils.core.scratch import Snapshots
from xcutils.core.vectors import mean_length
from xcutils.model import encoders
from xcutils.model.caching import embed_cached
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.costs import VOCABULARY, Network
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import Architecture, encode, load_encoder, move, save_encoder
from xcutils.model.tokens import check_vocabulary
from xcutils.search.metrics import pair_matrix
from xcutils.search.propensity import inverse_propensities
from xcutils.search.searcher import nearest_cost
from xcutils.train.auxiliary import Auxiliary
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
from xcutils.train.mining import Miner
from xcutils.train.samplers import ClusteredEpochs, KnownPairs, first_columns, sample_positives
from xcutils.train.training import Optimisers, Outcome, mean_cosine, put_finite

LABELS = "labels-encoder"  # files of the labels' own encoder
COLLAPSED = 0.95  # mean cosine of random documents above which the embeddings are taken to have collapsed
OPTIONS = ("tau", "margin", "positives", "negatives", "weighting", "contrast", "slope")  # of losses


@dataclass(frozen=True, kw_only=True)
class Params(Architecture, Clustered):
    loss: str = value(among=offered(OPTIONS, draws=True, logistic=False))
    labels: Literal["batch", "all"]
    chunk: int = value(low=1)
    tau: float = value(above=0)
    margin: float = value(low=0, high=2)
    negatives: int = value(low=1)
    weighting: float = value(low=0)
    contrast: float = value(above=0, high=0.999)
    slope: float = value(above=0)
    positives: int = value(low=1)
    mined: int = value(low=0)
    mined_from: int = value(low=1)
    normalise: bool
    normalise_first: bool
    aux_start: Literal["zero", "xavier"]
    shared: bool
    epochs: int = value(low=0)
    lr: float = value(above=0)
    aux_lr: float = value(above=0)
    weight_decay: float = value(low=0)
    cluster_from: int = value(low=1)
    recluster: int = value(low=0)

    def __post_init__(self):
        super().__post_init__()
        negatives = LOSSES[self.loss].negatives
        if negatives == "mined" and not self.mined:
            raise ValueError(f"loss is {self.loss}, which compares with mined negatives alone: set mined to 1 or more.")
        if self.labels == "all" and negatives != "all":
            raise ValueError(f"labels is all, for which loss can be a softmax alone, not {self.loss}.")


class Siamese:
    """Encoder, auxiliary vectors and the bank of document embeddings that batches are clustered by.

    Labels have the documents' encoder or, where `shared` is false, one that starts as a copy of it [DPR].
    """

    def __init__(
        self, encoder: Encoder, docs: Ragged, labels: Ragged, positives: Ragged, label_to_aux: np.ndarray, p: Params
    ):
        self.encoder = encoder
        self.label_encoder = encoder if p.shared else deepcopy(encoder)
        self.p = p
        self.device = runtime.device()
        self.positives = positives
        self.n_docs = len(docs)
        self.n_labels = len(labels)
        self.texts = encoder.read(concatenate(docs, labels))  # documents, then labels
        self.known = KnownPairs(positives, len(labels))
        self.every = np.arange(len(labels))
        self.miner: Miner | None = None
        self.aux = Auxiliary(
            label_to_aux,
            encoder.dim,
            lr=p.aux_lr,
            normalise_first=p.normalise_first,
            device=self.device,
            start=p.aux_start,
        )
        self.bank = np.zeros((len(docs), encoder.dim), dtype=np.float32)
        for table in (*encoder.tables, *self.label_encoder.tables):
            table.lr = p.lr

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss; the bank takes over its document embeddings."""
        return LOSSES[self.p.loss](self.pairs(docs, rng), self.p)

    def pairs(self, docs: np.ndarray, rng: np.random.Generator) -> Pairs:
        """What the batch's loss is of: the documents, and labels drawn and mined for them."""
        sampled = sample_positives(self.positives, docs, self.p.positives, rng)
        mined = None if self.miner is None else self.miner.draw(docs, self.p.mined, rng)
        drawn = sampled.values if mined is None else np.concatenate([sampled.values, mined.values])
        pool = self.every if self.p.labels == "all" else np.unique(drawn)
        x, z = self._embed(docs, pool)
        near = F.normalize(x, dim=1)
        put_finite(self.bank, docs, near)
        labels = self.aux.add(z, pool)
        if self.p.normalise:
            x, labels = near, F.normalize(labels, dim=1)
        return self._pairs(x, labels, docs, pool, sampled, mined)

    def _embed(self, docs: np.ndarray, pool: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(E(x) of the documents (B, D), E(z) of the pool's labels (P, D)), neither of them normalised."""
        if self.p.labels == "all":
            x = self.encoder.embed(self.texts.take(docs)).float()
            return x, embed_cached(self.label_encoder, self.texts.take(self.n_docs + self.every), self.p.chunk)
        if not self.p.shared:
            x = self.encoder.embed(self.texts.take(docs)).float()
            return x, self.label_encoder.embed(self.texts.take(self.n_docs + pool)).float()
        both = self.encoder.embed(self.texts.take(np.concatenate([docs, self.n_docs + pool]))).float()
        return both[: len(docs)], both[len(docs) :]

    def _pairs(
        self, x: torch.Tensor, labels: torch.Tensor, docs, pool: np.ndarray, sampled: Ragged, mined: Ragged | None
    ) -> Pairs:
        """The batch in the form that its loss takes."""
        loss = LOSSES[self.p.loss]
        columns = {}
        if loss.positives != "known":
            columns["drawn"] = self._to_device(first_columns(sampled, pool, self.p.positives))
        if loss.negatives == "mined" and mined is not None:
            columns["mined"] = self._to_device(first_columns(mined, pool, self.p.mined))
        rows, places, _ = self.known.within(docs, pool)
        return Pairs(x, labels, self._to_device(rows), self._to_device(places), **columns)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        aux = {"aux": self.aux.table.values, "label_to_aux": torch.from_numpy(self.aux.label_to_aux)}
        own = {} if self.p.shared else {f"labels.{name}": t for name, t in self.label_encoder.state().items()}
        return {f"encoder.{name}": tensor for name, tensor in self.encoder.state().items()} | own | aux

    def start_from(self, folder: Path) -> None:
        """Take over auxiliary vectors and the labels' encoder of an earlier fit, whose encoder the model has."""
        if not self.p.shared:
            learnt = load_encoder(folder, self.device, LABELS).state()
            for name, tensor in self.label_encoder.state().items():
                tensor.detach().copy_(learnt[name].detach())
        self.aux.table.values.copy_(torch.from_numpy(np.array(artifacts.load_array(folder, "aux"))))
        self.bank[:] = self.doc_embeddings(np.arange(self.n_docs))

    def doc_embeddings(self, docs: np.ndarray) -> np.ndarray:
        """(n, D) unit embeddings of these documents as they are now."""
        return encode(self.encoder, self.texts.take(docs), read=True)

    def label_embeddings(self, chunk: int = encoders.TEXTS) -> np.ndarray:
        """(L, D) n(E(z) + a), computed without gradients; where length matters, of length one on average."""
        texts = self.texts.take(self.n_docs + self.every)
        out = encode(self.label_encoder, texts, read=True, normalise=False, chunk=chunk)
        with torch.no_grad():
            for start in range(0, len(out), chunk):
                rows = np.arange(start, min(start + chunk, len(out)))
                z = self.aux.add(self._to_device(out[rows]), rows)
                out[rows] = (F.normalize(z, dim=1) if self.p.normalise else z).cpu().numpy()
        return out if self.p.normalise else out / np.float32(mean_length(out))


class Epochs(ClusteredEpochs):
    """The batches of an epoch; before some epochs, labels share vectors again and negatives are mined."""

    def __init__(self, model: Siamese, docs: np.ndarray, p: Params, seed: int, after: int = 0):
        super().__init__(docs, model.bank, seed=seed, after=after, **p.batches())
        self.model = model
        self.recluster = p.recluster

    def memory(self) -> dict[str, np.ndarray]:
        mined = {} if self.model.miner is None else {"mined": self.model.miner.near}
        return super().memory() | mined

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        model = self.model
        if self.recluster and epoch and epoch % self.recluster == 0 and len(model.aux):
            model.aux.recluster(model.label_embeddings(), self.seed + epoch)
        if model.miner is not None and epoch % self.refresh == 0:
            queries = model.doc_embeddings(self.docs)
            model.miner.refresh(self.docs, queries, model.label_embeddings(), seed=self.seed + epoch)
        return super().__call__(epoch, rng)


def fit(
    model: Siamese, fold: Fold, judge: Judge, p: Params, seed: int, snapshots: Snapshots, goes_on: bool = False
) -> Outcome:
    """Train on the fold's documents; returns how that went. goes_on  the model is the first fit's"""
    if p.mined:
        model.miner = Miner(model.positives.csr(model.n_labels) + judge.excluded, p.mined_from, model.device)

    def validate(epoch: int) -> dict[str, float]:
        docs = model.doc_embeddings(fold.validation)
        collapse = mean_cosine(docs)
        if collapse > COLLAPSED:
            is_weighted = "weighting" in LOSSES[p.loss].options
            softer = "raise encoder.negatives, set encoder.weighting to 0 or " if is_weighted else ""
            raise UserError(
                f"the encoder has collapsed (mean cosine of random documents {collapse:.2f} after epoch {epoch + 1}): "
                f"{softer}lower encoder.lr ({p.lr:g}; transformers want about 0.0001)."
            )
        return judge(fold.validation, docs, model.label_embeddings()) | {"doc_cosine": collapse}

    tables = [*model.encoder.tables, model.aux.table]
    optimisers = [Optimisers(model.encoder, p.lr, tables=tables, weight_decay=p.weight_decay)]
    if not p.shared:
        own = model.label_encoder
        optimisers.append(Optimisers(own, p.lr, tables=own.tables, weight_decay=p.weight_decay))
    return fit_model(
        "encoder",
        model,
        fold,
        p,
        seed,
        batches=Epochs(model, fold.training, p, seed, fold.chosen["epochs"] if goes_on else 0),
        optimisers=optimisers,
        validate=validate,
        snapshots=snapshots,
        more=p if goes_on else None,
    )


def save_fold(folder: Path, model: Siamese, outcome: Outcome) -> None:
    """Write the encoder or encoders, the auxiliary vectors, which label has which, and how training went."""
    save_outcome(folder, outcome)
    save_encoder(folder, model.encoder)
    if not model.p.shared:
        save_encoder(folder, model.label_encoder, LABELS)
    facts = {name: getattr(model.p, name) for name in ("normalise", "normalise_first", "shared")}
    artifacts.save_json(folder, "aux.json", facts)
    artifacts.save_array(folder, "aux", model.aux.table.numpy())
    artifacts.save_array(folder, "label_to_aux", model.aux.label_to_aux)


def network(params: dict) -> Network:
    """The cost of the encoder."""
    return encoders.network(params["encoder"], "encoder")


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """Weights with their moments and a copy of the best epoch, and the bank of document embeddings."""
    p = params["encoder"]
    net = network(params)
    k = min(params["K"], s.labels)
    docs = min(p["batch_size"], s.docs)
    every = p["labels"] == "all"
    encoders_held = 1 if p["shared"] else 2
    pool = s.labels if every else costs.distinct(docs * (min(p["positives"], s.per_doc) + p["mined"]), s.labels)
    encoded = min(p["chunk"], pool) if every else pool  # labels encoded at once
    tokens = docs * s.doc_tokens / max(1, s.docs) + encoded * s.label_tokens / max(1, s.labels)
    texts, all_tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    vectors = FLOAT * s.labels * net.dim
    bank = FLOAT * s.docs * net.dim
    batch = f"lower encoder.batch_size ({p['batch_size']})"
    kept = [
        Part("interpreter", INTERPRETER + max(net.imports, VOCABULARY)),
        Part("tokens and positives", INT * (all_tokens + s.positives), mapped=True),
        Part("texts", INT * all_tokens + LONG * texts + net.prepared(texts, all_tokens)),
        Part("pairs and offsets", LONG * (2 * s.docs + s.labels) + 20 * s.filtered + 3 * INT * s.labels),
        Part("bank of documents", bank, net.fewer),
    ]
    if p["mined"]:
        near = INT * s.docs * p["mined_from"] + 3 * LONG * s.positives
        kept.append(Part("mined negatives", near, f"lower encoder.mined_from ({p['mined_from']})"))
    learnt = [
        Part("encoder, moments and best epoch", 4 * encoders_held * net.weights, net.smaller),
        Part("auxiliary vectors, moments and best epoch", 4 * FLOAT * k * net.dim, f"lower K ({params['K']})"),
    ]
    moments = [
        [
            *learnt,
            Part("batch", net.step(docs + encoded, tokens), batch),
            Part("scores", LOSSES[p["loss"]].step_bytes(docs, pool), batch),
            *([Part("label vectors and their gradients", 8 * vectors, "set encoder.labels to batch")] if every else []),
        ],
        [*learnt, Part("label vectors", vectors, net.fewer), *validation_cost(s, net)],
        [
            Part("encoder", (2 + encoders_held) * net.weights, net.smaller),
            *net.start([(s.docs, s.doc_tokens), (s.labels, s.label_tokens)]),
        ],
    ]
    if p["mined"]:
        found = [Part("label vectors", vectors, net.fewer), *nearest_cost(s.docs, s.labels, net.dim)]
        moments.append([*learnt, Part("documents", bank, net.fewer), *found])
    clusters = 0.0
    if p["cluster_from"] < p["epochs"]:
        moments.append([*learnt, Part("copy of the bank", bank, net.fewer), *balanced_cost(s.docs, net.dim, host)])
        once = balanced_seconds(s.docs, s.docs // 8, net.dim)
        clusters = (p["epochs"] - p["cluster_from"]) / p["refresh"] * once
    flops, moved = net.work(docs + encoded, tokens, train=True)
    if every:  # each chunk is encoded once more for its gradient
        flops, moved = (part * 4 / 3 * (docs + pool) / (docs + encoded) for part in (flops, moved))
    step = (flops + 6 * docs * pool * net.dim) / host.speed + (moved + 6 * FLOAT * docs * pool) / BANDWIDTH
    fits = s.trained(p["epochs"], p["refit_epochs"]) / max(1, p["epochs"])
    steps = p["epochs"] * s.docs / docs * (step + STEP_SECONDS)
    seconds = 5 + fits * (steps + clusters) + validations(p) * validation_seconds(s, net, host)
    disk = s.fits * (encoders_held * net.weights + FLOAT * k * net.dim + INT * s.labels)
    return Estimate("encoder", costs.fullest(kept, moments), seconds, disk, on_device=True)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("cluster", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train_dir: Path, labels_dir: Path, tokenizer: Path, cluster: Path, out: Path) -> None:
    settings = parameters()
    device = runtime.start(settings.top.seed)
    inputs = [train_dir, labels_dir, tokenizer, cluster]
    artifacts.check_together(*inputs)
    sizes = costs.sizes_of(train_dir, labels_dir)
    settings = follow(settings, sizes, "encoder")
    p, seed = settings.section("encoder", Params), settings.top.seed
    docs, labels = (artifacts.load_ragged(folder, "tokens") for folder in (train_dir, labels_dir))
    positives = artifacts.load_ragged(train_dir, "positives")
    is_validation = artifacts.load_array(train_dir, "is_validation")
    label_to_aux = artifacts.load_array(cluster, "label_to_aux")
    special = artifacts.load_json(tokenizer, "special.json")
    check_vocabulary(tokenizer, p.model, "encoder.model")
    costs.announce(cost, sizes, settings.values)
    excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (len(docs), len(labels)))
    judge = Judge(positives, excluded, inverse_propensities(train_dir, labels_dir), p.tail, device)

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(seed)
        more = goes_on("encoder", fold, p)
        if more:
            encoder = load_encoder(fold.first, device)
            model = Siamese(encoder, docs, labels, positives, artifacts.load_array(fold.first, "label_to_aux"), p)
            model.start_from(fold.first)
        else:
            encoder = move(p.build([docs.take(fold.training), labels], special), device)
            model = Siamese(encoder, docs, labels, positives, label_to_aux, p)
        save_fold(folder, model, fit(model, fold, judge, p, seed, snapshots, more))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable(Path(__file__), p, inputs, seed=seed, checkpoint=checkpoint_hash(p.model)) as scratch,
        artifacts.writing(out, name="encoder", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    run(main)
