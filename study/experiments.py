"""DVC experiments of known parameters: which of them are there, with which code they were run, how to run one.

A finished experiment is a commit under refs/exps/. What belongs to it is read from there, because `dvc exp show` mixes
the two pipelines of this repository (the code of both under one name, and only some of the second one's parameters)
and takes 20 seconds to do so.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import posixpath
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from xcutils.core import console
from xcutils.core.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
Values = dict[str, Any]  # {section.name: value} of a parameter file


@dataclass(frozen=True)
class Experiment:
    """One run of a pipeline.

    values  {parameter file: the values it must have}; values that are not named may be any
    folder  of the pipeline's dvc.yaml, params.yaml and metrics.json: "" or e.g. "unidec/"
    """

    name: str
    values: dict[str, Values]
    folder: str = ""

    def arguments(self, now: dict[str, Values]) -> list[str]:
        """The words of `dvc exp run` that make this of the parameter files as they are `now`."""
        words = [f"{self.folder}dvc.yaml"] if self.folder else []
        for file, values in self.values.items():
            prefix = "" if file == "params.yaml" else f"{file}:"
            for change in differences(now[file], values):
                words += ["-S", prefix + change]
        return words


# --- parameters -------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """The value as -S and YAML take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def flat(tree: dict) -> Values:
    """{section.name: value}"""
    parts = (
        {f"{name}.{k}": v for k, v in part.items()} if isinstance(part, dict) else {name: part}
        for name, part in tree.items()
    )
    return {name: value for part in parts for name, value in part.items()}


def changed(tree: dict, changes: Values, file: str = "params.yaml") -> dict:
    """The file's tree with the changes made."""
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        part = tree.get(section) if section else tree
        if not isinstance(part, dict) or key not in part:
            raise UserError(f"{name} is not a parameter: {file} has no such line.")
        part[key] = value
    return tree


def differences(old: Values, new: Values) -> list[str]:
    """NAME=VALUE of what is different in `new`."""
    return [f"{name}={as_text(value)}" for name, value in new.items() if name not in old or value != old[name]]


def parse(changes: tuple[str, ...]) -> Values:
    """{name: value} of NAME=VALUE arguments, values read as YAML."""
    out = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name:
            raise UserError(f"-S {change}: write it as NAME=VALUE, e.g. -S encoder.epochs=3.")
        out[name] = YAML(typ="safe").load(value)
    return out


# --- DVC and git ------------------------------------------------------------------------------------------------------


def dvc(*arguments: str, minutes: float | None = None) -> str:
    """What a dvc command prints; a UserError with its last lines if it fails or takes longer."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # stages and worker start by name
    # Files and not pipes, which the queue's worker would keep open; a session of its own, so that Ctrl-C spares it.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        where = {"cwd": ROOT, "env": {**os.environ, "PATH": path}, "stdin": subprocess.DEVNULL}
        command = [sys.executable, "-m", "dvc", *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True, **where)
        try:
            code = process.wait(minutes and 60 * minutes)
        except BaseException as error:
            stop(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UserError(f"`dvc {' '.join(arguments)}` took more than {minutes:g} minutes.") from None
            raise
        out.seek(0), errors.seek(0)
        said, complaint = out.read(), errors.read()
    if code:
        raise UserError(f"`dvc {' '.join(arguments)}` failed:\n{tail(complaint or said)}")
    return said


def stop(process: subprocess.Popen) -> None:
    """End dvc and the stage it runs as Ctrl-C does: it then removes its temporary folder."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(text: str, lines: int = 20) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def git(*arguments: str) -> str | None:
    """What a git command prints, None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout


def warn_of_changes() -> None:
    """Say so if files differ from HEAD: DVC takes such changes into the experiments, and no commit holds them."""
    dirty = (git("status", "--porcelain", "--untracked-files=no") or "").split("\n")
    parts = ("stages/", "xcutils/", "params.yaml", "dvc.", "unidec/")
    code = [line[3:] for line in dirty if line[3:].startswith(parts)]
    if code:
        console.say(f"uncommitted changes go into the experiments: {', '.join(code)}")


# --- results ----------------------------------------------------------------------------------------------------------


def finished() -> dict[str, list[str]]:
    """{experiment: its commits, the newest first}, of whichever commit they started from."""
    lines = git("for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", "refs/exps") or ""
    out: dict[str, list[str]] = {}
    for commit, name in re.findall(r"^(\w+) refs/exps/\w{2}/\w{38}/(.+)$", lines, re.MULTILINE):
        out.setdefault(name, []).append(commit)
    return out


@functools.cache
def read_tree(commit: str, file: str) -> dict:
    """A YAML or JSON file of the commit; {} where it is not there."""
    text = git("show", f"{commit}:{file}") or "{}"
    return json.loads(text) if file.endswith(".json") else YAML(typ="safe").load(text) or {}


def results(wanted: list[Experiment]) -> dict[str, tuple[str, dict]]:
    """{experiment: (commit, metrics)} of those that are finished and have the wanted parameters."""
    commits, out = finished(), {}
    for experiment in wanted:
        for commit in commits.get(experiment.name, []):
            shown = {file: flat(read_tree(commit, file)) for file in experiment.values}
            metrics = read_tree(commit, f"{experiment.folder}metrics.json")
            if metrics and all(values.items() <= shown[file].items() for file, values in experiment.values.items()):
                out[experiment.name] = (commit, metrics)
                break
    return out


def code_of(commit: str, folder: str = "") -> dict[str, str | None]:
    """{source file: digest of what it says to do} that an experiment ran with.

    folder  of the pipeline; one that is not the root's reads data/prepare, which the root's makes
    """
    files: dict[str, str | None] = {}
    for place in sorted({"", folder}):
        made = read_tree(commit, f"{place}dvc.yaml").get("stages") or {}
        for name, stage in (read_tree(commit, f"{place}dvc.lock").get("stages") or {}).items():
            start = posixpath.join(place, made.get(name, {}).get("wdir", ""))
            if place == folder or name == "prepare":
                files |= {
                    posixpath.normpath(posixpath.join(start, d["path"])): d.get("md5") for d in stage.get("deps", [])
                }
    return {name: _at(commit, name, md5) for name, md5 in files.items() if name.endswith(".py") and name not in BESIDE}


BESIDE = {"longtail/estimates.py"}  # what says how much a stage will take changes nothing of what it makes
KNOWN: dict[tuple[str, str | None], str | None] = {}  # (file, md5) -> digest: most experiments have the same files


def _at(commit: str, name: str, md5: str | None) -> str | None:
    if (name, md5) not in KNOWN:
        KNOWN[name, md5] = meaning(git("show", f"{commit}:{name}"))
    return KNOWN[name, md5]


@functools.cache
def meaning(text: str | None) -> str | None:
    """A digest of what Python code does: comments, docstrings and line breaks do not count; None of no code."""
    if text is None:
        return None
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.md5(repr(_plain(tree)).encode(), usedforsecurity=False).hexdigest()


def _plain(part: Any) -> Any:
    """A syntax tree as lists, without what is empty: `ast.dump` prints a tree otherwise in each version of Python."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, ast.AST):
        return part
    fields = [[name, _plain(value)] for name, value in ast.iter_fields(part) if value is not None and value != []]
    return [type(part).__name__, *fields]


def changed_files(code: dict[str, str | None]) -> list[str]:
    """Those of the source files that do something else now."""
    return [name for name, old in code.items() if name not in BESIDE and now(ROOT / name) != old]


def other_code(commit: str, folder: str = "") -> list[str]:
    """The source files that an experiment ran with and that do something else now."""
    return changed_files(code_of(commit, folder))


def now(file: Path) -> str | None:
    """The digest of the file as it is."""
    return meaning(file.read_text(encoding="utf-8") if file.is_file() else None)
