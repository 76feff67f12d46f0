"""`xc bundle`: the finished run as one folder that loads anywhere."""

from pathlib import Path

import click

from longtail.commands.options import pipeline_option, run_option
from xcutils.core import console
from xcutils.core.pipelines import PIPELINES


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--no-documents", is_flag=True, help="Leave out the ids and texts of the training documents.")
@click.option("--keep-changes", is_flag=True, help="Take along the changes of labels of the bundle that is replaced.")
@run_option
@pipeline_option
@console.command
def bundle(folder: Path, no_documents: bool, keep_changes: bool, data: Path, pipeline: str) -> None:
    """Write the finished run's model to a FOLDER of its own.

    The folder is checked when it is loaded: `xc predict --bundle FOLDER "text"`, or longtail.load("FOLDER") in Python.
    Labels that were changed since the training go with it. A bundle whose own labels were changed is replaced only
    with --keep-changes, which puts those changes on the new model.
    """
    from longtail.bundles import size_of
    from longtail.bundling import write_bundle
    from longtail.places import Run

    place = Run(data, PIPELINES[pipeline])
    written = write_bundle(place, folder, with_documents=not no_documents, keep_changes=keep_changes)
    click.echo(f"wrote {folder}: {size_of(written) / 1e6:.1f} MB; README.md in it is the model card")
