"""Longtail's own run on a dataset, for the comparison with other tools: its metrics, its costs, its split (Linux).

python -m benchmarks.ours --work DIR [--dataset PATH] [-S NAME=VALUE ...]

makes   WORK/checkout, a clone of HEAD in which `dvc repro` runs; a run that is finished is not made again
writes  WORK/metrics.json, WORK/timings.json (time, memory, size) and WORK/export, the split that `xc export` writes

The time of training is that of the whole `dvc repro`, metrics included; memory is that of the largest stage.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.apart import ROOT
from benchmarks.runs import Clone, say_what_is_left_out
from stages import parameters
from xcutils.core import artifacts, console
from xcutils.core.errors import UserError


def xc(clone: Clone, *words: str) -> None:
    """Run a command of the clone's own `xc` there."""
    command = [str(clone.python), "-m", "longtail.cli", *words]
    done = subprocess.run(command, cwd=clone.checkout, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`xc {' '.join(words)}` in {clone.checkout} failed:\n{done.stderr}")


def costs(clone: Clone) -> dict:
    """Seconds of the whole run and of each stage, and the memory of the largest one; those of prediction."""
    took = clone.finished()
    file = clone.folder.resolve() / "prediction.json"
    xc(clone, "timings", "--predict-only", "--out", str(file))
    return {
        "train_seconds": sum(one.seconds for one in took.values()),
        "rss_mb": max(one.peak for one in took.values()) / 1e6,
        **json.loads(file.read_text(encoding="utf-8")),
        "stages": {name: one.seconds for name, one in took.items()},
    }


def export(clone: Clone, folder: Path) -> None:
    """Write the run's split, unless just this one is there: then what other tools made of it still counts."""
    finished = clone.folder / "finished.json"
    if folder.is_dir() and folder.stat().st_mtime > finished.stat().st_mtime:
        return
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    xc(clone, "export", str(new.resolve()))
    if folder.is_dir() and contents(folder) == contents(new):
        shutil.rmtree(new)
        return
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def contents(folder: Path) -> dict[str, str]:
    """{file: its hash}"""
    return {path.name: artifacts.sha256(path) for path in folder.iterdir()}


def dataset_change(dataset: Path | None) -> list[str]:
    """The parameter that a clone needs to read this dataset, none for its own."""
    if dataset is None:
        return []
    if not dataset.exists():
        raise UserError(f"There is no dataset {dataset}: correct the path.")
    return [f"dataset={json.dumps(str(dataset.resolve()))}"]


def changes_for(dataset: Path | None, given: Sequence[str]) -> list[str]:
    """The parameters of the run; a mistake in them is told before anything runs."""
    changes = [*dataset_change(dataset), *given]
    parameters(ROOT / "params.yaml", changes)
    return changes


@click.command()
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Where to work.")
@click.option("--dataset", type=click.Path(path_type=Path), help="A dataset instead of the one of params.yaml.")
@click.option("-S", "--set", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of the run.")
@console.command
def main(work: Path, dataset: Path | None, given: tuple[str, ...]) -> None:
    """Run the pipeline on a dataset and write what a comparison needs."""
    say_what_is_left_out()
    clone = Clone(work, changes=changes_for(dataset, given))
    console.say(f"Longtail: {'result is there' if clone.is_finished else 'running'}")
    found = costs(clone)
    shutil.copy(clone.checkout / "metrics.json", work / "metrics.json")
    (work / "timings.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    export(clone, work / "export")


if __name__ == "__main__":
    main()
