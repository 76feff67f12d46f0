"""Damage every file of every artifact in every way, and see what its readers say.

python -m tests.robustness.damage [--sample N]

makes   two small runs in a temporary folder (made-up texts, a small random checkpoint)
prints  artifact x damage: how many reads were refused with one sentence that names the artifact and the remedy
exit    1 if a read ended in a traceback, a crash, an answer, or another sentence

Damages: truncated, flipped (one bit in the middle), empty, swapped (with another run's file or folder of that name),
version (a manifest of another format). Readers: the stages that have the artifact among their deps, and `xc predict`
of both pipelines.
"""

import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from longtail.cli import main as xc
from longtail.serving import model_of
from testing import tiny
from testing.children import Child, import_all
from testing.programs import Table, finish
from testing.tiny import EVERY
from xcutils.core import artifacts
from xcutils.core.pipelines import PIPELINES

DAMAGES = ("truncated", "flipped", "empty", "swapped", "version")
WRITTEN = [path for stage in EVERY for path in EVERY[stage]["outs"] if isinstance(path, str)]  # no plot
ARTIFACTS = [path for path in WRITTEN if not Path(path).suffix]
METRICS = [str(pipeline.metrics) for pipeline in PIPELINES.values()]
PREDICTIONS = {Path(folder, "predict").as_posix(): pipeline for folder, pipeline in PIPELINES.items()}
SECONDS = 120  # for one read


@dataclass(frozen=True)
class Damage:
    """A file of an artifact with another content; without a file the whole artifact is another run's."""

    artifact: str
    how: str
    file: str = ""
    content: bytes = b""


@dataclass(frozen=True)
class Runs:
    """Two finished runs on different data: the one that is damaged, and the one whose files take their place."""

    damaged: Path
    other: Path


def short_name(artifact: str) -> str:
    """The artifact as stages are named: data/prepare/train is prepare/train, unidec/data/train is unidec/train."""
    return artifact.replace("data/", "", 1)


def readers(artifact: str) -> list[str]:
    """Who reads the artifact: stages by their deps, and predictions."""
    stages = [stage for stage in EVERY if artifact in EVERY[stage]["deps"]]
    predictions = [name for name, pipeline in PREDICTIONS.items() if Path(artifact) == model_of(Path("data"), pipeline)]
    return stages + predictions


def make_runs(base: Path) -> Runs:
    """Two finished runs of both pipelines, with some label texts among the points of the unified one."""
    checkpoint = base / "checkpoint"

    def make_run(folder: Path, seed: int) -> None:
        changes = {"seed": seed, f"{tiny.UNIDEC}:seed": seed, f"{tiny.UNIDEC}:gandalf.labels": 0.5}
        tiny.make_project(folder, tiny.dataset_rows(seed), **tiny.small_checkpoint(checkpoint), **changes)
        tiny.run_stages(folder, EVERY)

    runs = Runs(base / "run0", base / "run1")
    in_children({base: lambda: tiny.make_checkpoint(checkpoint)})
    in_children({runs.damaged: lambda: make_run(runs.damaged, 0), runs.other: lambda: make_run(runs.other, 1)})
    return runs


def in_children(works: dict[Path, Callable]) -> None:
    """Work in each of the folders, at the same time, in processes of their own.

    This process is forked for every read, and must not have computed anything itself.
    """
    for folder in works:
        folder.mkdir(exist_ok=True)
    for child in [Child(folder, folder / "log", work) for folder, work in works.items()]:
        if child.wait() != 0:
            raise click.ClickException(child.said())


def changed(content: bytes, how: str) -> bytes:
    """The content truncated, flipped or empty."""
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :] if content else b""
    return {"truncated": content[:-1], "flipped": flipped, "empty": b""}[how]


def damages(artifact: str, runs: Runs) -> Iterator[Damage]:
    """Every damage of the artifact that changes it."""
    folder, other = runs.damaged / artifact, runs.other / artifact
    for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()):
        content = (folder / name).read_bytes()
        for how in ("truncated", "flipped", "empty"):
            if changed(content, how) != content:
                yield Damage(artifact, how, name, changed(content, how))
        if (other / name).is_file() and (other / name).read_bytes() != content:
            yield Damage(artifact, "swapped", name, (other / name).read_bytes())
    if artifacts.fingerprint(folder) != artifacts.fingerprint(other):
        yield Damage(artifact, "swapped")
    for version in (artifacts.FORMAT - 1, artifacts.FORMAT + 1):
        yield Damage(artifact, "version", artifacts.MANIFEST, manifest_of_version(folder, version))


def manifest_of_version(folder: Path, version: int) -> bytes:
    """The artifact's manifest, sealed as one of another version of the format would be."""
    facts = {key: value for key, value in artifacts.load_manifest(folder).items() if key != "seal"}
    facts["format"] = version
    return (json.dumps(facts | {"seal": artifacts.seal(facts)}, indent=2) + "\n").encode()


def place(damage: Damage, runs: Runs, folder: Path) -> None:
    """Make `folder` a project whose data are those of the run, but for the damaged artifact."""
    shutil.rmtree(folder, ignore_errors=True)
    for home in map(tiny.home, EVERY):
        (folder / home).parent.mkdir(parents=True, exist_ok=True)
        if Path(damage.artifact).is_relative_to(home):
            shutil.copytree(runs.damaged / home, folder / home)
        else:
            os.symlink(runs.damaged / home, folder / home)
    for file in (tiny.PARAMS, tiny.UNIDEC):
        shutil.copyfile(runs.damaged / file, folder / file)
    target = folder / damage.artifact
    if damage.file:
        (target / damage.file).write_bytes(damage.content)
    else:
        shutil.rmtree(target)
        shutil.copytree(runs.other / damage.artifact, target)


def read(folder: Path, reader: str) -> None:
    """Run the reader in the folder; a stage writes `fresh`, so that what it made can be told apart."""
    if reader in PREDICTIONS:
        flags = [f"--{folder}" for folder in [PREDICTIONS[reader].folder] if folder]
        xc(["predict", "small red box", "-k", "3", *flags])
    else:
        *paths, _ = tiny.arguments(reader)
        tiny.module(reader).main([*("fresh.json" if path in METRICS else path for path in paths), "fresh"])


def outcome(folder: Path, reader: str, artifact: str) -> str:
    """ "refused" if the reader says one sentence that names the artifact and the remedy, else what it did."""
    child = Child(folder, folder / "log", lambda: read(folder, reader), XC_THREADS="1", DVC_ROOT=str(folder))
    code = child.wait(seconds=SECONDS)
    if code is None:
        child.kill()
        return "hung"
    if code < 0:
        return f"crashed ({-code})"
    if code == 0:
        return "answered"
    said = child.said().strip().splitlines()
    is_sentence = code == 1 and len(said) == 1 and said[0].startswith("error: ") and "dvc repro" in said[0]
    if is_sentence and artifact in said[0] and not (folder / "fresh").exists():
        return "refused"
    return f"said {said[-3:]}"


@click.command()
@click.option("--sample", type=click.IntRange(1), help="so many reads, drawn at random, instead of all")
def main(sample: int | None) -> None:
    """Damage every artifact in every way and count the reads that are refused with a sentence."""
    import_all()
    counts: Counter = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary).resolve()
        runs = make_runs(base)
        reads = [(damage, reader) for one in ARTIFACTS for damage in damages(one, runs) for reader in readers(one)]
        for damage, reader in random.Random(0).sample(reads, sample) if sample else reads:
            place(damage, runs, base / "case")
            found = outcome(base / "case", reader, damage.artifact)
            counts[damage.artifact, damage.how, found == "refused"] += 1
            if found != "refused":
                what = damage.file or "whole"
                failures.append(f"{short_name(damage.artifact)} {what} {damage.how}, read by {reader}: {found}")
    print_counts(counts)
    total = sum(counts.values())
    click.echo(f"{total - len(failures)} of {total} reads of damaged artifacts were refused with one sentence")
    finish(failures)


def print_counts(counts: Counter) -> None:
    """counts  {(artifact, damage, whether the read was refused): reads}"""
    table = Table({"artifact": "<20", **dict.fromkeys(DAMAGES, ">11")})
    table.print_head()
    for artifact in ARTIFACTS:
        pairs = [(counts[artifact, how, True], counts[artifact, how, False]) for how in DAMAGES]
        table.print_row([short_name(artifact), *(f"{refused}/{refused + other}" for refused, other in pairs)])


if __name__ == "__main__":
    main()
