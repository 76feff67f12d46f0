"""`xc estimate`: what a run would take."""

from pathlib import Path

import click

from longtail.commands.options import pipeline_option
from xcutils.core import console
from xcutils.core.pipelines import PIPELINES


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("-S", "changes", multiple=True, metavar="[FILE:]NAME=VALUE", help="Set a parameter, as in dvc exp run.")
@click.option(
    "--like", help="The sizes of a published dataset: LF-AmazonTitles-131K, LF-AmazonTitles-1.3M, ... or 40M."
)
@click.option("--docs", type=click.IntRange(1), help="Training documents instead of those there are.")
@click.option("--labels", type=click.IntRange(1), help="Labels.")
@click.option("--positives", type=click.IntRange(1), help="Pairs of a training document and a label.")
@click.option("--test", type=click.IntRange(1), help="Test documents.")
@click.option("--tokens", type=click.FloatRange(1), help="Tokens of a text.")
@pipeline_option
@console.command
def estimate(path: Path | None, changes: tuple[str, ...], like: str | None, pipeline: str, **numbers) -> None:
    """The memory, time and disk each stage will take; nothing is run.

    It is for the dataset PATH; without PATH and --like for the prepared data, else the dataset of params.yaml. Each
    number given by an option replaces the dataset's own, and what goes with it (a document's tokens and positives) is
    scaled along. The parameters of another pipeline are set by -S FOLDER/params.yaml:NAME=VALUE.
    """
    from longtail import estimates

    for line in estimates.report(PIPELINES[pipeline], path, like, changes, **numbers):
        click.echo(line)
