"""How the defaults stand: Longtail with several seeds against the best of the other tools, dataset by dataset (Linux).

python -m benchmarks.standing [--seeds 0,1,2] [--dataset PATH ...]

reads   .scratch/peers/NAME/peers/peers.json, which `make peers` wrote for each dataset, the default one included
makes   .scratch/peers/NAME/seed-N, a clone of HEAD for each seed, in which `dvc repro` runs; a run that is finished is
        not made again
writes  .scratch/peers/standing.md, what is printed

The split does not depend on the seed, so that every row of a dataset is of the same test documents.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import click

from benchmarks.apart import ROOT
from benchmarks.ours import changes_for
from benchmarks.peers import ACCURACY, OURS, TITLES, read_json
from benchmarks.runs import Clone, say_what_is_left_out
from xcutils.core import console
from xcutils.core.errors import UserError

WORK = ROOT / ".scratch" / "peers"
DEFAULT = "default"  # the folder of the default dataset
ROW = "fused"  # of metrics.json


def others(folder: Path) -> dict[str, dict]:
    """{tool: its figures} that `make peers` wrote for a dataset."""
    file = folder / "peers" / "peers.json"
    if not file.is_file():
        raise UserError(f"{file} is missing: `make standing` or `make peers` of this dataset makes it.")
    return {row["method"]: row for row in read_json(file)["rows"] if row["method"] not in OURS}


def own_figures(folder: Path, dataset: Path | None, seeds: Sequence[int]) -> list[dict]:
    """The figures of the fused ranking, seed by seed."""
    found = []
    for seed in seeds:
        clone = Clone(folder / f"seed-{seed}", changes=[*changes_for(dataset, []), f"seed={seed}"])
        console.say(f"{folder.name}, seed {seed}: {'result is there' if clone.is_finished else 'running'}")
        clone.finished()
        found.append(read_json(clone.checkout / "metrics.json")[ROW])
    return found


def best_of(tools: dict[str, dict], column: str) -> tuple[float, str]:
    """(the highest figure of a column, the tool that reached it)"""
    return max((row[column], TITLES[name]) for name, row in tools.items() if row.get(column) is not None)


def rows_of(name: str, tools: dict[str, dict], ours: list[dict]) -> list[str]:
    """The lines of the table for a dataset."""
    best = [best_of(tools, column)[0] for column in ACCURACY]
    means = [mean(figures[column] for figures in ours) for column in ACCURACY]
    spans = [max(f[column] for f in ours) - min(f[column] for f in ours) for column in ACCURACY]
    gains = ["-" if not other else f"{100 * (own / other - 1):+.0f}%" for own, other in zip(means, best)]
    return [
        _line(name, "best of the other tools", [f"{v:.2f}" for v in best]),
        _line("", f"Longtail, mean of {len(ours)} seeds" if len(ours) > 1 else "Longtail", [f"{v:.2f}" for v in means]),
        *([_line("", "largest less smallest", [f"{v:.2f}" for v in spans])] if len(ours) > 1 else []),
        _line("", "above the best", gains),
    ]


def _line(first: str, second: str, values: list[str]) -> str:
    return "| " + " | ".join([first, second, *values]) + " |"


def reached_by(name: str, tools: dict[str, dict]) -> str:
    """Which tools reached the best figures of a dataset, in a line."""
    by_tool: dict[str, list[str]] = {}
    for column in ACCURACY:
        by_tool.setdefault(best_of(tools, column)[1], []).append(column)
    return f"- {name}: " + "; ".join(
        f"{tool} is the best other tool at {', '.join(at)}" for tool, at in by_tool.items()
    )


def standing(datasets: Sequence[Path | None], seeds: Sequence[int], work: Path) -> str:
    """The table, and a line per dataset. None is the default dataset."""
    folders = {dataset: work / (DEFAULT if dataset is None else dataset.resolve().name) for dataset in datasets}
    tools = {dataset: others(folder) for dataset, folder in folders.items()}  # before anything runs
    lines = ["| dataset | | " + " | ".join(ACCURACY) + " |", "|---|---|" + "--:|" * len(ACCURACY)]
    notes = []
    for dataset, folder in folders.items():
        lines += rows_of(folder.name, tools[dataset], own_figures(folder, dataset, seeds))
        notes.append(reached_by(folder.name, tools[dataset]))
    return "\n".join([*lines, "", *notes])


def numbers(text: str) -> list[int]:
    """The seeds of a list like 0,1,2."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds is {text!r}; it must be whole numbers with commas between, like 0,1,2.") from None


@click.command()
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds of Longtail's runs.")
@click.option("--dataset", "datasets", multiple=True, type=click.Path(path_type=Path), help="Beside the default one.")
@console.command
def main(seeds: str, datasets: tuple[Path, ...]) -> None:
    """Run the defaults with several seeds and print them beside the best of the other tools."""
    say_what_is_left_out()
    text = standing([None, *datasets], numbers(seeds), WORK)
    (WORK / "standing.md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
