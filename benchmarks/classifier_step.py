"""What one training step of the classifiers costs with few labels and with very many (Linux).

python -m benchmarks.classifier_step [--dim 384] [--batch 1024] [--small 10000] [--large 1300000] [--steps 30]
                                     [--positives 20] [--pool 4096] [--rounds 3]

The steps are those of the pipeline: stages.classifier's loss over the labels of the batch (classifier.labels=batch),
frozen encoder, the rest as in params.yaml, through the one training loop. Both tables get batches of one shape: as many
documents, positives per document and labels in the pool; a pool's labels are drawn from the whole table, so that the
long table's rows lie far apart in memory. Each table has a process of its own, and the two take turns, so that a busy
spell of the machine meets both. The medians leave a process's first steps out: the very first one makes and clears the
table's moments, which costs L rows once in a training; it is shown apart. CPU is the time of all threads together.
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np

from benchmarks.apart import measured

ROOT = Path(__file__).resolve().parents[1]
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
    from stages.classifier import OneVsAll, Params
    from xcutils.core import runtime
    from xcutils.core.params import load_params
    from xcutils.core.ragged import Ragged
    from xcutils.train.points import Points
    from xcutils.train.training import Optimisers, Plan, train

    device = runtime.start(0)
    p = replace(load_params(Params, "classifier"), labels="batch", encoder_lr=0.0, batch_size=batch)
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"seconds": seconds[WARM_UP:], "cpu": cpu[WARM_UP:], "first": seconds[0], "peak": peak}))


def summary(n_labels: int, batch: int, pool: int, rounds: list[dict]) -> dict:
    """One row of the table from all rounds of one table: times in milliseconds."""
    low, median, high = 1000 * np.quantile([v for r in rounds for v in r["seconds"]], [0.25, 0.5, 0.75])
    cpu = 1000 * np.median([v for r in rounds for v in r["cpu"]])
    first, peak = 1000 * np.median([r["first"] for r in rounds]), max(r["peak"] for r in rounds)
    return dict(zip(COLUMNS, (n_labels, batch, pool, median, f"{low:.1f} - {high:.1f}", cpu, first, peak)))


def print_table(rows: list[dict]) -> None:
    """Print one line per row under a line of column names."""
    widths = [f"{spec[0]}{spec[1:].partition('.')[0].rstrip(',')}" for spec in COLUMNS.values()]
    click.echo(" ".join(format(name, width) for name, width in zip(COLUMNS, widths)))
    for row in rows:
        click.echo(" ".join(format(row[name], spec) for name, spec in COLUMNS.items()))


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
    print_table(rows)
    ratio, cpu = (rows[-1][name] / rows[0][name] for name in ("ms per step", "CPU"))
    click.echo(f"a step with {large:,} labels costs {ratio:.2f} times one with {small:,} ({cpu:.2f} in CPU time)")


if __name__ == "__main__":
    main()
