"""The Extreme Classification Repository's raw text form: trn_X.txt, tst_X.txt, Y.txt, trn_X_Y.txt and tst_X_Y.txt.

A text per line; a sparse file has a header `rows columns` and then a line `label:value label:value ...` per document.
"""

from itertools import zip_longest
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.corpora import Collector, Dataset, no_pairs, split_test
from xcutils.data.filters import FILTERS, read_filter
from xcutils.data.lines import MOST_TEXT, Line, cut_off, lines, short
from xcutils.data.skips import Skips
from xcutils.data.values import BadRow, checked

FILES = {"train": ("trn_X.txt", "trn_X_Y.txt"), "test": ("tst_X.txt", "tst_X_Y.txt")}
LABELS = "Y.txt"


def read_xc_text(folder: Path, name: str) -> Dataset:
    """The dataset of the folder; docs and labels have their row numbers (from 0) as ids, test docs "test-0" and so on.

    Without test files 25% of the docs are for test, by the hash of their text.
    """
    report = Skips()
    folder = Path(folder)
    splits = ["train", "test"] if any((folder / file).is_file() for file in FILES["test"]) else ["train"]
    for path in [folder / LABELS, *(folder / file for split in splits for file in FILES[split])]:
        if not path.is_file():
            named = ", ".join((*FILES["train"], *FILES["test"], LABELS))
            raise UserError(f"{path} is missing: a folder of raw texts holds {named}.")
    label_texts = _read_labels(folder / LABELS, report)
    corpora, filters = {}, {}
    for split in splits:
        docs = _read_docs(folder, split, len(label_texts), report)
        corpora[split] = docs.corpus()
        filters[split] = read_filter(folder, split, docs.row_to_doc, len(label_texts), report)
    if splits == ["train"]:
        given = [file for files in FILTERS.values() for file in files if (folder / file).exists()]
        if given:
            raise UserError(f"{folder / given[0]} counts in a split that is not given: add {', '.join(FILES['test'])}.")
        corpora["train"], corpora["test"] = split_test(corpora["train"])
    pairs = {split: no_pairs() if (found := filters.get(split)) is None else found for split in FILES}
    return Dataset(
        name,
        **corpora,
        label_ids=[str(label) for label in range(len(label_texts))],
        label_texts=label_texts,
        train_filter=pairs["train"],
        test_filter=pairs["test"],
        skipped=dict(report.reasons),
        report=report,
    )


def _read_labels(path: Path, report: Skips) -> list[str]:
    """The text of each label; "" for a line that cannot be used."""
    texts = []
    for line in lines(path):
        texts.append(line.text or "")
        if line.text is None or len(line.text) > MOST_TEXT:
            texts[-1] = ""
            kind, reason = (line.kind, line.reason) if line.text is None else ("rows_too_long", "the text is too long")
            report.skip(path, line.number, kind, reason)
    report.count(path, len(texts))
    return texts


def _read_docs(folder: Path, split: str, n_labels: int, report: Skips) -> Collector:
    texts_path, labels_path = (folder / file for file in FILES[split])
    prefix = "" if split == "train" else "test-"
    sparse = lines(labels_path)
    n_rows = _check_header(labels_path, next(sparse, None), n_labels, folder / LABELS)
    docs = Collector(numbered=True)
    for row, (text, labels) in enumerate(zip_longest(lines(texts_path), sparse)):
        if text is None or labels is None:
            short_file, long_file = (texts_path, labels_path) if text is None else (labels_path, texts_path)
            raise UserError(
                f"{short_file} has {row:,} documents, {long_file} has more: they must have a line for each document."
            )
        path, line = (labels_path, labels) if labels.text is None else (texts_path, text)
        try:
            if line.text is None:
                raise BadRow(line.kind, line.reason)
            path, line = labels_path, labels
            targets = _targets(labels, n_labels, labels_path)
            path, line = texts_path, text
            if not text.text or text.text.isspace():
                raise BadRow("rows_without_text", "the line has no text")
            docs.add(f"{prefix}{row}", checked(text.text, "the text"), targets)
        except BadRow as bad:
            docs.leave_out()
            bad.note(report, path, line.number)
    report.count(texts_path, len(docs.row_to_doc))
    report.count(labels_path, len(docs.row_to_doc))
    if len(docs.row_to_doc) != n_rows:
        raise UserError(
            f"{labels_path}, line 1: the header says {n_rows:,} documents, {len(docs.row_to_doc):,} are there: the "
            "file is cut off or the header is wrong."
        )
    return docs


def _check_header(path: Path, line: Line | None, n_labels: int, labels: Path) -> int:
    """The number of rows that a sparse file's header states, after checking its number of labels."""
    cells = line.text.split() if line and line.text is not None else []
    if len(cells) != 2 or not all(cell.isascii() and cell.isdecimal() and len(cell) < 16 for cell in cells):
        found = short(line.text) if line and line.text is not None else "missing"
        raise UserError(f"{path}, line 1: the header is {found}; it must be `documents labels`, two whole numbers.")
    rows, columns = map(int, cells)
    if columns != n_labels:
        raise UserError(
            f"{path}, line 1: the header says {columns:,} labels, {labels} has {n_labels:,}: correct the header or "
            "take the label file that belongs to it."
        )
    return rows


def _targets(line: Line, n_labels: int, path: Path) -> list[int]:
    """The labels of a line of `label:value` cells, those with a value of 0 or less left out."""
    targets = []
    for cell in (line.text or "").split():
        label, _, value = cell.partition(":")
        try:
            target, is_relevant = int(label) if label.isdecimal() else -1, float(value) > 0
        except ValueError:
            if not line.end:
                raise cut_off(path, line.number) from None
            reason = f"{short(cell)} is not `label:value`"
            raise BadRow("rows_malformed", reason, "write whole label numbers and their values") from None
        if not 0 <= target < n_labels:
            reason = (
                f"label id {short(target)} is out of range, {LABELS} has {n_labels} labels (ids 0 to {n_labels - 1})"
            )
            raise BadRow("rows_with_unknown_label", reason)
        if is_relevant:
            targets.append(target)
    if not targets:
        raise BadRow("rows_without_labels", "the line has no label")
    return targets
