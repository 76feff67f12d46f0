"""The stages' estimates against what they really take: the default dataset, and a generated one of many labels (Linux).

python -m tests.robustness.estimates [--labels 200000] [--docs 100000] [--only default|generated]
                             [--folder DIR] [--first STAGE]

Each stage of both pipelines runs as its dvc.yaml would run it, in a scratch folder and a process of its own, whose peak
resident memory and time are measured. The generated set has short texts of words from a power law; labels are drawn
from a power law too. Its parameters are those of params.yaml and unidec/params.yaml but for what makes it possible in
half an hour on two cores: one layer in `embed`, two epochs, the classifiers of the batch's labels alone, a coarser
graph. Ends with 1 when an estimate of memory is more than 1.5 times what was measured, or less than that part of it.
"""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
from ruamel.yaml import YAML

from longtail import estimates
from longtail.sizes import raw
from xcutils.core.params import load_all

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1.5
NONE = "none"
TEST = 5000  # test documents of a generated set
FILES = {"": "params.yaml", "unidec/": "unidec/params.yaml"}  # each pipeline's parameters
GENERATED = {  # what differs from them
    "": (
        "prepare.validation=0.02",
        "embed.layers=1",
        "K=16384",
        "encoder.epochs=2",
        "encoder.cluster_from=1",
        "classifier.labels=batch",
        "classifier.epochs=2",
        "classifier.cluster_from=1",
        "index.ef_construction=50",
    ),
    "unidec/": ("train.epochs=2", "train.average_after=0", "index.ef_construction=50"),
}
NAMES = (*estimates.STAGES, *(f"unidec/{stage}" for stage in estimates.UNIFIED))  # of all stages, in their order


def words() -> list[str]:
    """Whole words that the tokenizer knows."""
    from xcutils.model.tokens import load_tokenizer

    vocabulary = load_tokenizer(load_all(file=ROOT / "params.yaml")["prepare"]["tokenizer"]).get_vocab()
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)


def generate(folder: Path, n_labels: int, n_docs: int) -> None:
    """A dataset folder: a label is 2 to 5 words, a document the words of one of its 1 to 9 labels and three more."""
    rng, known = np.random.default_rng(0), words()
    chances = 1 / np.arange(10, len(known) + 10)
    picks = iter(rng.choice(len(known), 5 * n_labels + 3 * (n_docs + TEST), p=chances / chances.sum()))
    labels = [" ".join(known[next(picks)] for _ in range(count)) for count in rng.integers(2, 6, n_labels)]
    chances = rng.permutation(1 / np.arange(10, n_labels + 10))
    drawn = rng.choice(n_labels, (n_docs + TEST, 9), p=chances / chances.sum())
    folder.mkdir(parents=True)

    def write(name: str, rows) -> None:
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8", compresslevel=1) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def docs(rows: range):
        for row in rows:
            own = sorted(set(drawn[row, : 1 + row % 9].tolist()))
            title = " ".join([labels[drawn[row, 0]], *(known[next(picks)] for _ in range(3))])
            yield {"uid": f"d{row}", "title": title, "target_ind": own}

    write("lbl", ({"uid": f"l{i}", "title": text} for i, text in enumerate(labels)))
    write("trn", docs(range(n_docs)))
    write("tst", docs(range(n_docs, n_docs + TEST)))


def write_params(folder: Path, pipeline: str, changes: tuple[str, ...]) -> None:
    """The pipeline's parameters with some changes, `name=value`."""
    tree, file = load_all(changes, file=ROOT / FILES[pipeline]), folder / FILES[pipeline]
    file.parent.mkdir(exist_ok=True)
    with open(file, "w", encoding="utf-8") as opened:
        YAML().dump(tree, opened)


def run(stage: str, command: str, folder: Path) -> tuple[float, float, float]:
    """(peak resident bytes, seconds, CPU seconds) of a stage in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, *shlex.split(command)[1:]]
    begin = time.perf_counter()
    logged = folder / f"{stage}.log"
    with open(logged, "w", encoding="utf-8") as log:
        process = subprocess.Popen(words, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"{stage} failed:\n{logged.read_text(encoding='utf-8')}")
    return usage.ru_maxrss * 1024.0, time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


def compare(folder: Path, dataset: str, first: str) -> list[dict]:
    """Run every stage from `first` on in the folder; one row each, earlier ones as they were measured there before."""
    rows, order, given = [], [*NAMES, NONE], (ROOT / dataset).resolve()
    sizes = raw(given if given.is_dir() else Path(dataset), load_all(file=folder / "params.yaml"))
    for pipeline, file in FILES.items():
        params, table = load_all(file=folder / file), estimates.UNIFIED if pipeline else estimates.STAGES
        stages = YAML(typ="safe").load((ROOT / pipeline / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
        for stage, facts in stages.items():
            name, guess = pipeline + stage, table[stage](sizes, params, estimates.host())
            record = folder / f"{name}.json"
            if order.index(name) >= order.index(first):
                command = facts["cmd"].replace("${dataset}", str(given))
                record.write_text(json.dumps(run(name, command, folder)), encoding="utf-8")
            peak, seconds, cpu = json.loads(record.read_text(encoding="utf-8"))
            if name == "prepare":
                parts = (folder / "data" / "prepare" / part for part in ("train", "labels", "test"))
                sizes = estimates.prepared(*parts)
            rows.append({"stage": name, "guess": guess, "peak": peak, "seconds": seconds, "cpu": cpu})
            print_row(rows[-1])
    return rows


def print_row(row: dict) -> None:
    guess, peak = row["guess"], row["peak"]
    click.echo(
        f"{row['stage']:<16}{guess.peak / 1e9:10.2f}{peak / 1e9:10.2f}{guess.peak / peak:8.2f}"
        f"{guess.seconds:12.0f}{row['seconds']:10.0f}{row['cpu']:8.0f}   {guess.largest()}"
    )


def bench(name: str, folder: Path, dataset: str, changes: dict[str, tuple[str, ...]], first: str) -> list[dict]:
    """One table."""
    for pipeline in FILES:
        own = (f"dataset={json.dumps(dataset)}",) if not pipeline else ()
        write_params(folder, pipeline, (*changes.get(pipeline, ()), *own))
    click.echo(f"\n{name}")
    columns = ("estimate GB", "measured", "ratio", "estimate s", "measured", "CPU s")
    click.echo(f"{'stage':<15}" + "".join(f"{c:>{w}}" for c, w in zip(columns, (11, 10, 8, 12, 10, 8))))
    return compare(folder, dataset, first)


@click.command()
@click.option("--labels", default=200_000, show_default=True, help="Labels of the generated set.")
@click.option("--docs", default=100_000, show_default=True, help="Training documents of the generated set.")
@click.option("--only", type=click.Choice(["default", "generated"]), help="One of the two sets.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where to work, and leave the results; scratch without."
)
@click.option(
    "--first",
    type=click.Choice([*NAMES, NONE]),
    default="prepare",
    show_default=True,
    help="Run from this stage on, upon what an earlier run left in --folder; none: print its figures again.",
)
def main(labels: int, docs: int, only: str | None, folder: Path | None, first: str) -> None:
    """Run the stages on both sets and print each estimate beside what was measured."""
    scratch = Path(folder or tempfile.mkdtemp(prefix="estimate-")).resolve()
    rows = []
    try:
        if only != "generated":
            (scratch / "default").mkdir(parents=True, exist_ok=True)
            dataset = load_all(file=ROOT / "params.yaml")["dataset"]
            rows += bench("default dataset", scratch / "default", dataset, {}, first)
        if only != "default":
            raw_folder = scratch / "generated" / "titles"
            if first == "prepare":
                generate(raw_folder, labels, docs)
            title = f"{labels:,} labels, {docs:,} documents"
            rows += bench(title, scratch / "generated", str(raw_folder), GENERATED, first)
    finally:
        if folder is None:
            shutil.rmtree(scratch, ignore_errors=True)
    worst = max(rows, key=lambda row: abs(np.log(row["guess"].peak / row["peak"])))
    ratio = worst["guess"].peak / worst["peak"]
    click.echo(f"\nmemory: the estimate furthest off is {ratio:.2f} times what was measured ({worst['stage']})")
    sys.exit(not 1 / LIMIT <= ratio <= LIMIT)


if __name__ == "__main__":
    main()
