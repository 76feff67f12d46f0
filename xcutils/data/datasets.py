"""The door to datasets of every form: a folder or a file in, a Dataset out, checked row by row.

    folder  trn.json.gz, tst.json.gz, lbl.json.gz             xc_json.py, the Extreme Classification Repository's form
    folder  trn_X.txt, trn_X_Y.txt, Y.txt, tst_X.txt ...      xc_text.py, its raw texts
    folder  train.csv, or .tsv, .jsonl, .parquet, and
            perhaps test.* and labels.*                       tables.py
    file    .csv, .tsv, .jsonl, .parquet                      tables.py
    folder  a dataset.yaml that says `format: hpo`            hpo.py
    folder  .git and none of the above, or a bare repository  git_history.py

A row that cannot be used is skipped and noted (skips.py); a file that cannot be trusted is refused with a UserError.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.commits import is_repository
from xcutils.data.corpora import Corpus, Dataset, hash_share, split_validation
from xcutils.data.descriptions import DESCRIPTION, Description, describe
from xcutils.data.filters import filter_pairs
from xcutils.data.git_history import read_git
from xcutils.data.hpo import package_files, read_hpo
from xcutils.data.tables import find_parts, form_of, read_tables
from xcutils.data.xc_json import FILES, read_xc, write_xc
from xcutils.data.xc_text import FILES as TEXT_FILES
from xcutils.data.xc_text import read_xc_text

__all__ = [
    "Corpus",
    "Dataset",
    "Description",
    "describe",
    "filter_pairs",
    "hash_share",
    "load_dataset",
    "read_hpo",
    "split_validation",
    "write_xc",
]


def load_dataset(path: Path, given: dict | None = None) -> Dataset:
    """The dataset at the path; `given` overrides its dataset.yaml (see Description)."""
    data = _load(path, given)
    for file in map(Path, data.report.read):
        if file.suffix not in (".gz", ".parquet") and _lacks_line_end(file):
            data.report.notes.append(f"note: {file} does not end with a line end; if it was cut off, fetch it again")
    return data


def _lacks_line_end(file: Path) -> bool:
    with open(file, "rb") as content:
        if content.seek(0, 2) == 0:
            return False
        content.seek(-1, 2)
        return content.read(1) != b"\n"


def _load(path: Path, given: dict | None) -> Dataset:
    path = Path(path)
    if not path.exists():
        raise UserError(f"There is no dataset {path}: correct `dataset` in params.yaml, or make the folder or file.")
    description = describe(path, given)
    if description.format not in (None, *FORMS):
        known = ", ".join(["None", *FORMS])
        raise UserError(f"{path / DESCRIPTION}.format is {description.format!r}; allowed: {known}.")
    if path.is_dir():
        return FORMS[description.format or _form(path)].read(path, description)
    if form_of(path) is None or description.format not in (None, "table"):
        raise UserError(f"{path} is no dataset: give a folder, or a .csv, .tsv, .jsonl (perhaps .gz) or .parquet file.")
    return read_tables({"train": path}, description)


def _form(folder: Path) -> str:
    """The form that the names of the folder's files show."""
    shown = [name for name, form in FORMS.items() if form.shows(folder)]
    forms = [name for name in shown if not FORMS[name].gives_way] or shown
    if len(forms) > 1:
        raise UserError(
            f"{folder} holds a dataset in more than one form ({', '.join(forms)}): take one of them out, or state "
            f"`format: {forms[0]}` in {folder / DESCRIPTION}."
        )
    if not forms:
        raise UserError(
            f"{folder} holds no dataset: {FILES['train']} is missing, and so are trn_X.txt and train.csv (or .tsv, "
            ".jsonl, .parquet); nor is it a git repository."
        )
    return forms[0]


def _read_hpo_package(folder: Path, description: Description) -> Dataset:
    return read_hpo(*package_files(str(description.package), folder / DESCRIPTION), name=description.name)


def _read_table_folder(folder: Path, description: Description) -> Dataset:
    parts = find_parts(folder)
    if "train" not in parts:
        raise UserError(f"{folder} holds no train.csv, train.tsv, train.jsonl or train.parquet: add one.")
    return read_tables(parts, description)


def _any_of(*files: str) -> Callable[[Path], bool]:
    return lambda folder: any((folder / file).is_file() for file in files)


@dataclass(frozen=True)
class Form:
    """A form of dataset folders.

    read       (folder, its description) -> the dataset
    shows      (folder) -> whether the names of its files show this form; never, for a form that `format` must state
    gives_way  a folder that shows another form too is of that one
    """

    read: Callable[[Path, Description], Dataset]
    shows: Callable[[Path], bool] = lambda folder: False
    gives_way: bool = False


# `format` of a dataset.yaml -> how such a folder is recognised and read.
FORMS = {
    "xc": Form(lambda folder, description: read_xc(folder, description.name), _any_of(*FILES.values())),
    "xc-text": Form(
        lambda folder, description: read_xc_text(folder, description.name),
        _any_of(*(file for files in TEXT_FILES.values() for file in files)),
    ),
    "table": Form(_read_table_folder, lambda folder: "train" in find_parts(folder)),
    "hpo": Form(_read_hpo_package),
    # Many people keep their data in a git repository: that it is one says nothing if there is data.
    "git": Form(lambda folder, description: read_git(folder, description.name), is_repository, gives_way=True),
}
