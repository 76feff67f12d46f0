"""Where the time of a finished run went: every stage once more under cProfile, seconds by cause and by function.

python -m benchmarks.profile_run [STAGE ...] [--project DIR] [--top 8] [--out DIR]

reads   PROJECT/dvc.yaml (stage -> command, inputs), PROJECT/params.yaml and what the finished run left there
makes   each stage runs in a scratch folder, its inputs linked and its outputs written there; PROJECT is not changed
prints  a row per stage: all its seconds, those to start and end Python, to import, to read, check and write artifacts,
        and the rest; then the functions that took most, by their own time (what they call is not counted)
writes  OUT/STAGE.prof for each, if --out is given

Only the commands of dvc.yaml are relied on, so PROJECT may be a checkout of an older commit. The profile itself makes
Python code slower, calls of many small functions most: shares say more than seconds. It sees the main thread; what
other threads do appears as a wait for them.
"""

import os
import pstats
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.apart import ROOT
from testing.programs import Table
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.params import read

IMPORT = "_find_and_load"  # what every import statement calls
ARTIFACTS = "core/artifacts.py"
COLUMNS = {
    "stage": "<12",
    "seconds": ">9.1f",
    "start, end": ">11.1f",
    "import": ">8.1f",
    "artifacts": ">10.1f",
    "the rest": ">9.1f",
}
Key = tuple[str, int, str]  # file, line, function


@dataclass(frozen=True)
class Profile:
    """The seconds of a stage.

    seconds  of its process
    stats    {function: (calls, primitive calls, own seconds, seconds with what it calls, {caller: the same four})}
    """

    stage: str
    seconds: float
    stats: dict[Key, tuple]

    @property
    def seen(self) -> float:
        """The seconds of everything that was profiled."""
        return sum(values[2] for values in self.stats.values())

    def row(self) -> list:
        imports, files = import_seconds(self.stats), entering_seconds(self.stats, ARTIFACTS)
        return [self.stage, self.seconds, self.seconds - self.seen, imports, files, self.seen - imports - files]

    def top(self, count: int) -> list[tuple[float, int, str]]:
        """(own seconds, calls, name) of the functions that took most."""
        rows = [(values[2], values[0], name_of(key)) for key, values in self.stats.items()]
        return sorted(rows, reverse=True)[:count]


def import_seconds(stats: dict[Key, tuple]) -> float:
    """The seconds of all imports; one inside another is counted once."""
    return sum(values[3] for key, values in stats.items() if key[2] == IMPORT)


def entering_seconds(stats: dict[Key, tuple], file: str) -> float:
    """The seconds of calls that enter the file from another one, with all that they call."""
    return sum(
        edge[3]
        for key, values in stats.items()
        if key[0].endswith(file) and key[2] != "<module>"
        for caller, edge in values[4].items()
        if not caller[0].endswith(file)
    )


def name_of(key: Key) -> str:
    """`room/file.py:line function`, or a built-in function's own name."""
    file, line, function = key
    if not line:
        return function.strip("<>")
    return f"{'/'.join(Path(file).parts[-2:])}:{line} {function}"


# --- running ----------------------------------------------------------------------------------------------------------


def filled(text: str, values: dict) -> str:
    """The text with the values of params.yaml in place of ${name}."""
    return re.sub(r"\$\{(\w+)\}", lambda found: str(values[found[1]]), text)


def link_inputs(stage: dict, values: dict, project: Path, folder: Path) -> None:
    """Link what the stage reads into the folder, but code: that comes from the project."""
    for dep in (filled(dep, values) for dep in stage["deps"]):
        source, target = project / dep, folder / dep
        if Path(dep).is_absolute() or source.suffix == ".py" or dep.startswith("xcutils"):
            continue
        if not source.exists():
            raise UserError(f"{source} is missing: run `dvc repro` in {project} first.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())


def profile(name: str, stage: dict, project: Path, folder: Path) -> Profile:
    """Run the stage in the folder, which is empty, under cProfile."""
    values = read(project / "params.yaml")
    shutil.copy(project / "params.yaml", folder)
    link_inputs(stage, values, project, folder)
    for out in [*stage.get("outs", []), *stage.get("metrics", [])]:
        (folder / (out if isinstance(out, str) else next(iter(out)))).parent.mkdir(parents=True, exist_ok=True)
    python, *words = shlex.split(filled(stage["cmd"], values))
    command = [sys.executable, "-m", "cProfile", "-o", str(folder / "profile"), *words]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env={**kept, "PYTHONPATH": str(project)}, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode or python != "python":
        raise UserError(f"{name} failed in {folder}:\n{done.stderr[-2000:]}")
    return Profile(name, seconds, pstats.Stats(str(folder / "profile")).stats)  # type: ignore[attr-defined]


@click.command()
@click.argument("stages", nargs=-1)
@click.option("--project", default=ROOT, type=click.Path(path_type=Path), help="A checkout with a finished run.")
@click.option("--top", default=8, show_default=True, help="Functions shown of each stage.")
@click.option("--out", type=click.Path(path_type=Path), help="Keep the profiles in this folder.")
@console.command
def main(stages: Sequence[str], project: Path, top: int, out: Path | None) -> None:
    """Run the STAGES (all by default) of a finished run again and print where their time goes."""
    project = project.resolve()
    known = read(project / "dvc.yaml")["stages"]
    if unknown := [name for name in stages if name not in known]:
        raise UserError(f"There is no stage {unknown[0]}; known: {', '.join(known)}.")
    table, found = Table(COLUMNS), []
    table.print_head()
    for name in stages or known:
        with tempfile.TemporaryDirectory(prefix="profile-") as folder:
            found.append(profile(name, known[name], project, Path(folder)))
            if out:
                out.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(folder) / "profile", out / f"{name}.prof")
        table.print_row(found[-1].row())
    rows = [one.row()[1:] for one in found]
    table.print_row(["all", *(sum(column) for column in zip(*rows))])
    for one in found:
        click.echo(f"\n{one.stage}: own seconds, calls, function")
        for seconds, calls, function in one.top(top):
            click.echo(f"{seconds:>9.2f} {calls:>10,}  {function}")


if __name__ == "__main__":
    main()
