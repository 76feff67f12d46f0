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
        rows = {row: [float(report[row][name]) for name in COLUMNS] for row in titles}
        found = {name.removeprefix("recall@100 "): float(v) for name, v in report["index"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"{metrics} holds no metrics of this version: run `{run.command}` to make it again.") from None
    width = max(map(len, titles.values()))
    click.echo(" " * width + "".join(f"{name:>8}" for name in COLUMNS))
    for row, title in titles.items():
        click.echo(f"{title:<{width}}" + "".join(f"{figure:8.2f}" for figure in rows[row]))
    recalls = ", ".join(f"{name} {v:.2f}" for name, v in found.items())
    click.echo(f"\nin percent, on the test documents; recall@100 of the index against exact search: {recalls}")
