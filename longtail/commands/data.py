"""`xc check`, `xc import`, `xc export`: datasets looked at, brought in and handed on."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from longtail import files
from longtail.commands.options import run_option
from xcutils.core import console

if TYPE_CHECKING:
    from stages.prepare import Params
    from xcutils.data.corpora import Dataset

ALL_WELL = "no problems, every row can be used"
PROBLEMS = 50  # shown of a dataset that is checked


def data_options(function: Callable) -> Callable:
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


@click.command("check")
@click.argument("path", type=click.Path(path_type=Path))
@data_options
@click.option("--out", type=click.Path(path_type=Path), help="Also write all problems to this CSV file.")
@console.command
def check(path: Path, out: Path | None, **stated) -> None:
    """Say whether the dataset at PATH can be trained on.

    Its statistics and what is wrong with it are printed. The exit code is 1 if it could not be trained on.
    """
    from xcutils.core.rules import validation_share
    from xcutils.data.corpora import split_validation
    from xcutils.data.summaries import check_trainable, statistics, table

    p = _prepare_params()
    data = _load(path, stated)
    is_validation = split_validation(data.train.identity, validation_share(p.validation, len(data.train.ids)))
    report = data.report
    lines = [*report.notes, table(statistics(data, is_validation)), *hints(data), ""]
    lines.append(f"{report.total:,} problem{'s' * (report.total > 1)}:" if report.total else ALL_WELL)
    click.echo("\n".join([*lines, *report.shown(PROBLEMS)]))
    if out:
        report.save(out)
    report.refuse_above(p.bad_rows)
    check_trainable(data, is_validation)
    click.echo("It can be trained on.")


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@data_options
@console.command
def import_data(path: Path, folder: Path, **stated) -> None:
    """Write the dataset at PATH to FOLDER in the repository's form.

    That is trn.json.gz, tst.json.gz and lbl.json.gz; skipped.csv lists the rows that could not be used.
    """
    from xcutils.data.datasets import write_xc
    from xcutils.data.skips import REPORT

    p = _prepare_params()
    data = _load(path, stated)
    data.report.refuse_above(p.bad_rows)
    write_xc(folder, data)
    data.report.save(folder / REPORT)
    docs = f"{len(data.train.ids):,} training and {len(data.test.ids):,} test documents"
    skipped = f"rows skipped: {data.report.total:,} ({folder / REPORT})"
    said = f"wrote {folder}: {docs}, {len(data.label_ids):,} labels; {skipped}."
    click.echo("\n".join([*data.report.notes, said]))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@run_option
@console.command
def export(folder: Path, data: Path) -> None:
    """Write the prepared dataset to FOLDER in the repository's form.

    That is trn.json.gz, tst.json.gz, lbl.json.gz and filter files, with exactly the split of the run.
    """
    from xcutils.data.datasets import write_xc

    write_xc(folder, prepared(data / "prepare"))
    click.echo(f"wrote {folder}: any tool that reads the repository's form can be run on exactly this split.")


def _prepare_params() -> "Params":
    """The values that the prepare stage would have."""
    from stages import parameters
    from stages.prepare import Params

    return parameters(files.find("params.yaml")).section("prepare", Params)


def _load(path: Path, stated: dict) -> "Dataset":
    """The dataset at the path; what an option states stands above what its dataset.yaml says."""
    from xcutils.data.datasets import load_dataset

    return load_dataset(path, {key: given for key, given in stated.items() if given is not None})


def hints(data: "Dataset") -> list[str]:
    """What a person may want to know who sees the numbers for the first time."""
    for mark in (";", "|", ","):
        n_found = sum(mark in id for id in data.label_ids)
        if n_found > 0.3 * len(data.label_ids) and data.label_ids == data.label_texts:
            return [f"note: {n_found:,} labels hold {mark!r}; if it stands between labels, state --separator {mark!r}"]
    return []


def prepared(folder: Path) -> "Dataset":
    """What the prepare stage wrote."""
    from xcutils.core import artifacts
    from xcutils.core.ragged import to_strings
    from xcutils.data.corpora import Corpus, Dataset

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
