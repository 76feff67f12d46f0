"""DVC experiments with known parameters: which of them are finished, and how to run one.

A finished experiment is a commit under refs/exps/. Its parameters and metrics are read from that commit, because
`dvc exp show` mixes the two pipelines of this repository (it shows only some of the unified one's parameters) and takes
20 seconds.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from longtail.recipes import flat
from study.records import digest
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES, UNIDEC, Pipeline

ROOT = Path(__file__).resolve().parents[1]
Values = dict[str, Any]  # {section.name: value} of a parameter file
# Parameters that a file no longer has, with the value they had in every recorded experiment. They stay part of an
# experiment's digest: otherwise all records would be of other parameters as soon as one is removed.
FORMER: dict[str, Values] = {
    str(MODULAR.params): {"embed.layers": 0, "score.ef": 200},
    str(UNIDEC.params): {"train.classifier_from": 0, "score.ef": 200},
}
COURSE = {"schedule": "linear", "validate_every": 1, "keep": "best"}  # of every stage that trains
# Parameters that a file did not have when experiments were recorded, with the value at which nothing changes. At this
# value they are left out of an experiment's digest, for the same reason.
ADDED: dict[str, Values] = {
    str(MODULAR.params): {
        "classifier.random": 1024,
        "encoder.normalise": True,
        "encoder.aux_start": "zero",
        "encoder.shared": True,
        **{f"{stage}.{name}": v for stage in ("encoder", "classifier") for name, v in COURSE.items()},
        "encoder.refit_epochs": 3,
        "encoder.refit_lr": 0.3,
        "classifier.refit_epochs": 1,
        "classifier.refit_lr": 1.0,
        "index.recall": 0.95,
        "score.sample": 10000,
    },
    str(UNIDEC.params): {
        "embed.model": "sentence-transformers/all-MiniLM-L6-v2",
        "embed.pooling": "mean",
        "train.normalise": True,
        "train.normalise_first": True,
        "train.label_dropout": 0.0,
        "train.bce_bias": True,
        "train.bce_mean": False,
        "train.cap": 0,
        "train.gap": 100,
        "train.mined_from": 0,
        "train.cluster_from": 0,
        "train.head_weight_decay": 0.0,
        "train.classifier_weight_decay": 0.0,
        "train.updates": "pool",
        **{f"train.{name}": v for name, v in COURSE.items()},
        "index.recall": 0.95,
        "score.sample": 10000,
    },
}
# Values that had another name when experiments were recorded: {parameter: {its name now: its name then}}.
RENAMED: dict[str, dict[Any, Any]] = {"cluster.space": {"pretrained": "labels"}}
# Defaults that have changed since: {parameter: {default now: default then}}. The experiments keep the old one.
DEFAULTS_THEN: dict[str, dict[Any, Any]] = {
    "K": {"auto": 4096},
    "prepare.validation": {"auto": 0.1},
    "prepare.refit": {"auto": True},
    "cluster.space": {"labels": "pretrained"},
    "embed.model": {"untrained": "sentence-transformers/all-MiniLM-L6-v2"},
    "classifier.labels": {"auto": "all"},
    "index.m": {"auto": 24},
    "index.ef_construction": {"auto": 150},
}
MODULAR_THEN: dict[str, dict[Any, Any]] = {"score.tail": {0.5: 0.3}}  # likewise, of the modular pipeline alone


@dataclass(frozen=True)
class Experiment:
    """One run of a pipeline.

    values  {parameter file: the values it must have}; a value that is not named may be any
    """

    name: str
    values: dict[str, Values]
    pipeline: Pipeline = MODULAR

    @property
    def digest(self) -> str:
        """Of its values, those of former parameters of its pipeline included."""
        own = str(self.pipeline.params)
        known = {name: value for name, value in self.values[own].items() if ADDED[own].get(name, ...) != value}
        return digest({**self.values, own: FORMER[own] | known | renamed(known)})

    def arguments(self, present: dict[str, Values]) -> list[str]:
        """The words of `dvc exp run` that make this experiment from the parameter files as they are at present."""
        words = [] if self.pipeline is MODULAR else [dvc_file(self.pipeline)]
        for file, values in self.values.items():
            prefix = "" if file == str(MODULAR.params) else f"{file}:"
            for change in differences(present[file], values):
                words += ["-S", prefix + change]
        return words


def dvc_file(pipeline: Pipeline) -> str:
    """The path of the pipeline's dvc.yaml."""
    return Path(pipeline.folder, "dvc.yaml").as_posix()


# --- parameters -------------------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """The value as -S and YAML take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_values(tree: dict, values: Values, file: str = str(MODULAR.params)) -> dict:
    """A copy of the file's tree with these values; a UserError for a name that the file does not have."""
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        part = tree.get(section) if section else tree
        if not isinstance(part, dict) or key not in part:
            raise UserError(f"{name} is not a parameter: {file} has no such line.")
        part[key] = value
    return tree


def renamed(values: Values) -> Values:
    """Those of the values that had another name when experiments were recorded, by that name."""
    return {name: names[values[name]] for name, names in RENAMED.items() if values.get(name) in names}


def then(values: Values) -> Values:
    """Those of the values that are a default of now, as they were when experiments were recorded."""
    known = DEFAULTS_THEN | (MODULAR_THEN if "K" in values else {})
    return {name: now[values[name]] for name, now in known.items() if name in values and values[name] in now}


def differences(old: Values, new: Values) -> list[str]:
    """NAME=VALUE of every value that is different in `new`."""
    return [f"{name}={as_text(value)}" for name, value in new.items() if name not in old or value != old[name]]


# --- DVC and git ------------------------------------------------------------------------------------------------------


def dvc(*arguments: str, minutes: float | None = None) -> str:
    """What a dvc command prints; a UserError with its last lines if it fails or takes longer than `minutes`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # stages and worker start by name
    # Files and not pipes, which the queue's worker would keep open; a session of its own, so that Ctrl-C spares it.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "dvc", *arguments],
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(minutes and 60 * minutes)
        except BaseException as error:
            stop(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UserError(f"`dvc {' '.join(arguments)}` took more than {minutes:g} minutes.") from None
            raise
        out.seek(0)
        errors.seek(0)
        printed, complaint = out.read(), errors.read()
    if code:
        raise UserError(f"`dvc {' '.join(arguments)}` failed:\n{last_lines(complaint or printed)}")
    return printed


def stop(process: subprocess.Popen) -> None:
    """End dvc and the stage it runs as Ctrl-C does: dvc then removes its temporary folder."""
    try:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(text: str, count: int = 20) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def git(*arguments: str) -> str | None:
    """What a git command prints, None if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else done.stdout


def warn_of_changes() -> None:
    """Name the files that differ from HEAD: DVC takes such changes into the experiments, and no commit holds them."""
    lines = (git("status", "--porcelain", "--untracked-files=no") or "").split("\n")
    followed = ("stages/", "xcutils/", "params.yaml", "dvc.", *(f"{folder}/" for folder in PIPELINES if folder))
    different = [line[3:] for line in lines if line[3:].startswith(followed)]
    if different:
        console.say(f"uncommitted changes go into the experiments: {', '.join(different)}")


# --- results ----------------------------------------------------------------------------------------------------------


def finished() -> dict[str, list[str]]:
    """{experiment: its commits, the newest first}, whichever commit they started from."""
    lines = git("for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(refname)", "refs/exps") or ""
    out: dict[str, list[str]] = {}
    for commit, name in re.findall(r"^(\w+) refs/exps/\w{2}/\w{38}/(.+)$", lines, re.MULTILINE):
        out.setdefault(name, []).append(commit)
    return out


@functools.cache
def read_tree(commit: str, file: str) -> dict:
    """A YAML or JSON file of the commit; {} where the commit does not have it."""
    text = git("show", f"{commit}:{file}") or "{}"
    return json.loads(text) if file.endswith(".json") else YAML(typ="safe").load(text) or {}


def results(wanted: list[Experiment]) -> dict[str, tuple[str, dict]]:
    """{experiment: (commit, metrics)} of those that are finished and have the wanted parameters."""
    commits, out = finished(), {}
    for experiment in wanted:
        for commit in commits.get(experiment.name, []):
            metrics = read_tree(commit, experiment.pipeline.metrics.as_posix())
            if metrics and has_values(commit, experiment.values):
                out[experiment.name] = (commit, metrics)
                break
    return out


def has_values(commit: str, wanted: dict[str, Values]) -> bool:
    """Do the commit's parameter files have these values?"""
    return all(values.items() <= flat(read_tree(commit, file)).items() for file, values in wanted.items())
