"""Peak memory of steps that score every label: DEXML's encoder and Renee's classifiers, few labels and many (Linux).

python -m benchmarks.all_labels [--small 10000] [--large 100000] [--batch 1024] [--dim 384] [--steps 3]

The steps are those of the stages: stages.encoder with labels: all and stages.classifier with loss: bce, through the one
training loop; label texts of five words, documents of ten. A step may hold arrays of L x D (label vectors, their
gradients, classifiers, moments) and one chunk of scores, but nothing of L x batch or of L x tokens x D. What stands
before the first step is told apart; `L x batch` is what the matrix of all scores alone would take.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks.apart import measured

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("dexml", "renee")
WORDS, LABEL_WORDS, DOC_WORDS, POSITIVES = 20_000, 5, 10, 20


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(method: str, *numbers: str) -> None:
    """Train that many steps; print the peak before and after and the seconds of a step as JSON."""
    n_labels, batch, dim, steps = map(int, numbers)
    import torch

    from stages import classifier, encoder
    from xcutils.core import runtime
    from xcutils.core.params import load_params
    from xcutils.core.ragged import Ragged
    from xcutils.model.encoders import BagOfEmbeddings
    from xcutils.train.points import Points
    from xcutils.train.training import Optimisers, Plan, train

    device, rng = runtime.start(0), np.random.default_rng(0)

    def texts(count: int, words: int) -> Ragged:
        values = rng.integers(0, WORDS, count * words, dtype=np.int32)
        return Ragged(values, np.arange(0, len(values) + 1, words, dtype=np.int64))

    docs, labels = texts(batch * steps, DOC_WORDS), texts(n_labels, LABEL_WORDS)
    owned = rng.integers(0, n_labels // POSITIVES, (len(docs), POSITIVES)) + np.arange(POSITIVES) * (
        n_labels // POSITIVES
    )
    positives = Ragged(owned.astype(np.int32).ravel(), np.arange(0, owned.size + 1, POSITIVES, dtype=np.int64))
    vectors = torch.randn(WORDS, dim)
    bag = BagOfEmbeddings(vectors, torch.ones(WORDS, 1), vocabulary=WORDS, ngrams=1)
    if method == "dexml":
        p = replace(load_params(encoder.Params, "encoder"), labels="all", batch_size=batch)
        model = encoder.Siamese(bag, docs, labels, positives, np.full(n_labels, -1, dtype=np.int32), p)
        optimisers = [Optimisers(bag, p.lr, tables=bag.tables)]
    else:
        p = load_params(classifier.Params, "classifier")
        p = replace(p, labels="all", loss="bce", normalise=False, optimizer="sgd", encoder_lr=0.001, batch_size=batch)
        points = Points(docs, positives, None, np.zeros(0, dtype=np.int64), np.arange(len(docs)))
        start = np.zeros((n_labels, dim), dtype=np.float32)
        model = classifier.OneVsAll(bag, points, np.zeros((len(docs), dim), dtype=np.float32), start, p)
        del start
        optimisers = [Optimisers(None, p.lr, tables=[model.table]), Optimisers(bag, 0.001, tables=bag.tables)]
    before, begin = peak_gb(), time.perf_counter()
    batches = list(np.arange(len(docs)).reshape(steps, batch))
    train(Plan(epochs=1, warmup=1, seed=0, device=device), optimisers, lambda *_: batches, model.loss)
    seconds = (time.perf_counter() - begin) / steps
    print(json.dumps({"before": before, "peak": peak_gb(), "seconds": seconds}))


def run(method: str, n_labels: int, batch: int, dim: int, steps: int) -> float:
    """Measure in a process of its own and print the line; the peak in GB."""
    found = measured("benchmarks.all_labels", method, n_labels, batch, dim, steps)
    own, scores = (4 * n_labels * width / 1e9 for width in (dim, batch))
    click.echo(
        f"{method:<8} {n_labels:>9,} {batch:>6,} {found['before']:>10.2f} {found['peak']:>8.2f} "
        f"{found['seconds']:>11.2f} {own:>13.2f} {scores:>13.2f}"
    )
    return found["peak"]


@click.command()
@click.option("--small", default=10_000, show_default=True, help="Labels.")
@click.option("--large", default=100_000, show_default=True, help="Labels.")
@click.option("--batch", default=1024, show_default=True, help="Documents in a batch.")
@click.option("--dim", default=384, show_default=True, help="Dimensions.")
@click.option("--steps", default=3, show_default=True, help="Steps of a process.")
def main(small: int, large: int, batch: int, dim: int, steps: int) -> None:
    """Print each method's peak with few and with many labels, in a batch and in one of four times the size.

    What a larger batch takes more (its texts' vectors) may not grow with L: exit 1 if it does by half of L x batch.
    """
    click.echo("method      labels  batch  before GB  peak GB  s per step  one L x D GB  L x batch GB")
    bad = []
    for method in METHODS:
        few, many = (run(method, n_labels, batch, dim, steps) for n_labels in (small, large))
        wide_few, wide_many = (run(method, n_labels, 4 * batch, dim, steps) for n_labels in (small, large))
        arrays = (many - few) / (4e-9 * (large - small) * dim)
        share = ((wide_many - many) - (wide_few - few)) / (4e-9 * (large - small) * 3 * batch)
        click.echo(f"{method}: the peak grows by {arrays:.1f} arrays of L x D and {share:.2f} of L x batch")
        bad += [method] * (share > 0.5)
    if bad:
        raise SystemExit(f"{' and '.join(bad)} held a matrix of L x batch.")


if __name__ == "__main__":
    main()
