"""Time and memory of Gandalf's label correlations at the size of LF-AmazonTitles-1.3M (Linux).

python -m benchmarks.correlations [--docs 2248619] [--labels 1305265] [--per-doc 22.2] [--limit 16]
                                  [--targets co-occurrence --targets glas --targets random-walk]

The positives are generated: labels lie on a circle, each as long as it is popular (a power law); a document has a place
there, most of its labels lie around it, the rest are popular ones from anywhere, and documents have few labels or many
(log-normal). Each kind of target has a process of its own that makes what the stage `gandalf` writes of one fit: every
label's text is a point, and the rest is as in params.yaml. The peak is that of the whole process, input included,
beside what `xc estimate` says. Ends with 1 when a peak is above the limit.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks.apart import ROOT, measured, peak_gb
from testing.programs import Table, finish
from xcutils.core.costs import Host, Sizes
from xcutils.core.ragged import Ragged, starts

KINDS = ("co-occurrence", "glas", "random-walk")
CHUNK = 1 << 16  # documents generated at once
HEAD = 100  # labels of about equal chance among those drawn from anywhere
AROUND = 0.85  # share of a document's labels that lie around its place
WIDTH = 30  # labels to each side of that place, about
COLUMNS = {  # name of a column: format of its values
    "targets": "<13",
    "seconds": ">8.0f",
    "CPU": ">6.0f",
    "estimate s": ">11.0f",
    "peak GB": ">8.2f",
    "estimate GB": ">12.2f",
    "per label": ">10.1f",
    "in all": ">12,",
}


def generate(n_docs: int, n_labels: int, per_doc: float, seed: int = 0) -> Ragged:
    """The labels of each document, ascending."""
    rng = np.random.default_rng(seed)
    popularity = rng.permutation((np.arange(n_labels) + 0.0015 * n_labels) ** -0.9)
    by_popularity = np.argsort(-popularity)
    edges = np.cumsum(popularity / popularity.sum())
    values, lengths = [], []
    for start in range(0, n_docs, CHUNK):
        count = min(CHUNK, n_docs - start)
        wanted = np.ceil(rng.lognormal(np.log(per_doc) - 0.32, 0.8, count)).clip(1, n_labels // 2).astype(int)
        rows = np.repeat(np.arange(count), 2 * wanted)  # some are drawn twice
        near = rng.random(count)[rows] + WIDTH / n_labels * rng.standard_t(2, len(rows))
        near = np.minimum(np.searchsorted(edges, near % 1), n_labels - 1)
        popular = by_popularity[(HEAD * ((1 + n_labels / HEAD) ** rng.random(len(rows)) - 1)).astype(int)]
        labels = np.where(rng.random(len(rows)) < AROUND, near, popular)
        keys = np.unique(rows * n_labels + labels)
        rows, labels = keys // n_labels, keys % n_labels
        order = np.lexsort((rng.random(len(keys)), rows))  # any of the different ones
        place = np.empty(len(keys), dtype=np.int64)
        place[order] = np.arange(len(keys)) - np.searchsorted(rows, np.arange(count))[rows]
        kept = place < wanted[rows]
        values.append(labels[kept].astype(np.int32))
        lengths.append(np.bincount(rows[kept], minlength=count))
    return Ragged(np.concatenate(values), starts(np.concatenate(lengths)))


def measure(folder: str, n_labels: str, targets: str) -> None:
    """Make one fit's points as the stage does; print what that took as JSON."""
    from stages import parameters
    from stages.gandalf import Params, points

    p = parameters(ROOT / "params.yaml").section("gandalf", Params)
    p = replace(p, labels=1.0, targets=targets)
    files = [Path(folder) / f"{name}.npy" for name in ("values", "offsets")]
    positives = Ragged(*(np.load(file, mmap_mode="r", allow_pickle=False) for file in files))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    made = points(np.arange(len(positives)), positives, int(n_labels), p, seed=0)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak_gb(), "targets": len(made["weights"])}))


def run(folder: Path, sizes: Sizes, targets: str) -> dict:
    """One row of the table: what `measure` prints, from a process of its own, beside the estimate."""
    from stages import gandalf, parameters

    found = measured("benchmarks.correlations", folder, sizes.labels, targets)
    params = parameters(ROOT / "params.yaml", ["gandalf.labels=1", f"gandalf.targets={targets}"]).values
    estimate = gandalf.cost(sizes, params, Host(threads=1, speed=1.0))
    return {
        "targets": targets,
        "seconds": found["seconds"],
        "CPU": found["cpu"],
        "estimate s": estimate.seconds,
        "peak GB": found["peak"],
        "estimate GB": estimate.peak / 1e9,
        "per label": found["targets"] / sizes.labels,
        "in all": found["targets"],
    }


def describe(positives: Ragged, n_labels: int) -> str:
    """The generated positives in a line."""
    frequency = np.sort(np.bincount(positives.values, minlength=n_labels))
    lengths = positives.lengths
    return (
        f"N = {len(lengths):,} documents of {lengths.mean():.1f} labels (at most {lengths.max()}), L = {n_labels:,} "
        f"labels of {frequency.mean():.1f} documents (median {frequency[n_labels // 2]}, at most {frequency[-1]:,}); "
        f"{(lengths**2).sum():,} pairs of labels in one document"
    )


@click.command()
@click.option("--docs", default=2_248_619, show_default=True, help="Training documents.")
@click.option("--labels", default=1_305_265, show_default=True, help="Labels.")
@click.option("--per-doc", default=22.2, show_default=True, help="Labels of a document, on average.")
@click.option("--limit", default=16.0, show_default=True, help="Gigabytes that a process may take.")
@click.option("--targets", multiple=True, type=click.Choice(KINDS), help="Some kinds of target.  [default: all]")
def main(docs: int, labels: int, per_doc: float, limit: float, targets: tuple[str, ...]) -> None:
    """Make every kind of target of generated positives and print one table."""
    with tempfile.TemporaryDirectory() as folder:
        positives = generate(docs, labels, per_doc)
        click.echo(describe(positives, labels))
        np.save(Path(folder) / "values.npy", positives.values)
        np.save(Path(folder) / "offsets.npy", positives.offsets)
        sizes = Sizes(docs, labels, len(positives.values), refit=False)
        del positives
        table = Table(COLUMNS)
        table.print_head()
        rows = []
        for kind in targets or KINDS:
            rows.append(run(Path(folder), sizes, kind))
            table.print_row(list(rows[-1].values()))
    worst = max(row["peak GB"] for row in rows)
    click.echo(f"the most memory: {worst:.2f} GB of {limit:g}")
    finish([f"{worst:.2f} GB are more than {limit:g}."] if worst > limit else [])


if __name__ == "__main__":
    main()
