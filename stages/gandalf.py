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

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.core.folds import folds
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.core.rules import follow
from xcutils.train.correlations import (
    PAIRS,
    WALKS,
    choose_labels,
    co_occurrence,
    glas,
    keep_own,
    random_walk,
)
from xcutils.train.points import count_points, count_targets


@dataclass(frozen=True, kw_only=True)
class Params:
    labels: float = value(low=0, high=1)
    order: Literal["uniform", "tail"]
    targets: Literal["co-occurrence", "glas", "random-walk", "self"]
    delta: float = value(low=0, high=1)
    own: float = value(low=0, high=1)
    docs: bool
    same_size: bool
    walk: int = value(low=1)
    reset: float = value(low=0, high=1)
    top: int = value(low=1)

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
    """The arrays of one fit's folder: which documents and label texts the classifier trains on, and their targets.

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


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """A fit's positives, by document and by label; the targets of all labels, first as blocks and then in one piece."""
    p = params["gandalf"]
    pair = INT + FLOAT
    texts, _, written = count_points(s, p)
    kept = [Part("interpreter", INTERPRETER), Part("positives", INT * s.positives + LONG * s.docs, mapped=True)]
    moments = [[Part("positives of a fit", 3 * LONG * s.positives)]]
    seconds = 4e-8 * s.positives
    if texts:
        walks = p["targets"] == "random-walk"
        # Pairs of labels in one document, of which documents with many labels have most: hence the 2.
        met = 0 if p["targets"] == "self" else 2 * s.positives**2 / max(1, s.docs)
        counted = 65 * min(s.labels, WALKS) * p["walk"] if walks else 30 * min(met, PAIRS)
        seconds += 3e-7 * s.labels * p["walk"] if walks else 4e-8 * met
        fewer = f"lower gandalf.top ({p['top']})" if walks else f"raise gandalf.delta ({p['delta']:g})"
        moments.append(
            [
                Part("positives by document and by label", 2 * pair * s.positives + LONG * (s.docs + s.labels)),
                Part("walks" if walks else "counts", counted, f"lower gandalf.walk ({p['walk']})" if walks else ""),
                Part("targets, twice", 2 * pair * s.labels * count_targets(s, p), fewer),
            ]
        )
    disk = s.fits * (INT * s.docs + (INT + LONG) * texts + pair * written)
    return Estimate("gandalf", costs.fullest(kept, moments), 3 + s.fits * seconds, disk)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.params_file
@console.command
def main(train: Path, labels: Path, out: Path, file: Path) -> None:
    settings = parameters(file)
    p, seed = settings.section("gandalf", Params), settings.top.seed
    runtime.start(seed)
    inputs = [train, labels]
    artifacts.check_together(*inputs)
    sizes = costs.sizes_of(train, labels)
    settings = follow(settings, sizes, "gandalf")
    costs.announce(cost, sizes, settings.values)
    positives = artifacts.load_ragged(train, "positives")
    n_labels = len(artifacts.load_array(labels, "frequency"))
    refit = artifacts.load_json(train, "meta.json")["refit"]
    # Without label texts the other parameters change nothing: the manifest leaves them out, so that no later stage runs
    # again because of them.
    used = asdict(p) | {"seed": seed} if p.labels else {"labels": 0}
    with artifacts.writing(out, name="gandalf", params=used, inputs=inputs) as folder:
        for fold in folds(artifacts.load_array(train, "is_validation"), refit):
            arrays = points(fold.training, positives, n_labels, p, seed)
            (folder / fold.name).mkdir()
            for name, array in arrays.items():
                artifacts.save_array(folder / fold.name, name, array)
            if p.labels:
                texts, pairs, docs = (len(arrays[name]) for name in ("points", "weights", "docs"))
                console.say(f"gandalf ({fold.name}): {texts:,} label texts, {pairs:,} targets, {docs:,} documents.")


if __name__ == "__main__":
    run(main)
