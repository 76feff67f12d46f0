"""`xc`: predictions for new texts, the table of a run, datasets checked, brought in and handed to other tools."""

import os

from xcutils.core import console, processor

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
processor.same_everywhere()  # before numpy and torch are loaded

import json
import sys
from pathlib import Path

import click

from xcutils.core import artifacts, runtime
from xcutils.core.errors import UserError

ROWS = {
    "BM25": "BM25 on label text",
    "zero-shot": "zero-shot",
    "encoder-no-aux": "encoder without auxiliary vectors",
    "encoder": "encoder with them",
    "classifier": "classifier",
    "memory": "memory",
    "fused": "fused",
}
UNIDEC_ROWS = {
    "encoder": "encoder alone",
    "classifier": "classifiers alone",
    "concatenated": "both concatenated",
    "memory": "memory",
    "fused": "fused",
}
CLASSIFIERS = ("classifier", "concatenated")  # rows that are not there when the encoder was trained alone (DePSL)
SHOWN = 5  # skipped rows of a file to predict
ALL_WELL = "no problems, every row can be used"
PROBLEMS = 50  # of a dataset that is checked
PARAMS, SECOND = "params.yaml", "unidec/params.yaml"
COLUMNS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "N@5", "R@10", "R@100", "C@5")

NEXT = """What to try next (first: source .venv/bin/activate)
  xc predict "your text"                 labels for a text of your own
  dvc exp run -S K=0                     the same without auxiliary vectors (NGAME)
  dvc exp run -S K=65536                 an auxiliary vector for every label
  xc recipe                              other methods: ANCE, DEXML, Renee, UniDEC and more (docs/methods.md)
  dvc metrics diff                       what that changed
  dvc plots show                         curves, and results by label frequency
  xc check my.csv                        can your own data be trained on? (docs/from-csv.md)
  dvc exp run -S dataset=my.csv          then do it
  make peers                             PECOS, omikuji, napkinXC and BM25 on the same split"""


pipeline_option = click.option(
    "--unidec",
    "pipeline",
    flag_value="unidec",
    default="",
    help="The unified method's run, which `dvc repro unidec/dvc.yaml` makes.",
)


@click.group()
def main() -> None:
    """Longtail: the few right labels for a short text, among very many."""


@main.command()
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object per text.")
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="Where the run is."
)
@pipeline_option
@console.command
def predict(texts, file, text_column, id_column, k: int, as_json: bool, data: Path, pipeline: str) -> None:
    """The labels of new TEXTS, best first, with the probability that each is right."""
    given = [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    docs = [*((None, text) for text in given), *(read_file(file, text_column, id_column) if file else [])]
    texts = [text for _, text in docs]
    if not texts:
        raise UserError('there is no text: give it in quotes, xc predict "text", or one per line with --file F.')
    from longtail.serving import load_system  # torch and the models: only when there is something to predict

    runtime.start()
    system = load_system(data, pipeline)
    for (id, text), answer in zip(docs, system.answers(texts, k)):
        if as_json:
            own = {} if id is None else {"id": id}
            shown = own | {"text": text, "known": answer.known, "labels": answer.labels}
            click.echo(json.dumps(shown, ensure_ascii=False))
            continue
        click.echo(text if id is None else f"{id}  {text}")
        if not answer.known:
            click.echo("  (no known word in this text: these are the most frequent labels)")
        for label in answer.labels:
            named = label["id"] if label["id"] == label["text"] else f"{label['id']}  {label['text']}"
            click.echo(f"  {label['score']:.3f}  {named}")


def _lines(file: Path) -> list[tuple[None, str]]:
    """The texts of a file, plain or gzip, one per line, in step with its lines; bytes that are no text do no harm."""
    from xcutils.data.lines import BOM, raw_lines

    found = [(raw or b"").removeprefix(BOM if number == 1 else b"") for number, raw, *_ in raw_lines(file)]
    return [(None, raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in found]


def read_file(file: Path, text: str | None, id: str | None) -> list[tuple[str | None, str]]:
    """(id or None, text) of each doc of a table, or of each line of another file; what a table's rows lack is said."""
    from xcutils.data.skips import Skips
    from xcutils.data.tables import form_of, read_texts

    if str(file) == "-" or form_of(file) is None:
        if str(file) == "-":
            with click.open_file("-", encoding="utf-8", errors="replace") as given:
                return [(None, line.rstrip("\r\n")) for line in given]
        return _lines(file)
    report = Skips()
    docs = list(read_texts(file, text, id, report))
    if report.total:
        console.say("\n".join([f"skipped {report.total:,} of the rows:", *report.shown(SHOWN)]))
    return docs


@main.command()
@click.option(
    "--metrics", type=click.Path(path_type=Path), help="The file to show.  [default: the pipeline's metrics.json]"
)
@pipeline_option
@console.command
def table(metrics: Path | None, pipeline: str) -> None:
    """The test metrics of the last run, one row per phase."""
    metrics = metrics or Path(pipeline, "metrics.json")
    report = artifacts.load_json(metrics.parent, metrics.name)
    titles = UNIDEC_ROWS if pipeline else ROWS
    try:
        if pipeline and not any(row in report for row in CLASSIFIERS):
            titles = {row: title for row, title in titles.items() if row not in CLASSIFIERS}
        rows = {row: [float(report[row][name]) for name in COLUMNS] for row in titles}
        found = {name.removeprefix("recall@100 "): float(v) for name, v in report["index"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        command = artifacts.command(Path(pipeline, "metrics.json"))
        raise UserError(f"{metrics} holds no metrics of this version: run `{command}` to make it again.") from None
    width = max(map(len, titles.values()))
    click.echo(" " * width + "".join(f"{name:>8}" for name in COLUMNS))
    for row, title in titles.items():
        click.echo(f"{title:<{width}}" + "".join(f"{figure:8.2f}" for figure in rows[row]))
    recalls = ", ".join(f"{name} {v:.2f}" for name, v in found.items())
    click.echo(f"\nin percent, on the test documents; recall@100 of the index against exact search: {recalls}")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="Where the run is."
)
@console.command
def export(folder: Path, data: Path) -> None:
    """Write the prepared dataset to FOLDER as trn.json.gz, tst.json.gz, lbl.json.gz and filter files."""
    from xcutils.data.datasets import write_xc

    write_xc(folder, prepared(data / "prepare"))
    click.echo(f"wrote {folder}: any tool that reads the repository's form can be run on exactly this split.")


def data_options(function):
    """What dataset.yaml may say about tables, as options."""
    for option in (
        click.option("--text", help="The column that holds the texts."),
        click.option("--labels", help="The column that holds the labels."),
        click.option("--id", help="The column that holds the documents' ids."),
        click.option("--separator", help="What stands between two labels in a cell."),
        click.option("--no-header", "header", is_flag=True, flag_value=False, default=None, help="No line of names."),
        click.option("--label-id", help="The label file's column of ids."),
        click.option("--label-text", help="The label file's column of texts."),
        click.option("--name", help="The dataset's name.  [default: that of the folder or file]"),
    ):
        function = option(function)
    return function


@main.command("check")
@click.argument("path", type=click.Path(path_type=Path))
@data_options
@click.option("--out", type=click.Path(path_type=Path), help="Also write all problems to this CSV file.")
@console.command
def check_data(path: Path, out: Path | None, **stated) -> None:
    """Read the dataset at PATH; print its statistics and what is wrong with it.

    The exit code is 1 if it could not be trained on.
    """
    from xcutils.core.params import load_section
    from xcutils.data.corpora import split_validation
    from xcutils.data.datasets import load_dataset
    from xcutils.data.summaries import check_trainable, statistics, table

    p = load_section("prepare")
    data = load_dataset(path, {key: given for key, given in stated.items() if given is not None})
    is_validation = split_validation(data.train.identity, p.validation)
    report = data.report
    lines = [*report.notes, table(statistics(data, is_validation)), *hints(data), ""]
    lines.append(f"{report.total:,} problem{'s' * (report.total > 1)}:" if report.total else ALL_WELL)
    click.echo("\n".join([*lines, *report.shown(PROBLEMS)]))
    if out:
        report.save(out)
    report.refuse_above(p.bad_rows)
    check_trainable(data, is_validation)
    click.echo("It can be trained on.")


@main.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@data_options
@console.command
def import_data(path: Path, folder: Path, **stated) -> None:
    """Write the dataset at PATH to FOLDER as trn.json.gz, tst.json.gz and lbl.json.gz; list what was skipped."""
    from xcutils.core.params import load_section
    from xcutils.data.datasets import load_dataset, write_xc
    from xcutils.data.skips import REPORT

    data = load_dataset(path, {key: given for key, given in stated.items() if given is not None})
    data.report.refuse_above(load_section("prepare").bad_rows)
    write_xc(folder, data)
    data.report.save(folder / REPORT)
    counts = (
        f"{len(data.train.ids):,} training and {len(data.test.ids):,} test documents, {len(data.label_ids):,} labels"
    )
    click.echo(f"wrote {folder}: {counts}; rows skipped: {data.report.total:,} ({folder / REPORT}).")


def hints(data) -> list[str]:
    """What a person may want to know who sees the numbers for the first time."""
    for mark in (";", "|", ","):
        n_found = sum(mark in id for id in data.label_ids)
        if n_found > 0.3 * len(data.label_ids) and data.label_ids == data.label_texts:
            return [f"note: {n_found:,} labels hold {mark!r}; if it stands between labels, state --separator {mark!r}"]
    return []


@main.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="Where the run is."
)
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this JSON file.")
@click.option("--predict-only", is_flag=True, help="Measure prediction with the models there are; train nothing.")
@console.command
def timings(data: Path, out: Path | None, predict_only: bool) -> None:
    """Run the pipeline anew; print its time and memory, the time per text and the size of the model."""
    from longtail.serving import measure, measure_training

    figures = ({} if predict_only else measure_training()) | measure(data)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        artifacts.save_json(out.parent, out.name, figures)
    click.echo(json.dumps(figures, indent=2))


@main.command()
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
def estimate(path: Path | None, changes: tuple[str, ...], like: str | None, pipeline: str, **given) -> None:
    """The memory, time and disk each stage will take on the dataset PATH; nothing is run.

    Without PATH and --like it is the prepared data, else the dataset of params.yaml. Each number given by an option
    replaces the dataset's own; what goes with it (a document's tokens and positives) is scaled along. With --unidec it
    is the second pipeline, whose parameters are set by -S unidec/params.yaml:NAME=VALUE.
    """
    from longtail import estimates, sizes
    from xcutils.core.params import load_all

    device = runtime.start()
    changed = _by_file(changes, [PARAMS, SECOND] if pipeline else [PARAMS])
    first = params = load_all(changed[PARAMS])
    stages = estimates.STAGES
    if pipeline:
        params, stages = load_all(changed[SECOND], file=Path(SECOND)), estimates.UNIFIED
    name, found = sizes.find(path, like, first)
    found = sizes.scaled(found, first, **given)
    host = estimates.host()
    made = [function(found, params, host) for function in stages.values()]
    click.echo(sizes.describe_sizes(name, found, estimates.trained(params).dim))
    _show(made, host)
    if device.type != "cpu":
        click.echo(f"All this is of a run on the CPU; on {device} a stage that works there is not refused.")


def _by_file(changes: tuple[str, ...], files: list[str]) -> dict[str, list[str]]:
    """{file: its changes}, each written as `dvc exp run -S` has it: FILE:NAME=VALUE, without FILE of params.yaml."""
    found: dict[str, list[str]] = {file: [] for file in files}
    for change in changes:
        file, colon, rest = change.partition(":")
        if not colon or "=" in file:  # a colon of the value
            file, rest = PARAMS, change
        if file not in found:
            if file == SECOND:
                raise UserError(f"-S {change} is a parameter of the second pipeline: add --unidec.")
            raise UserError(f"-S {change}: {file} is no parameter file; known: {', '.join(files)}.")
        found[file].append(rest)
    return found


def _show(made, host) -> None:
    """The estimates as a table, and what does not fit here."""
    from longtail import estimates

    room = runtime.memory()
    click.echo(f"{'stage':<12}{'memory':>10}{'of files':>10}{'time':>9}{'disk':>10}   largest parts")
    for one in made:
        peak, mapped, disk = (estimates.gigabytes(v) for v in (one.peak, one.peak - one.needed, one.disk))
        time = estimates.duration(one.seconds)
        click.echo(f"{one.stage:<12}{peak:>10}{mapped:>10}{time:>9}{disk:>10}   {one.largest()}")
    total = [estimates.duration(sum(e.seconds for e in made)), estimates.gigabytes(sum(e.disk for e in made))]
    click.echo(f"{'in all':<32}" + "{:>9}{:>10}".format(*total))
    click.echo(
        f"Times are rough: from {host.speed / 1e9:.0f} GFLOPS of {host.threads} threads just now, to the last epoch."
    )
    refusals = [text for one in made if (text := one.refusal(room))]
    for text in refusals:
        click.echo(f"does not fit: {text}")
    click.echo("Memory of files (mapped) is not counted against the machine's: it can be dropped and read again.")
    if not refusals:
        click.echo(f"All stages fit into the {estimates.gigabytes(room)} that can be had here.")


@main.command("recipe")
@click.argument("name", required=False)
@click.option("--show", is_flag=True, help="Change nothing; print what NAME would change.")
@console.command
def use_recipe(name: str | None, show: bool) -> None:
    """Put the parameters of another method, recipes/NAME.yaml, in place of params.yaml or unidec/params.yaml.

    What is there is kept, by git or beside it. The present dataset stays, unless the recipe is for a certain one.
    Without NAME all recipes are listed, with a * before those whose values are in place.
    """
    from longtail import recipes

    if name is None:
        if show:
            raise UserError("--show wants the name of a recipe: `xc recipe` lists them all.")
        found = recipes.listing()
        width = max(len(one) for one, _, _ in found)
        click.echo("\n".join(f"{'*' if here else ' '} {one:<{width}}  {title}" for one, title, here in found))
        return
    recipe = recipes.load(name)
    if not show:
        click.echo("\n".join([*recipes.put(recipe), *recipes.next_steps(recipe)]))
        return
    changed = [tuple(map(_written, row)) for row in recipes.differences(recipe)]
    if not changed:
        click.echo(f"{recipe.place} has the values of recipe {name}.")
        return
    rows = [("", "present", name), *changed]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    click.echo("\n".join(f"{key:<{first}}  {old:<{second}}  {new}" for key, old, new in rows))


def _written(value) -> str:
    """A value as params.yaml has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@main.command("next")
def what_next() -> None:
    """What to try after a first run."""
    click.echo(NEXT)


def prepared(folder: Path):
    """What the prepare stage wrote, as a Dataset."""
    from xcutils.core.ragged import to_strings
    from xcutils.data.datasets import Corpus, Dataset

    def strings(part: str, name: str) -> list[str]:
        return to_strings(artifacts.load_ragged(folder / part, name))

    def corpus(part: str) -> Corpus:
        positives = artifacts.load_ragged(folder / part, "positives")
        return Corpus(strings(part, "ids"), strings(part, "texts"), positives)

    artifacts.check_together(*(folder / part for part in ("train", "test", "labels")))
    return Dataset(
        name=artifacts.load_json(folder / "train", "meta.json")["dataset"],
        train=corpus("train"),
        test=corpus("test"),
        label_ids=strings("labels", "ids"),
        label_texts=strings("labels", "texts"),
        train_filter=artifacts.load_array(folder / "train", "filter"),
        test_filter=artifacts.load_array(folder / "test", "filter"),
        skipped={},
    )


if __name__ == "__main__":
    sys.exit(main())
