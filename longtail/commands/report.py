"""`xc report`: a run on one page."""

from pathlib import Path

import click

from longtail.commands.options import pipeline_option, run_option
from xcutils.core import console
from xcutils.core.pipelines import PIPELINES

NAME = "report.html"  # beside the pipeline's dvc.yaml


@click.command()
@click.option("--against", metavar="REVISION", help="A commit, tag or experiment.  [default: the last commit]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file.  [default: report.html]")
@run_option
@pipeline_option
@console.command
def report(against: str | None, out: Path | None, data: Path, pipeline: str) -> None:
    """Write the last run as one HTML file that opens anywhere.

    It has the metrics by phase and by label frequency, the curves, the probabilities, the best and the worst labels,
    mistakes on test documents with their reasons, the parameters, what differs from REVISION, and what each stage took.
    """
    from longtail.report.compared import compare
    from longtail.report.facts import load_run
    from longtail.report.mistakes import find_mistakes
    from longtail.report.page import write

    run = load_run(data, PIPELINES[pipeline])
    compared = compare(run, against)
    page = write(run, find_mistakes(run), compared)
    out = out or data.parent / run.pipeline.folder / NAME
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    click.echo(f"wrote {out}: open it in a browser")
