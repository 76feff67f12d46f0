"""An older commit against a newer one: the whole pipeline in turns, stage by stage, and what it says (Linux).

python -m benchmarks.alternate OLD [--new HEAD] [--rounds 2] [--dataset PATH] [-S NAME=VALUE ...] [--work DIR]

makes   WORK/old and WORK/new, clones of the two commits, in which `dvc repro --force` runs in turns, so that both meet
        a busy moment of the machine; a commit with other libraries gets an environment of its own (`make env`)
prints  the median seconds of every stage with either, and their ratio; the peak memory; the metrics of the fused row
        with either, and their differences

A stage that only one of them has stands in a row without a ratio. Rounds that were finished are kept: more are added
by a larger --rounds.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.apart import ROOT, Measured
from benchmarks.growth import gigabytes, markdown, seconds
from benchmarks.ours import dataset_change
from benchmarks.runs import DVC, Clone, git, say_what_is_left_out
from xcutils.core import console

ALL = "all"
FUSED = "fused"


@dataclass(frozen=True)
class Side:
    """One commit: what its stages took in each round, and its metrics."""

    rounds: list[dict[str, Measured]]
    metrics: dict[str, dict[str, float]]

    def median(self, stage: str) -> float | None:
        """The median seconds of the stage, or of the whole run; None if it has no such stage."""
        if stage == ALL:
            return statistics.median(sum(one.seconds for one in found.values()) for found in self.rounds)
        times = [found[stage].seconds for found in self.rounds if stage in found]
        return statistics.median(times) if times else None

    def peak(self, stage: str) -> float:
        """The most bytes of the stage in any round, or of the largest stage."""
        return max((m.peak for found in self.rounds for name, m in found.items() if stage in (ALL, name)), default=0.0)


def run_round(clone: Clone, number: int) -> dict[str, Measured]:
    """What every stage took in a forced run; read where this round was finished before."""
    record = clone.folder / f"round-{number}.json"
    if not record.is_file():
        (clone.folder / "stages.jsonl").unlink(missing_ok=True)
        clone.repro("--force")
        found = {name: vars(took) for name, took in clone.records().items()}
        record.write_text(json.dumps(found), encoding="utf-8")
    return {name: Measured(**took) for name, took in json.loads(record.read_text(encoding="utf-8")).items()}


def alternate(clones: dict[str, Clone], rounds: int) -> dict[str, Side]:
    """Both sides after so many rounds; the one that goes first changes from round to round."""
    found: dict[str, list] = {name: [] for name in clones}
    for number in range(rounds):
        for name in list(clones) if number % 2 == 0 else list(clones)[::-1]:
            console.say(f"round {number + 1} of {rounds}: {name}")
            found[name].append(run_round(clones[name], number))
    return {name: Side(found[name], _metrics(clone)) for name, clone in clones.items()}


def _metrics(clone: Clone) -> dict:
    return json.loads((clone.checkout / "metrics.json").read_text(encoding="utf-8"))


def times_table(old: Side, new: Side) -> str:
    """Median seconds and peak memory, stage by stage; DVC's own time and the whole run last."""
    names = dict.fromkeys(name for side in (old, new) for found in side.rounds for name in found if name != DVC)
    rows = []
    for stage in [*names, DVC, ALL]:
        before, after = old.median(stage), new.median(stage)
        times = ["-" if time is None else seconds(time) for time in (before, after)]
        ratio = f"{after / before:.2f}" if before and after else "-"
        rows.append([stage, *times, ratio, gigabytes(old.peak(stage)), gigabytes(new.peak(stage))])
    return markdown(["stage", "old s", "new s", "new / old", "old GB", "new GB"], rows)


def metrics_table(old: Side, new: Side) -> str:
    """The fused row of both, and the differences."""
    names = [name for name in old.metrics[FUSED] if name in new.metrics[FUSED]]
    before, after = ([side.metrics[FUSED][name] for name in names] for side in (old, new))
    return markdown(
        ["fused", *names],
        [
            ["old", *(f"{value:.2f}" for value in before)],
            ["new", *(f"{value:.2f}" for value in after)],
            ["difference", *(f"{b - a:+.2f}" for a, b in zip(before, after))],
        ],
    )


@click.command()
@click.argument("old")
@click.option("--new", default="HEAD", show_default=True, help="The newer commit.")
@click.option("--rounds", default=2, show_default=True, type=click.IntRange(1), help="Runs of each.")
@click.option("--dataset", type=click.Path(path_type=Path), help="A dataset instead of the one of params.yaml.")
@click.option("-S", "--set", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of both.")
@click.option("--set-old", multiple=True, metavar="NAME=VALUE", help="A parameter of the older commit alone.")
@click.option("--set-new", multiple=True, metavar="NAME=VALUE", help="A parameter of the newer commit alone.")
@click.option("--work", default=ROOT / ".scratch" / "alternate", type=click.Path(path_type=Path), help="Where to work.")
@console.command
def main(
    old: str,
    new: str,
    rounds: int,
    dataset: Path | None,
    given: Sequence[str],
    set_old: Sequence[str],
    set_new: Sequence[str],
    work: Path,
) -> None:
    """Run the pipeline of OLD and of a newer commit in turns and print both, stage by stage."""
    say_what_is_left_out()
    common = [*dataset_change(dataset), *given]
    clones = {
        "old": Clone(work / "old", old, [*common, *set_old]),
        "new": Clone(work / "new", new, [*common, *set_new]),
    }
    sides = alternate(clones, rounds)
    commits = [git("rev-parse", "--short", commit) for commit in (old, new)]
    click.echo(f"{commits[0]} (old) and {commits[1]} (new), medians of {rounds} runs of each in turns\n")
    click.echo(f"{times_table(**sides)}\n\n{metrics_table(**sides)}")


if __name__ == "__main__":
    main()
