"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path

import click

from xcutils.core.pipelines import PIPELINES

run_option = click.option(
    "--data", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="Where the run is."
)

bundle_option = click.option(
    "--bundle",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A bundle in place of the run.",
)


def pipeline_option(function: Callable) -> Callable:
    """A flag for every pipeline but the root's, named as its folder is; the command gets `pipeline`,
    a key of PIPELINES."""
    for folder, pipeline in PIPELINES.items():
        if folder:
            text = f"The pipeline in {folder}/, which `{pipeline.command}` runs."
            function = click.option(f"--{folder}", "pipeline", flag_value=folder, default="", help=text)(function)
    return function
