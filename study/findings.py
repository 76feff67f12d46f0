"""Do the papers' findings hold here? Every direction of study/directions.py, measured through DVC experiments.

python -m study.findings [D1 | D2 | ... | recipes ...] [--fresh] [--again] [--share 1/2] [--plan] [--no-run]
python -m study.findings --merge FILE [--merge FILE ...]

reads   params.yaml, unidec/params.yaml, recipes/; the experiments `study-*` of this clone; study/results.json, see
        study/records.py; study/notes.yaml {direction: explanation}; study/same-results.yaml, see study/code.py
writes  docs/study.md and study/results.json after every experiment; missing experiments

Each experiment runs by itself in a temporary checkout of HEAD (dvc exp run --temp), which leaves params.yaml of the
workspace as it is. An experiment that is there with the wanted parameters, in this clone or in study/results.json, is
kept, so a study that was stopped goes on where it was, also in a fresh clone. If an experiment is there twice, the one
that ran with the present code counts, otherwise the recorded one. --fresh repeats those that ran with older code,
--again all that are asked for, every stage of them. The first seed of everything comes first, then the other seeds of
what is quick. Recipes run with all their stages, so that their times are those of whole runs.

Two clones share a study with --share 1/2 and --share 2/2; --merge then takes in what the other one has measured.
"""

from __future__ import annotations

import csv
import io
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from longtail.recipes import flat, values_of
from stages import check_parameters
from study import code, experiments, records
from study.directions import DIRECTIONS, ONE_FIT, Setting, settings
from study.experiments import ROOT, Experiment, dvc, then, with_values
from study.page import FIGURES, document, read_notes, recipe_rows, recipes
from study.records import Record, Rows
from study.sparse import SPARSE, write_sparse
from study.verdicts import SEEDS, claims, name_of
from xcutils.core import console, params
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES, Pipeline

MOST_FAILURES = 3  # one after the other, after which the study stops
PARAMS = str(MODULAR.params)
PAGE = "study.md"
RESULTS = ROOT / "study" / "results.json"
NOTES = ROOT / "study" / "notes.yaml"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
Files = dict[str, dict]  # {parameter file or recipe: its values}
Needs = dict[str, dict[str, set[str]]]  # {experiment: {row: metrics}}


@dataclass
class State:
    """The experiments that are there.

    records  {experiment: record}
    unused   recorded experiments that are not there: they have other parameters, or lack a row
    again    those that are to be run although they are there, in this order
    current  digests of the code that gives the figures of the present code
    """

    records: dict[str, Record] = field(default_factory=dict)
    unused: dict[str, Record] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    current: set[str] = field(default_factory=set)

    def lacks(self, name: str) -> bool:
        return name not in self.records or name in self.again

    def is_older(self, name: str) -> bool:
        """Did the experiment run with code that may give other figures than the present code?"""
        return self.records[name].code not in self.current

    def take(self, name: str, record: Record) -> None:
        """Let this be what there is of the experiment."""
        self.records[name] = record
        self.again = [other for other in self.again if other != name]


# --- experiments ------------------------------------------------------------------------------------------------------


def read_files(root: Path) -> Files:
    """The values of the parameter files, and of the recipes that are not for a graphics card."""
    out = {str(pipeline.params): params.read(root / pipeline.params) for pipeline in PIPELINES.values()}
    names = sorted(file.name for file in (root / "recipes").glob("*.yaml"))
    small = [name for name in names if not re.search(r"-[\d.]+[km]\.yaml$", name)]
    return out | {f"recipes/{name}": values_of(name.removesuffix(".yaml"), root) for name in small}


def pipeline_with(tree: dict) -> Pipeline:
    """The pipeline whose stages have the tree's sections."""
    sections = {name for name, part in tree.items() if isinstance(part, dict)}
    return next((pipeline for pipeline in PIPELINES.values() if sections <= set(pipeline.stages)), MODULAR)


def make(name: str, setting: Setting, files: Files, seed: int | None = None) -> Experiment:
    """The setting's experiment, its parameters checked; without a seed with the file's own.

    Changes to prepare.* are made in params.yaml also for the unified pipeline, which reads data/prepare.
    """
    if setting.start not in files:
        raise UserError(f"{setting.start} is missing, which {name} starts from.")
    pipeline = pipeline_with(files[setting.start])
    file, own = str(pipeline.params), dict(setting.changes)
    shared = {key: own.pop(key) for key in list(own) if pipeline is not MODULAR and key.startswith("prepare.")}
    start = with_values(files[setting.start], then(flat(files[setting.start])), setting.start)
    tree = with_values(start, own if seed is None else {**own, "seed": seed}, setting.start)
    check_parameters(tree, setting.start, pipeline)  # now, and not in the middle of the night
    if different := set(flat(tree)) ^ set(flat(files[file])):
        raise UserError(f"{setting.start} and {file} do not have the same lines: {', '.join(sorted(different))}.")
    if pipeline is MODULAR:
        return Experiment(name, {file: flat(tree)})
    root = flat(with_values(files[PARAMS], then(flat(files[PARAMS])) | shared))
    inputs = {key: value for key, value in root.items() if key == "dataset" or key.startswith("prepare.")}
    return Experiment(name, {file: flat(tree), PARAMS: inputs}, pipeline)


def make_all(files: Files) -> dict[str, Experiment]:
    """{name: experiment} of every setting and seed, and of the recipes."""
    runs = [(name_of(name, seed), setting, seed) for name, setting in settings().items() for seed in SEEDS]
    every = {name: make(name, setting, files, seed) for name, setting, seed in runs}
    for claim in claims():
        values = [every[name_of(name, SEEDS[0])].values for name in {setting for _, setting, _ in claim.terms}]
        if any(values.count(one) > 1 for one in values):
            raise UserError(f"{claim.formula}: two of these have the same parameters, so there can be no difference.")
    return every | {name: make(name, Setting(recipe, {}), files) for name, recipe in recipes(files).items()}


def order(asked: tuple[str, ...], seconds: dict[str, float], files: Files, quick: float) -> list[str]:
    """The names of the experiments that are wanted, in the order in which they are run.

    seconds  that experiments took; those of the first seed decide whether the others are wanted
    """
    names: dict[str, None] = {}
    for seed in SEEDS:
        for claim in claims(asked):
            used = [setting for _, setting, _ in claim.terms]
            slow = any(seconds.get(name_of(setting, SEEDS[0]), 0.0) > quick for setting in used)
            if seed == SEEDS[0] or not slow:
                names |= dict.fromkeys(name_of(setting, seed) for setting in used)
        if seed == SEEDS[0] and "recipes" in asked:
            names |= dict.fromkeys(recipes(files))
    return list(names)


def share(part: int, parts: int, files: Files) -> set[str]:
    """The names of one of `parts` shares of the study: every so many settings and recipes.

    A setting's seeds stay together: whether the others are run depends on how long the first one took.
    """
    groups = [[name_of(name, seed) for seed in SEEDS] for name in settings()] + [[name] for name in recipes(files)]
    return {name for group in groups[part - 1 :: parts] for name in group}


def run(experiment: Experiment, files: Files, minutes: float, whole: bool) -> float:
    """Run it, in place of an older one of its name; the seconds that took.

    whole  run all stages, also those whose results are in DVC's cache
    """
    forget(experiment.name)
    words = [*(["--force"] if whole else []), *with_data(experiment), *arguments(experiment, files)]
    start = time.monotonic()
    dvc("exp", "run", "--temp", "--name", experiment.name, *words, minutes=minutes)
    return round(time.monotonic() - start, 1)


def run_embed(dataset: str, files: Files, minutes: float) -> None:
    """Run prepare and embed, which all settings share, into DVC's cache: otherwise the first one would seem slow."""
    values = {key: value for key, value in ONE_FIT.items() if key.startswith("prepare.")}
    one = Experiment("study-embed", {PARAMS: {**values, "dataset": dataset}})
    forget(one.name)
    words = [*with_data(one), *arguments(one, files)]
    dvc("exp", "run", "embed", "--temp", "--name", one.name, *words, minutes=minutes)
    forget(one.name)


def with_data(experiment: Experiment) -> list[str]:
    """The words of `dvc exp run` that take the sparse dataset along, which git does not keep; made if need be."""
    if experiment.values[PARAMS].get("dataset") != SPARSE:
        return []
    write_sparse(experiments.ROOT)
    return ["--copy-paths", SPARSE]


def arguments(experiment: Experiment, files: Files) -> list[str]:
    return experiment.arguments({file: flat(files[file]) for file in experiment.values})


def forget(name: str) -> None:
    """Remove the experiment if there is one of HEAD."""
    if name in dvc("exp", "list", "--name-only").split():
        dvc("exp", "remove", name)


# --- results ----------------------------------------------------------------------------------------------------------


def needed(files: Files) -> Needs:
    """What the page has a place for."""
    out = {name: {row: set(FIGURES) for row in recipe_rows(Path(file).stem)} for name, file in recipes(files).items()}
    for claim in claims():
        for _, setting, row in claim.terms:
            for seed in SEEDS:
                out.setdefault(name_of(setting, seed), {}).setdefault(row, set()).add(claim.metric)
    return out


def only(rows: Rows, needs: dict[str, set[str]]) -> Rows | None:
    """The rows and metrics that are needed; None where one is not there."""
    if any(metric not in rows.get(row, {}) for row, metrics in needs.items() for metric in metrics):
        return None
    return {row: {metric: rows[row][metric] for metric in sorted(metrics)} for row, metrics in needs.items()}


def of_this_clone(wanted: Iterable[Experiment], needs: Needs) -> dict[str, Record]:
    """{name: record} of those of the experiments that are finished; the seconds are not known."""
    by_name, out = {experiment.name: experiment for experiment in wanted}, {}
    for name, (commit, metrics) in experiments.results(list(by_name.values())).items():
        one = by_name[name]
        bins = read_bins(commit) if any(", " in row for row in needs[name]) else {}
        if rows := only({**metrics, **bins}, needs[name]):
            out[name] = Record(code.digest_at(commit, one.pipeline), one.digest, rows)
    return out


def read_bins(commit: str) -> dict[str, dict[str, float]]:
    """{row, bin: {metric: value}} of an experiment's data/score/bins.csv; {} where DVC's cache has lost it."""
    from dvc import api
    from dvc.exceptions import DvcException

    try:
        text = api.read("data/score/bins.csv", repo=str(experiments.ROOT), rev=commit)
    except (DvcException, OSError):
        return {}
    lines = csv.DictReader(io.StringIO(text))
    return {line["place"]: {name: float(line[name]) for name in line if "@" in name} for line in lines}


def take_in(state: State, found: dict[str, Record], every: dict[str, Experiment], needs: Needs) -> None:
    """Add the records that have the wanted parameters and all that is needed.

    Of two records of an experiment the one of the present code is kept, otherwise the one that was there.
    """
    for name, record in found.items():
        if name not in every or record.parameters != every[name].digest:
            continue
        better = name not in state.records or (state.is_older(name) and record.code in state.current)
        if better and (rows := only(record.rows, needs[name])):
            state.take(name, replace(record, rows=rows))


def read_state(results: Path, others: tuple[Path, ...], every: dict[str, Experiment], files: Files) -> State:
    """What is recorded, what this clone has besides, and what others have recorded."""
    state, needs = State(current=code.current()), needed(files)
    recorded = records.read(results) if results.is_file() else {}
    take_in(state, recorded, every, needs)
    state.unused = {name: one for name, one in recorded.items() if name in every and name not in state.records}
    take_in(state, of_this_clone(every.values(), needs), every, needs)
    for file in others:
        take_in(state, records.read(file), every, needs)
    return state


# --- command ----------------------------------------------------------------------------------------------------------


@dataclass
class Study:
    """One call of the command.

    asked           directions, and "recipes"
    every           {name: experiment} of all there could be
    state           those that are there
    docs, results   the folder of the page, and the file of the records
    mine            the names of this clone's share
    quick, minutes  seconds up to which all seeds are run, and the longest time for one experiment
    again           run all that is asked for again, all stages of it
    """

    asked: tuple[str, ...]
    files: Files
    every: dict[str, Experiment]
    state: State
    docs: Path
    results: Path
    mine: set[str]
    quick: float
    minutes: float
    again: bool

    def wanted(self, quick: float) -> list[str]:
        records = self.state.records.items()
        seconds = {name: record.seconds for name, record in records if record.seconds is not None}
        return order(self.asked, seconds, self.files, quick)

    def repeat(self, fresh: bool) -> None:
        """Have run again what is asked for and there: all of it, or with `fresh` what ran with older code."""
        there = [name for name in self.wanted(quick=float("inf")) if name in self.state.records]
        self.state.again = [name for name in there if self.again or (fresh and self.state.is_older(name))]

    def missing(self) -> list[str]:
        """What is still to be run; how long an experiment took decides on others."""
        names = dict.fromkeys([*self.wanted(self.quick), *self.state.again])
        return [name for name in names if name in self.mine and self.state.lacks(name)]

    def run_one(self, name: str) -> None:
        """Run the experiment; what comes of it replaces what there was."""
        experiment = self.every[name]
        whole = self.again or name in recipes(self.files)
        seconds = run(experiment, self.files, self.minutes, whole)
        found = of_this_clone([experiment], needed(self.files))
        if name not in found:
            raise UserError(f"{name}: done, but without the wanted parameters or rows: see `dvc exp show`.")
        self.state.take(name, replace(found[name], seconds=seconds))

    def run_embeds(self) -> None:
        """Have what the missing settings share in DVC's cache before their time is taken."""
        alone = [] if self.again else [name for name in self.missing() if name not in recipes(self.files)]
        for dataset in dict.fromkeys(self.every[name].values[PARAMS]["dataset"] for name in alone):
            run_embed(dataset, self.files, self.minutes)

    def write(self) -> None:
        """Write the page of what is there, and the records; a record that is not used stays until it is replaced."""
        current = {name: one for name, one in self.state.records.items() if not self.state.is_older(name)}
        self.docs.mkdir(parents=True, exist_ok=True)
        records.write(self.results, self.state.unused | self.state.records)
        text = document(current, len(self.state.records) - len(current), self.files, read_notes(NOTES))
        (self.docs / PAGE).write_text(text, encoding="utf-8")


def work(missing: Callable[[], list[str]], run_one: Callable[[str], None], write: Callable[[], None]) -> list[str]:
    """Run what is missing, one after the other, and write after each; the names of those that failed.

    missing  asked again after each
    """
    failed: list[str] = []
    in_a_row = 0
    while todo := [name for name in missing() if name not in failed]:
        name = todo[0]
        console.say(f"study: {len(todo)} to do, {name} is running")
        try:
            run_one(name)
            in_a_row = 0
        except UserError as error:
            failed.append(name)
            in_a_row += 1
            console.say(f"{name} failed: {error}")
            if in_a_row == MOST_FAILURES:
                raise UserError(f"{MOST_FAILURES} experiments have failed one after the other.") from None
        write()
    return failed


def parse_share(_context, _option, text: str) -> tuple[int, int]:
    """(part, parts) of I/N."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise click.BadParameter("write it as 1/2 or 2/2.")
    return int(part), int(parts)


@click.command()
@click.argument("asked", nargs=-1, type=click.Choice([*DIRECTIONS, "recipes"]))
@click.option("--docs", default=ROOT / "docs", type=click.Path(path_type=Path), help=f"Where to write {PAGE}.")
@click.option("--results", default=RESULTS, type=click.Path(path_type=Path), help="The records to go on from.")
@click.option("--fresh", is_flag=True, help="Run again what was run with older code.")
@click.option("--again", is_flag=True, help="Run again all that is asked for, all stages of it.")
@click.option("--share", "part", default="1/1", callback=parse_share, help="I/N: run only the I-th of N shares.")
@click.option("--merge", "others", multiple=True, type=FILE, help="Take in the records of another clone; run nothing.")
@click.option("--plan", is_flag=True, help="Print what would be run; run and write nothing.")
@click.option("--no-run", is_flag=True, help="Write the page of what is there; run nothing.")
@click.option("--quick", default=120.0, show_default=True, help="Seconds up to which all seeds are run.")
@click.option("--minutes", default=60.0, show_default=True, help="Longest time for one experiment.")
@console.command
def main(asked, docs, results, fresh, again, part, others, plan, no_run, quick, minutes) -> None:
    """Run the missing experiments of the directions ASKED (all by default); write the page of what is there."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated study ends the stage at work as well
    files = read_files(experiments.ROOT)
    every = make_all(files)
    state = read_state(results, others, every, files)
    asked = asked or (*DIRECTIONS, "recipes")
    study = Study(asked, files, every, state, docs, results, share(*part, files), quick, minutes, again)
    study.repeat(fresh)
    if plan:
        for name in study.missing():
            click.echo(f"{name}: {' '.join(arguments(every[name], files))}")
        return
    study.write()
    console.say(f"wrote {docs / PAGE} and {results}: {len(state.records)} experiments")
    if others or no_run or not study.missing():
        return
    experiments.warn_of_changes()
    study.run_embeds()
    failed = work(study.missing, study.run_one, study.write)
    console.say(f"wrote {docs / PAGE}")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}. Running the study again tries them again.")


if __name__ == "__main__":
    main()
