"""Kill each long stage at random moments, go on, and compare every byte with a run that was not disturbed.

python -m tests.robustness.interruptions [--project .] [--kills 5] [--snapshot 2] [--seed 0] [--threads 2] [STAGE ...]

reads   a project folder in which both pipelines have run: params.yaml, data/, unidec/
prints  a row per stage: kills, how often it went on from earlier work, whether all files are the same to the byte,
        seconds of the undisturbed run, share of them that snapshots took (as often as they are taken by default);
        then what happens when the disk fills up while the stage writes its output
exit    1 if a file differs or something good was lost
"""

import json
import resource
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from testing.children import Child, contents, import_all
from testing.programs import Table, finish
from testing.tiny import PARAMS, UNIDEC, arguments, home, link_before, module

LONG = ("embed", "encoder", "augment", "classifier", "index", "unidec/train", "unidec/index")
WENT_ON = ("goes on ", "taken from the run that was interrupted")  # what a stage says that has found earlier work
COLUMNS = {
    "stage": "<12",
    "kills": ">5",
    "went on": ">7",
    "files": ">5",
    "same bytes": ">10",
    "scratch gone": ">12",
    "seconds": ">7.1f",
    "snapshots": ">9.1%",
    "disk full": ">9",
}


@dataclass(frozen=True)
class Stage:
    """A stage of a finished project, and the environment in which it runs."""

    project: Path
    name: str
    env: dict[str, str]

    @property
    def out(self) -> Path:
        return home(self.name)

    def branch(self, folder: Path) -> Path:
        """The folder, in which the stages before this one are those of the project."""
        link_before(self.project, folder, self.name)
        for file in (PARAMS, UNIDEC):
            (folder / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(self.project / file, folder / file)
        return folder

    def start(self, folder: Path, largest_file: int = 0, **env: str) -> Child:
        """The stage at work in the folder.

        largest_file  bytes of the largest file that it can write; 0 for no limit
        """

        def work() -> None:
            if largest_file:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
            try:
                module(self.name).main(arguments(self.name))
            finally:
                if not largest_file:
                    from xcutils.core.scratch import Snapshots

                    (folder / "spent.json").write_text(json.dumps(Snapshots.spent))

        return Child(folder, folder / "log", work, DVC_ROOT=str(folder), **self.env, **env)

    def is_at_work(self, folder: Path) -> bool:
        """Has the stage begun its long part?"""
        return any((folder / ".scratch").glob(f"{self.out.name}-*/*"))

    def failed(self, child: Child) -> click.ClickException:
        return click.ClickException(f"{self.name} failed: {child.said()}")


# --- a run that is not disturbed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody interrupts.

    seconds  of the whole run; work: of its long part; snapshots: that snapshots took
    """

    files: dict[str, bytes]
    seconds: float
    work: float
    snapshots: float


def run_undisturbed(stage: Stage, folder: Path) -> Undisturbed:
    stage.branch(folder)
    begin = time.monotonic()
    child = stage.start(folder)
    child.wait(lambda: stage.is_at_work(folder))
    at_work = time.monotonic()
    if child.wait() != 0:
        raise stage.failed(child)
    snapshots = json.loads((folder / "spent.json").read_text())
    end = time.monotonic()
    return Undisturbed(contents(folder / stage.out), end - begin, end - at_work, snapshots)


# --- one that is killed -----------------------------------------------------------------------------------------------


@dataclass
class Killed:
    """A run that was killed again and again.

    went_on    how often it went on from earlier work
    differing  files that are not those of the undisturbed run
    left       scratch that it should have removed
    moments    seconds after which it was killed
    """

    kills: int
    went_on: int
    differing: set[str]
    left: list[str]
    moments: list[float]


def saved_work(folder: Path) -> set[str]:
    """What there is to go on from: finished parts, whole snapshots and chunks of rows."""
    scratch = folder / ".scratch"
    manifests = [*scratch.glob("*/*/manifest.json"), *scratch.glob("*/*.snapshots/[0-9]*/manifest.json")]
    found = {str(path) for path in manifests}
    for path in scratch.glob("*/*.journal"):
        with suppress(OSError):
            found.update(f"{path} {line}" for line in path.read_text().splitlines())
    return found


def run_killed(stage: Stage, folder: Path, kills: int, like: Undisturbed, rng, snapshot: float) -> Killed:
    """Kill the stage again and again, then let it end.

    Every second kill comes at a random moment after new work was saved, the others at any moment.
    """
    stage.branch(folder)
    run = Killed(kills=0, went_on=0, differing=set(), left=[], moments=[])
    while True:
        child = stage.start(folder, XC_SNAPSHOT=str(snapshot))
        code = kill_once(stage, folder, child, run, like.work / (kills + 1) * rng.uniform(0, 1), kills)
        run.went_on += any(words in child.said() for words in WENT_ON)
        if code is None:
            continue
        if code != 0:
            raise stage.failed(child)
        found = contents(folder / stage.out)
        names = found.keys() | like.files.keys()
        run.differing |= {name for name in names if found.get(name) != like.files.get(name)}
        if run.kills >= kills:
            break
        shutil.rmtree(folder / stage.out)  # it was too quick for the last kill: once more from the start
    run.left = [path.name for path in (folder / ".scratch").glob(f"{stage.out.name}-*")]
    return run


def kill_once(stage: Stage, folder: Path, child: Child, run: Killed, moment: float, kills: int) -> int | None:
    """Kill the child `moment` seconds into its work, unless it has been killed often enough; its code if it ends."""
    child.wait(lambda: stage.is_at_work(folder))
    if run.kills >= kills:
        return child.wait()
    if run.kills % 2 == 0:
        before = saved_work(folder)
        child.wait(lambda: bool(saved_work(folder) - before))
    code = child.wait(seconds=moment)
    if code is None:
        child.kill()
        run.kills += 1
        run.moments.append(round(moment, 2))
    return code


# --- one that fills the disk ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiskFull:
    """What happens when the disk fills up while a stage writes over an older output.

    clear   it ends with one sentence that says so
    unhurt  the older output is still whole, and nothing else is left
    again   the next run writes the same bytes
    """

    clear: bool
    unhurt: bool
    again: bool

    @property
    def is_good(self) -> bool:
        return self.clear and self.unhurt and self.again


def run_on_full_disk(stage: Stage, folder: Path, like: Undisturbed) -> DiskFull:
    stage.branch(folder)
    out = folder / stage.out
    for name, content in like.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    child = stage.start(folder, largest_file=max(len(content) for content in like.files.values()) // 2)
    code = child.wait()
    sentences = [line for line in child.said().splitlines() if line.startswith("error: ")]
    drafts = [path.name for path in out.parent.iterdir() if path.name.startswith(".")]
    unhurt = contents(out) == like.files and not drafts
    clear = code == 1 and len(sentences) == 1 and "make room on the disk" in sentences[0]
    again = stage.start(folder).wait() == 0 and contents(out) == like.files
    return DiskFull(clear, unhurt, again)


# --- command ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("stages", nargs=-1, type=click.Choice(LONG))
@click.option("--project", type=click.Path(exists=True, path_type=Path), default=Path("."))
@click.option("--kills", type=click.IntRange(1), default=5)
@click.option("--snapshot", type=float, default=2.0, help="seconds between snapshots in the runs that are killed")
@click.option("--seed", default=0)
@click.option("--threads", type=click.IntRange(1), default=2)
def main(stages: tuple[str, ...], project: Path, kills: int, snapshot: float, seed: int, threads: int) -> None:
    """Kill the STAGES (all long ones by default) of the project and compare what they write."""
    import_all()
    rng = np.random.default_rng(seed)
    failures = []
    table = Table(COLUMNS)
    table.print_head()
    for name in stages or LONG:
        stage = Stage(project, name, {"XC_THREADS": str(threads)})
        with tempfile.TemporaryDirectory() as place:
            like = run_undisturbed(stage, Path(place, "undisturbed"))
            killed = run_killed(stage, Path(place, "killed"), kills, like, rng, snapshot)
            disk = run_on_full_disk(stage, Path(place, "disk"), like)
        same, gone = ("NO" if bad else "yes" for bad in (killed.differing, killed.left))
        times = (like.seconds, like.snapshots / like.work)
        counts = (killed.kills, killed.went_on, len(like.files))
        table.print_row([name, *counts, same, gone, *times, "unhurt" if disk.is_good else "WRONG"])
        if killed.differing or killed.left or not disk.is_good:
            failures.append(f"{name}: {killed} {disk}")
    finish(failures)


if __name__ == "__main__":
    main()
