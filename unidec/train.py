"""Encoder, two heads and a classifier per label, trained together on a pool of some labels for each batch [UniDEC].

reads   prepare/train tokens, positives (N, L); prepare/labels tokens; prepare/tokenizer; embed docs, labels;
        gandalf {choose,final}/
writes  {choose,final}/: encoder.{json,safetensors}, labels (L, d), docs (N, 2d), and with a classifier head
        classifiers (L, d), concatenated (L, 2d); unit float32; curve-{choose,final}.csv
"""

from dataclasses import asdict, dataclass, replace
from itertools import combinations
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
from xcutils.core.folds import Fold, folds
from xcutils.core.params import value
from xcutils.core.pipelines import UnifiedTop
from xcutils.core.ragged import Ragged, concatenate
from xcutils.core.rules import follow
from xcutils.core.scratch import Snapshots
from xcutils.core.vectors import unit
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.costs import VOCABULARY, Network
from xcutils.model.encoders import Architecture, encode, move, save_encoder
from xcutils.model.heads import TwoHeads
from xcutils.model.pretrained import BesidePretrained, load_pretrained
from xcutils.model.rows import RowTable
from xcutils.model.tokens import check_vocabulary
from xcutils.model.unified import NO_CLASSIFIERS, pretrained_network, unified_network
from xcutils.search.metrics import pair_matrix
from xcutils.search.propensity import inverse_propensities
from xcutils.search.searcher import nearest_cost
from xcutils.train import losses
from xcutils.train.clustering import balanced_clusters, balanced_cost, balanced_seconds
from xcutils.train.fitting import (
    Judge,
    Trained,
    fit_folds,
    fit_model,
    save_outcome,
    validation_cost,
    validation_seconds,
    validations,
)
from xcutils.train.losses import LOSSES, Pairs, offered
from xcutils.train.mining import Miner
from xcutils.train.points import Points, load_points
from xcutils.train.samplers import KnownPairs, capped_pool, sample_positives
from xcutils.train.training import Optimisers, Outcome

SINGLE = offered(["tau"])
SUMS = ["+".join(names) for count in range(1, len(SINGLE) + 1) for names in combinations(SINGLE, count)]
BIAS = -8.0  # first bias of the binary cross-entropy: hardly any pair is a positive


@dataclass(frozen=True, kw_only=True)
class Params(Architecture, Trained):
    pretrained: float = value(low=0)
    dim: int = value(low=0)
    start: Literal["labels", "xavier"]
    normalise: bool
    normalise_first: bool
    head_dropout: float = value(low=0, high=0.95)
    classifier_dropout: float = value(low=0, high=0.95)
    label_dropout: float = value(low=0, high=0.95)
    encoder_loss: str = value(among=SUMS)
    classifier_loss: str = value(among=[*SUMS, NO_CLASSIFIERS])
    share: float = value(low=0, high=1)
    symmetric: bool
    classifier_symmetric: bool
    tau: float = value(above=0)
    bce_tau: float = value(above=0)
    bce_weight: float = value(low=0)
    bce_bias: bool
    bce_mean: bool
    extra: int = value(low=0)
    cap: int = value(low=0)
    gap: int = value(low=0)
    mined_from: int = value(low=0)
    batches: Literal["clustered", "random"]
    cluster_from: int = value(low=0)
    refresh: int = value(low=1)
    average_after: int = value(low=0)
    lr: float = value(above=0)
    head_lr: float = value(above=0)
    classifier_lr: float = value(above=0)
    weight_decay: float = value(low=0)
    head_weight_decay: float = value(low=0)
    classifier_weight_decay: float = value(low=0)
    updates: Literal["pool", "all"]


class Unified:
    """A shared encoder with a head for label texts and one for classifiers, which have a row per label."""

    def __init__(self, model: TwoHeads, points: Points, labels: Ragged, p: Params, top: UnifiedTop):
        self.model = model
        self.points = points
        self.p = p
        self.top = top
        self.n_labels = len(labels)
        self.device = runtime.device()
        self.texts = model.read(concatenate(points.tokens, labels))  # points, then labels
        self.known = KnownPairs(points.positives, len(labels), points.weights)
        self.miner: Miner | None = None
        rows = torch.zeros(len(labels) if model.label else 0, model.size)
        self.table = RowTable(
            rows.to(self.device),
            p.classifier_lr,
            weight_decay=p.classifier_weight_decay,
            every=p.updates == "all",
        )
        self.start()
        self.bias = torch.nn.ParameterDict({"bias": torch.nn.Parameter(torch.tensor(BIAS, device=self.device))})
        for table in model.tables:
            table.lr = p.lr

    def start(self) -> None:
        """Set the classifiers to the label embeddings, and their head to the head for label texts; or all at random.

        Differs from: the source does not say where they start; its code has them at random.
        """
        if self.p.start == "xavier":
            self.model.start_at_random()
            if len(self.table.values):
                torch.nn.init.xavier_uniform_(self.table.values)
        elif self.model.label is not None:
            self.model.label.load_state_dict(self.model.text.state_dict())
            self.table.values.copy_(torch.from_numpy(self.label_embeddings()))

    def label_embeddings(self) -> np.ndarray:
        """(L, d) n(Phi_D(z)) of the labels as it is now."""
        rows = len(self.points.tokens) + np.arange(self.n_labels)
        return unit(encode(self.model, self.texts.take(rows), read=True)[:, : self.model.size])

    def embeddings(self, points: np.ndarray) -> np.ndarray:
        """(n, D) embeddings of these points, by both heads as they are now."""
        return encode(self.model, self.texts.take(points), read=True)

    def loss(self, points: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss over one pool of labels: positives drawn for each point, and negatives mined for it.

        Where there are classifiers, label texts train only these: for the other head each text is nearest to itself
        from the start.
        Differs from: with `extra` the classifiers' pool also has labels drawn at random.
        """
        points, pool = self.pool(points, rng)
        texts = self.texts.take(np.concatenate([points, len(self.points.tokens) + pool]))
        text, label = self.model.both(texts, self.p.normalise)
        count = len(points)
        is_used = (points < self.points.n_docs) | (self.model.label is None)  # by the head for label texts
        docs = text[:count] if is_used.all() else text[:count][torch.from_numpy(is_used).to(self.device)]
        known = self._known(points[is_used], pool)
        total = self._loss(self.p.encoder_loss, docs, text[count:], known, self.p.symmetric)
        if label is None:
            return total
        if self.p.extra:
            pool = np.union1d(pool, rng.integers(0, self.n_labels, self.p.extra))
        rows = F.dropout(self.table.rows(torch.from_numpy(pool).to(self.device)), self.p.label_dropout)
        if self.p.normalise:
            rows = F.normalize(rows, dim=1)
        known = self._known(points, pool)
        other = self._loss(self.p.classifier_loss, label[:count], rows, known, self.p.classifier_symmetric)
        return self.p.share * total + (1 - self.p.share) * other

    def pool(self, points: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(the points that have a positive in the pool, the different labels that they are compared with, ascending).

        The pool is all that is drawn: some positives of each point, a label text's own label, whichever of its many
        targets are drawn, and mined negatives. With `cap` it is filled with the most frequent ones of the first two,
        then of the third, then of the batch's other positives, so that some points may be left without a positive.
        """
        texts = points[points >= self.points.n_docs] - self.points.n_docs
        positives = [sample_positives(self.points.positives, points, self.top.beta, rng).values]
        positives.append(self.points.labels[texts])
        # Before the first clustering nothing is mined.
        mined = [] if self.miner is None else [self.miner.draw(points, self.top.eta, rng).values]
        if not self.p.cap:
            return points, np.unique(np.concatenate(positives + mined)).astype(np.int64)
        own = self.points.positives.take(points)
        pool = capped_pool(np.concatenate(positives), *mined, own.values, cap=self.p.cap, gap=self.p.gap)
        has_one = np.bincount(own.row_ids()[np.isin(own.values, pool)], minlength=len(points)) > 0
        return points[has_one], pool

    def _known(self, points: np.ndarray, pool: np.ndarray) -> list[torch.Tensor | None]:
        """Rows, columns and soft targets of every known positive of the points in the pool."""
        targets = self.known.within(points, pool)
        return [None if part is None else torch.from_numpy(part).to(self.device) for part in targets]

    def _loss(self, kind: str, x: torch.Tensor, labels: torch.Tensor, known: list, symmetric: bool) -> torch.Tensor:
        """One head's loss: a loss of the table, or a sum in which bce_weight multiplies the logistic ones."""
        pairs = Pairs(x, labels, *known)
        parts = [LOSSES[name] for name in kind.split("+")]
        logistic = [loss for loss in parts if loss.logistic]
        comparing = [loss for loss in parts if not loss.logistic]
        biased = self._biased(pairs) if logistic and self.p.bce_bias else pairs
        share = 1 / len(labels) if self.p.bce_mean else 1
        by_pair = [share * loss(biased, self.p, tau=self.p.bce_tau) for loss in logistic]
        if not comparing:
            return torch.stack(by_pair).sum()
        total = self._compare(comparing, pairs, symmetric)
        return total + self.p.bce_weight * torch.stack(by_pair).sum() if by_pair else total

    def _compare(self, losses: list[losses.Loss], pairs: Pairs, symmetric: bool) -> torch.Tensor:
        """The sum of losses that compare labels with each other; if symmetric, also documents with each other."""
        total = torch.stack([loss(pairs, self.p) for loss in losses]).sum()
        if not symmetric:
            return total
        return 0.5 * total + 0.5 * torch.stack([loss(pairs.transposed(), self.p) for loss in losses]).sum()

    def _biased(self, pairs: Pairs) -> Pairs:
        """The pairs with one more dimension, which adds a learnt bias to every logit.

        Differs from the source's code, which has none (`bce_bias: false`).
        """
        x = torch.cat([pairs.x, torch.ones_like(pairs.x[:, :1])], dim=1)
        bias = self.p.bce_tau * self.bias["bias"].expand(len(pairs.labels), 1)
        return replace(pairs, x=x, labels=torch.cat([pairs.labels, bias], dim=1))

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        model = {f"model.{name}": tensor for name, tensor in self.model.state().items()}
        return model | {"classifiers": self.table.values, "bias": self.bias["bias"]}

    def vectors(self) -> dict[str, np.ndarray]:
        """The vectors that a new text is compared with: labels (L, d), classifiers (L, d), concatenated (L, 2d)."""
        labels = self.label_embeddings()
        if self.model.label is None:
            return {"labels": labels}
        classifiers = unit(self.table.numpy())
        both = np.concatenate([labels, classifiers], axis=1) / np.float32(2**0.5)
        return {"labels": labels, "classifiers": classifiers, "concatenated": both}


class PickSome:
    """Each epoch's batches: clusters of points near each other. Every few epochs they and the negatives are made again.

    Differs from: the source clusters by k-means; here clusters are balanced, so that each can be a batch.
    """

    def __init__(self, model: Unified, p: Params, top: UnifiedTop):
        self.model = model
        self.p = p
        self.top = top
        self.todo = model.points.todo
        self.clusters = np.zeros(len(self.todo), dtype=np.int64)

    def memory(self) -> dict[str, np.ndarray]:
        """The live arrays that an epoch's batches depend on."""
        mined = {} if self.model.miner is None else {"mined": self.model.miner.near}
        return {"clusters": self.clusters} | mined

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        clustered = self.p.batches == "clustered"
        since = epoch - self.p.cluster_from
        if since >= 0 and since % self.p.refresh == 0 and (clustered or self.model.miner is not None):
            self._refresh(epoch)
        if not clustered or since < 0:
            order = rng.permutation(len(self.todo))
            return [self.todo[order[i : i + self.p.batch_size]] for i in range(0, len(order), self.p.batch_size)]
        order = np.argsort(self.clusters, kind="stable")
        parts = np.split(self.todo[order], np.cumsum(np.bincount(self.clusters))[:-1])
        return [parts[i] for i in rng.permutation(len(parts))]

    def _refresh(self, epoch: int) -> None:
        model = self.model
        size = model.model.size
        queries = unit(model.embeddings(self.todo)[:, :size])
        if self.p.batches == "clustered":
            count = max(1, round(len(self.todo) / self.p.batch_size))
            self.clusters[:] = balanced_clusters(queries, count, seed=self.top.seed + epoch)
        if model.miner is not None:
            model.miner.refresh(self.todo, queries, model.label_embeddings(), seed=self.top.seed + epoch)


def fit(model: Unified, fold: Fold, judge: Judge, p: Params, top: UnifiedTop, snapshots: Snapshots) -> Outcome:
    """Train on the fold's points; returns how that went."""
    if top.eta:
        known = model.points.positives.csr(model.n_labels) + judge.excluded
        model.miner = Miner(known, top.eta * p.refresh, model.device, among=p.mined_from)

    def validate(_: int) -> dict[str, float]:
        queries = model.embeddings(fold.validation)
        if model.model.label is not None:
            return judge(fold.validation, queries, model.vectors()["concatenated"])
        return judge(fold.validation, unit(queries[:, : model.model.size]), model.label_embeddings())

    encoder = model.model.encoder
    heads = torch.nn.ModuleList(part for part in (model.model.text, model.model.label, model.bias) if part is not None)
    return fit_model(
        "train",
        model,
        fold,
        p,
        top.seed,
        batches=PickSome(model, p, top),
        optimisers=[
            Optimisers(encoder, p.lr, tables=encoder.tables, weight_decay=p.weight_decay),
            Optimisers(heads, p.head_lr, weight_decay=p.head_weight_decay),
            Optimisers(None, p.classifier_lr, tables=[model.table]),
        ],
        validate=validate,
        snapshots=snapshots,
        average_after=p.average_after,
    )


def save_fold(folder: Path, model: Unified, outcome: Outcome) -> None:
    """Write the encoder with its heads, the vectors of labels, classifiers and documents, and how training went."""
    save_outcome(folder, outcome)
    save_encoder(folder, model.model)
    docs = model.embeddings(np.arange(model.points.n_docs))
    for name, vectors in (model.vectors() | {"docs": docs}).items():
        artifacts.save_array(folder, name, vectors)


def network(params: dict) -> Network:
    """The cost of the encoder with its heads."""
    return unified_network(params["train"])


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """Encoder and heads with their moments, a classifier per label, and a step over one pool of labels."""
    p = params["train"]
    net = network(params)
    pretrained = pretrained_network(params["train"])
    points = s.docs + round(params["gandalf"]["labels"] * s.labels)
    count = min(p["batch_size"], points)
    pool = costs.distinct(count * (min(params["beta"], s.per_doc) + params["eta"]), s.labels)
    tokens = count * s.doc_tokens / max(1, s.docs) + pool * s.label_tokens / max(1, s.labels)
    texts, all_tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    read = all_tokens + (points - s.docs) * s.label_tokens / max(1, s.labels)  # tokens, with those of Gandalf's points
    classifiers = p["classifier_loss"] != NO_CLASSIFIERS
    pool = min(pool, p["cap"]) if p["cap"] else pool
    batch = f"lower train.batch_size ({p['batch_size']})"
    directions = 1 + p["symmetric"] + (1 + p["classifier_symmetric"] if classifiers else 0)
    vectors = FLOAT * s.labels * net.dim
    table = FLOAT * s.labels * net.dim / 2 if classifiers else 0.0
    kept = [
        Part("interpreter", INTERPRETER + max(net.imports, VOCABULARY)),
        Part("tokens and positives", INT * (all_tokens + s.positives), mapped=True),
        Part("texts", INT * read + LONG * (points + s.labels) + net.prepared(points + s.labels, read)),
        Part("pairs and offsets", LONG * (2 * points + s.labels) + 20 * s.filtered + 3 * INT * s.labels),
        Part("mined negatives", points * params["eta"] * p["refresh"] * INT + 3 * LONG * s.positives, "lower eta"),
        Part("encoder, moments and best epoch", 4 * net.weights, net.smaller),
        Part("classifiers, moments and best epoch", 4 * table, net.fewer),
    ]
    if pretrained:
        kept += [
            Part("pretrained vectors", FLOAT * texts * pretrained.dim, mapped=True),
            Part("places of known texts", INT * all_tokens + 6 * LONG * texts),
        ]
    moments = [
        [
            Part("batch", net.step(count + pool, tokens), batch),
            Part("scores", FRAGMENTATION * directions * FLOAT * min(count * pool, losses.SCORES), batch),
            Part("gradient of all classifiers", table if p["updates"] == "all" else 0.0, "set train.updates to pool"),
        ],
        [Part("label vectors", 3 * vectors, net.fewer), *validation_cost(s, net)],
        [
            Part("documents and labels", FLOAT * (3 * points + 3 * s.labels) * net.dim, net.fewer),
            *nearest_cost(points, s.labels, net.dim),
            *balanced_cost(points, net.dim, host),
        ],
    ]
    flops, moved = net.work(count + pool, tokens, train=True)
    scores = 3 * directions * count * pool
    moved += 7 * table if p["updates"] == "all" else 0.0  # values, moments and gradient of every classifier
    step = (flops + scores * net.dim) / host.speed + (moved + 2 * FLOAT * scores) / BANDWIDTH + STEP_SECONDS
    once = balanced_seconds(points, points // count, net.dim) + 2 * points * s.labels * net.dim / host.speed
    seconds = 5 + s.fits * (p["epochs"] * points / count * step + p["epochs"] / p["refresh"] * once)
    seconds += validations(p) * validation_seconds(s, net, host)
    disk = s.fits * (net.weights + 2 * vectors + FLOAT * s.docs * net.dim)
    return Estimate("train", costs.fullest(kept, moments), seconds, disk, on_device=True)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("embed", type=click.Path(exists=True, path_type=Path))
@click.argument("gandalf", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train_dir: Path, labels_dir: Path, tokenizer: Path, embed: Path, gandalf: Path, out: Path, file: Path) -> None:
    settings = parameters(file)
    device = runtime.start(settings.top.seed)
    inputs = [train_dir, labels_dir, tokenizer, embed, gandalf]
    artifacts.check_together(*inputs)
    sizes = costs.sizes_of(train_dir, labels_dir)
    settings = follow(settings, sizes, "train")
    p, top = settings.section("train", Params), settings.top
    check_vocabulary(tokenizer, p.model, "train.model")
    costs.announce(cost, sizes, settings.values)
    special = artifacts.load_json(tokenizer, "special.json")
    labels = artifacts.load_ragged(labels_dir, "tokens")
    dropouts = (p.head_dropout, p.classifier_dropout)
    pretrained = load_pretrained(embed, train_dir, labels_dir, special) if p.pretrained else None
    inverse = inverse_propensities(train_dir, labels_dir)

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(top.seed)
        points = load_points(train_dir, labels_dir, gandalf / fold.name)
        encoder = p.build([points.tokens.take(fold.training), labels], special)
        if pretrained:
            encoder = BesidePretrained(encoder, pretrained, p.pretrained)
        classifier = p.classifier_loss != NO_CLASSIFIERS
        heads = TwoHeads(
            encoder,
            dim=p.dim or encoder.dim,
            classifier=classifier,
            dropouts=dropouts,
            normalise_first=p.normalise_first,
        )
        move(heads, device)
        excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (len(points.tokens), len(labels)))
        judge = Judge(points.positives, excluded, inverse, p.tail, device)
        model = Unified(heads, points, labels, p, top)
        save_fold(folder, model, fit(model, fold, judge, p, top, snapshots))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    is_validation = artifacts.load_array(train_dir, "is_validation")
    facts = {"top": asdict(top), "checkpoint": checkpoint_hash(p.model)}
    with (
        runtime.resumable(Path(__file__), p, inputs, **facts) as scratch,
        artifacts.writing(out, name="train", params=asdict(p) | asdict(top), inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    run(main)
