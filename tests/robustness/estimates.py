"""Compare the stages' estimates with what they really take, on the default dataset and on one of many labels (Linux).

python -m tests.robustness.estimates [--labels 60000] [--docs 30000] [--only default|generated]
                                     [--folder DIR] [--first STAGE]

makes   each stage of both pipelines runs as its dvc.yaml would run it, in a scratch folder and a process of its own,
        whose peak resident memory and time are measured
prints  a row per stage: the estimated and the measured memory and time, and the largest parts of the estimate
exit    1 if an estimate of memory is more than 1.5 times what was measured, or less than that part of it

The generated dataset has short texts of words from a power law; labels are drawn from a power law too. Its parameters
are those of params.yaml and unidec/params.yaml but for what makes it possible in half an hour on two cores: two epochs,
the classifiers of the batch's labels alone, a coarser graph.
"""

import gzip
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from ruamel.yaml import YAML

from benchmarks.apart import LAUNCHER, Measured
from benchmarks.generated import known_words
from longtail.estimates import stage_module, with_dims
from longtail.sizes import raw
from stages import parameters
from testing.programs import ROOT, Table, finish
from testing.tiny import EVERY
from xcutils.core.costs import Estimate, Sizes, sizes_of, this_host
from xcutils.core.pipelines import MODULAR, PIPELINES, Pipeline
from xcutils.core.rules import settled

LIMIT = 1.5
NO_STAGE = "none"
TEST_DOCS = 5000  # of the generated dataset
GENERATED = {  # pipeline -> what the generated dataset changes in its parameters
    "": (
        "prepare.validation=0.02",
        "K=16384",
        "encoder.epochs=2",
        "encoder.cluster_from=1",
        "classifier.labels=batch",
        "classifier.epochs=2",
        "classifier.cluster_from=1",
        "index.ef_construction=50",
    ),
    "unidec": ("train.epochs=2", "train.average_after=0", "index.ef_construction=50"),
}
COLUMNS = {
    "stage": "<14",
    "estimate GB": ">11.2f",
    "measured": ">9.2f",
    "ratio": ">7.2f",
    "estimate s": ">11.0f",
    "measured s": ">11.0f",
    "CPU s": ">7.0f",
    "largest parts": "<",
}


@dataclass(frozen=True)
class Comparison:
    """A stage's estimate beside what it took."""

    stage: str
    estimate: Estimate
    measured: Measured

    @property
    def ratio(self) -> float:
        """The estimated by the measured memory."""
        return self.estimate.peak / self.measured.peak

    def row(self) -> list:
        memory = [self.estimate.peak / 1e9, self.measured.peak / 1e9, self.ratio]
        times = [self.estimate.seconds, self.measured.seconds, self.measured.cpu]
        return [self.stage, *memory, *times, self.estimate.largest()]


# --- the generated dataset --------------------------------------------------------------------------------------------


def generate(folder: Path, n_labels: int, n_docs: int) -> None:
    """Write a dataset: a label is 2 to 5 words, a document the words of one of its 1 to 9 labels and three more."""
    rng = np.random.default_rng(0)
    known = known_words()
    chances = 1 / np.arange(10, len(known) + 10)
    picks = iter(rng.choice(len(known), 5 * n_labels + 3 * (n_docs + TEST_DOCS), p=chances / chances.sum()))
    labels = [" ".join(known[next(picks)] for _ in range(count)) for count in rng.integers(2, 6, n_labels)]
    chances = rng.permutation(1 / np.arange(10, n_labels + 10))
    drawn = rng.choice(n_labels, (n_docs + TEST_DOCS, 9), p=chances / chances.sum())

    def docs(rows: range) -> Iterator[dict]:
        for row in rows:
            own = sorted(set(drawn[row, : 1 + row % 9].tolist()))
            title = " ".join([labels[drawn[row, 0]], *(known[next(picks)] for _ in range(3))])
            yield {"uid": f"d{row}", "title": title, "target_ind": own}

    folder.mkdir(parents=True)
    parts = {
        "lbl": ({"uid": f"l{i}", "title": text} for i, text in enumerate(labels)),
        "trn": docs(range(n_docs)),
        "tst": docs(range(n_docs, n_docs + TEST_DOCS)),
    }
    for name, rows in parts.items():
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8", compresslevel=1) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


# --- running and comparing --------------------------------------------------------------------------------------------


def write_params(folder: Path, pipeline: Pipeline, changes: tuple[str, ...]) -> None:
    """Write the pipeline's parameters with some changes, `name=value`, into the folder."""
    file = folder / pipeline.params
    file.parent.mkdir(exist_ok=True)
    with open(file, "w", encoding="utf-8") as opened:
        YAML().dump(parameters(ROOT / pipeline.params, changes).values, opened)


def run(stage: str, command: str, folder: Path) -> Measured:
    """What the stage takes in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    log, took = (folder / f"{stage}.{kind}" for kind in ("log", "took"))
    took.unlink(missing_ok=True)
    words = [sys.executable, "-S", "-c", LAUNCHER, str(took.resolve()), sys.executable, *shlex.split(command)[1:]]
    with open(log, "w", encoding="utf-8") as opened:
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(words, cwd=folder, env=environment, stderr=opened, stdout=opened)
    if done.returncode:
        raise click.ClickException(f"{stage} failed:\n{log.read_text(encoding='utf-8')}")
    facts = json.loads(took.read_text(encoding="utf-8"))
    return Measured(facts["peak"], facts["seconds"], facts["cpu"])


def compare(folder: Path, dataset: Path, first: str) -> Iterator[Comparison]:
    """Run every stage from `first` on in the folder; those before it are as they were measured there before."""
    values = {pipeline.folder: parameters(folder / pipeline.params).values for pipeline in PIPELINES.values()}
    sizes, host = raw(dataset, values[""]), this_host()
    order = [*EVERY, NO_STAGE]
    for name in EVERY:
        place, _, stage = name.rpartition("/")
        pipeline, params = PIPELINES[place], values[place]
        estimate = stage_module(pipeline, stage).cost(
            with_dims(sizes, pipeline, params, values[""]), settled(params, sizes), host
        )
        record = folder / f"{name}.json"
        if order.index(name) >= order.index(first):
            measured = run(name, EVERY[name]["cmd"].replace("${dataset}", str(dataset)), folder)
            record.write_text(json.dumps(vars(measured)), encoding="utf-8")
        yield Comparison(name, estimate, Measured(**json.loads(record.read_text(encoding="utf-8"))))
        if name == "prepare":
            sizes = prepared_sizes(folder)


def prepared_sizes(folder: Path) -> Sizes:
    return sizes_of(*(folder / "data" / "prepare" / part for part in ("train", "labels", "test")))


def print_comparisons(title: str, folder: Path, dataset: str, changes: dict, first: str) -> list[Comparison]:
    """The comparisons on one dataset, printed as they come."""
    for pipeline in PIPELINES.values():
        own = (f"dataset={json.dumps(dataset)}",) if pipeline is MODULAR else ()
        write_params(folder, pipeline, (*changes.get(pipeline.folder, ()), *own))
    click.echo(f"\n{title}")
    table = Table(COLUMNS)
    table.print_head()
    found = []
    for one in compare(folder, (ROOT / dataset).resolve(), first):
        table.print_row(one.row())
        found.append(one)
    return found


def failures(found: list[Comparison]) -> list[str]:
    """A sentence if the estimate that is furthest off is too far off."""
    worst = max(found, key=lambda one: abs(math.log(one.ratio)))
    click.echo(f"\nmemory: the estimate furthest off is {worst.ratio:.2f} times what was measured ({worst.stage})")
    return [] if 1 / LIMIT <= worst.ratio <= LIMIT else [f"{worst.stage}: an estimate may be off by {LIMIT} times."]


@click.command()
@click.option("--labels", default=60_000, show_default=True, help="Labels of the generated dataset.")
@click.option("--docs", default=30_000, show_default=True, help="Training documents of the generated dataset.")
@click.option("--only", type=click.Choice(["default", "generated"]), help="One of the two datasets.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to work, and leave the results.")
@click.option(
    "--first",
    type=click.Choice([*EVERY, NO_STAGE]),
    default="prepare",
    show_default=True,
    help="Run from this stage on, upon what an earlier run left in --folder; none: print its figures again.",
)
def main(labels: int, docs: int, only: str | None, folder: Path | None, first: str) -> None:
    """Run the stages on both datasets and print each estimate beside what was measured."""
    scratch = Path(folder or tempfile.mkdtemp(prefix="estimates-")).resolve()
    found = []
    try:
        if only != "generated":
            (scratch / "default").mkdir(parents=True, exist_ok=True)
            dataset = parameters(ROOT / MODULAR.params).top.dataset
            found += print_comparisons("default dataset", scratch / "default", dataset, {}, first)
        if only != "default":
            titles = scratch / "generated" / "titles"
            if first == "prepare":
                generate(titles, labels, docs)
            name = f"{labels:,} labels, {docs:,} documents"
            found += print_comparisons(name, scratch / "generated", str(titles), GENERATED, first)
    finally:
        if folder is None:
            shutil.rmtree(scratch, ignore_errors=True)
    finish(failures(found))


if __name__ == "__main__":
    main()
