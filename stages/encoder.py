"""M1: Siamese training of the encoder, helped by K shared auxiliary vectors [DEXA Eq. 5], on NGAME's batches.

reads   prepare/train tokens, positives (N, L); prepare/labels tokens; prepare/tokenizer; cluster label_to_aux (L,)
writes  choose/ and, with prepare.refit, final/: encoder.{json,safetensors}, aux (K, D), label_to_aux (L,);
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
from xcutils.auxiliary import Auxiliary
from xcutils.checkpoints import fingerprint
from xcutils.encoders import BiGRU, build_bag, build_transformer, encode, move, token_table
from xcutils.errors import UserError
from xcutils.fitting import fit_folds, save_outcome
from xcutils.folds import Fold, folds
from xcutils.losses import decoupled_softmax, triplet
from xcutils.metrics import evaluate, most_per_row, pair_matrix, without
from xcutils.models import save_encoder
from xcutils.neighbours import exact
from xcutils.params import load_params, load_top, value
from xcutils.ragged import Ragged, concatenate
from xcutils.samplers import ClusteredEpochs, LabelPool, first_columns, sample_positives
from xcutils.scratch import Snapshots
from xcutils.tokens import check_vocabulary
from xcutils.training import Optimisers, Outcome, Plan, mean_cosine, put_finite, train

COLLAPSED = 0.95  # mean cosine of random documents from which on the embeddings are taken to have fallen together


@dataclass(frozen=True)
class Params:
    kind: Literal["bag-of-embeddings", "bi-gru", "transformer"]
    model: str  # transformer: the checkpoint; others: the checkpoint whose token table they start from
    pooling: Literal["mean", "cls"]  # transformer
    loss: Literal["decoupled-softmax", "triplet"]
    layers: int = value(low=0)  # transformer: layers kept; 0 = all
    hidden: int = value(low=1)  # bi-gru
    dropout: float = value(low=0, high=0.95)  # bi-gru, transformer
    ngrams: int = value(low=1, high=5)  # bag-of-embeddings: longest n-gram of tokens; 1 = tokens alone
    buckets: int = value(low=1)  # bag-of-embeddings: rows that n-grams are hashed into
    tau: float = value(above=0)  # decoupled softmax: temperature
    margin: float = value(low=0, high=2)  # triplet
    negatives: int = value(low=1)  # triplet: hardest negatives kept per document
    weighting: float = value(low=0)  # triplet: temperature of the negatives' weights; 0 = all alike
    positives: int = value(low=1)  # positives drawn per document and visit
    normalise_first: bool  # add the auxiliary vector to the normalised embedding (paper) or the raw one (its code)
    epochs: int = value(low=1)
    patience: int = value(low=0)  # epochs without a gain on validation before stopping; 0 = never
    batch_size: int = value(low=2)
    lr: float = value(above=0)
    aux_lr: float = value(above=0)
    weight_decay: float = value(low=0)
    warmup: int = value(low=0)  # steps
    cluster_from: int = value(low=1)  # first epoch (from 0) with clustered batches; before it they are random
    cluster_first: int = value(low=1)  # documents per cluster at first
    cluster_double: int = value(low=1)  # epochs after which the clusters double
    cluster_last: int = value(low=1)  # documents per cluster at most
    refresh: int = value(low=1)  # epochs between two clusterings of the documents
    recluster: int = value(low=0)  # epochs between two clusterings of the labels (dynamic clusters); 0 = never

    def __post_init__(self):
        if self.cluster_last < self.cluster_first:
            raise ValueError(
                f"cluster_last is {self.cluster_last} and cluster_first {self.cluster_first}: clusters grow from the "
                "first size to the last, which must be at least as large."
            )


class Siamese:
    """Encoder, auxiliary vectors and the bank of document embeddings that batches are clustered by."""

    def __init__(self, encoder, docs: Ragged, labels: Ragged, positives: Ragged, label_to_aux: np.ndarray, p: Params):
        self.encoder, self.p, self.device = encoder, p, runtime.device()
        self.docs, self.labels, self.positives = docs, labels, positives
        self.pool = LabelPool(positives, len(labels))
        self.aux = Auxiliary(
            label_to_aux, encoder.dim, lr=p.aux_lr, normalise_first=p.normalise_first, device=self.device
        )
        self.bank = np.zeros((len(docs), encoder.dim), dtype=np.float32)
        for table in encoder.tables:
            table.lr = p.lr

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss; its document embeddings go into the bank as they pass."""
        p, sampled = self.p, sample_positives(self.positives, docs, self.p.positives, rng)
        pool = np.unique(sampled.values)
        both = self.encoder(concatenate(self.docs.take(docs), self.labels.take(pool))).float()
        x, z = F.normalize(both[: len(docs)], dim=1), both[len(docs) :]
        put_finite(self.bank, docs, x)
        labels = F.normalize(self.aux.add(z, pool), dim=1)
        if p.loss == "decoupled-softmax":
            known = [torch.from_numpy(part).to(self.device) for part in self.pool.known(docs, pool)]
            return decoupled_softmax(x, labels, *known, tau=p.tau)
        scores = x @ labels.T
        is_positive = torch.from_numpy(self.pool.mask(docs, pool)).to(self.device)
        columns = torch.from_numpy(first_columns(sampled, pool, p.positives)).to(self.device)
        positive = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.inf)
        return triplet(scores, is_positive, positive, margin=p.margin, k=p.negatives, tau=p.weighting)

    def weights(self) -> dict[str, torch.Tensor]:
        """The live tensors that training changes."""
        aux = {"aux": self.aux.table.values, "label_to_aux": torch.from_numpy(self.aux.label_to_aux)}
        return {f"encoder.{name}": tensor for name, tensor in self.encoder.state().items()} | aux

    def label_embeddings(self, chunk: int = 4096) -> np.ndarray:
        """(L, D) n(E(z) + a), computed without gradients."""
        out = np.zeros((len(self.labels), self.encoder.dim), dtype=np.float32)
        self.encoder.eval()
        with torch.no_grad():
            for start in range(0, len(out), chunk):
                rows = np.arange(start, min(start + chunk, len(out)))
                z = self.aux.add(self.encoder(self.labels.take(rows)).float(), rows)
                out[rows] = F.normalize(z, dim=1).cpu().numpy()
        self.encoder.train()
        return out


class Epochs(ClusteredEpochs):
    """The batches of an epoch; the labels are clustered anew first where that is wanted."""

    def __init__(self, model: Siamese, docs: np.ndarray, p: Params, seed: int):
        curriculum = {"first_epoch": p.cluster_from, "first": p.cluster_first, "double_every": p.cluster_double}
        super().__init__(
            docs, model.bank, batch_size=p.batch_size, refresh=p.refresh, seed=seed, last=p.cluster_last, **curriculum
        )
        self.model, self.recluster = model, p.recluster

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        if self.recluster and epoch and epoch % self.recluster == 0 and len(self.model.aux):
            self.model.aux.recluster(self.model.label_embeddings(), self.seed + epoch)
        return super().__call__(epoch, rng)


def make_encoder(p: Params, texts: list[Ragged], special: dict):
    """A fresh encoder of the wanted kind."""
    if p.kind == "bag-of-embeddings":
        return build_bag(texts, p.model, ngrams=p.ngrams, buckets=p.buckets)
    if p.kind == "bi-gru":
        return BiGRU(token_table(p.model), hidden=p.hidden, dropout=p.dropout)
    return build_transformer(p.model, special, pooling=p.pooling, layers=p.layers, dropout=p.dropout)


def fit(model: Siamese, fold: Fold, excluded, p: Params, seed: int, snapshots: Snapshots) -> Outcome:
    """Train on the fold's documents.

    excluded  (N, L) binary  pairs that may not be predicted
    """

    def validate(epoch: int) -> dict[str, float]:
        docs = encode(model.encoder, model.docs.take(fold.validation))
        collapse = mean_cosine(docs)
        if collapse > COLLAPSED:
            raise UserError(
                f"the encoder has collapsed (mean cosine of random documents {collapse:.2f} after epoch {epoch + 1}): "
                + ("raise encoder.negatives, set encoder.weighting to 0 or " if p.loss == "triplet" else "")
                + f"lower encoder.lr ({p.lr:g}; transformers want about 0.0001)."
            )
        left_out = excluded[fold.validation]
        ranking = without(exact(docs, model.label_embeddings(), 5 + most_per_row(left_out))[0], left_out)
        truth = model.positives.take(fold.validation).csr(len(model.labels))
        figures = evaluate(ranking, truth, np.ones(len(model.labels)))
        return {name: figures[name] for name in ("N@5", "P@1", "P@5")} | {"doc_cosine": collapse}

    plan = Plan(fold.epochs(p.epochs), p.warmup, seed, patience=p.patience, device=model.device, schedule=p.epochs)
    tables = [*model.encoder.tables, model.aux.table]
    optimisers = [Optimisers(model.encoder, p.lr, tables=tables, weight_decay=p.weight_decay)]
    watch = runtime.epochs(f"encoder ({fold.name})")
    batches = Epochs(model, fold.fit, p, seed)
    return train(
        plan,
        optimisers,
        batches,
        model.loss,
        weights=model.weights,
        memory=batches.memory,
        validate=validate if len(fold.validation) else None,
        watch=watch,
        snapshots=snapshots,
    )


def save_fold(folder: Path, model: Siamese, outcome: Outcome) -> None:
    """The encoder, the auxiliary vectors and which label has which; how training went."""
    save_outcome(folder, outcome)
    save_encoder(folder, model.encoder)
    artifacts.save_json(folder, "aux.json", {"normalise_first": model.p.normalise_first})
    artifacts.save_array(folder, "aux", model.aux.table.numpy())
    artifacts.save_array(folder, "label_to_aux", model.aux.label_to_aux)


@click.command()
@click.argument("train_dir", metavar="TRAIN", type=click.Path(exists=True, path_type=Path))
@click.argument("labels_dir", metavar="LABELS", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("cluster", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(train_dir: Path, labels_dir: Path, tokenizer: Path, cluster: Path, out: Path) -> None:
    p, seed = load_params(Params, "encoder"), load_top().seed
    device = runtime.start(seed)
    inputs = [train_dir, labels_dir, tokenizer, cluster]
    artifacts.check_together(*inputs)
    docs, labels = (artifacts.load_ragged(folder, "tokens") for folder in (train_dir, labels_dir))
    positives = artifacts.load_ragged(train_dir, "positives")
    is_validation = artifacts.load_array(train_dir, "is_validation")
    label_to_aux = artifacts.load_array(cluster, "label_to_aux")
    special = artifacts.load_json(tokenizer, "special.json")
    check_vocabulary(tokenizer, p.model, "encoder.model")
    estimates.announce("encoder", estimates.prepared(train_dir, labels_dir))
    excluded = pair_matrix(artifacts.load_array(train_dir, "filter"), (len(docs), len(labels)))

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(seed)
        encoder = move(make_encoder(p, [docs.take(fold.fit), labels], special), device)
        model = Siamese(encoder, docs, labels, positives, label_to_aux, p)
        save_fold(folder, model, fit(model, fold, excluded, p, seed, snapshots))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable("encoder", p, inputs, seed=seed, checkpoint=fingerprint(p.model)) as scratch,
        artifacts.writing(out, name="encoder", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    main()
