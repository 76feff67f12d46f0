"""`xc predict`: labels for new texts."""

import json
from pathlib import Path

import click

from longtail.commands.options import bundle_option, pipeline_option, run_option
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

SHOWN = 5  # skipped rows of a file
F1 = "f1"  # the threshold that is best for F1


@click.command()
@click.argument("texts", nargs=-1)
@click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="One text per line (- reads standard input), or a CSV, TSV, JSON lines or Parquet file, whose ids come back.",
)
@click.option("--text", "text_column", help="The column of that file that holds the texts.")
@click.option("--id", "id_column", help="The column of that file that holds the ids.")
@click.option("-k", "k", type=click.IntRange(1, 1000), default=10, show_default=True, help="Labels per text.")
@click.option("--threshold", metavar="P", help="Only labels of at least this probability; f1: the best one for F1.")
@click.option("--precision", type=click.FloatRange(0, 1, min_open=True), help="Only as many labels as keep it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per text.")
@bundle_option
@run_option
@pipeline_option
@console.command
def predict(
    texts: tuple[str, ...],
    file: Path | None,
    text_column: str | None,
    id_column: str | None,
    k: int,
    threshold: str | None,
    precision: float | None,
    as_json: bool,
    bundle: Path | None,
    data: Path,
    pipeline: str,
) -> None:
    """Labels for new TEXTS, best first, with their probabilities.

    The probability of a label is the chance that it is right. With --precision 0.8 a text gets so many labels, perhaps
    none, that of all labels given to the validation documents 80% were right.
    """
    if threshold is not None and precision is not None:
        raise UserError("--threshold and --precision both say where to cut off: give one of them.")
    least = _probability(threshold)
    given = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    docs = [*((None, text) for text in given), *(read_file(file, text_column, id_column) if file else [])]
    if not docs:
        raise UserError('there is no text: give it in quotes, xc predict "text", or one per line with --file F.')
    from longtail.models import Model  # only when there is something to predict
    from longtail.places import Bundle, Run

    system = Model(Bundle(bundle) if bundle else Run(data, PIPELINES[pipeline])).system
    if threshold == F1:
        least = system.best_threshold()
    elif precision is not None:
        least = system.threshold(precision)
    for (id, text), answer in zip(docs, system.answers([text for _, text in docs], k, least)):
        click.echo(as_json_line(id, text, answer) if as_json else "\n".join(as_lines(id, text, answer)))


def _probability(threshold: str | None) -> float:
    """The threshold as a number; 0 where it is not given or the model has to say it."""
    if threshold is None or threshold == F1:
        return 0.0
    try:
        given = float(threshold)
    except ValueError:
        given = -1.0
    if not 0 <= given <= 1:
        raise UserError(f"--threshold is {threshold!r}; it must be a probability from 0 to 1, or {F1}.")
    return given


def as_json_line(id: str | None, text: str, answer) -> str:
    own = {} if id is None else {"id": id}
    return json.dumps(own | {"text": text, "known": answer.known, "labels": answer.labels}, ensure_ascii=False)


def as_lines(id: str | None, text: str, answer) -> list[str]:
    lines = [text if id is None else f"{id}  {text}"]
    if not answer.known:
        lines.append("  (no known word in this text: these are the most frequent labels)")
    for label in answer.labels:
        named = label["id"] if label["id"] == label["text"] else f"{label['id']}  {label['text']}"
        lines.append(f"  {label['score']:.3f}  {named}")
    return lines


def read_file(file: Path, text: str | None, id: str | None) -> list[tuple[str | None, str]]:
    """(id or None, text) of each doc of a table, or of each line of another file; what a table's rows lack is said."""
    from xcutils.data.skips import Skips
    from xcutils.data.tables import form_of, read_texts

    if str(file) == "-":
        with click.open_file("-", encoding="utf-8", errors="replace") as given:
            return [(None, line.rstrip("\r\n")) for line in given]
    if form_of(file) is None:
        return _lines(file)
    report = Skips()
    docs = list(read_texts(file, text, id, report))
    if report.total:
        console.say("\n".join([f"skipped {report.total:,} of the rows:", *report.shown(SHOWN)]))
    return docs


def _lines(file: Path) -> list[tuple[str | None, str]]:
    """One text per line of a file, plain or gzip; bytes that are no UTF-8 are replaced."""
    from xcutils.data.lines import BOM, raw_lines

    found = [(raw or b"").removeprefix(BOM if number == 1 else b"") for number, raw, *_ in raw_lines(file)]
    return [(None, raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in found]
