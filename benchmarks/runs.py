"""The pipeline run by `dvc repro` in a clone of this repository, with the time and memory of every stage (Linux).

A clone has a folder of its own, so nothing in the workspace's data/ is read or written. DVC starts each stage by the
word `python`: a script of that name, first on the path, notes what the stage took. No stage's code is looked at, so a
clone may be of any commit.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML

from benchmarks.apart import LAUNCHER, ROOT, Measured
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.params import read, with_changes

DVC = "DVC"  # the row of what `dvc repro` itself takes: hashes, copies into its cache
CODE = ("stages", "xcutils", "longtail", "dvc.yaml", "params.yaml", "constraints.txt")  # what a run depends on
LINES = 20  # of a log that a message shows


def git(*words: str, folder: Path | None = None) -> str:
    """What a git command prints; it works in this repository or in the folder."""
    done = subprocess.run(["git", *words], cwd=folder or ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`git {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout.rstrip()


def code_at(commit: str) -> str:
    """A word that is the same for two commits whose pipelines are the same."""
    return " ".join(part[:12] for part in git("rev-parse", *(f"{commit}:{path}" for path in CODE)).split())


def say_what_is_left_out() -> None:
    """Name the files of the pipeline whose changes are not committed: clones do not have them."""
    changed = [line[3:] for line in git("status", "--porcelain", "--", *CODE).split("\n") if line]
    if changed:
        console.say(f"not committed, and so not in what is measured: {', '.join(changed)}")


class Clone:
    """A commit of this repository in a folder of its own, with changed parameters.

    folder   holds `checkout`, the clone, and beside it the records of what was run
    changes  name=value, as for `dvc exp run -S`
    facts    what else the run depends on, such as how its dataset was made
    A run of another commit's code, other parameters or facts that is found in the folder is removed.
    """

    def __init__(self, folder: Path, commit: str = "HEAD", changes: Sequence[str] = (), **facts):
        self.folder, self.checkout = folder, folder / "checkout"
        self.wanted = {"code": code_at(commit), "changes": list(changes), **facts}
        if self._read("wanted.json") != self.wanted:
            for record in [*folder.glob("*.json"), *folder.glob("*.jsonl")]:
                record.unlink()
            self._make(git("rev-parse", commit), changes)
            (folder / "wanted.json").write_text(json.dumps(self.wanted), encoding="utf-8")

    def _make(self, commit: str, changes: Sequence[str]) -> None:
        shutil.rmtree(self.checkout, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(self.checkout))
        git("checkout", "--quiet", "--detach", commit, folder=self.checkout)
        file = self.checkout / "params.yaml"
        with_all = with_changes(read(file), changes, str(file))
        with open(file, "w", encoding="utf-8") as opened:
            YAML().dump(with_all, opened)

    def _read(self, name: str) -> dict | None:
        path = self.folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def python(self) -> Path:
        """The interpreter of its stages: this one if its libraries are the same, else one that `make env` made."""
        lock = "constraints.txt"
        if (self.checkout / lock).read_bytes() == (ROOT / lock).read_bytes():
            return Path(sys.executable)
        own = self.checkout / ".venv" / "bin" / "python"
        if not own.is_file():
            console.say(f"{self.checkout} has other libraries: make env")
            subprocess.run(["make", "--quiet", "env"], cwd=self.checkout, check=True, stdout=sys.stderr)
        return own

    @property
    def is_finished(self) -> bool:
        return (self.folder / "finished.json").is_file()

    def finished(self) -> dict[str, Measured]:
        """What each stage took, after a run that is finished; one that was interrupted goes on from its last stage."""
        if not self.is_finished:
            shutil.rmtree(self.checkout / ".scratch", ignore_errors=True)  # a stage is timed from its beginning
            self.repro()
            (self.folder / "finished.json").write_text(json.dumps({"ended": time.time()}), encoding="utf-8")
        return self.records()

    def repro(self, *options: str) -> None:
        """Run `dvc repro` and add a line for each stage that ran to stages.jsonl."""
        log, lines = self.folder / "repro.log", self.folder / "stages.jsonl"
        command = [str(self.python), "-m", "dvc", "repro", *options]  # its environment is made before the time counts
        env = self._environment(lines)
        before, begin = len(_lines(lines)), time.perf_counter()
        with open(log, "w", encoding="utf-8") as opened:
            done = subprocess.run(command, cwd=self.checkout, env=env, stdout=opened, stderr=subprocess.STDOUT)
        rest = time.perf_counter() - begin - sum(line["seconds"] for line in _lines(lines)[before:])
        with open(lines, "a", encoding="utf-8") as opened:
            opened.write(json.dumps({"stage": DVC, "peak": 0.0, "seconds": rest, "cpu": 0.0}) + "\n")
        if done.returncode:
            last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-LINES:])
            raise UserError(f"`dvc repro` in {self.checkout} failed; {log} ends:\n{last}")

    def _environment(self, lines: Path) -> dict[str, str]:
        """The environment in which `python` notes what it took."""
        first = self.folder.resolve() / "bin"
        first.mkdir(exist_ok=True)
        script, own = first / "python", self.python
        words = [str(own), "-S", "-c", LAUNCHER, str(lines.resolve()), str(own)]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "PYTHONPATH"))}
        return {**kept, "PATH": os.pathsep.join([str(first), str(own.parent), os.environ.get("PATH", "")])}

    def records(self) -> dict[str, Measured]:
        """{stage: what it took} in the order they ran, each as it ran last; DVC's own seconds are added up."""
        found: dict[str, Measured] = {}
        for line in _lines(self.folder / "stages.jsonl"):
            name = line.pop("stage").rpartition(":")[2]
            if name == DVC and DVC in found:
                line["seconds"] += found[DVC].seconds
            found.pop(name, None)
            found[name] = Measured(**line)
        return found


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
