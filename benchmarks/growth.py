"""Time and memory of every stage as the data grows: the whole pipeline on generated sets of several sizes (Linux).

python -m benchmarks.growth [--sizes 10000,100000,1000000] [--documents N] [-S NAME=VALUE ...]
                            [--work DIR] [--out docs] [--keep]

makes   WORK/SIZE/titles, a dataset of so many labels and as many documents (benchmarks/generated.py), and
        WORK/SIZE/checkout, a clone of HEAD in which `dvc repro` runs on it. A size that is finished is not run again,
        and its clone is removed without --keep: at 1,000,000 labels it has about 50 GB, half of them in DVC's cache
prints  time and memory of every stage, how fast they grow, and what `xc estimate` says of them before the run
writes  the same as WORK/growth.md, WORK/growth.json and the plot OUT/growth.png

The exponent between two sizes is log(ratio of the times) / log(ratio of the sizes): 1 is linear growth. Where a stage
takes seconds, most of them start Python and load libraries, and its exponent says little.
"""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import click

from benchmarks import generated
from benchmarks.apart import ROOT, Measured
from benchmarks.runs import DVC, Clone, say_what_is_left_out
from longtail.estimates import estimates, with_dims
from longtail.sizes import raw
from stages import parameters
from xcutils.core import artifacts, console
from xcutils.core.costs import this_host
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR

SIZES = "10000,100000,1000000"
TEST = 10  # training documents for each test document
SHARED = 4  # labels for each auxiliary vector
# Few epochs that have all an epoch can have: the encoder's second one and the classifiers' have clustered batches.
SETTINGS = ("encoder.epochs=2", "encoder.cluster_from=1", "classifier.epochs=1", "classifier.cluster_from=0")
FIGURES = ("P@1", "P@5", "R@100")
ALL = "all"


@dataclass(frozen=True)
class Grown:
    """One size: what was estimated and what was measured, by stage."""

    labels: int
    docs: int
    measured: dict[str, Measured]
    estimated: dict[str, Measured]
    fused: dict[str, float]  # its metrics, in percent

    def of(self, stage: str) -> Measured | None:
        """What the stage took, or the whole run: the sum of the times and the largest memory."""
        if stage != ALL:
            return self.measured.get(stage)
        every = self.measured.values()
        return Measured(max(m.peak for m in every), sum(m.seconds for m in every), sum(m.cpu for m in every))


def changes_for(labels: int, given: Sequence[str]) -> list[str]:
    """The parameters of a run: K follows the labels; what is given stands above all."""
    return [f"K={max(1, labels // SHARED)}", *SETTINGS, *given]


def run(work: Path, labels: int, docs: int, given: Sequence[str], keep: bool) -> Grown:
    """The pipeline on a generated dataset, run or read from an earlier run.

    keep  the clone
    """
    folder = work / str(labels)
    titles = (folder / "titles").resolve()
    changes = [*changes_for(labels, given), f"dataset={json.dumps(str(titles))}"]
    parameters(ROOT / MODULAR.params, changes)  # a mistake is told now
    clone = Clone(folder, changes=changes, docs=docs, generator=artifacts.sha256(Path(generated.__file__)))
    record, metrics = folder / "estimated.json", folder / "metrics.json"
    if not clone.is_finished:
        console.say(f"{labels:,} labels: the dataset")
        generated.write(titles, labels, docs, docs // TEST)
        estimated = {name: asdict(took) for name, took in estimate(titles, changes).items()}
        record.write_text(json.dumps(estimated), encoding="utf-8")
        console.say(f"{labels:,} labels: dvc repro")
    measured = clone.finished()
    if clone.checkout.is_dir():
        shutil.copy(clone.checkout / "metrics.json", metrics)
        if not keep:
            shutil.rmtree(clone.checkout)
    said, found = (json.loads(path.read_text(encoding="utf-8")) for path in (record, metrics))
    return Grown(labels, docs, measured, {name: Measured(**took) for name, took in said.items()}, found["fused"])


def estimate(dataset: Path, changes: Sequence[str]) -> dict[str, Measured]:
    """What `xc estimate` says of each stage."""
    values = parameters(ROOT / MODULAR.params, changes).values
    sizes = with_dims(raw(dataset, values), MODULAR, values, values)
    made = estimates(sizes, MODULAR, values, this_host())
    return {one.stage: Measured(one.peak, one.seconds, 0.0) for one in made}


# --- tables -----------------------------------------------------------------------------------------------------------


def exponent(small: float, large: float, size: float) -> float | None:
    """How fast something grows that was `small` and is `large` at `size` times the data; None if it was nothing."""
    return math.log(large / small) / math.log(size) if small > 0 and large > 0 else None


def stages_of(grown: Sequence[Grown]) -> list[str]:
    """The stages that ran at any size, DVC last."""
    names = dict.fromkeys(name for one in grown for name in one.measured if name != DVC)
    return [*names, DVC]


def growth_table(grown: Sequence[Grown]) -> str:
    """Seconds and gigabytes by stage and size, and the exponents of the seconds between two sizes."""
    pairs = list(pairwise(grown))
    heads = [f"{one.labels:,}: {unit}" for one in grown for unit in ("s", "GB")]
    heads += [f"exponent {small.labels:,} to {large.labels:,}" for small, large in pairs]
    rows = []
    for stage in [*stages_of(grown), ALL]:
        cells = []
        for one in grown:
            took = one.of(stage)
            cells += ["-", "-"] if took is None else [seconds(took.seconds), gigabytes(took.peak)]
        for small, large in pairs:
            times = [one.of(stage) for one in (small, large)]
            known = [took.seconds for took in times if took is not None]
            found = exponent(*known, large.labels / small.labels) if len(known) == 2 else None
            cells.append("-" if found is None else f"{found:.2f}")
        rows.append([stage, *cells])
    return markdown(["stage", *heads], rows)


def estimate_table(grown: Sequence[Grown]) -> str:
    """The estimated by the measured memory and time, by stage and size."""
    heads = [f"{one.labels:,}: {what}" for one in grown for what in ("memory", "time")]
    rows = []
    for stage in grown[-1].estimated:
        cells = []
        for one in grown:
            said, took = one.estimated.get(stage), one.of(stage)
            known = said is not None and took is not None
            cells += [f"{said.peak / took.peak:.2f}", f"{said.seconds / took.seconds:.2f}"] if known else ["-", "-"]
        rows.append([stage, *cells])
    return markdown(["estimated / measured", *heads], rows)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def seconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f}" if count else "-"


def report(grown: Sequence[Grown], given: Sequence[str]) -> str:
    """The page: what was run, the two tables."""
    sizes = ", ".join(f"{one.labels:,} labels and {one.docs:,} training documents" for one in grown)
    settings = " ".join(f"`{change}`" for change in [*SETTINGS, *given])
    head = (
        f"{sizes}; a test document for every {TEST} of them; an auxiliary vector for every {SHARED} labels; "
        f"{settings}, the rest as in params.yaml."
    )
    learnt = "; ".join(
        f"{one.labels:,}: " + ", ".join(f"{name} {one.fused[name]:.1f}" for name in FIGURES) for one in grown
    )
    return "\n\n".join([head, growth_table(grown), estimate_table(grown), f"Fused ranking, in percent: {learnt}."])


def draw(grown: Sequence[Grown], file: Path) -> None:
    """Seconds and gigabytes of every stage over the labels, on log axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.5), dpi=120)
    parts = {"seconds": lambda took: took.seconds, "gigabytes": lambda took: took.peak / 1e9}
    for axes, (unit, value) in zip(both, parts.items()):
        for stage in [*stages_of(grown), ALL]:
            known = [(one.labels, value(took)) for one in grown if (took := one.of(stage)) and value(took) > 0]
            style = {"color": "black", "linewidth": 2} if stage == ALL else {}
            if known:
                axes.plot(*zip(*known), marker="o", label=stage, **style)
        first, last = grown[0], grown[-1]
        start = value(first.of(ALL))
        line = [start, start * last.labels / first.labels]
        axes.plot([first.labels, last.labels], line, linestyle="--", color="grey", label="linear")
        axes.set(xscale="log", yscale="log", xlabel="labels, and as many documents", ylabel=unit)
        axes.grid(which="major", alpha=0.3)
    both[1].legend(*both[0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.suptitle("Growth")
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)


# --- command ----------------------------------------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    """Sizes in ascending order."""
    words = [word.strip().replace("_", "") for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--sizes {text} is no list of numbers: write it like --sizes 10000,100000.")
    return sorted({int(word) for word in words})


@click.command()
@click.option("--sizes", default=SIZES, show_default=True, help="Labels of each dataset.")
@click.option("--documents", type=click.IntRange(1), help="Training documents of each.  [default: as many as labels]")
@click.option("-S", "--set", "given", multiple=True, metavar="NAME=VALUE", help="A parameter of every run.")
@click.option("--work", default=ROOT / ".scratch" / "growth", type=click.Path(path_type=Path), help="Where to work.")
@click.option("--out", default=ROOT / "docs", type=click.Path(path_type=Path), help="Where the plot goes.")
@click.option("--keep", is_flag=True, help="Leave the clones there, with all that the stages wrote.")
@console.command
def main(sizes: str, documents: int | None, given: tuple[str, ...], work: Path, out: Path, keep: bool) -> None:
    """Run the pipeline on generated datasets of several sizes and print what it takes."""
    wanted = numbers(sizes)
    say_what_is_left_out()
    grown = [run(work, labels, documents or labels, given, keep) for labels in wanted]
    text = report(grown, given)
    (work / "growth.md").write_text(text + "\n", encoding="utf-8")
    (work / "growth.json").write_text(json.dumps([asdict(one) for one in grown], indent=2) + "\n", encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    draw(grown, out / "growth.png")
    click.echo(text)


if __name__ == "__main__":
    main()
