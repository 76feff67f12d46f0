"""What a dataset's dataset.yaml states about it, or instead of it the options of `xc check` and `xc import`."""

from dataclasses import dataclass
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.core.params import check, read

DESCRIPTION = "dataset.yaml"
DEFAULTS = {
    "format": None,
    "package": None,
    "text": None,
    "labels": None,
    "id": None,
    "separator": None,
    "header": True,
    "label_id": None,
    "label_text": None,
    "same_ids": False,
}


@dataclass(frozen=True)
class Description:
    """What dataset.yaml may state; a dataset whose files and columns have the usual names needs none of it."""

    name: str
    format: str | None  # a row of datasets.FORMS; None: by the names of the files
    package: str | None  # hpo only: the installed package that holds the files
    text: str | None  # tables: the column of the documents' texts,
    labels: str | None  # of their labels,
    id: str | None  # of their ids
    separator: str | None  # tables: what stands between two labels in a cell; None: a cell is one label or a list
    header: bool  # CSV and TSV: the first line names the columns; without it they are called 1, 2, ...
    label_id: str | None  # tables: the columns of the label file
    label_text: str | None
    same_ids: bool  # tables: a document and a label of the same id are one thing, which is no answer to itself


def describe(path: Path, given: dict | None = None) -> Description:
    """The description of a dataset: `given` overrides the folder's dataset.yaml, which overrides the defaults."""
    file = Path(path) / DESCRIPTION
    stated = read(file) if file.is_file() else {}
    description = check(Description, {"name": _name(path)} | DEFAULTS | stated | (given or {}), str(file))
    if (description.format == "hpo") != (description.package is not None):
        raise UserError(f"{file}: `package` must be given with `format: hpo`, and only there.")
    return description


def _name(path: Path) -> str:
    """The folder's name, or the file's up to its first dot; that of a git repository without its .git."""
    path = Path(path).resolve()
    if path.is_dir():
        return path.name.removesuffix(".git") or path.parent.name
    return path.name.split(".")[0] or path.name
