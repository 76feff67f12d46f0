"""Do the papers' findings hold here? Every direction of study/directions.py, measured through DVC experiments.

python -m study.findings [D1 | D2 | ... | recipes ...] [--docs docs] [--fresh] [--again] [--share 1/2] [--plan]
python -m study.findings --merge FILE [--merge FILE ...] [--docs docs]

reads   params.yaml, unidec/params.yaml, recipes/*.yaml; the experiments `study-*` of this clone;
        docs/study-results.json, see study/records.py; docs/study-notes.yaml {direction: explanation}
writes  docs/study.md and docs/study-results.json after every experiment; missing experiments

Each experiment runs by itself in a temporary checkout of HEAD (dvc exp run --temp), which leaves params.yaml of the
workspace as it is. Those that are there with the wanted parameters, in this clone or in docs/study-results.json, are
kept, so a study that was stopped goes on where it was, also in a fresh clone; of two of a name the one that ran with
the present code counts, otherwise the recorded one. --fresh repeats those that ran with other code, --again all that
are asked for, every stage of them. The first seed of everything comes first, then the other seeds of what is quick.
Recipes run with all their stages, so that their times are those of whole runs.

Two clones share a study with --share 1/2 and --share 2/2; --merge then takes in what the other one has measured.
"""

from __future__ import annotations

import csv
import io
import math
import re
import signal
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from study import experiments, records
from study.directions import DIRECTIONS, ONE_FIT, Claim, Direction, Setting, settings
from study.experiments import Experiment, changed, differences, dvc, flat
from study.records import Code, Record, Rows
from study.sparse import SPARSE, write_sparse
from xcutils.core import console, params
from xcutils.core.errors import UserError

SEEDS = (0, 1, 2)
NEARLY = 0.5  # points of difference that count as none where the papers have none
TIRED = 3  # experiments failed in a row, after which the study stops
UNIDEC = "unidec/params.yaml"
RESULTS = "study-results.json"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
Needs = dict[str, dict[str, set[str]]]  # {experiment: {row: metrics}}
FIGURES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "C@5")
ROWS = {  # of metrics.json that are the recipe's own
    **dict.fromkeys(("dexa", "ngame", "siamesexml"), ("encoder", "classifier", "fused")),
    **dict.fromkeys(("dpr", "ance", "dexml", "depsl"), ("encoder",)),
    "renee": ("classifier",),
    "unidec": ("encoder", "classifier", "concatenated"),
}


@dataclass
class State:
    """What there is of each experiment: its rows, its seconds, its code and the files of it that are different now.

    again  those that are to be run although they are there
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    older: dict[str, list[str]] = field(default_factory=dict)
    code: dict[str, Code] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def lacks(self, name: str) -> bool:
        return name not in self.rows or name in self.again

    def take(self, name: str, record: Record) -> None:
        """Let this be what there is of the experiment."""
        self.rows[name], self.code[name] = record.rows, record.code
        self.older[name] = experiments.changed_files(record.code)
        self.seconds.pop(name, None)
        if record.seconds is not None:
            self.seconds[name] = record.seconds
        self.again.discard(name)


# --- experiments ------------------------------------------------------------------------------------------------------


def name_of(setting: str, seed: int) -> str:
    """The experiment's name."""
    return f"study-{setting}-s{seed}"


def claims(names: tuple[str, ...] = tuple(DIRECTIONS)) -> list[Claim]:
    return [claim for name, direction in DIRECTIONS.items() if name in names for claim in direction.claims]


def read_files(root: Path) -> dict[str, dict]:
    """{file: tree} of the parameter files and of the recipes that are not for a graphics card."""
    names = ["params.yaml", UNIDEC, *(f"recipes/{file.name}" for file in sorted((root / "recipes").glob("*.yaml")))]
    return {name: params.read(root / name) for name in names if not re.search(r"-[\d.]+[km]\.yaml$", name)}


def recipes(files: dict[str, dict]) -> dict[str, str]:
    """{experiment: recipe}"""
    return {f"study-recipe-{Path(name).stem}": name for name in files if name.startswith("recipes/")}


def make(name: str, setting: Setting, files: dict[str, dict], seed: int | None = None) -> Experiment:
    """The setting's experiment, its parameters checked; without a seed with the file's own.

    Changes to prepare.* are to params.yaml also in the second pipeline, which reads data/prepare.
    """
    if setting.start not in files:
        raise UserError(f"{setting.start} is missing, which {name} starts from.")
    unified = "train" in files[setting.start]
    file, own = (UNIDEC if unified else "params.yaml"), dict(setting.changes)
    first = {key: own.pop(key) for key in list(own) if unified and key.startswith("prepare.")}
    tree = changed(files[setting.start], own if seed is None else {**own, "seed": seed}, setting.start)
    params.check_file(tree, experiments.ROOT / file)  # now, and not in the middle of the night
    if odd := set(flat(tree)) ^ set(flat(files[file])):
        raise UserError(f"{setting.start} and {file} do not have the same lines: {', '.join(sorted(odd))}.")
    if not unified:
        return Experiment(name, {file: flat(tree)})
    root = flat(changed(files["params.yaml"], first))
    inputs = {key: value for key, value in root.items() if key == "dataset" or key.startswith("prepare.")}
    return Experiment(name, {file: flat(tree), "params.yaml": inputs}, "unidec/")


def make_all(files: dict[str, dict]) -> dict[str, Experiment]:
    """{name: experiment} of every setting and seed, and of the recipes."""
    runs = [(name_of(name, seed), setting, seed) for name, setting in settings().items() for seed in SEEDS]
    every = {name: make(name, setting, files, seed) for name, setting, seed in runs}
    for claim in claims():
        values = [every[name_of(name, SEEDS[0])].values for name in {setting for _, setting, _ in claim.terms}]
        if any(values.count(one) > 1 for one in values):
            raise UserError(f"{claim.formula}: two of these have the same parameters, so there can be no difference.")
    return every | {name: make(name, Setting(recipe, {}), files) for name, recipe in recipes(files).items()}


def order(asked: tuple[str, ...], state: State, files: dict[str, dict], quick: float) -> list[str]:
    """The names of the experiments that are wanted, in the order in which they are run."""
    names: dict[str, None] = {}
    for seed in SEEDS:
        for claim in claims(asked):
            used = [setting for _, setting, _ in claim.terms]
            slow = any(state.seconds.get(name_of(setting, SEEDS[0]), 0.0) > quick for setting in used)
            if seed == SEEDS[0] or not slow:
                names |= dict.fromkeys(name_of(setting, seed) for setting in used)
        if seed == SEEDS[0] and "recipes" in asked:
            names |= dict.fromkeys(recipes(files))
    return list(names)


def share(part: int, parts: int, files: dict[str, dict]) -> set[str]:
    """The names of one of `parts` shares of the study: every so many settings and recipes.

    A setting's seeds stay together: whether the others are run depends on how long the first one took.
    """
    groups = [[name_of(name, seed) for seed in SEEDS] for name in settings()] + [[name] for name in recipes(files)]
    return {name for group in groups[part - 1 :: parts] for name in group}


def run(experiment: Experiment, files: dict[str, dict], minutes: float, whole: bool) -> float:
    """Run it, in place of an older one of its name; the seconds that took.

    whole  run all stages, also those whose results are in DVC's cache
    """
    forget(experiment.name)
    words = [*(["--force"] if whole else []), *with_data(experiment), *arguments(experiment, files)]
    start = time.monotonic()
    dvc("exp", "run", "--temp", "--name", experiment.name, *words, minutes=minutes)
    return round(time.monotonic() - start, 1)


def run_embed(dataset: str, files: dict[str, dict], minutes: float) -> None:
    """prepare and embed, which all settings share, into DVC's cache: otherwise the first one would seem slow."""
    values = {key: value for key, value in ONE_FIT.items() if key.startswith("prepare.")}
    one = Experiment("study-embed", {"params.yaml": {**values, "dataset": dataset}})
    forget(one.name)
    words = [*with_data(one), *arguments(one, files)]
    dvc("exp", "run", "embed", "--temp", "--name", one.name, *words, minutes=minutes)
    forget(one.name)


def with_data(experiment: Experiment) -> list[str]:
    """The words of `dvc exp run` that take a dataset along which git does not keep, and which is made if need be."""
    if experiment.values["params.yaml"].get("dataset") != SPARSE:
        return []
    write_sparse(experiments.ROOT)
    return ["--copy-paths", SPARSE]


def arguments(experiment: Experiment, files: dict[str, dict]) -> list[str]:
    return experiment.arguments({file: flat(files[file]) for file in experiment.values})


def forget(name: str) -> None:
    """Remove the experiment if there is one of HEAD."""
    if name in dvc("exp", "list", "--name-only").split():
        dvc("exp", "remove", name)


# --- results ----------------------------------------------------------------------------------------------------------


def own_rows(recipe: str) -> tuple[str, ...]:
    """The rows of metrics.json that are the recipe's own."""
    return ROWS.get(recipe.removesuffix("-gandalf"), ("fused",))


def needed(files: dict[str, dict]) -> Needs:
    """What the document has a place for."""
    out = {name: {row: set(FIGURES) for row in own_rows(Path(file).stem)} for name, file in recipes(files).items()}
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
            out[name] = Record(records.digest(one.values), rows, experiments.code_of(commit, one.folder))
    return out


def take_in(state: State, found: dict[str, Record], every: dict[str, Experiment], needs: Needs) -> None:
    """Add the records that have the wanted parameters and all that is needed.

    Of two of an experiment the one that ran with the present code is kept, otherwise the one that was there.
    """
    for name, record in found.items():
        if name not in every or record.parameters != records.digest(every[name].values):
            continue
        better = name not in state.rows or (state.older[name] and not experiments.changed_files(record.code))
        if better and (rows := only(record.rows, needs[name])):
            state.take(name, replace(record, rows=rows))


def recorded(state: State, every: dict[str, Experiment]) -> dict[str, Record]:
    """{name: record} of all that is there."""
    return {
        name: Record(records.digest(every[name].values), rows, state.code[name], state.seconds.get(name))
        for name, rows in state.rows.items()
    }


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


# --- differences ------------------------------------------------------------------------------------------------------


def per_seed(claim: Claim, state: State) -> dict[int, list[float]]:
    """{seed: the weighted value of each term} of the seeds for which all are there."""
    out = {}
    for seed in SEEDS:
        parts = [(weight, state.rows.get(name_of(name, seed), {}).get(row)) for weight, name, row in claim.terms]
        if all(row is not None for _, row in parts):
            out[seed] = [weight * row[claim.metric] for weight, row in parts]
    return out


def sign_of(values: list[float], noise: float) -> int:
    """The sign of the mean, 0 where it is not clear: seeds disagree, or differ by more than the mean.

    noise  standard deviation that is assumed of a single value
    """
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else noise
    if min(values) <= 0 <= max(values) or abs(mean) <= spread:
        return 0
    return 1 if mean > 0 else -1


def verdict(values: list[float], expected: str, noise: float = 0.0) -> str:
    """Whether the differences have the expected sign."""
    sign = sign_of(values, noise)
    if expected == "?":
        return {1: "rises", 0: "no difference", -1: "falls"}[sign]
    if expected == "=" and (sign or abs(statistics.fmean(values)) <= NEARLY):
        return "agrees" if abs(statistics.fmean(values)) <= NEARLY else "does not agree"
    if sign == 0:
        return "agrees" if expected == ">=" else "no difference"
    return "agrees" if (sign > 0) == (expected in (">", ">=")) else "does not agree"


def noises(state: State) -> dict[str, float]:
    """{metric: the usual standard deviation of a difference of two, over seeds}"""
    spreads: dict[str, list[float]] = {}
    for claim in claims():
        values = [sum(parts) for parts in per_seed(claim, state).values()]
        if len(values) > 1 and len(claim.terms) == 2:
            spreads.setdefault(claim.metric, []).append(statistics.stdev(values))
    return {metric: statistics.median(some) for metric, some in spreads.items()}


# --- document ---------------------------------------------------------------------------------------------------------


def table(columns: list[str], lines: list[list[str]], right: int = 0) -> list[str]:
    """A Markdown table; the last `right` columns are numbers."""
    rule = "|" + "---|" * (len(columns) - right) + "--:|" * right
    return [f"| {' | '.join(columns)} |", rule, *(f"| {' | '.join(line)} |" for line in lines), ""]


def claim_line(claim: Claim, state: State, noise: dict[str, float]) -> list[str]:
    """The claim's row: difference, place, paper, ours, sides, seeds, verdict."""
    found = per_seed(claim, state)
    expected = "either" if claim.expected == "?" else f"{claim.expected} 0"
    head = [f"`{claim.formula}`", claim.place.replace("/", ", "), expected, claim.paper]
    if not found:
        return [*head, "", "", "0", "not run yet"]
    values = [sum(parts) for parts in found.values()]
    ours = f"{statistics.fmean(values):+.2f}"
    if len(values) > 1:
        ours += f" ± {statistics.stdev(values):.2f} ({min(values):+.2f} to {max(values):+.2f})"
    means = [statistics.fmean(part) for part in zip(*found.values())]
    signs = ["+" if weight > 0 else "-" for weight, _, _ in claim.terms]
    sides = " ".join(f"{sign} {abs(mean):.2f}" for sign, mean in zip(signs, means)).removeprefix("+ ")
    alone = noise.get(claim.metric, 0.0) * math.sqrt(len(claim.terms) / 2)
    return [*head, ours, sides, str(len(values)), verdict(values, claim.expected, alone)]


def direction_text(name: str, direction: Direction, state: State, noise: dict[str, float], note: str) -> list[str]:
    """The direction's section."""
    columns = ["difference", "of", "sign", "paper", "here", "parts", "seeds", "verdict"]
    lines = [claim_line(claim, state, noise) for claim in direction.claims]
    text = [f"## {name}. {direction.statement}", "", f"{direction.source}. {direction.here}".strip(), ""]
    return [*text, *table(columns, lines), *([note.strip(), ""] if note.strip() else [])]


def summary(state: State, noise: dict[str, float]) -> list[str]:
    """How many rows of each direction agree."""
    lines = []
    for name, direction in DIRECTIONS.items():
        found = [claim_line(claim, state, noise)[-1] for claim in direction.claims]
        counts = ", ".join(f"{found.count(one)} {one}" for one in dict.fromkeys(found))
        lines.append([f"{name}. {direction.statement}", counts])
    return table(["direction", "rows"], lines)


def recipe_lines(state: State, files: dict[str, dict]) -> list[list[str]]:
    """The rows of every recipe."""
    lines = []
    for name, file in recipes(files).items():
        recipe, metrics = Path(file).stem, state.rows.get(name)
        if metrics is None:
            lines.append([recipe, "not run yet", *[""] * (len(FIGURES) + 1)])
            continue
        seconds = f"{state.seconds[name]:.0f}" if name in state.seconds else ""
        for row in own_rows(recipe):
            lines.append([recipe, row, *(f"{metrics[row][figure]:.2f}" for figure in FIGURES), seconds])
    return lines


def setting_lines(state: State, files: dict[str, dict]) -> list[list[str]]:
    """What each setting changes in the file it starts from, and how long it took."""
    lines = []
    for name, setting in settings().items():
        old = flat(files["params.yaml"]) | flat(files[setting.start])
        changes = " ".join(f"`{change}`" for change in differences(old, setting.changes)) or "nothing"
        seconds = [state.seconds[one] for seed in SEEDS if (one := name_of(name, seed)) in state.seconds]
        lines.append([name, setting.start, changes, f"{statistics.fmean(seconds):.0f}" if seconds else ""])
    return lines


INTRO = f"""# Do the papers' findings hold here?

Written by `python -m study.findings` (`make study`): directions in which the papers' figures go, and the same
comparisons on the default dataset (9,101 training documents of 4 words and 20 labels each, 10,402 labels); settings
named `sparse-` have a thinned copy of it (D9). A row is a difference of settings, which the last table explains; a
setting is an experiment `study-<setting>-s<seed>` for each seed. Figures are points of percent on the test documents:
the mean over seeds {", ".join(map(str, SEEDS))} ± standard deviation (least to greatest), or that of
one seed where a run takes long. "Parts" are the terms of the difference. Those of every single experiment are in
`{RESULTS}`.

"Agrees" and "does not agree" are about the sign. "No difference": the seeds do not all have the same sign, or the mean
is within the standard deviation; for one seed, within the usual deviation of the metric's other differences. Where the
papers see nearly none (= 0), up to {NEARLY} points agree. The spread is that of training: all seeds have the same test
documents. Models are fitted once, without the validation documents, and what a row does not look at is trained
briefly: the figures compare with each other, not with those of other pages.

DEXA: Dahiya et al., KDD 2023. Thesis: Kharbanda, Compute Efficient Extreme Multi-Label Classification, UCLA 2024
(Gandalf and UniDEC). Renee: Jain et al., MLSys 2023.
"""


def document(state: State, files: dict[str, dict], notes: dict[str, str]) -> str:
    """docs/study.md"""
    noise = noises(state)
    older = [name for name, changes in state.older.items() if changes and name in state.rows]
    text = [INTRO, *summary(state, noise)]
    if older:
        text += [f"{len(older)} of {len(state.rows)} experiments ran with older code; `--fresh` runs them again.", ""]
    for name, direction in DIRECTIONS.items():
        text += direction_text(name, direction, state, noise, notes.get(name) or "")
    text += [
        "## Recipes",
        "",
        "Each as it is in `recipes/`, one run of all stages, with the rows that are its own.",
        "",
    ]
    text += table(["recipe", "row", *FIGURES, "seconds"], recipe_lines(state, files), right=len(FIGURES) + 1)
    text += [
        "## Settings",
        "",
        "Seconds are the mean of runs in which `prepare` and `embed` came from the cache (not so with `--again`).",
        "",
    ]
    text += table(["setting", "file", "changed in it", "seconds"], setting_lines(state, files), right=1)
    return "\n".join(text)


def read_notes(file: Path) -> dict[str, str]:
    """{direction: explanation}, written by hand."""
    notes = params.read(file) if file.is_file() else {}
    if odd := set(notes) - set(DIRECTIONS):
        raise UserError(f"{file}: {', '.join(sorted(odd))} is not a direction; known: {', '.join(DIRECTIONS)}.")
    return notes


# --- command ----------------------------------------------------------------------------------------------------------


def read_state(docs: Path, others: tuple[Path, ...], every: dict[str, Experiment], files: dict[str, dict]) -> State:
    """What is recorded, what this clone has besides, and what others have recorded."""
    state, needs, own = State(), needed(files), docs / RESULTS
    take_in(state, records.read(own) if own.is_file() else {}, every, needs)
    take_in(state, of_this_clone(every.values(), needs), every, needs)
    for file in others:
        take_in(state, records.read(file), every, needs)
    return state


def run_and_take(experiment: Experiment, state: State, files: dict[str, dict], minutes: float, whole: bool) -> None:
    """Run the experiment; what comes of it replaces what there was."""
    seconds = run(experiment, files, minutes, whole)
    found = of_this_clone([experiment], needed(files))
    if experiment.name not in found:
        raise UserError(f"{experiment.name}: done, but without the wanted parameters or rows: see `dvc exp show`.")
    state.take(experiment.name, replace(found[experiment.name], seconds=seconds))


def work(missing, run_one, write) -> list[str]:
    """Run what is missing, one after the other, and write after each; the names of those that failed.

    missing  () -> [name], asked again after each: how long an experiment took decides on others
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
            failed, in_a_row = [*failed, name], in_a_row + 1
            console.say(f"{name} failed: {error}")
            if in_a_row == TIRED:
                raise UserError(f"{TIRED} experiments have failed one after the other.") from None
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
@click.option("--docs", default=experiments.ROOT / "docs", type=click.Path(path_type=Path), help="Where to write.")
@click.option("--fresh", is_flag=True, help="Run again what was run with other code.")
@click.option("--again", is_flag=True, help="Run again all that is asked for, all stages of it.")
@click.option("--share", "part", default="1/1", callback=parse_share, help="I/N: run only the I-th of N shares.")
@click.option("--merge", "others", multiple=True, type=FILE, help=f"Take in another {RESULTS}; run nothing.")
@click.option("--plan", is_flag=True, help="Print what would be run; run and write nothing.")
@click.option("--quick", default=120.0, show_default=True, help="Seconds up to which all seeds are run.")
@click.option("--minutes", default=60.0, show_default=True, help="Longest time for one experiment.")
@console.command
def main(
    asked: tuple[str, ...],
    docs: Path,
    fresh: bool,
    again: bool,
    part: tuple[int, int],
    others: tuple[Path, ...],
    plan: bool,
    quick: float,
    minutes: float,
) -> None:
    """Run the missing experiments of the directions ASKED (all by default); write the document of what is there."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated study ends the stage at work as well
    asked, files = asked or (*DIRECTIONS, "recipes"), read_files(experiments.ROOT)
    every, explanations = make_all(files), read_notes(docs / "study-notes.yaml")
    state, mine = read_state(docs, others, every, files), share(*part, files)
    there = [name for name in order(asked, state, files, float("inf")) if name in state.rows]
    repeated = [name for name in there if again or (fresh and state.older[name])]
    state.again = set(repeated)

    def missing() -> list[str]:
        wanted = dict.fromkeys([*order(asked, state, files, quick), *repeated])
        return [name for name in wanted if name in mine and state.lacks(name)]

    def run_one(name: str) -> None:
        run_and_take(every[name], state, files, minutes, whole=again or name in recipes(files))

    def write() -> None:
        docs.mkdir(parents=True, exist_ok=True)
        records.write(docs / RESULTS, recorded(state, every))
        (docs / "study.md").write_text(document(state, files, explanations), encoding="utf-8")

    if plan:
        for name in missing():
            click.echo(f"{name}: {' '.join(arguments(every[name], files))}")
        return
    write()
    if others:
        console.say(f"wrote {docs / 'study.md'} and {docs / RESULTS}: {len(state.rows)} experiments")
        return
    if missing():
        experiments.warn_of_changes()
    alone = [] if again else [name for name in missing() if name not in recipes(files)]
    for dataset in dict.fromkeys(every[name].values["params.yaml"]["dataset"] for name in alone):
        run_embed(dataset, files, minutes)
    failed = work(missing, run_one, write)
    console.say(f"wrote {docs / 'study.md'}")
    if failed:
        raise UserError(f"failed: {', '.join(failed)}. Running the study again tries them again.")


if __name__ == "__main__":
    main()
