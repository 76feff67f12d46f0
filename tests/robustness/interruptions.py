"""Kill each long stage at random moments, go on, and compare every byte with a run that was left in peace.

python -m tests.robustness.interruptions [--project .] [--kills 5] [--snapshot 2] [--seed 0] [--threads 2] [STAGE ...]

reads   a project folder in which both pipelines have run: params.yaml, data/, unidec/
prints  a row per stage: kills, how often it went on from earlier work, whether all files are the same to the byte,
        time of the run in peace, share of it that snapshots took (as often as they are taken by default);
        then what happens when the disk fills up while the stage writes its output
exit    1 if a file differs or something good was lost
"""

import json
import resource
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click
import numpy as np

from testing.children import Child, contents, import_all
from testing.tiny import PARAMS, UNIDEC, arguments, home, link_before, module

LONG = ("embed", "encoder", "augment", "classifier", "index", "unidec/train", "unidec/index")
WENT_ON = ("goes on ", "taken from the run that was interrupted")


def branch(project: Path, folder: Path, stage: str) -> Path:
    """A folder whose stages before `stage` are those of the project."""
    link_before(project, folder, stage)
    for file in (PARAMS, UNIDEC):
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(project / file, folder / file)
    return folder


def start(folder: Path, stage: str, log: str = "log", *, limit: int = 0, **env: str) -> Child:
    """The stage at work in the folder; `limit` is the largest file it can write."""

    def work() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            module(stage).main(arguments(stage))
        finally:
            from xcutils.core.scratch import Snapshots

            (folder / "spent.json").write_text(json.dumps(Snapshots.spent)) if not limit else None

    return Child(folder, folder / log, work, DVC_ROOT=str(folder), **env)


def at_work(folder: Path, stage: str) -> bool:
    """Has the stage begun its long part?"""
    return any((folder / ".scratch").glob(f"{home(stage).name}-*/*"))


def made(folder: Path) -> set[str]:
    """What there is to go on from: finished parts, whole snapshots and chunks of rows."""
    scratch, found = folder / ".scratch", set()
    for path in [*scratch.glob("*/*/manifest.json"), *scratch.glob("*/*.snapshots/[0-9]*/manifest.json")]:
        found.add(str(path))
    for path in scratch.glob("*/*.journal"):
        with suppress(OSError):
            found.update(f"{path} {line}" for line in path.read_text().splitlines())
    return found


def in_peace(project: Path, folder: Path, stage: str, env: dict) -> dict:
    """A run that nobody interrupts: its files, its time, and the time that snapshots took."""
    branch(project, folder, stage)
    begin = time.monotonic()
    child = start(folder, stage, **env)
    child.wait(lambda: at_work(folder, stage))
    begun = time.monotonic()
    if child.wait() != 0:
        raise click.ClickException(f"{stage} failed: {child.said()}")
    spent = json.loads((folder / "spent.json").read_text())
    end = time.monotonic()
    return {"files": contents(folder / home(stage)), "seconds": end - begin, "work": end - begun, "spent": spent}


def interrupted(project: Path, folder: Path, stage: str, kills: int, peace: dict, rng, env: dict) -> dict:
    """The same, killed again and again: how often, how often it went on, and which files differ in the end.

    Every second kill comes at a moment of its own after new work was saved, the others at any moment.
    """
    branch(project, folder, stage)
    done, went_on, differing, moments = 0, 0, set(), []
    while True:
        child = start(folder, stage, **env)
        child.wait(lambda: at_work(folder, stage))
        if done < kills and done % 2 == 0:
            before = made(folder)
            child.wait(lambda before=before: bool(made(folder) - before))
        moment = peace["work"] / (kills + 1) * rng.uniform(0, 1)
        ended = child.wait(seconds=moment) if done < kills else child.wait()
        if ended is None:
            child.kill()
            done += 1
            moments.append(round(moment, 2))
        went_on += any(words in child.said() for words in WENT_ON)
        if ended is None:
            continue
        if ended != 0:
            raise click.ClickException(f"{stage} failed: {child.said()}")
        found = contents(folder / home(stage))
        differing |= {
            name for name in found.keys() | peace["files"].keys() if found.get(name) != peace["files"].get(name)
        }
        if done >= kills:
            break
        shutil.rmtree(folder / home(stage))  # it was too quick for the last kill: once more from the start
    left = [path.name for path in (folder / ".scratch").glob(f"{home(stage).name}-*")]
    return {"kills": done, "went_on": went_on, "differing": sorted(differing), "left": left, "moments": moments}


def full_disk(project: Path, folder: Path, stage: str, peace: dict, env: dict) -> dict:
    """The disk fills up in mid-write over an older output: is that still whole, and does the next run end the same?"""
    branch(project, folder, stage)
    out = folder / home(stage)
    for name, data in peace["files"].items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(data)
    largest = max(len(data) for data in peace["files"].values())
    child = start(folder, stage, limit=largest // 2, **env)
    code = child.wait()
    sentence = [line for line in child.said().splitlines() if line.startswith("error: ")]
    unhurt = contents(out) == peace["files"]
    drafts = [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
    clear = code == 1 and len(sentence) == 1 and "make room on the disk" in sentence[0]
    again = start(folder, stage, **env).wait() == 0 and contents(out) == peace["files"]
    return {"clear": clear, "unhurt": unhurt and not drafts, "again": again}


@click.command()
@click.argument("stages", nargs=-1, type=click.Choice(LONG))
@click.option("--project", type=click.Path(exists=True, path_type=Path), default=Path("."))
@click.option("--kills", type=click.IntRange(1), default=5)
@click.option("--snapshot", type=float, default=2.0, help="seconds between snapshots in the runs that are killed")
@click.option("--seed", default=0)
@click.option("--threads", type=click.IntRange(1), default=2)
def main(stages: tuple[str, ...], project: Path, kills: int, snapshot: float, seed: int, threads: int) -> None:
    import_all()
    rng, wrong = np.random.default_rng(seed), 0
    env = {"XC_THREADS": str(threads)}
    click.echo("stage         kills  went on  files  same bytes  scratch gone  seconds  snapshots  disk full")
    for stage in stages or LONG:
        with tempfile.TemporaryDirectory() as place:
            peace = in_peace(project, Path(place, "peace"), stage, env)
            cut = interrupted(
                project, Path(place, "cut"), stage, kills, peace, rng, env | {"XC_SNAPSHOT": str(snapshot)}
            )
            disk = full_disk(project, Path(place, "disk"), stage, peace, env)
        good = not cut["differing"] and not cut["left"] and all(disk.values())
        wrong += not good
        answer = {True: "yes", False: "NO"}
        click.echo(
            f"{stage:<12}  {cut['kills']:>5}  {cut['went_on']:>7}  {len(peace['files']):>5}  "
            f"{answer[not cut['differing']]:>10}  {answer[not cut['left']]:>12}  {peace['seconds']:>7.1f}  "
            f"{peace['spent'] / peace['work']:>9.1%}  {'unhurt' if all(disk.values()) else 'WRONG':>9}"
        )
        if not good:
            click.echo(f"  {cut} {disk}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
