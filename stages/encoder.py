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

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.errors import UserError
from xcutils.core.folds import Fold, folds
from xcutils.core.params import load_params, load_top, value
from xcutils.core.ragged import Ragged, concatenate
from xcutils.core.scratch import Snapshots
from xcutils.model.caching import encode_cached
from xcutils.model.checkpoints import fingerprint
from xcutils.model.encoders import encode, move
from xcutils.model.stored import Architecture, save_encoder
from xcutils.model.tokens import check_vocabulary
from xcutils.search.metrics import pair_matrix
from xcutils.search.propensity import inverse_propensities
from xcutils.train.auxiliary import Auxiliary
from xcutils.train.fitting import Clustered, Judge, fit_folds, fit_model, save_outcome
from xcutils.train.losses import contrastive, decoupled_softmax, pairwise, supcon, triplet
from xcutils.train.mining import Miner
from xcutils.train.samplers import ClusteredEpochs, LabelPool, first_columns, sample_positives
from xcutils.train.training import Optimisers, Outcome, mean_cosine, put_finite

COLLAPSED = 0.95  # mean cosine of random documents from which on the embeddings are taken to have fallen together


@dataclass(frozen=True)
class Params(Architecture, Clustered):
    loss: Literal["decoupled-softmax", "supcon", "infonce", "pairwise", "contrastive", "triplet"]
    labels: Literal["batch", "all"]  # scored in a step: those drawn for the batch, or every label
    chunk: int = value(low=1)  # labels: all: texts encoded at once, their gradient being cached
    tau: float = value(above=0)  # temperature of the softmax losses
    margin: float = value(low=0, high=2)  # triplet
    negatives: int = value(low=1)  # triplet, contrastive: hardest negatives kept per document
    weighting: float = value(low=0)  # triplet: temperature of the negatives' weights; 0 = all alike
    contrast: float = value(above=0, high=0.999)  # contrastive: the probability of a pair of cosine 1
    slope: float = value(above=0)  # contrastive: how fast the probability falls with the cosine
    positives: int = value(low=1)  # positives drawn per document and visit
    mined: int = value(low=0)  # negatives per document and visit from its nearest labels, found again with the clusters
    mined_from: int = value(low=1)  # so many nearest labels
    normalise_first: bool  # add the auxiliary vector to the normalised embedding (paper) or the raw one (its code)
    epochs: int = value(low=0)  # 0 = the encoder as it is
    lr: float = value(above=0)
    aux_lr: float = value(above=0)
    weight_decay: float = value(low=0)
    cluster_from: int = value(low=1)  # first epoch (from 0) with clustered batches; before it they are random
    recluster: int = value(low=0)  # epochs between two clusterings of the labels (dynamic clusters); 0 = never

    def __post_init__(self):
        super().__post_init__()
        if self.loss == "pairwise" and not self.mined:
            raise ValueError("loss is pairwise, which compares with mined negatives alone: set mined to 1 or more.")
        if self.labels == "all" and self.loss not in ("decoupled-softmax", "supcon", "infonce"):
            raise ValueError(f"labels is all, for which loss can be a softmax alone, not {self.loss}.")


class Siamese:
    """Encoder, auxiliary vectors and the bank of document embeddings that batches are clustered by."""

    def __init__(self, encoder, docs: Ragged, labels: Ragged, positives: Ragged, label_to_aux: np.ndarray, p: Params):
        self.encoder, self.p, self.device = encoder, p, runtime.device()
        self.docs, self.labels, self.positives = docs, labels, positives
        self.pool, self.every = LabelPool(positives, len(labels)), np.arange(len(labels))
        self.miner: Miner | None = None
        self.aux = Auxiliary(
            label_to_aux, encoder.dim, lr=p.aux_lr, normalise_first=p.normalise_first, device=self.device
        )
        self.bank = np.zeros((len(docs), encoder.dim), dtype=np.float32)
        for table in encoder.tables:
            table.lr = p.lr

    def loss(self, docs: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        """The batch's loss; its document embeddings go into the bank as they pass."""
        sampled = sample_positives(self.positives, docs, self.p.positives, rng)
        mined = None if self.miner is None else self.miner.draw(docs, self.p.mined, rng)
        drawn = sampled.values if mined is None else np.concatenate([sampled.values, mined.values])
        pool = self.every if self.p.labels == "all" else np.unique(drawn)
        x, z = self._embed(docs, pool)
        put_finite(self.bank, docs, x)
        labels = F.normalize(self.aux.add(z, pool), dim=1)
        return self._loss(x, labels, docs, pool, sampled, mined)

    def _embed(self, docs: np.ndarray, pool: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """(unit embeddings of the documents (B, D), E(z) of the pool's labels (P, D))."""
        if self.p.labels == "all":
            x = self.encoder(self.docs.take(docs)).float()
            return F.normalize(x, dim=1), encode_cached(self.encoder, self.labels, self.p.chunk)
        both = self.encoder(concatenate(self.docs.take(docs), self.labels.take(pool))).float()
        return F.normalize(both[: len(docs)], dim=1), both[len(docs) :]

    def _loss(self, x, labels, docs: np.ndarray, pool: np.ndarray, sampled: Ragged, mined: Ragged | None):
        p = self.p
        if p.loss in ("decoupled-softmax", "supcon"):
            known = [torch.from_numpy(part).to(self.device) for part in self.pool.known(docs, pool)]
            return (decoupled_softmax if p.loss == "decoupled-softmax" else supcon)(x, labels, *known, tau=p.tau)
        columns = torch.from_numpy(first_columns(sampled, pool, p.positives)).to(self.device)
        if p.loss == "infonce":  # DPR counts a document's other positives as negatives
            rows, place = torch.nonzero(columns >= 0, as_tuple=True)
            return supcon(x, labels, rows, columns[rows, place], tau=p.tau)
        scores = x @ labels.T
        positive = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, torch.inf)
        if p.loss == "pairwise":
            wrong = torch.from_numpy(first_columns(mined, pool, p.mined)).to(self.device)
            negative = scores.gather(1, wrong.clamp(min=0)).masked_fill(wrong < 0, -torch.inf)
            return pairwise(positive, negative, tau=p.tau)
        is_positive = torch.from_numpy(self.pool.mask(docs, pool)).to(self.device)
        if p.loss == "contrastive":
            return contrastive(scores, is_positive, positive, contrast=p.contrast, slope=p.slope, k=p.negatives)
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
    """The batches of an epoch; labels are clustered anew and negatives mined first where that is wanted."""

    def __init__(self, model: Siamese, docs: np.ndarray, p: Params, seed: int):
        super().__init__(docs, model.bank, seed=seed, **p.batches())
        self.model, self.recluster = model, p.recluster

    def memory(self) -> dict[str, np.ndarray]:
        mined = {} if self.model.miner is None else {"mined": self.model.miner.near}
        return super().memory() | mined

    def __call__(self, epoch: int, rng: np.random.Generator) -> list[np.ndarray]:
        model = self.model
        if self.recluster and epoch and epoch % self.recluster == 0 and len(model.aux):
            model.aux.recluster(model.label_embeddings(), self.seed + epoch)
        if model.miner is not None and epoch % self.refresh == 0:
            queries = encode(model.encoder, model.docs.take(self.docs))
            model.miner.refresh(self.docs, queries, model.label_embeddings(), seed=self.seed + epoch)
        return super().__call__(epoch, rng)


def fit(model: Siamese, fold: Fold, judge: Judge, p: Params, seed: int, snapshots: Snapshots) -> Outcome:
    """Train on the fold's documents."""
    if p.mined:
        model.miner = Miner(model.positives.csr(len(model.labels)) + judge.excluded, p.mined_from)

    def validate(epoch: int) -> dict[str, float]:
        docs = encode(model.encoder, model.docs.take(fold.validation))
        collapse = mean_cosine(docs)
        if collapse > COLLAPSED:
            raise UserError(
                f"the encoder has collapsed (mean cosine of random documents {collapse:.2f} after epoch {epoch + 1}): "
                + ("raise encoder.negatives, set encoder.weighting to 0 or " if p.loss == "triplet" else "")
                + f"lower encoder.lr ({p.lr:g}; transformers want about 0.0001)."
            )
        return judge(fold.validation, docs, model.label_embeddings()) | {"doc_cosine": collapse}

    tables = [*model.encoder.tables, model.aux.table]
    return fit_model(
        "encoder",
        model,
        fold,
        p,
        seed,
        batches=Epochs(model, fold.fit, p, seed),
        optimisers=[Optimisers(model.encoder, p.lr, tables=tables, weight_decay=p.weight_decay)],
        validate=validate,
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
@console.command
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
    judge = Judge(positives, excluded, inverse_propensities(train_dir, labels_dir), p.tail)

    def fit_fold(fold: Fold, snapshots: Snapshots, folder: Path) -> None:
        torch.manual_seed(seed)
        encoder = move(p.build([docs.take(fold.fit), labels], special), device)
        model = Siamese(encoder, docs, labels, positives, label_to_aux, p)
        save_fold(folder, model, fit(model, fold, judge, p, seed, snapshots))

    refit = artifacts.load_json(train_dir, "meta.json")["refit"]
    with (
        runtime.resumable("encoder", p, inputs, seed=seed, checkpoint=fingerprint(p.model)) as scratch,
        artifacts.writing(out, name="encoder", params=asdict(p) | {"seed": seed}, inputs=inputs) as folder,
    ):
        fit_folds(folds(is_validation, refit), fit_fold, scratch, folder)


if __name__ == "__main__":
    main()
