"""`xc table`: the metrics of a run, for reading."""

from pathlib import Path

import click

from longtail.commands.options import pipeline_option
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "N@5", "R@10", "R@100", "C@5")


@click.command()
@click.option(
    "--metrics", type=click.Path(path_type=Path), help="The file to show.  [default: the pipeline's metrics.json]"
)
@pipeline_option
@console.command
def table(metrics: Path | None, pipeline: str) -> None:
    """The test metrics of the last run, one row per phase."""
    from xcutils.core import artifacts

    run = PIPELINES[pipeline]
    metrics = metrics or run.metrics
    report = artifacts.load_json(metrics.parent, metrics.name)
    titles = run.rows
    try:
        if not any(row in report for row in run.absent):
            titles = {row: title for row, title in titles.items() if row not in run.absent}
        if "memory" not in report:  # score.neighbours is 0
            titles = {row: title for row, title in titles.items() if row != "memory"}
        rows = {row: [float(report[row][name]) for name in COLUMNS] for row in titles}
        notes = [
            documents(report["docs"]),
            searches({name: float(v) for name, v in report["index"].items()}),
            probabilities({name: float(v) for name, v in report["probabilities"].items()}),
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{metrics} holds no metrics of this version: run `{run.command}` to make it again.") from None
    width = max(map(len, titles.values()))
    click.echo(" " * width + "".join(f"{name:>8}" for name in COLUMNS))
    for row, title in titles.items():
        click.echo(f"{title:<{width}}" + "".join(f"{figure:8.2f}" for figure in rows[row]))
    click.echo("\n" + "\n".join(notes))


def documents(counts: dict) -> str:
    """Which documents the figures are of."""
    every, sample = int(counts["fused"]), int(counts["other rows"])
    part = f"; the rows above `fused` on {sample:,} of them" if sample < every else ""
    return f"in percent, on the {every:,} test documents{part}"


def probabilities(figures: dict[str, float]) -> str:
    """How far the probabilities are off, and what the cut-off for F1 gives."""
    said = f"probabilities are off by {figures['calibration error']:.1f} on average (calibration error)"
    if "F1" in figures:
        said += (
            f"; labels of at least {figures['threshold'] / 100:.3f}: "
            f"precision {figures['precision']:.1f}, recall {figures['recall']:.1f}, F1 {figures['F1']:.1f}"
        )
    return said


def searches(figures: dict[str, float]) -> str:
    """How good the model's searches are, and what is lost by them."""
    found = ", ".join(f"{name.removeprefix('recall')} {v:.1f}" for name, v in figures.items() if "recall" in name)
    lost = ", ".join(f"{name.removeprefix('lost ')} {v:.2f}" for name, v in figures.items() if "lost" in name)
    return f"approximate search finds of the true nearest: {found}\nexact search would add: {lost}"
