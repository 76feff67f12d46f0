"""`xc timings`: what the pipeline and its predictions cost, measured."""

import json
from pathlib import Path

import click

from longtail.commands.options import run_option
from xcutils.core import console


@click.command()
@run_option
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this JSON file.")
@click.option("--predict-only", is_flag=True, help="Measure prediction with the models there are; train nothing.")
@console.command
def timings(data: Path, out: Path | None, predict_only: bool) -> None:
    """Run the pipeline anew; print its time, memory and size.

    The time is that of the whole run and that of a text, in a batch and alone; the size is that of the model.
    """
    from longtail.measuring import measure, measure_training
    from xcutils.core import artifacts

    figures = ({} if predict_only else measure_training()) | measure(data)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        artifacts.save_json(out.parent, out.name, figures)
    click.echo(json.dumps(figures, indent=2))
