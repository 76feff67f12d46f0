"""What one training step of the classifiers costs with few labels and with very many (Linux).

python -m benchmarks.classifier_step [--dim 384] [--batch 1024] [--small 10000] [--large 1300000] [--steps 30]
                                     [--positives 20] [--pool 4096] [--rounds 3]

The steps are those of the pipeline: stages.classifier's loss over the labels of the batch (classifier.labels=batch),
frozen encoder, the rest as in params.yaml, through the one training loop. The table of few classifiers and that of many
get batches of one shape: as many documents, positives per document and labels in the pool; a pool's labels are drawn
from the whole table, so that the long table's rows lie far apart in memory. Each table has a process of its own, and
the two take turns, so that both meet a busy moment of the machine. The medians leave a process's first steps out: the
very first one makes and clears the table's moments, which costs L rows once in a training, and has a column of its own.
CPU is the time of all threads together.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import click
import numpy as np

from benchmarks.apart import ROOT, measured, peak_gb
from testing.programs import Table

WARM_UP = 5  # steps before those that count
COLUMNS = {  # name of a column: format of its values
    "labels": ">10,",
    "docs": ">6,",
    "pool": ">6,",
    "ms per step": ">12.1f",
    "quartiles": ">15",
    "CPU": ">7.1f",
    "first step": ">11.1f",
    "peak GB": ">8.2f",
}


def draw_batches(n_labels: int, batch: int, positives: int, pool: int, steps: int) -> np.ndarray:
    """(steps, batch, positives) label ids: every step has a pool of its own, each label of it used equally often.

    A document's positives are distinct, since they stand side by side in the pool's random order.
    """
    rng = np.random.default_rng(0)
    pools = np.stack([rng.choice(n_labels, size=pool, replace=False) for _ in range(steps)])
    place = np.arange(batch * positives) % pool
    return pools[:, place].reshape(steps, batch, positives)


def measure(*numbers: str) -> None:
    """Train that many steps; print each one's seconds, its CPU seconds and the process's peak memory as JSON."""
    n_labels, dim, batch, positives, pool, steps = map(int, numbers)
    from stages import parameters
    from stages.classifier import OneVsAll, Params
    from xcutils.core import runtime
    from xcutils.core.ragged import Ragged
    from xcutils.train.points import Points
    from xcutils.train.training import Optimisers, Plan, train

    device = runtime.start(0)
    p = parameters(ROOT / "params.yaml").section("classifier", Params)
    p = replace(p, labels="batch", encoder_lr=0.0, batch_size=batch)
    steps += WARM_UP
    labels_of = draw_batches(n_labels, batch, positives, pool, steps).astype(np.int32).ravel()
    positives_of = Ragged(labels_of, np.arange(0, len(labels_of) + 1, positives, dtype=np.int64))
    tokens = Ragged(np.zeros(0, dtype=np.int32), np.zeros(len(positives_of) + 1, dtype=np.int64))
    frozen = SimpleNamespace(tables=[])  # never called: the documents' embeddings stand still
    docs = np.random.default_rng(1).standard_normal((len(tokens), dim), dtype=np.float32)
    points = Points(tokens, positives_of, None, np.zeros(0, dtype=np.int64), np.arange(len(tokens)))
    model = OneVsAll(frozen, points, docs, np.zeros((n_labels, dim), dtype=np.float32), p)
    model.table.values.normal_()  # filled in place: a second copy would count as the steps' memory
    batches = np.arange(len(tokens)).reshape(steps, batch)
    seconds, cpu = [], []

    def watch(todo, _):
        for docs in todo:
            start, cpu_start = time.perf_counter(), time.process_time()
            yield docs  # the loop comes back for the next batch when the step is done
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)

    plan = Plan(epochs=1, warmup=p.warmup, seed=0, device=device)
    train(plan, [Optimisers(None, p.lr, tables=[model.table])], lambda *_: list(batches), model.loss, watch=watch)
    print(json.dumps({"seconds": seconds[WARM_UP:], "cpu": cpu[WARM_UP:], "first": seconds[0], "peak": peak_gb()}))


def summary(n_labels: int, batch: int, pool: int, rounds: list[dict]) -> dict:
    """The printed row of one table of classifiers, from all its rounds: times in milliseconds."""
    low, median, high = 1000 * np.quantile([v for r in rounds for v in r["seconds"]], [0.25, 0.5, 0.75])
    return {
        "labels": n_labels,
        "docs": batch,
        "pool": pool,
        "ms per step": median,
        "quartiles": f"{low:.1f} - {high:.1f}",
        "CPU": 1000 * np.median([v for r in rounds for v in r["cpu"]]),
        "first step": 1000 * np.median([r["first"] for r in rounds]),
        "peak GB": max(r["peak"] for r in rounds),
    }


@click.command()
@click.option("--dim", default=384, show_default=True, help="Dimensions.")
@click.option("--batch", default=1024, show_default=True, help="Documents in a batch.")
@click.option("--positives", default=20, show_default=True, help="Positives of a document.")
@click.option("--pool", default=4096, show_default=True, help="Labels that a batch's documents have between them.")
@click.option("--small", default=10_000, show_default=True, help="Labels of the short table.")
@click.option("--large", default=1_300_000, show_default=True, help="Labels of the long table.")
@click.option("--steps", default=30, show_default=True, help="Steps of a process that count.")
@click.option("--rounds", default=3, show_default=True, help="Processes of each table.")
def main(dim: int, batch: int, positives: int, pool: int, small: int, large: int, steps: int, rounds: int) -> None:
    """Time the same steps on a short and on a long table and print one table and the ratio."""
    if not positives <= pool <= min(small, large, batch * positives):
        raise click.UsageError("--pool must lie between --positives and the smaller of --small and all positives.")
    results: dict[int, list[dict]] = {small: [], large: []}
    for _ in range(rounds):
        for n_labels, rounds_of in results.items():
            rounds_of.append(measured("benchmarks.classifier_step", n_labels, dim, batch, positives, pool, steps))
    rows = [summary(n_labels, batch, pool, rounds_of) for n_labels, rounds_of in results.items()]
    table = Table(COLUMNS)
    table.print_head()
    for row in rows:
        table.print_row(list(row.values()))
    ratio, cpu = (rows[-1][name] / rows[0][name] for name in ("ms per step", "CPU"))
    click.echo(f"a step with {large:,} labels costs {ratio:.2f} times one with {small:,} ({cpu:.2f} in CPU time)")


if __name__ == "__main__":
    main()
