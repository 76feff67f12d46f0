"""Damage every file of every artifact in every way, and see what its readers say.

python -m tests.robustness.damage [--sample N]

makes   two small runs in a temporary folder (made-up texts, a small random checkpoint)
prints  artifact x damage: how many reads were refused with one sentence that names the thing and the remedy
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
from collections.abc import Iterator
from pathlib import Path

import click

from longtail.cli import main as xc
from longtail.serving import SEARCHED, read_by_prediction
from testing import tiny
from testing.children import Child, import_all
from testing.tiny import EVERY
from xcutils.core import artifacts

DATA = Path("data")
DAMAGES = ("truncated", "flipped", "empty", "swapped", "version")
FOLDERS = [path for stage in EVERY for path in EVERY[stage]["outs"] if not Path(path).suffix]
PREDICT = {f"{pipeline}/predict".strip("/"): pipeline for pipeline in SEARCHED}


def named(artifact: str) -> str:
    """The artifact as the stages are named: data/prepare/train is prepare/train, unidec/data/train unidec/train."""
    return artifact.replace("data/", "", 1)


def readers(artifact: str) -> list[str]:
    """Who reads the artifact: stages by their deps, and prediction."""
    stages = [stage for stage in EVERY if artifact in EVERY[stage]["deps"]]
    return stages + [name for name, pipeline in PREDICT.items() if Path(artifact) in read_by_prediction(DATA, pipeline)]


def make_run(folder: Path, seed: int, checkpoint: Path) -> Path:
    """A finished run of both pipelines on the small dataset of this seed, some label texts among its points."""
    seeds = {"seed": seed, f"{tiny.UNIDEC}:seed": seed, f"{tiny.UNIDEC}:gandalf.labels": 0.5}

    def work() -> None:
        tiny.make_project(folder, tiny.dataset_rows(seed), **tiny.small_checkpoint(checkpoint), **seeds)
        tiny.run_stages(folder, EVERY)

    folder.mkdir()
    child = Child(folder, folder / "log", work)
    if child.wait() != 0:
        raise click.ClickException(child.said())
    return folder


def damaged(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    return {
        "truncated": data[:-1],
        "empty": b"",
        "flipped": data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :] if data else b"",
    }[how]


def cases(artifact: str, run: Path, other: Path) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """(damage, the artifact's files after it); None is the whole folder of the other run."""
    folder, foreign = run / artifact, other / artifact
    files = sorted((p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()), key=str)
    manifest = artifacts.load_manifest(folder)
    for name in files:
        data = (folder / name).read_bytes()
        for how in ("truncated", "flipped", "empty"):
            if damaged(data, how) != data:
                yield how, {name: damaged(data, how)}
        if (foreign / name).is_file() and (foreign / name).read_bytes() != data:
            yield "swapped", {name: (foreign / name).read_bytes()}
    if artifacts.fingerprint(folder) != artifacts.fingerprint(foreign):
        yield "swapped", {"": None}
    for version in (artifacts.FORMAT - 1, artifacts.FORMAT + 1):
        facts = {key: value for key, value in manifest.items() if key != "seal"} | {"format": version}
        sealed = facts | {"seal": artifacts.seal(facts)}
        yield "version", {artifacts.MANIFEST: (json.dumps(sealed, indent=2) + "\n").encode()}


def place(run: Path, other: Path, artifact: str, change: dict[str, bytes | None], folder: Path) -> None:
    """A project whose data are the run's, but for the damaged artifact."""
    shutil.rmtree(folder, ignore_errors=True)
    for home in map(tiny.home, EVERY):
        (folder / home).parent.mkdir(parents=True, exist_ok=True)
        if Path(artifact).is_relative_to(home):
            shutil.copytree(run / home, folder / home)
        else:
            os.symlink(run / home, folder / home)
    for file in (tiny.PARAMS, tiny.UNIDEC):
        shutil.copyfile(run / file, folder / file)
    target = folder / artifact
    if "" in change:
        shutil.rmtree(target)
        shutil.copytree(other / artifact, target)
        return
    for name, data in change.items():
        (target / name).write_bytes(data)


def verdict(folder: Path, reader: str, artifact: str) -> str:
    """ "refused" if the reader says one sentence that names the thing and the remedy, else what it did."""
    out = folder / "fresh"

    def work() -> None:
        if reader in PREDICT:
            xc(["predict", "small red box", "-k", "3", *["--unidec"] * bool(PREDICT[reader])])
        else:
            *paths, _ = tiny.arguments(reader)
            written = ("metrics.json", "unidec/metrics.json")
            tiny.module(reader).main([*("fresh.json" if p in written else p for p in paths), "fresh"])

    child = Child(folder, folder / "log", work, XC_THREADS="1", DVC_ROOT=str(folder))
    code = child.wait(seconds=120)
    if code is None:
        child.kill()
        return "hung"
    said = child.said().strip().splitlines()
    if code < 0:
        return f"crashed ({-code})"
    if code == 0:
        return "answered"
    if code != 1 or len(said) != 1 or not said[0].startswith("error: ") or "dvc repro" not in said[0]:
        return f"said {said[-3:]}"
    return "refused" if artifact in said[0] and not out.exists() else f"said {said}"


@click.command()
@click.option("--sample", type=click.IntRange(1), help="so many reads, drawn at random, instead of all")
def main(sample: int | None) -> None:
    import_all()
    counts: dict[str, Counter] = {name: Counter() for name in FOLDERS}
    wrong = []
    with tempfile.TemporaryDirectory() as place_of_all:
        base = Path(place_of_all).resolve()
        checkpoint = base / "checkpoint"
        child = Child(base, base / "log", lambda: tiny.make_checkpoint(checkpoint) and None)
        if child.wait() != 0:
            raise click.ClickException(child.said())
        run, other = (make_run(base / f"run{seed}", seed, checkpoint) for seed in (0, 1))
        reads = [(a, *case, reader) for a in FOLDERS for case in cases(a, run, other) for reader in readers(a)]
        for artifact, how, change, reader in random.Random(0).sample(reads, sample) if sample else reads:
            place(run, other, artifact, change, base / "case")
            found = verdict(base / "case", reader, artifact)
            counts[artifact][how, found == "refused"] += 1
            if found != "refused":
                wrong.append(f"{named(artifact)} {how} {sorted(change)} read by {reader}: {found}")
    click.echo(f"{'artifact':<20}" + "".join(f"{how:>12}" for how in DAMAGES))
    for artifact, found in counts.items():
        cells = [f"{found[how, True]}/{found[how, True] + found[how, False]}" for how in DAMAGES]
        click.echo(f"{named(artifact):<20}" + "".join(f"{cell:>12}" for cell in cells))
    total = sum(sum(found.values()) for found in counts.values())
    click.echo(f"{total - len(wrong)} of {total} reads of damaged artifacts were refused with one sentence")
    for line in wrong:
        click.echo(line)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
