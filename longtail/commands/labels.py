"""`xc labels`: labels that come and go without training."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from longtail.commands.options import bundle_option, pipeline_option, run_option
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

if TYPE_CHECKING:
    from longtail.models import Model

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def where(function: Callable) -> Callable:
    """The options that name the model: a bundle, or the run of a pipeline."""
    return bundle_option(run_option(pipeline_option(function)))


@click.group()
def labels() -> None:
    """Add, remove and rename labels without training; undo it.

    The labels of the present run are changed, or those of a bundle (--bundle). `xc predict` answers accordingly from
    then on; what the stages wrote is left as it is.
    """


@labels.command()
@click.argument("file", type=FILE)
@where
@console.command
def add(file: Path, data: Path, bundle: Path | None, pipeline: str) -> None:
    """Add the labels of FILE: CSV, TSV, JSON lines or Parquet with id, text and perhaps examples.

    examples are texts of documents that have the label: a list of them, or one text. All labels are added or none.
    """
    from xcutils.data.tables import labels_of

    found = [
        {"id": id.strip(), "text": text, "examples": labels_of(examples, None) if examples else []}
        for id, text, examples in rows(file, ("id", "text"), ("examples",))
    ]
    model = opened(data, bundle, pipeline)
    model.add_labels(found)
    said(model, f"added {len(found):,}")


@labels.command()
@click.argument("ids", nargs=-1)
@click.option("--file", type=FILE, help="A table with the column id.")
@where
@console.command
def remove(ids: tuple[str, ...], file: Path | None, data: Path, bundle: Path | None, pipeline: str) -> None:
    """Remove the labels with these IDS: from then on no text gets them."""
    named = [*ids, *(id.strip() for (id,) in (rows(file, ("id",)) if file else []))]
    model = opened(data, bundle, pipeline)
    model.remove_labels(named)
    said(model, f"removed {len(named):,}")


@labels.command()
@click.argument("id", required=False)
@click.argument("text", required=False)
@click.option("--file", type=FILE, help="A table with the columns id and text.")
@where
@console.command
def rename(id: str | None, text: str | None, file: Path | None, data: Path, bundle: Path | None, pipeline: str) -> None:
    """Give the label ID another TEXT, or those of a file."""
    if (text is None) != (id is None) or (id is None and file is None):
        raise UserError('say which label and its new text: xc labels rename ID "text", or --file F with id and text.')
    pairs = [(id, text)] if id is not None and text is not None else []
    pairs += [(id.strip(), text) for id, text in (rows(file, ("id", "text")) if file else [])]
    texts = dict(pairs)
    if len(texts) < len(pairs):
        raise UserError("a label is named more than once: name each label once.")
    model = opened(data, bundle, pipeline)
    model.rename_labels(texts)
    said(model, f"renamed {len(texts):,}")


@labels.command()
@where
@console.command
def undo(data: Path, bundle: Path | None, pipeline: str) -> None:
    """Undo the last change that holds; again for the one before it."""
    model = opened(data, bundle, pipeline)
    said(model, f"undone: {model.undo()}")


@labels.command()
@where
@console.command
def log(data: Path, bundle: Path | None, pipeline: str) -> None:
    """Every change that was made, the oldest first."""
    from longtail.journal import UNDO

    journal = place_of(data, bundle, pipeline).journal()
    entries = journal.entries()
    holds = {entry.number for entry in journal.effective()}
    for entry in entries:
        state = "" if entry.number in holds or entry.kind == UNDO else "  (undone)"
        click.echo(f"{entry.number:>4}  {entry.time}  {entry.said()}{state}")
    if not entries:
        click.echo("no label was changed")


def place_of(data: Path, bundle: Path | None, pipeline: str):
    """Where the model is."""
    from longtail.places import Bundle, Run

    return Bundle(bundle) if bundle else Run(data, PIPELINES[pipeline])


def opened(data: Path, bundle: Path | None, pipeline: str) -> "Model":
    from longtail.models import Model  # slow to import: only when what is given has been read

    return Model(place_of(data, bundle, pipeline))


def said(model: "Model", what: str) -> None:
    click.echo(f"{what}; the model has {len(model.labels):,} labels (`xc labels undo` takes it back)")


def rows(file: Path, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> Iterator[tuple]:
    """The values of these columns in each row of the table; a row that cannot be used is refused, with all others.

    needed  columns that the file must have, whose values are given as texts;  others  may be missing
    """
    from xcutils.data.skips import Skips
    from xcutils.data.tables import form_of, rows_of
    from xcutils.data.values import BadRow, as_text

    if form_of(file) is None:
        raise UserError(f"{file} is no table: give a CSV, TSV, JSON lines or Parquet file ({', '.join(needed)}).")
    report = Skips()

    def choose(names: list[str]) -> list[str | None]:
        found = {name.strip().lower(): name for name in reversed(names)}
        missing = [name for name in needed if name not in found]
        if missing:
            raise UserError(f"{file} has no column {missing[0]!r}; its columns are {', '.join(names) or '(none)'}.")
        return [found.get(name) for name in (*needed, *others)]

    for line, values in rows_of(file, choose, report, header=True):
        try:
            yield (*map(as_text, values, needed), *values[len(needed) :])
        except BadRow as bad:
            bad.note(report, file, line)
    if report.total:
        raise UserError(f"nothing was changed: {str(report.rows[0]).strip()}")
