"""CSV, TSV, JSON lines and Parquet files with a column of texts and one of labels, as docs and labels."""

import ast
import json
import warnings
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.corpora import Collector, Corpus, Dataset, known_labels, no_pairs, split_test
from xcutils.data.delimited import DELIMITERS, records
from xcutils.data.descriptions import Description
from xcutils.data.filters import filter_pairs
from xcutils.data.lines import cut_off, lines, short
from xcutils.data.parquet import parquet_rows
from xcutils.data.skips import Skips
from xcutils.data.values import BadRow, as_text

SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
PARTS = ("train", "test", "labels")
FIRST_OBJECTS = 20  # JSON lines: the columns are the keys of the first so many rows
# Usual names of the columns; the first is preferred to the others.
TEXTS = ("text", "title", "query", "sentence", "document", "content", "abstract", "description", "name")
LABELS = ("labels", "label", "tags", "tag", "categories", "category", "classes", "class", "targets", "target", "topics")
IDS = ("id", "uid", "doc_id", "document_id", "docid", "_id")
LABEL_IDS = ("id", "uid", "label_id", "label", "labels", "code", "key")
LABEL_TEXTS = ("text", "title", "label_text", "name", "description", "content")

Row = tuple[int, list]  # line, values


def form_of(path: Path) -> str | None:
    """csv, tsv, jsonl or parquet by the file's name; None if it is none of them."""
    path = Path(path)
    form = SUFFIXES.get((path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower())
    return None if form == "parquet" and path.suffix == ".gz" else form


def find_parts(folder: Path) -> dict[str, Path]:
    """The folder's train, test and labels files."""
    found: dict[str, Path] = {}
    for path in sorted(Path(folder).iterdir()):
        part = path.name.split(".")[0]
        if part in PARTS and path.is_file() and form_of(path):
            if part in found:
                raise UserError(f"{folder} holds both {found[part].name} and {path.name}: keep one of them.")
            found[part] = path
    return found


def read_tables(parts: dict[str, Path], description: Description) -> Dataset:
    """The dataset of a training file and, if given, a test file and a label file.

    Without a label file the labels are open: a label is its own text, and labels without a training doc are left out.
    Without a test file 25% of the docs are for test.
    """
    report = Skips()
    is_open = "labels" not in parts
    label_texts = {} if is_open else read_labels(parts["labels"], description, report)
    codes = {id: code for code, id in enumerate(label_texts)}
    train = read_docs(parts["train"], description, codes, is_open, report)
    if "test" in parts:
        test = read_docs(parts["test"], description, codes, is_open, report, prefix="test-")
    else:
        train, test = split_test(train)
    label_ids = list(codes)
    skipped: dict[str, int] = {}
    if is_open:
        train, test, label_ids, skipped = known_labels(train, test, label_ids)
    texts = [label_texts.get(id, id) for id in label_ids]
    pairs = {"train": no_pairs(), "test": no_pairs()}
    if description.same_ids and train.keys is None:
        pairs = filter_pairs(train, test.ids, label_ids)
    return Dataset(
        description.name,
        train,
        test,
        label_ids,
        texts,
        train_filter=pairs["train"],
        test_filter=pairs["test"],
        skipped=skipped | report.reasons,
        report=report,
    )


def read_docs(
    path: Path, description: Description, codes: dict[str, int], is_open: bool, report: Skips, prefix: str = ""
) -> Corpus:
    """The docs of a file; with open labels new ones are added to `codes`.

    Without an id column rows of the same text are one doc, and its id is the prefix and its first row's number.
    """
    docs = None
    skipped_here = 0
    choose = _Chooser(path, description, report)
    for taken, (line, (text, labels, id)) in enumerate(rows_of(path, choose, report, description.header), 1):
        if docs is None:
            docs = Collector(by_text=choose.id is None)
        try:
            text = _text(text)
            names = labels_of(labels, description.separator)
            if not names:
                raise BadRow("rows_without_labels", "the row has no label")
            known = [codes.setdefault(name, len(codes)) if is_open else codes.get(name, -1) for name in names]
            if -1 in known:
                name = names[known.index(-1)]
                raise BadRow("rows_with_unknown_label", f"label {short(name)} is not in the label file")
            skipped_before = report.by_file[str(path)] - skipped_here  # rows that rows_of did not even give
            doc_id = f"{prefix}{taken + skipped_before}" if choose.id is None else _id(id)
            if not docs.add(doc_id, text, known):
                raise BadRow("rows_with_repeated_id", f"id {short(doc_id)} was given to another text before")
        except BadRow as bad:
            skipped_here += 1
            bad.note(report, path, line)
    return (docs or Collector(by_text=True)).corpus()


def _text(value) -> str:
    text = as_text(value, "the text")
    if not text or text.isspace():
        raise BadRow("rows_without_text", "the row has no text")
    return text


def _id(value) -> str:
    id = as_text(value, "the id").strip()
    if not id:
        raise BadRow("rows_malformed", "the id is empty", "give every document an id")
    return id


def read_labels(path: Path, description: Description, report: Skips) -> dict[str, str]:
    """The label texts by label id, in the order of the file; a label may have no text."""

    def choose(names: list[str]) -> list[str | None]:
        id = _pick(path, names, description.label_id, LABEL_IDS, "label_id", len(names) > 2)
        others = [name for name in names if name != id]
        text = _pick(path, others, description.label_text, LABEL_TEXTS, "label_text", len(names) > 2)
        if len(names) <= 2:
            id = id or next((name for name in names if name != text), None)
            text = text or next((name for name in names if name != id), id)
        if id is None or text is None:
            raise UserError(
                f"{path} has the columns {_listed(names)}: say in dataset.yaml which is the label's id (`label_id:`) "
                "and which its text (`label_text:`)."
            )
        return _chosen(path, names, report, label_id=id, label_text=text)

    texts: dict[str, str] = {}
    for line, (id, text) in rows_of(path, choose, report, description.header):
        try:
            id = _id(id)
            if id in texts:
                raise BadRow(
                    "rows_with_repeated_id", f"label id {short(id)} stands there twice", "keep one of the rows"
                )
            texts[id] = as_text(text, "the label's text")
        except BadRow as bad:
            bad.note(report, path, line)
    return texts


def read_texts(path: Path, text: str | None, id: str | None, report: Skips) -> Iterator[tuple[str | None, str]]:
    """(id, None where the file gives none; text) of each doc of a file that needs no labels."""

    def choose(names: list[str]) -> list[str | None]:
        id_column = _pick(path, [name for name in names if name != text], id, IDS, "id")
        others = [name for name in names if name != id_column]
        text_column = _pick(path, others, text, TEXTS, "text") or (others[0] if len(others) == 1 else None)
        if text_column is None:
            raise UserError(f"{path} has the columns {_listed(names)}: say with --text which holds the texts.")
        return _chosen(path, names, report, text=text_column, id=id_column)

    for line, (doc_text, doc_id) in rows_of(path, choose, report, header=True):
        try:
            yield (None if doc_id is None else _id(doc_id)), _text(doc_text)
        except BadRow as bad:
            bad.note(report, path, line)


# Columns


class _Chooser:
    """The text, labels and id columns of a file of docs; `id` is None where it has none."""

    def __init__(self, path: Path, description: Description, report: Skips):
        self.path = path
        self.description = description
        self.report = report
        self.id: str | None = None

    def __call__(self, names: list[str]) -> list[str | None]:
        path = self.path
        description = self.description
        free = [name for name in names if name not in (description.text, description.labels)]
        self.id = _pick(path, free, description.id, IDS, "id")
        others = [name for name in names if name != self.id]
        two = len(others) == 2
        free = [name for name in others if name != description.text]
        labels = _pick(path, free, description.labels, LABELS, "labels", not two)
        text = _pick(path, [name for name in others if name != labels], description.text, TEXTS, "text", not two)
        if two:  # what is not the one is the other; if neither is known, the first is the text
            text = text or next(name for name in others if name != labels)
            labels = labels or next(name for name in others if name != text)
        if text is None or labels is None:
            raise UserError(
                f"{path} has the columns {_listed(names)}: say which holds the text and which the labels, with --text "
                "and --labels, or as `text:` and `labels:` in the dataset.yaml of a folder that has the file as "
                f"train{''.join(path.suffixes[-1:])}."
            )
        return _chosen(path, names, self.report, text=text, labels=labels, id=self.id)


def _pick(
    path: Path, names: list[str], stated: str | None, usual: tuple[str, ...], role: str, one: bool = True
) -> str | None:
    """The stated column, else the one with a usual name, in upper or lower case; usual[0] is preferred to the others.

    one  refuse a file that has several such columns; if false, None is returned for it
    """
    if stated is not None:
        return stated
    found = [name for name in names if name.strip().lower() in usual]
    best = [name for name in found if name.strip().lower() == usual[0]] or found
    if len(best) > 1 and one:
        raise UserError(
            f"{path} has the columns {_listed(best)}, each of which may be its {role}: state one, as `{role}:` in the "
            f"dataset.yaml of a folder that has the file, or with --{role.replace('_', '-')}."
        )
    return best[0] if len(best) == 1 else None


def _chosen(path: Path, names: list[str], report: Skips, **roles: str | None) -> list[str | None]:
    """The column of each role, after checking that it exists; the report notes which column was taken for what."""
    for wanted in filter(None, roles.values()):
        if names.count(wanted) != 1:
            wrong = "no column" if wanted not in names else "more than one column"
            raise UserError(f"{path} has {wrong} {short(wanted)}; it has {_listed(names)}: state another one.")
    taken = ", ".join(f"{role} = {short(name)}" for role, name in roles.items() if name is not None)
    usual = {*TEXTS, *LABELS, *IDS, *LABEL_IDS, *LABEL_TEXTS}
    unusual = not any(name.strip().lower() in usual for name in names)
    doubt = "; if that is a row and no line of names, state --no-header" if unusual else ""
    report.notes.append(f"{path}: {taken}" + (", no ids" if roles.get("id", "") is None else "") + doubt)
    return list(roles.values())


def _listed(names: list[str]) -> str:
    return ", ".join(short(name) for name in names[:20]) + (", ..." if len(names) > 20 else "") if names else "(none)"


# Rows


def rows_of(path: Path, choose: Callable, report: Skips, header: bool) -> Iterator[Row]:
    """(line, values of the columns that `choose` picks) of each row that can be read; other rows go to the report."""
    form = form_of(path)
    if form == "parquet":
        return parquet_rows(path, choose, report)
    if form == "jsonl":
        return _json_rows(path, choose, report)
    return _delimited_rows(path, str(form), choose, report, header)


def _delimited_rows(path: Path, form: str, choose: Callable, report: Skips, header: bool) -> Iterator[Row]:
    rows = records(path, form, report, header)
    line, names = next(rows, (0, []))
    if not names:
        raise UserError(f"{path} is empty: it needs a line with the names of the columns, and rows.")
    if not header:
        rows = chain([(line, names)], rows)
        names = [str(column) for column in range(1, len(names) + 1)]
    elif len(names) == 1 and any(other in names[0] for other in ",;\t|" if other != DELIMITERS[form]):
        raise UserError(
            f"{path}, line 1: {short(names[0])} is one column: {form} files have "
            f"{'commas' if form == 'csv' else 'tabs'} between columns."
        )
    columns = [None if name is None else names.index(name) for name in choose(names)]
    for line, cells in rows:
        yield line, [None if column is None else cells[column] for column in columns]


def _json_rows(path: Path, choose: Callable, report: Skips) -> Iterator[Row]:
    objects = json_objects(path, report)
    first = list(islice(objects, FIRST_OBJECTS))
    names = list(dict.fromkeys(key for _, row in first for key in row))
    chosen = choose(names) if first else []
    for line, row in chain(first, objects):
        yield line, [row.get(name) for name in chosen]


def json_objects(path: Path, report: Skips, blank: bool = True) -> Iterator[tuple[int, dict]]:
    """(line, object) of each line; with `blank` a blank line is allowed, and is no row."""
    rows = 0
    for line in lines(path):
        text = line.text
        if blank and text is not None and not text.strip():
            continue
        rows += 1
        if text is None:
            report.skip(path, line.number, line.kind, line.reason)
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            if not line.end:
                raise cut_off(path, line.number) from None
            if rows == 1 and text.lstrip().startswith("["):
                raise UserError(f"{path} is one JSON list: write one JSON object per line.") from None
            report.skip(path, line.number, "rows_not_json", f"the line is not valid JSON ({_first_words(error)})")
            continue
        if isinstance(row, dict):
            yield line.number, row
        else:
            report.skip(path, line.number, "rows_not_json", f"the line is {short(row)}, not an object")
    report.count(path, rows)


def _first_words(error: Exception) -> str:
    return str(error).split(": line")[0][:100]


# Labels


def labels_of(value, separator: str | None) -> list[str]:
    """The labels of a cell: one, a list, a list written as text (["a", "b"]), or several with the separator between."""
    if isinstance(value, str):
        if separator is not None:
            as_text(value, "the labels")
            return [part for part in map(str.strip, value.split(separator)) if part]
        if value[:1] == "[" and value[-1:] == "]":
            value = _written_list(value)
    if isinstance(value, list):
        return [part for item in value if (part := _label(item))]
    label = _label(value)
    return [label] if label else []


def _label(value) -> str:
    return as_text(value, "the label").strip()


def _written_list(text: str):
    """The list that JSON or Python reads from the text; the text if neither can."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.count("[") > 1 or "(" in text or "{" in text:
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about backslashes that mean nothing
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
