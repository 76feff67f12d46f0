"""A search for better parameters, by validation documents alone: what `xc tune` does.

A trial runs the stages `cluster` to `index` with other values, fitted once (`prepare.refit: false`), and is judged by
the fused ranking of the validation documents. `score` is never run: no test document is read. After the encoder a trial
that is behind most others is given up. Everything is kept in a folder of its own below .scratch/tune; trials that are
there are not made again.

The first trial has the present values; each later one changes the few that matter, by Optuna's search (TPE).
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages.journal import JournalFileBackend
from ruamel.yaml import YAML

import stages
from longtail import files
from longtail.recipes import flat, values_of
from stages import check_parameters, parameters
from xcutils.core import artifacts, console
from xcutils.core.costs import Sizes, sizes_of
from xcutils.core.errors import UserError
from xcutils.core.params import read
from xcutils.core.pipelines import MODULAR
from xcutils.core.rooms import code_of
from xcutils.core.rules import decide
from xcutils.search.metrics import goal

ONCE = ("prepare", "embed", "gandalf")  # stages whose parameters are not searched
TRIED = ("cluster", "encoder", "augment", "classifier", "index")
FIRST = 5  # trials before any is given up
BASE = "dexa"
SHOWN = ("P@1", "P@5", "N@5", "PSP@5", "PSN@5")

Values = dict[str, Any]  # {section.name: value}


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high` times the present one; a share stays between 0 and `most`."""

    low: float
    high: float
    most: float = float("inf")

    def draw(self, trial: optuna.Trial, name: str, present: float) -> float:
        high = min(self.most, self.high * present)
        return trial.suggest_float(name, self.low * present, high, log=True)


# The values that matter most, each as a range around the present one.
SPACE: dict[str, Range] = {
    "encoder.lr": Range(1 / 3, 3),
    "encoder.aux_lr": Range(1 / 3, 3),
    "encoder.tau": Range(1 / 2, 2),
    "classifier.lr": Range(1 / 3, 3),
    "classifier.encoder_lr": Range(1 / 4, 4),
    "classifier.dropout": Range(1 / 4, 2, 0.8),
    "classifier.tau": Range(1 / 2, 2),
}
AUX = (8, 3, 1)  # labels for each auxiliary vector


class Tuning:
    """A folder of trials for a dataset, the values that are not searched, and the code."""

    def __init__(self, home: Path = Path(".scratch/tune")):
        self.present = read(files.find(MODULAR.params.as_posix()))
        self.checked = parameters(files.find(MODULAR.params.as_posix()))
        self.own = flat(self.present)
        self.commands = read(files.find("dvc.yaml"))["stages"]
        fixed = {name: value for name, value in self.own.items() if name not in SPACE and name != "K"}
        home_of = Path(stages.__file__).parent
        code = {file for stage in (*ONCE, *TRIED) for file in code_of(home_of / f"{stage}.py")}
        known = json.dumps([fixed, sorted(map(artifacts.sha256, code))], sort_keys=True, default=str)
        self.folder = (home / hashlib.sha256(known.encode()).hexdigest()[:12]).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def prepared(self) -> Path:
        return self.folder / "data" / "prepare"

    def prepare(self) -> None:
        """Run what all trials share, unless it is there."""
        if (self.folder / "ready").is_file():
            return
        self.write(self.folder, {})
        for stage in ONCE:
            self.run(self.folder, stage)
        (self.folder / "ready").touch()

    def write(self, folder: Path, changes: Values) -> None:
        """Write the parameter file of a trial."""
        tree = {name: dict(part) if isinstance(part, dict) else part for name, part in self.present.items()}
        dataset = files.find(str(tree["dataset"])).resolve()
        for name, value in {**changes, "prepare.refit": False, "dataset": str(dataset)}.items():
            section, _, key = name.rpartition(".")
            (tree[section] if section else tree)[key] = value
        check_parameters(tree, str(folder / "params.yaml"), MODULAR)
        with open(folder / "params.yaml", "w", encoding="utf-8") as opened:
            YAML().dump(tree, opened)

    def run(self, folder: Path, stage: str) -> None:
        """Run a stage there by the command of dvc.yaml; what it says goes into STAGE.log."""
        dataset = read(folder / "params.yaml")["dataset"]
        words = self.commands[stage]["cmd"].replace("python", f'"{sys.executable}"', 1)
        command = words.replace("${dataset}", dataset)
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        with open(folder / f"{stage}.log", "w", encoding="utf-8") as log:
            done = subprocess.run(command, shell=True, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            last = (folder / f"{stage}.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
            raise UserError(f"the stage {stage} of a trial failed ({' '.join(last)}): see {folder / stage}.log.")

    @cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.prepared / "train", self.prepared / "labels")

    def first(self) -> Values:
        """The present values, as a trial has them; one that is 0 is not searched."""
        own_k = decide("K", self.own["K"], self.sizes)
        return {"K": own_k, **{name: self.own[name] for name in SPACE if self.own[name]}}

    def draw(self, trial: optuna.Trial) -> Values:
        """The values of a trial."""
        first = self.first()
        choices = {first["K"], *(max(1, self.sizes.labels // share) for share in AUX)} if first["K"] else {0}
        trial.suggest_categorical("K", sorted(choices))
        for name, one in SPACE.items():
            if name in first:
                one.draw(trial, name, first[name])
        return self.chosen(trial)

    def chosen(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> Values:
        """The values of a trial in three digits, as they are run and written; K as it stands where it is the same."""
        first = self.first()
        drawn = {name: float(f"{value:.3g}") for name, value in trial.params.items() if name != "K"}
        return {"K": self.own["K"] if trial.params["K"] == first["K"] else trial.params["K"], **drawn}

    def objective(self, trial: optuna.Trial) -> float:
        """The goal of the trial's fused ranking on the validation documents."""
        folder = self.folder / f"trial-{trial.number}"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        for stage in ONCE:
            place = folder / "data" / stage
            if not place.is_symlink():
                place.symlink_to(self.folder / "data" / stage)
        self.write(folder, self.draw(trial))
        for stage in TRIED:
            self.run(folder, stage)
            if stage == "encoder":
                trial.report(best_epoch(folder / "data" / "encoder" / "curve-choose.csv"), 0)
                if trial.should_prune():
                    raise optuna.TrialPruned
        figures = json.loads((folder / "data" / "index" / "validation.json").read_text(encoding="utf-8"))["fused"]
        trial.set_user_attr("figures", {name: figures[name] for name in SHOWN})
        return goal(figures, self.checked.values["score"]["tail"])


def best_epoch(curve: Path) -> float:
    """The highest N@5 of the epochs of a curve."""
    with open(curve, encoding="utf-8", newline="") as opened:
        return max(float(row["N@5"]) for row in csv.DictReader(opened))


def search(tuning: Tuning, minutes: float, seed: int, say: Callable[[str], None] = console.say) -> optuna.Study:
    """Make trials until the next one would not be finished within so many minutes; one at least."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    begin = time.monotonic()
    tuning.prepare()
    study = optuna.create_study(
        study_name="tune",
        direction="maximize",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(tuning.folder / "journal.log"))),
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST, multivariate=True),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST, n_warmup_steps=0),
        load_if_exists=True,
    )
    if not study.trials:
        study.enqueue_trial(tuning.first())
    made: list[float] = []
    while not made or time.monotonic() - begin + float(np.median(made)) < 60 * minutes:
        started = time.monotonic()
        study.optimize(tuning.objective, n_trials=1)
        made.append(time.monotonic() - started)
        say(described(study.trials[-1], study))
    return study


def described(trial: optuna.trial.FrozenTrial, study: optuna.Study) -> str:
    """A trial in a line."""
    values = ", ".join(f"{name} {value:.3g}" for name, value in trial.params.items())
    if trial.state == optuna.trial.TrialState.PRUNED:
        return f"trial {trial.number}: given up after the encoder ({values})"
    best = " (best so far)" if trial.number == study.best_trial.number else ""
    return f"trial {trial.number}: {trial.value:.2f}{best}: {values}"


def recipe_of(tuning: Tuning, study: optuna.Study) -> str:
    """The best trial as a recipe: what differs from the default, and what it gained."""
    best, first = study.best_trial, study.trials[0]
    ended = [trial for trial in study.trials if trial.value is not None]
    before, after = (trial.user_attrs["figures"] for trial in (first, best))
    gained = ", ".join(f"{name} {before[name]:.2f} -> {after[name]:.2f}" for name in SHOWN)
    chosen = {**tuning.own, **tuning.chosen(best)}
    default = flat(values_of(BASE))
    lines = [
        f"# Tuned: the values that were best of {len(study.trials)} trials of `xc tune` on {tuning.own['dataset']}.",
        f"# On validation documents, present values -> these: {gained}",
        f"# ({len(ended)} trials were run to the end, the others given up after the encoder).",
        f"base: {BASE}",
    ]
    sections: dict[str, list[str]] = {}
    for name, value in chosen.items():
        section, _, key = name.rpartition(".")
        if name != "dataset" and value != default.get(name):
            sections.setdefault(section, []).append(f"{'  ' if section else ''}{key}: {json.dumps(value)}")
    for section, rows in sections.items():
        lines += [*([f"{section}:"] if section else []), *rows]
    return "\n".join(lines) + "\n"
