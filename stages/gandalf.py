"""Label texts as training points of the classifier, with soft targets from the labels they go together with [Gandalf].

reads   prepare/train positives (N, L), is_validation; prepare/labels frequency (L,)
writes  {choose,final}/: docs (n,) int32 documents to train on, points (m,) int32 labels whose texts are trained on,
        targets (m rows) int32 label ids and their weights float32 in (0, 1]
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
from scipy import sparse

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.folds import folds
from xcutils.core.params import load_params, load_top, value
from xcutils.core.ragged import Ragged
from xcutils.train.correlations import choose_labels, co_occurrence, glas, keep_own, random_walk


@dataclass(frozen=True)
class Params:
    labels: float = value(low=0, high=1)  # share of the labels whose texts become points; 0 = none, which is without
    order: Literal["uniform", "tail"]  # which of them: drawn uniformly, or the rarest first
    targets: Literal["co-occurrence", "glas", "random-walk", "self"]
    delta: float = value(low=0, high=1)  # weaker targets are left out
    own: float = value(low=0, high=1)  # share of a label text's targets that its own label has at least
    docs: bool  # train on the documents too; false: on label texts alone
    same_size: bool  # draw as many points from documents and label texts together as there are documents
    walk: int = value(low=1)  # random-walk: steps
    reset: float = value(low=0, high=1)  # random-walk: probability of going back to the start
    top: int = value(low=1)  # random-walk: labels kept

    def __post_init__(self):
        if not self.docs and self.labels == 0:
            raise ValueError(
                "docs is false and labels is 0: there would be nothing to train on; set docs to true, or raise labels."
            )
        if not self.docs and self.same_size:
            raise ValueError("docs is false and same_size is true: a sample of both needs the documents; set one back.")


def soft_targets(positives: sparse.csr_matrix, p: Params, seed: int) -> sparse.csr_matrix:
    """(L, L): the targets of each label's text."""
    if p.targets == "co-occurrence":
        return co_occurrence(positives, p.delta)
    if p.targets == "glas":
        return glas(positives, p.delta)
    if p.targets == "random-walk":
        return random_walk(positives, p.delta, length=p.walk, reset=p.reset, top=p.top, seed=seed)
    return sparse.identity(positives.shape[1], dtype=np.float32, format="csr")


def points(docs: np.ndarray, positives: Ragged, n_labels: int, p: Params, seed: int) -> dict[str, np.ndarray]:
    """What the classifier trains on, of documents `docs` and label texts.

    docs       (n,) int  documents of the fit
    positives  N rows    labels of all training documents
    """
    matrix = positives.take(docs).csr(n_labels)
    frequency = np.bincount(matrix.indices, minlength=n_labels)
    chosen = choose_labels(frequency, p.labels, p.order, seed)
    targets = sparse.csr_matrix((0, n_labels))
    if len(chosen):
        targets = soft_targets(matrix, p, seed)[chosen]
        keep_own(targets, chosen, p.own)
    if p.same_size and len(chosen):
        drawn = np.sort(np.random.default_rng(seed).permutation(len(docs) + len(chosen))[: len(docs)])
        kept = drawn[drawn >= len(docs)] - len(docs)
        docs, chosen, targets = docs[drawn[drawn < len(docs)]], chosen[kept], targets[kept]
    return {
        "docs": (docs if p.docs else docs[:0]).astype(np.int32),
        "points": chosen.astype(np.int32),
        "targets.values": targets.indices.astype(np.int32, copy=False),
        "targets.offsets": targets.indptr.astype(np.int64),
        "weights": targets.data.astype(np.float32, copy=False),
    }


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train: Path, labels: Path, out: Path, file: Path) -> None:
    p, seed = load_params(Params, "gandalf", file), load_top(file).seed
    runtime.start(seed)
    inputs = [train, labels]
    artifacts.check_together(*inputs)
    estimates.announce("gandalf", estimates.prepared(train, labels), file)
    positives = artifacts.load_ragged(train, "positives")
    n_labels = len(artifacts.load_array(labels, "frequency"))
    refit = artifacts.load_json(train, "meta.json")["refit"]
    # Without points the other values change nothing: what is written does not name them, and nothing else runs again.
    used = asdict(p) | {"seed": seed} if p.labels else {"labels": 0}
    with artifacts.writing(out, name="gandalf", params=used, inputs=inputs) as folder:
        for fold in folds(artifacts.load_array(train, "is_validation"), refit):
            made = points(fold.fit, positives, n_labels, p, seed)
            (folder / fold.name).mkdir()
            for name, array in made.items():
                artifacts.save_array(folder / fold.name, name, array)
            if p.labels:
                texts, pairs, docs = (len(made[name]) for name in ("points", "weights", "docs"))
                console.say(f"gandalf ({fold.name}): {texts:,} label texts, {pairs:,} targets, {docs:,} documents.")


if __name__ == "__main__":
    main()
