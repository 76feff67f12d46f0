"""Peak memory of steps that score every label: DEXML's encoder and Renee's classifiers, few labels and many (Linux).

python -m benchmarks.all_labels [--small 10000] [--large 100000] [--batch 1024] [--dim 384] [--steps 3]

The steps are those of the stages: stages.encoder with labels: all and stages.classifier with loss: bce, through the one
training loop; label texts of five words, documents of ten. A step may hold arrays of L x D (label vectors, their
gradients, classifiers, moments) and one chunk of scores, but nothing of L x batch or of L x tokens x D. What is held
before the first step has a column of its own; `L x batch` is what the matrix of all scores alone would take.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import click
import numpy as np

from benchmarks.apart import ROOT, measured, peak_gb
from testing.programs import Table, finish

METHODS = ("dexml", "renee")
WORDS = 20_000  # that there are
LABEL_WORDS = 5  # of a label's text
DOC_WORDS = 10  # of a document
POSITIVES = 20  # of a document
COLUMNS = {
    "method": "<7",
    "labels": ">9,",
    "batch": ">6,",
    "before GB": ">9.2f",
    "peak GB": ">8.2f",
    "s per step": ">10.2f",
    "one L x D GB": ">12.2f",
    "L x batch GB": ">12.2f",
}


def measure(method: str, *numbers: str) -> None:
    """Train that many steps; print the peak before and after and the seconds of a step as JSON."""
    n_labels, batch, dim, steps = map(int, numbers)
    from xcutils.core import runtime
    from xcutils.train.training import Plan, train

    device = runtime.start(0)
    model, optimisers = {"dexml": make_dexml, "renee": make_renee}[method](n_labels, batch, dim, steps)
    before, begin = peak_gb(), time.perf_counter()
    batches = list(np.arange(batch * steps).reshape(steps, batch))
    train(Plan(epochs=1, warmup=1, seed=0, device=device), optimisers, lambda *_: batches, model.loss)
    seconds = (time.perf_counter() - begin) / steps
    print(json.dumps({"before": before, "peak": peak_gb(), "seconds": seconds}))


def make_data(n_labels: int, n_docs: int, dim: int):
    """(documents, label texts, positives of the documents, an encoder), all made up."""
    import torch

    from xcutils.core.ragged import Ragged
    from xcutils.model.bag import BagOfEmbeddings

    rng = np.random.default_rng(0)

    def ragged(values: np.ndarray, length: int) -> Ragged:
        return Ragged(values, np.arange(0, len(values) + 1, length, dtype=np.int64))

    docs = ragged(rng.integers(0, WORDS, n_docs * DOC_WORDS, dtype=np.int32), DOC_WORDS)
    labels = ragged(rng.integers(0, WORDS, n_labels * LABEL_WORDS, dtype=np.int32), LABEL_WORDS)
    each = n_labels // POSITIVES  # one positive from each of so many equal parts of the labels
    owned = rng.integers(0, each, (n_docs, POSITIVES)) + np.arange(POSITIVES) * each
    positives = ragged(owned.astype(np.int32).ravel(), POSITIVES)
    bag = BagOfEmbeddings(torch.randn(WORDS, dim), torch.ones(WORDS, 1), vocabulary=WORDS, ngrams=1)
    return docs, labels, positives, bag


def make_dexml(n_labels: int, batch: int, dim: int, steps: int):
    """(model, optimisers) of stages.encoder with labels: all."""
    from stages import encoder, parameters
    from xcutils.train.training import Optimisers

    docs, labels, positives, bag = make_data(n_labels, batch * steps, dim)
    p = parameters(ROOT / "params.yaml").section("encoder", encoder.Params)
    p = replace(p, labels="all", batch_size=batch)
    model = encoder.Siamese(bag, docs, labels, positives, np.full(n_labels, -1, dtype=np.int32), p)
    return model, [Optimisers(bag, p.lr, tables=bag.tables)]


def make_renee(n_labels: int, batch: int, dim: int, steps: int):
    """(model, optimisers) of stages.classifier with loss: bce."""
    from stages import classifier, parameters
    from xcutils.train.points import Points
    from xcutils.train.training import Optimisers

    docs, _, positives, bag = make_data(n_labels, batch * steps, dim)
    p = parameters(ROOT / "params.yaml").section("classifier", classifier.Params)
    p = replace(p, labels="all", loss="bce", normalise=False, optimizer="sgd", encoder_lr=0.001, batch_size=batch)
    points = Points(docs, positives, None, np.zeros(0, dtype=np.int64), np.arange(len(docs)))
    bank, start = (np.zeros((count, dim), dtype=np.float32) for count in (len(docs), n_labels))
    model = classifier.OneVsAll(bag, points, bank, start, p)
    return model, [Optimisers(None, p.lr, tables=[model.table]), Optimisers(bag, 0.001, tables=bag.tables)]


def run(table: Table, method: str, n_labels: int, batch: int, dim: int, steps: int) -> float:
    """Measure in a process of its own and print the row; the peak in GB."""
    found = measured("benchmarks.all_labels", method, n_labels, batch, dim, steps)
    sizes = [4 * n_labels * width / 1e9 for width in (dim, batch)]
    table.print_row([method, n_labels, batch, found["before"], found["peak"], found["seconds"], *sizes])
    return found["peak"]


@click.command()
@click.option("--small", default=10_000, show_default=True, help="Labels.")
@click.option("--large", default=100_000, show_default=True, help="Labels.")
@click.option("--batch", default=1024, show_default=True, help="Documents in a batch.")
@click.option("--dim", default=384, show_default=True, help="Dimensions.")
@click.option("--steps", default=3, show_default=True, help="Steps of a process.")
def main(small: int, large: int, batch: int, dim: int, steps: int) -> None:
    """Print each method's peak with few and with many labels, in a batch and in one of four times the size.

    What a larger batch takes in addition (its texts' vectors) may not grow with L: exit 1 if it grows by half of
    L x batch.
    """
    table = Table(COLUMNS)
    table.print_head()
    failures = []
    for method in METHODS:
        few, many = (run(table, method, n_labels, batch, dim, steps) for n_labels in (small, large))
        wide_few, wide_many = (run(table, method, n_labels, 4 * batch, dim, steps) for n_labels in (small, large))
        arrays = (many - few) / (4e-9 * (large - small) * dim)
        share = ((wide_many - many) - (wide_few - few)) / (4e-9 * (large - small) * 3 * batch)
        click.echo(f"{method}: the peak grows by {arrays:.1f} arrays of L x D and {share:.2f} of L x batch")
        failures += [f"{method} held a matrix of L x batch."] * (share > 0.5)
    finish(failures)


if __name__ == "__main__":
    main()
