"""Sweeps over K, the loss and the encoder through DVC's experiment queue; a table and a plot of each in docs/.

python -m study.sweep [k | loss | encoder ...] [--docs docs] [-S NAME=VALUE ...] [--fresh]

reads   params.yaml; the experiments `sweep-*` of this repository
writes  docs/sweeps.md, docs/sweep-{k,loss,encoder}.png; missing experiments (dvc exp run --queue)

An experiment that has the name and the parameters of a row is kept, so a sweep that was stopped goes on where it was;
the queue itself goes on when this command is stopped (`dvc queue stop --kill` ends it). Each experiment runs in a
checkout of HEAD of its own, where files that git does not know are missing. Stages whose code, input and parameters are
known come from DVC's run cache.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from longtail.recipes import flat
from stages import check_parameters
from study import code
from study.experiments import (
    DEFAULTS_THEN,
    ROOT,
    Experiment,
    as_text,
    differences,
    dvc,
    last_lines,
    results,
    warn_of_changes,
    with_values,
)
from study.variants import TOKENS, TRANSFORMER, TRIPLET
from xcutils.core import console, params
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR

PARAMS = str(MODULAR.params)
PAUSE = 20  # seconds between two looks at the queue
LOOKS = 4  # without a worker, after which it is taken to be gone: a busy machine may fail to answer once
STARTS = 3  # of a worker, after which the sweep gives up
KS = (0, 512, 2048, 4096, 65536)
LOSSES: dict[str, dict] = {
    "triplet": TRIPLET,
    "triplet-tokens": TOKENS,
    "decoupled-softmax": {},
}
# Each encoder with what it needs and what two cores can afford; `{}` is params.yaml as it is.
ENCODERS: dict[str, dict] = {
    "bag-of-embeddings": {},
    "bi-gru": {"encoder.kind": "bi-gru", "encoder.epochs": 4, "encoder.positives": 2},
    "MiniLM-L3": {**TRANSFORMER, "encoder.layers": 3},
    "MiniLM-L6": {**TRANSFORMER, "encoder.layers": 0},
}
# The encoder sweep is about M1: one fit, not two; frozen encoders in M4, where each would want its own learning rate.
FROZEN = {"prepare.refit": False, "classifier.encoder_lr": 0.0, "classifier.epochs": 3}

FIGURES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")  # of the encoder's row; the fused row gives P@1
SWEEPS = {  # name: title, what the reader should know
    "k": (
        "Auxiliary vectors",
        "K = 0 is NGAME. With K at or above the number of labels each label has a vector of its own.",
    ),
    "loss": (
        "Loss of M1, without and with auxiliary vectors",
        "Triplet is the papers' loss, decoupled softmax the default here. The gain depends on what the encoder "
        "can do by itself: `tokens` is the bag without n-grams.",
    ),
    "encoder": (
        "Encoders, without and with auxiliary vectors",
        "To fit two cores, the slower encoders are trained for fewer epochs than they could use, all are fitted once "
        "(without the validation documents), and M4 is short and leaves the encoder as it is: these figures compare "
        "with each other, not with those of the other tables. MiniLM-L3 is every second layer of MiniLM-L6.",
    ),
}


@dataclass(frozen=True)
class Row:
    """One row of a sweep: `group` without or with K auxiliary vectors, and what is changed for it in params.yaml."""

    group: str
    k: int
    changes: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The experiment's name; rows of equal name are one experiment, whichever sweeps they are in."""
        return f"sweep-{self.group}-K{self.k}"

    @property
    def overrides(self) -> list[str]:
        """The arguments of `dvc exp run`."""
        return [word for name, value in self.changes for word in ("-S", f"{name}={as_text(value)}")]


# --- rows -------------------------------------------------------------------------------------------------------------


def make_rows(sweep: str, tree: dict, extra: dict[str, Any] | None = None) -> list[Row]:
    """The sweep's rows.

    tree   params.yaml
    extra  changes made to every row, e.g. {"encoder.epochs": 1}
    """
    without_and_with = (0, DEFAULTS_THEN["K"].get(tree["K"], tree["K"]))

    def row(group: str, k: int, changes: dict) -> Row:
        return Row(group, k, tuple({"K": k, **changes, **(extra or {})}.items()))

    if sweep == "k":
        return [row(tree["encoder"]["loss"], k, {}) for k in KS]
    if sweep == "loss":
        return [row(loss, k, changes) for loss, changes in LOSSES.items() for k in without_and_with]
    return [row(group, k, {**changes, **FROZEN}) for group, changes in ENCODERS.items() for k in without_and_with]


def experiment(tree: dict, row: Row) -> Experiment:
    """The row's experiment, from params.yaml as it is."""
    return Experiment(row.name, {PARAMS: flat(with_values(tree, dict(row.changes)))})


# --- DVC's queue ------------------------------------------------------------------------------------------------------


def read_status(text: str) -> tuple[dict[str, str], int, int]:
    """What `dvc queue status` says: {experiment: Queued, Running, Success or Failed}, workers active, workers idle."""
    states, workers = {}, [0, 0]
    for line in text.splitlines():
        words = line.split()
        if line.startswith("Worker status:"):
            workers = [int(word) for word in words if word.isdecimal()]
        elif len(words) > 3 and words[-1] in ("Queued", "Running", "Success", "Failed"):
            states[words[1]] = words[-1]
    return states, workers[0], workers[1]


def metrics_of(wanted: list[Experiment]) -> dict[str, dict]:
    """{experiment: metrics.json} of those that are there."""
    found, current = results(wanted), code.current()
    for name, (commit, _) in found.items():
        if code.digest_at(commit, MODULAR) not in current:
            console.say(f"{name} was run with older code: --fresh runs it again.")
    return {name: metrics for name, (_, metrics) in found.items()}


def queue(missing: list[Row]) -> None:
    """Put the rows into the queue, in place of older tasks and experiments of their names."""
    states, *_ = read_status(dvc("queue", "status"))
    known = set(dvc("exp", "list", "--name-only").split())
    for row in missing:
        if row.name in states:
            dvc("queue", "remove", row.name)
        if row.name in known:
            dvc("exp", "remove", row.name)
        dvc("exp", "run", "--queue", "--name", row.name, *row.overrides)
        console.say(f"queued {row.name}: {' '.join(row.overrides)}")


def finish(names: list[str], minutes: float) -> None:
    """Take back the experiments that an earlier call left in the queue, and wait for the one that is running."""
    states, *_ = read_status(dvc("queue", "status"))
    queued = [name for name in names if states.get(name) == "Queued"]
    if queued:
        dvc("queue", "remove", *queued)
    wait([name for name in names if states.get(name) == "Running"], minutes)


def wait(names: list[str], minutes: float) -> None:
    """Run the queue and come back when none of the experiments is queued or running; a UserError if one failed."""
    idle_looks = 0  # one after the other, at which nobody did the work
    starts = 0
    before: dict[str, str] = {}
    since = time.monotonic()
    while True:
        states, active, idle = read_status(dvc("queue", "status"))
        states = {name: states[name] for name in names if name in states}
        if states != before:
            before, since = states, time.monotonic()
            console.say(progress(states))
        running = [name for name, state in states.items() if state == "Running"]
        if not running and "Queued" not in states.values():
            break
        idle_looks = idle_looks + 1 if not active and (running or not idle) else 0
        check_queue(running, idle_looks, starts, time.monotonic() - since > 60 * minutes)
        if not running and not active and not idle and (starts == 0 or idle_looks % LOOKS == 0):
            dvc("queue", "start", "--jobs", "1")
            starts += 1
        time.sleep(PAUSE)
    failed = [name for name, state in states.items() if state == "Failed"]
    if failed:
        raise UserError("\n\n".join(f"{name} failed; `dvc queue logs {name}` ends:\n{log(name)}" for name in failed))


def check_queue(running: list[str], idle_looks: int, starts: int, late: bool) -> None:
    """A UserError if the queue will not go on by itself: a task has no worker, no worker stays, or nothing ends.

    idle_looks  looks at the queue, one after the other, at which nobody did the work
    starts      how often a worker was started
    late        no experiment has ended for too long
    """
    if running and idle_looks >= LOOKS:
        name = running[0]
        raise UserError(f"{name} has lost its worker: `dvc queue kill {name}`, then run this command again.")
    if starts >= STARTS and idle_looks >= LOOKS:
        raise UserError(f"the queue's worker was started {starts} times and is gone: see .dvc/tmp/exps/celery/*.out.")
    if late:
        raise UserError("no experiment has ended for too long: see `dvc queue status`, or wait longer with --minutes.")


def progress(states: dict[str, str]) -> str:
    """One line on how far the queue is."""
    done = sum(state in ("Success", "Failed") for state in states.values())
    running = "".join(f", {name} is running" for name, state in states.items() if state == "Running")
    failed = "".join(f", {name} failed" for name, state in states.items() if state == "Failed")
    return f"sweep: {done} of {len(states)} done{running}{failed}"


def log(name: str) -> str:
    """The end of a task's log."""
    try:
        return last_lines(dvc("queue", "logs", name))
    except UserError as error:  # it failed before it began
        return str(error)


# --- documents --------------------------------------------------------------------------------------------------------


def section(sweep: str, rows: list[Row], found: dict[str, dict], tree: dict, extra: tuple[str, ...] = ()) -> str:
    """The sweep as Markdown: title, table, gains, plot, and the command with its extra changes."""
    title, note = SWEEPS[sweep]
    columns = ["setting", *FIGURES, "fused P@1", "changed in params.yaml"]
    lines = [f"## {title}", "", note, "", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 2) + "---|"]
    for row in rows:
        metrics = found[row.name]
        figures = [metrics["encoder"][name] for name in FIGURES] + [metrics["fused"]["P@1"]]
        changes = differences(flat(tree), experiment(tree, row).values[PARAMS])
        words = " ".join(f"`{change}`" for change in changes) or "nothing"
        lines.append(f"| {row.group}, K = {row.k} | {' | '.join(f'{v:.2f}' for v in figures)} | {words} |")
    if gained := ", ".join(f"{group} {gain:+.2f}" for group, gain in gains(rows, found).items()):
        lines += ["", f"P@1 gained by the auxiliary vectors: {gained}."]
    again = " ".join(["python -m study.sweep", sweep, *(f"-S {change}" for change in extra)])
    return "\n".join([*lines, "", f"![{title}](sweep-{sweep}.png)", "", f"Again: `{again}`", ""])


def gains(rows: list[Row], found: dict[str, dict]) -> dict[str, float]:
    """{group: the encoder's P@1 with the larger K minus that with K = 0} of groups that have just these two."""
    groups: dict[str, dict[int, float]] = {}
    for row in rows:
        groups.setdefault(row.group, {})[row.k] = found[row.name]["encoder"]["P@1"]
    return {name: by_k[max(by_k)] - by_k[0] for name, by_k in groups.items() if len(by_k) == 2 and 0 in by_k}


def document(sections: list[str]) -> str:
    """docs/sweeps.md"""
    intro = (
        "# Sweeps\n\n"
        "Written by `python -m study.sweep` (`make sweep`). Each row is a DVC experiment, queued with "
        "`dvc exp run --queue` and\nnamed `sweep-<setting>-K<K>` in `dvc exp show`; one of them alone is repeated by "
        "`dvc exp run -S NAME=VALUE ...` with the\nvalues of its last column. Figures are in percent, on the test "
        "documents: of the encoder searched exactly, labels with their\nauxiliary vectors, and, in the column before "
        "the last, of the whole pipeline's fused ranking.\n"
    )
    return "\n".join([intro, *sections])


def draw(sweep: str, rows: list[Row], found: dict[str, dict], file: Path) -> None:
    """The sweep as a picture: figures over K where there is one group, else P@1 of each group without and with K."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(row.group for row in rows))
    ks = sorted({row.k for row in rows})
    encoder = {(row.group, row.k): found[row.name]["encoder"] for row in rows}
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    if len(groups) == 1:
        _draw_lines(axes, ks, [encoder[groups[0], k] for k in ks])
    else:
        _draw_bars(axes, groups, ks, {place: metrics["P@1"] for place, metrics in encoder.items()})
    axes.set_title(SWEEPS[sweep][0])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


def _draw_lines(axes, ks: list[int], metrics: list[dict]) -> None:
    """A line for each figure over K."""
    for name in ("P@1", "P@3", "P@5", "PSP@1", "PSP@5"):
        axes.plot(range(len(ks)), [figures[name] for figures in metrics], marker="o", label=name)
    axes.set_xticks(range(len(ks)), [f"{k:,}" for k in ks])
    axes.set_xlabel("K, auxiliary vectors")
    axes.set_ylabel("encoder, percent")
    axes.set_ylim(bottom=0)


def _draw_bars(axes, groups: list[str], ks: list[int], p_at_1: dict[tuple[str, int], float]) -> None:
    """A bar for each group and K."""
    width = 0.8 / len(ks)
    for place, k in enumerate(ks):
        left = [x + (place - (len(ks) - 1) / 2) * width for x in range(len(groups))]
        bars = axes.bar(left, [p_at_1[group, k] for group in groups], width * 0.95, label=f"K = {k:,}")
        axes.bar_label(bars, fmt="%.1f")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel("encoder, P@1 in percent")
    axes.margins(y=0.1)


# --- command ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("sweeps", nargs=-1, type=click.Choice(list(SWEEPS)))
@click.option("--docs", default=ROOT / "docs", type=click.Path(path_type=Path), help="Where to write.  [default: docs]")
@click.option("-S", "changes", multiple=True, metavar="NAME=VALUE", help="A change to params.yaml made in every row.")
@click.option("--fresh", is_flag=True, help="Run all again, e.g. after the code has changed.")
@click.option("--minutes", default=240.0, show_default=True, help="Longest time for one experiment.")
@console.command
def main(sweeps: tuple[str, ...], docs: Path, changes: tuple[str, ...], fresh: bool, minutes: float) -> None:
    """Run the missing experiments of the SWEEPS (all by default) and write the tables and plots of what is there."""
    tree = params.read(ROOT / PARAMS)
    extra = flat(params.with_changes({}, changes, PARAMS))
    rows = {sweep: make_rows(sweep, tree, extra) for sweep in SWEEPS}
    every = {row.name: row for part in rows.values() for row in part}
    for row in every.values():  # now, and not in the middle of the night
        check_parameters(with_values(tree, dict(row.changes)), PARAMS, MODULAR)
    asked = list(dict.fromkeys(row.name for sweep in sweeps or SWEEPS for row in rows[sweep]))
    found = run_missing(every, asked, [experiment(tree, row) for row in every.values()], fresh, minutes)
    docs.mkdir(parents=True, exist_ok=True)
    full = [sweep for sweep in SWEEPS if all(row.name in found for row in rows[sweep])]
    for sweep in full:
        draw(sweep, rows[sweep], found, docs / f"sweep-{sweep}.png")
    sections = [section(sweep, rows[sweep], found, tree, changes) for sweep in full]
    (docs / "sweeps.md").write_text(document(sections), encoding="utf-8")
    console.say(f"wrote {docs / 'sweeps.md'}: {', '.join(full)}")


def run_missing(
    every: dict[str, Row], asked: list[str], wanted: list[Experiment], fresh: bool, minutes: float
) -> dict[str, dict]:
    """{experiment: metrics} of all that is there, after what is asked for and missing has been run."""
    finish(list(every), minutes)
    found = {} if fresh else metrics_of(wanted)
    missing = [every[name] for name in asked if name not in found]
    if missing:
        warn_of_changes()
        queue(missing)
        wait([row.name for row in missing], minutes)
        found = metrics_of(wanted)
    if lost := [name for name in asked if name not in found]:
        raise UserError(f"{', '.join(lost)}: done, but not with the wanted parameters: see `dvc exp show`.")
    return found


if __name__ == "__main__":
    main()
