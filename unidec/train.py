"""Encoder, two heads and a classifier per label in one loop, on pools that pick some labels of each batch [UniDEC].

reads   prepare/train tokens, positives (N, L); prepare/labels tokens; prepare/tokenizer; embed docs, labels;
        gandalf {choose,final}/
writes  {choose,final}/: encoder.{json,safetensors}, labels (L, d), docs (N, 2d), and with a classifier head
        classifiers (L, d), concatenated (L, 2d); unit float32; curve-{choose,final}.csv
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
from xcutils.core.params import UnifiedTop, load_params, load_top, value
from xcutils.core.ragged import Ragged, concatenate
from xcutils.core.scratch import Snapshots
from xcutils.model.checkpoints import fingerprint
from xcutils.model.encoders import encode, move
from xcutils.model.heads import TwoHeads
from xcutils.model.pretrained import BesidePretrained, load_pretrained
from xcutils.model.rows import RowTable
from xcutils.model.stored import Architecture, save_encoder
from xcutils.model.tokens import check_vocabulary
from xcutils.search.metrics import pair_matrix
from xcutils.search.neighbours import unit
from xcutils.search.propensity import inverse_propensities
from xcutils.train.clustering import balanced_clusters
from xcutils.train.fitting import Judge, Trained, fit_folds, fit_model, save_outcome
from xcutils.train.losses import bce, decoupled_softmax, supcon
from xcutils.train.mining import Miner
from xcutils.train.points import Points, load_points
from xcutils.train.samplers import LabelPool, sample_positives
from xcutils.train.training import Optimisers, Outcome

LOSSES = {"decoupled-softmax": decoupled_softmax, "supcon": supcon}
Sum = Literal["decoupled-softmax+supcon", "decoupled-softmax+bce", "supcon+bce", "decoupled-softmax+supcon+bce"]
Loss = Literal["decoupled-softmax", "supcon", "bce", Sum]
RANDOM = 0.02  # spread of random first values
BIAS = -8.0  # of the binary cross-entropy, at first: hardly any pair is a positive


@dataclass(frozen=True)
class Params(Architecture, Trained):
    pretrained: float = value(low=0)  # weight of the pretrained encoder's vector (embed) beside the trained one's
    dim: int = value(low=0)  # of each head; 0 = the encoder's
    head_dropout: float = value(low=0, high=0.95)  # of the head that is compared with label texts
    classifier_dropout: float = value(low=0, high=0.95)  # of the head that is compared with classifiers
    encoder_loss: Loss
    classifier_loss: Literal[Loss, "none"]
    share: float = value(low=0, high=1)  # of the encoder head's loss in the sum; the classifiers' has the rest
    symmetric: (
        bool  # the encoder head's loss compares documents with labels and labels with documents, or the first alone
    )
    classifier_symmetric: bool  # the classifier head's likewise
    tau: float = value(above=0)  # temperature of the softmax losses
    bce_tau: float = value(above=0)  # temperature of the binary cross-entropy
    bce_weight: float = value(low=0)  # of the binary cross-entropy in a sum
    extra: int = value(low=0)  # labels drawn at random into the classifiers' pool, whoever they belong to
    start: Literal["labels", "random"]  # the classifiers' first values: the label embeddings, or small random ones
    classifier_from: int = value(low=0)  # first epoch (from 0) with classifiers; before it the encoder trains alone
    batches: Literal["clustered", "random"]  # a batch is a cluster of documents, or drawn at random
    refresh: int = value(low=1)  # epochs between two clusterings and minings
    average_after: int = value(low=0)  # epochs after which the weights at epochs' ends are averaged and kept; 0 = never
    lr: float = value(above=0)  # of the encoder
    head_lr: float = value(above=0)
    classifier_lr: float = value(above=0)
    weight_decay: float = value(low=0)  # bi-gru, transformer

    def __post_init__(self):
        if self.classifier_loss != "none" and self.classifier_from >= self.epochs:
            raise ValueError(
                f"classifier_from is {self.classifier_from} of {self.epochs} epochs: the classifiers would never be "
                "trained; lower it, or set classifier_loss to none."
            )
        if 0 < self.average_after < self.classifier_from and self.classifier_loss != "none":
            raise ValueError(
                f"average_after is {self.average_after} and classifier_from {self.classifier_from}: classifiers that "
                "have not joined would be averaged with those that have, so it must be at least as late."
            )


class Unified:
    """A shared encoder with a head for label texts and one for classifiers, which are rows of their own."""

    def __init__(self, model: TwoHeads, points: Points, labels: Ragged, p: Params, top: UnifiedTop):
        self.model, self.points, self.labels, self.p, self.top = model, points, labels, p, top
        self.device = runtime.device()
        self.pool = LabelPool(points.positives, len(labels), points.weights)
        self.miner: Miner | None = None
        self.table = RowTable(
            torch.zeros(len(labels) if model.label else 0, model.size).to(self.device), p.classifier_lr
        )
        self.joined = np.zeros(1, dtype=bool)  # whether the classifiers are being trained
        self.start_classifiers()
        self.bias = torch.nn.ParameterDict({"bias": torch.nn.Parameter(torch.tensor(BIAS, device=self.device))})
        for table in model.tables:
            table.lr = p.lr

    def join(self, epoch: int) -> None:
        """From `classifier_from` on the classifiers train along, started from the encoder's head as it is then.

        Differs from: the source trains both from the start. Rows of rare labels that start from an encoder which has
        learnt something are better at the end.
        """
        if self.model.label is None or epoch < self.p.classifier_from:
            return
        if epoch and epoch == self.p.classifier_from:
            self.start_classifiers()
        self.joined[:] = True

    def start_classifiers(self) -> None:
        """The classifiers' first values, and their head's."""
        if self.model.label is None:
            return
        if self.p.start == "random":
            self.table.values.copy_(RANDOM * torch.randn(self.table.values.shape))
            return
        self.model.label.load_state_dict(self.model.text.state_dict())
        self.table.values.copy_(torch.from_numpy(self.label_embeddings()))

    def label_embeddings(self) -> np.ndarray:
        """(L, d) n(Phi_D(z)) as it is now."""
        return unit(encode(self.model, self.labels)[:, : self.model.size])

    def loss(self, points: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss over one pool of labels: positives drawn for each point, and negatives mined for it.

        A label text has its own label in the pool, whichever of its many targets are drawn. Where there are
        classifiers, label texts among the points train these alone: to the other head each is nearest to itself from
        the start.
        Differs from: with `extra` the classifiers' pool has labels drawn at random besides.
        """
        texts = points[points >= self.points.n_docs] - self.points.n_docs
        drawn = [sample_positives(self.points.positives, points, self.top.beta, rng).values, self.points.labels[texts]]
        if self.miner is not None:
            drawn.append(self.miner.draw(points, self.top.eta, rng).values)
        pool = np.unique(np.concatenate(drawn)).astype(np.int64)
        text, label = self.model.both(concatenate(self.points.tokens.take(points), self.labels.take(pool)))
        count, is_doc = len(points), (points < self.points.n_docs) | (self.model.label is None)
        docs = text[:count] if is_doc.all() else text[:count][torch.from_numpy(is_doc).to(self.device)]
        known = self._known(points[is_doc], pool)
        total = self._loss(self.p.encoder_loss, docs, text[count:], known, self.p.symmetric)
        if not self.joined[0]:
            return total
        if self.p.extra:
            pool = np.union1d(pool, rng.integers(0, len(self.labels), self.p.extra))
        rows = F.normalize(self.table.rows(torch.from_numpy(pool).to(self.device)), dim=1)
        known = self._known(points, pool)
        other = self._loss(self.p.classifier_loss, label[:count], rows, known, self.p.classifier_symmetric)
        return self.p.share * total + (1 - self.p.share) * other

    def _known(self, points: np.ndarray, pool: np.ndarray) -> list[torch.Tensor | None]:
        """Row, column and soft target of every known positive of the points in the pool."""
        targets = self.pool.targets(points, pool)
        return [None if part is None else torch.from_numpy(part).to(self.device) for part in targets]

    def _loss(self, kind: str, x: torch.Tensor, labels: torch.Tensor, known: list, symmetric: bool) -> torch.Tensor:
        """One head's loss: a softmax, a binary cross-entropy, or a sum, in which the latter has a weight."""
        softmaxes, cross_entropy = [LOSSES[part] for part in kind.split("+") if part != "bce"], kind.endswith("bce")
        if not softmaxes:
            return self._bce(x, labels, known)
        rows, columns, soft = known
        total = sum(loss(x, labels, rows, columns, soft, tau=self.p.tau) for loss in softmaxes)
        if symmetric:
            back = sum(loss(labels, x, columns, rows, soft, tau=self.p.tau) for loss in softmaxes)
            total = 0.5 * total + 0.5 * back
        return total + self.p.bce_weight * self._bce(x, labels, known) if cross_entropy else total

    def _bce(self, x: torch.Tensor, labels: torch.Tensor, known: list) -> torch.Tensor:
        """Differs from: the source gives the logit no scale. Here it is cosine / bce_tau plus a bias that is learnt."""
        tau = self.p.bce_tau
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        labels = torch.cat([labels, tau * self.bias["bias"].expand(len(labels), 1)], dim=1)
        return bce(x, labels, *known, tau=tau)

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        own = {f"model.{name}": tensor for name, tensor in self.model.state().items()}
        return own | {"classifiers": self.table.values, "bias": self.bias["bias"]}

    def vectors(self) -> dict[str, np.ndarray]:
        """What a new text is compared with: labels (L, d), classifiers (L, d), and both one after the other."""
        labels = self.label_embeddings()
        if self.model.label is None:
            return {"labels": labels}
        classifiers = unit(self.table.numpy())
        both = np.concatenate([labels, classifiers], axis=1) / np.float32(2**0.5)
        return {"labels": labels, "classifiers": classifiers, "concatenated": both}


class PickSome:
    """Each epoch's batches: clusters of documents near each other now, drawn anew every few epochs with the negatives.

    Differs from: the source clusters by k-means; here clusters are balanced, so that each can be a batch.
    """

    def __init__(self, model: Unified, p: Params, top: UnifiedTop):
        self.model, self.p, self.top, self.todo = model, p, top, model.points.todo
        self.clusters = np.zeros(len(self.todo), dtype=np.int64)

    def memory(self) -> dict[str, np.ndarray]:
        """The live arrays that an epoch's batches depend on."""
        mined = {} if self.model.miner is None else {"mined": self.model.miner.near}
        return {"clusters": self.clusters, "joined": self.model.joined} | mined

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        self.model.join(epoch)
        clustered = self.p.batches == "clustered"
        if epoch % self.p.refresh == 0 and (clustered or self.model.miner is not None):
            self._refresh(epoch)
        if not clustered:
            order = rng.permutation(len(self.todo))
            return [self.todo[order[i : i + self.p.batch_size]] for i in range(0, len(order), self.p.batch_size)]
        order = np.argsort(self.clusters, kind="stable")
        parts = np.split(self.todo[order], np.cumsum(np.bincount(self.clusters))[:-1])
        return [parts[i] for i in rng.permutation(len(parts))]

    def _refresh(self, epoch: int) -> None:
        model = self.model
        size = model.model.size
        queries = unit(encode(model.model, model.points.tokens.take(self.todo))[:, :size])
        if self.p.batches == "clustered":
            count = max(1, round(len(self.todo) / self.p.batch_size))
            self.clusters[:] = balanced_clusters(queries, count, seed=self.top.seed + epoch)
        if model.miner is not None:
            model.miner.refresh(self.todo, queries, model.label_embeddings(), seed=self.top.seed + epoch)


def fit(model: Unified, fold: Fold, judge: Judge, p: Params, top: UnifiedTop, snapshots: Snapshots) -> Outcome:
    """Train on the fold's points."""
    points = model.points
    if top.eta:
        model.miner = Miner(points.positives.csr(len(model.labels)) + judge.excluded, top.eta * p.refresh)

    def validate(_: int) -> dict[str, float]:
        queries = encode(model.model, points.tokens.take(fold.validation))
        if model.joined[0]:
            return judge(fold.validation, queries, model.vectors()["concatenated"])
        return judge(fold.validation, unit(queries[:, : model.model.size]), model.label_embeddings())

    encoder = model.model.encoder
    heads = torch.nn.ModuleList(part for part in (model.model.text, model.model.label, model.bias) if part is not None)
    outcome = fit_model(
        "train",
        model,
        fold,
        p,
        top.seed,
        batches=PickSome(model, p, top),
        optimisers=[
            Optimisers(encoder, p.lr, tables=encoder.tables, weight_decay=p.weight_decay),
            Optimisers(heads, p.head_lr),
            Optimisers(None, p.classifier_lr, tables=[model.table]),
        ],
        validate=validate,
        snapshots=snapshots,
        average_after=p.average_after,
    )
    if outcome.epochs <= p.classifier_from:  # the kept weights are older than the classifiers that joined, if any did
        model.start_classifiers()
    return outcome


def save_fold(folder: Path, model: Unified, outcome: Outcome) -> None:
    """The encoder with its heads, what it is compared with, the training documents; how training went."""
    save_outcome(folder, outcome)
    save_encoder(folder, model.model)
    docs = model.points.tokens.take(np.arange(model.points.n_docs))
    for name, vectors in (model.vectors() | {"docs": encode(model.model, docs)}).items():
        artifacts.save_array(folder, name, vectors)


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
    p, top = load_params(Params, "train", file), load_top(file)
    device = runtime.start(top.seed)
    inputs = [train_dir, labels_dir, tokenizer, embed, gandalf]
    artifacts.check_together(*inputs)
    check_vocabulary(tokenizer, p.model, "train.model")
    estimates.announce("train", estimates.prepared(train_dir, labels_dir), file)
    special = artifacts.load_json(tokenizer, "special.json")
    labels, dropouts = artifacts.load_ragged(labels_dir, "tokens"), (p.head_dropout, p.classifier_dropout)

    pretrained = load_pretrained(embed, train_dir, labels_dir, special) if p.pretrained else None

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(top.seed)
        points = load_points(train_dir, labels_dir, gandalf / fold.name)
        encoder = p.build([points.tokens.take(fold.fit), labels], special)
        if pretrained:
            encoder = BesidePretrained(encoder, pretrained, p.pretrained)
        heads = TwoHeads(encoder, dim=p.dim or encoder.dim, classifier=p.classifier_loss != "none", dropouts=dropouts)
        excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (len(points.tokens), len(labels)))
        judge = Judge(points.positives, excluded, inverse_propensities(train_dir, labels_dir), p.tail)
        model = Unified(move(heads, device), points, labels, p, top)
        save_fold(folder, model, fit(model, fold, judge, p, top, snapshots))

    refit, is_validation = (
        artifacts.load_json(train_dir, "meta.json")["refit"],
        artifacts.load_array(train_dir, "is_validation"),
    )
    values = asdict(p) | asdict(top)
    with (
        runtime.resumable(
            "train", p, inputs, folder="unidec", top=asdict(top), checkpoint=fingerprint(p.model)
        ) as scratch,
        artifacts.writing(out, name="train", params=values, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    main()
