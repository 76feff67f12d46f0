"""Sweeps over K, the loss and the encoder through DVC's experiment queue; a table and a plot of each in docs/.

python -m study.sweep [k | loss | encoder ...] [--docs docs] [-S NAME=VALUE ...] [--fresh]

reads   params.yaml; the experiments `sweep-*` of this repository
writes  docs/sweeps.md, docs/sweep-{k,loss,encoder}.png; missing experiments (dvc exp run --queue)

An experiment of a setting's name whose parameters are the setting's is kept, so a sweep that was stopped goes on where
it was; the queue itself goes on when this command is stopped (`dvc queue stop --kill` ends it). Experiments run in a
checkout of HEAD of their own: files that git does not know are not there. Stages whose code, input and parameters are
known come from DVC's run cache.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from study.experiments import (
    ROOT,
    Experiment,
    as_text,
    changed,
    differences,
    dvc,
    flat,
    other_code,
    parse,
    results,
    tail,
    warn_of_changes,
)
from xcutils.core import console, params
from xcutils.core.errors import UserError

POLL = 20  # seconds between two looks at the queue
LOST = 4  # looks without a worker after which it is taken to be gone: a busy machine may miss to answer once
STARTS = 3  # workers started again before giving up

KS = (0, 512, 2048, 4096, 65536)
# The papers' loss over the default bag, and over tokens alone (no n-grams): the gain of auxiliary vectors is larger
# where the encoder itself can do less.
TRIPLET = {"encoder.loss": "triplet", "encoder.lr": 0.001, "encoder.aux_lr": 0.005, "encoder.epochs": 15}
TOKENS = {**TRIPLET, "encoder.ngrams": 1, "encoder.aux_lr": 0.01, "encoder.patience": 0}
LOSSES: dict[str, dict] = {
    "triplet": TRIPLET,
    "triplet-tokens": TOKENS,
    "decoupled-softmax": {},
}
# Each encoder with what it needs and what two cores can afford; `{}` is params.yaml as it is.
TRANSFORMER = {"encoder.kind": "transformer", "encoder.lr": 0.0001, "encoder.epochs": 1, "encoder.positives": 1}
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
class Setting:
    """One row of a sweep: `group` without or with K auxiliary vectors, and what is changed for it in params.yaml."""

    group: str
    k: int
    changes: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """The experiment's name; settings of equal name are one experiment, whichever sweeps they stand in."""
        return f"sweep-{self.group}-K{self.k}"

    @property
    def overrides(self) -> list[str]:
        """The arguments of `dvc exp run`."""
        return [word for name, value in self.changes for word in ("-S", f"{name}={as_text(value)}")]


# --- settings ---------------------------------------------------------------------------------------------------------


def settings(sweep: str, tree: dict, extra: dict[str, Any] | None = None) -> list[Setting]:
    """The sweep's rows.

    tree   params.yaml
    extra  changes made to every row, e.g. {"encoder.epochs": 1}
    """
    pair = (0, tree["K"])

    def row(group: str, k: int, changes: dict) -> Setting:
        return Setting(group, k, tuple({"K": k, **changes, **(extra or {})}.items()))

    if sweep == "k":
        return [row(tree["encoder"]["loss"], k, {}) for k in KS]
    if sweep == "loss":
        return [row(loss, k, changes) for loss, changes in LOSSES.items() for k in pair]
    return [row(group, k, {**changes, **FROZEN}) for group, changes in ENCODERS.items() for k in pair]


def experiment(tree: dict, row: Setting) -> Experiment:
    """The row's experiment, from params.yaml as it is."""
    return Experiment(row.name, {"params.yaml": flat(changed(tree, dict(row.changes)))})


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
    found = results(wanted)
    for name, (commit, _) in found.items():
        if files := other_code(commit):
            console.say(f"{name} was run with an older {', '.join(files)}: --fresh runs it again.")
    return {name: metrics for name, (_, metrics) in found.items()}


def queue(missing: list[Setting]) -> None:
    """Put the settings into the queue, in place of older tasks and experiments of their names."""
    states, *_ = read_status(dvc("queue", "status"))
    known = set(dvc("exp", "list", "--name-only").split())
    for setting in missing:
        if setting.name in states:
            dvc("queue", "remove", setting.name)
        if setting.name in known:
            dvc("exp", "remove", setting.name)
        dvc("exp", "run", "--queue", "--name", setting.name, *setting.overrides)
        console.say(f"queued {setting.name}: {' '.join(setting.overrides)}")


def finish(names: list[str], minutes: float) -> None:
    """What an earlier call left: its queued experiments are taken back, the running one is waited for."""
    states, *_ = read_status(dvc("queue", "status"))
    queued = [name for name in names if states.get(name) == "Queued"]
    if queued:
        dvc("queue", "remove", *queued)
    wait([name for name in names if states.get(name) == "Running"], minutes)


def wait(names: list[str], minutes: float) -> None:
    """Run the queue and come back when none of the experiments is queued or running; a UserError if one failed."""
    silent, starts, before, since = 0, 0, {}, time.monotonic()
    while True:
        states, active, idle = read_status(dvc("queue", "status"))
        states = {name: states[name] for name in names if name in states}
        if states != before:
            before, since = states, time.monotonic()
            console.say(progress(states))
        running = [name for name, state in states.items() if state == "Running"]
        if not running and "Queued" not in states.values():
            break
        silent = silent + 1 if not active and (running or not idle) else 0  # looks at which nobody did the work
        check_queue(running, silent, starts, time.monotonic() - since > 60 * minutes)
        if not running and not active and not idle and (starts == 0 or silent % LOST == 0):
            dvc("queue", "start", "--jobs", "1")
            starts += 1
        time.sleep(POLL)
    failed = [name for name, state in states.items() if state == "Failed"]
    if failed:
        raise UserError("\n\n".join(f"{name} failed; `dvc queue logs {name}` ends:\n{log(name)}" for name in failed))


def check_queue(running: list[str], silent: int, starts: int, late: bool) -> None:
    """A UserError if the queue will not go on by itself: no worker behind a task, none that stays, nothing moves."""
    if running and silent >= LOST:
        name = running[0]
        raise UserError(f"{name} has lost its worker: `dvc queue kill {name}`, then run this command again.")
    if starts >= STARTS and silent >= LOST:
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
        return tail(dvc("queue", "logs", name))
    except UserError as error:  # it failed before it began
        return str(error)


# --- documents --------------------------------------------------------------------------------------------------------


def section(sweep: str, rows: list[Setting], found: dict[str, dict], tree: dict, extra: tuple[str, ...] = ()) -> str:
    """The sweep as Markdown: title, table, gains, plot, and the command with its extra changes."""
    title, note = SWEEPS[sweep]
    columns = ["setting", *FIGURES, "fused P@1", "changed in params.yaml"]
    lines = [f"## {title}", "", note, "", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 2) + "---|"]
    for row in rows:
        metrics = found[row.name]
        figures = [metrics["encoder"][name] for name in FIGURES] + [metrics["fused"]["P@1"]]
        changes = differences(flat(tree), experiment(tree, row).values["params.yaml"])
        words = " ".join(f"`{change}`" for change in changes) or "nothing"
        lines.append(f"| {row.group}, K = {row.k} | {' | '.join(f'{v:.2f}' for v in figures)} | {words} |")
    gained = gains(rows, found)
    if gained:
        lines += [
            "",
            "P@1 gained by the auxiliary vectors: " + ", ".join(f"{g} {v:+.2f}" for g, v in gained.items()) + ".",
        ]
    again = " ".join(["python -m study.sweep", sweep, *(f"-S {change}" for change in extra)])
    return "\n".join([*lines, "", f"![{title}](sweep-{sweep}.png)", "", f"Again: `{again}`", ""])


def gains(rows: list[Setting], found: dict[str, dict]) -> dict[str, float]:
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


def draw(sweep: str, rows: list[Setting], found: dict[str, dict], file: Path) -> None:
    """The sweep as a picture: figures over K where there is one group, else P@1 of each group without and with K."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(row.group for row in rows))
    ks = sorted({row.k for row in rows})
    encoder = {(row.group, row.k): found[row.name]["encoder"] for row in rows}
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    if len(groups) == 1:
        for name in ("P@1", "P@3", "P@5", "PSP@1", "PSP@5"):
            axes.plot(range(len(ks)), [encoder[groups[0], k][name] for k in ks], marker="o", label=name)
        axes.set_xticks(range(len(ks)), [f"{k:,}" for k in ks])
        axes.set_xlabel("K, auxiliary vectors")
        axes.set_ylabel("encoder, percent")
        axes.set_ylim(bottom=0)
    else:
        width = 0.8 / len(ks)
        for place, k in enumerate(ks):
            left = [x + (place - (len(ks) - 1) / 2) * width for x in range(len(groups))]
            bars = axes.bar(left, [encoder[group, k]["P@1"] for group in groups], width * 0.95, label=f"K = {k:,}")
            axes.bar_label(bars, fmt="%.1f")
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel("encoder, P@1 in percent")
        axes.margins(y=0.1)
    axes.set_title(SWEEPS[sweep][0])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


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
    tree, extra = params.read(ROOT / "params.yaml"), parse(changes)
    rows = {sweep: settings(sweep, tree, extra) for sweep in SWEEPS}
    every = {row.name: row for part in rows.values() for row in part}
    for row in every.values():  # now, and not in the middle of the night
        params.check_file(changed(tree, dict(row.changes)), ROOT / "params.yaml")
    wanted = [experiment(tree, row) for row in every.values()]
    asked = list(dict.fromkeys(row.name for sweep in sweeps or SWEEPS for row in rows[sweep]))
    finish(list(every), minutes)
    found = {} if fresh else metrics_of(wanted)
    missing = [every[name] for name in asked if name not in found]
    if missing:
        warn_of_changes()
        queue(missing)
        wait([row.name for row in missing], minutes)
        found = metrics_of(wanted)
    lost = [name for name in asked if name not in found]
    if lost:
        raise UserError(f"{', '.join(lost)}: done, but not with the wanted parameters: see `dvc exp show`.")
    docs.mkdir(parents=True, exist_ok=True)
    full = [sweep for sweep in SWEEPS if all(row.name in found for row in rows[sweep])]
    for sweep in full:
        draw(sweep, rows[sweep], found, docs / f"sweep-{sweep}.png")
    sections = [section(sweep, rows[sweep], found, tree, changes) for sweep in full]
    (docs / "sweeps.md").write_text(document(sections), encoding="utf-8")
    console.say(f"wrote {docs / 'sweeps.md'}: {', '.join(full)}")


if __name__ == "__main__":
    main()
