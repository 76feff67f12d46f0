"""The Extreme Classification Repository's JSON form: trn.json.gz, tst.json.gz, lbl.json.gz, optional filter files."""

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from xcutils.core.errors import UserError
from xcutils.data.corpora import Collector, Corpus, Dataset
from xcutils.data.descriptions import DESCRIPTION
from xcutils.data.filters import FILTERS, filter_pairs, read_filter
from xcutils.data.lines import short
from xcutils.data.skips import Skips
from xcutils.data.tables import json_objects
from xcutils.data.values import BadRow, checked

FILES = {"train": "trn.json.gz", "test": "tst.json.gz", "labels": "lbl.json.gz"}


def read_xc(folder: Path, name: str) -> Dataset:
    """The dataset of an XC folder; labels keep their line numbers as ids.

    Text is the title alone if the name contains "title", else title + " " + content.
    """
    paths = {part: Path(folder) / file for part, file in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise UserError(f"{path} is missing: an XC dataset folder holds {', '.join(FILES.values())}.")
    report = Skips()
    text_of = _title if "title" in name.lower() else _title_and_content
    label_ids, label_texts = _read_labels(paths["labels"], text_of, report)
    corpora: dict[str, Corpus] = {}
    filters: dict[str, np.ndarray | None] = {}
    for split in ("train", "test"):
        docs = _read_docs(paths[split], text_of, len(label_ids), report)
        corpora[split] = docs.corpus()
        filters[split] = read_filter(folder, split, docs.row_to_doc, len(label_ids), report)
    pairs = {split: found for split, found in filters.items() if found is not None}
    if len(pairs) < len(filters):
        pairs = filter_pairs(corpora["train"], corpora["test"].ids, label_ids) | pairs
    return Dataset(
        name,
        **corpora,
        label_ids=label_ids,
        label_texts=label_texts,
        train_filter=pairs["train"],
        test_filter=pairs["test"],
        skipped=dict(report.reasons),
        report=report,
    )


def _rows(path: Path, report: Skips) -> Iterator[tuple[int, dict | None]]:
    """(line, object) of every line, None for a line in the report: docs and labels are numbered by line."""
    last = 0
    for line, row in json_objects(path, report, blank=False):
        yield from ((missed, None) for missed in range(last + 1, line))
        yield line, row
        last = line
    yield from ((missed, None) for missed in range(last + 1, report.read[str(path)] + 1))


def _read_labels(path: Path, text_of: Callable, report: Skips) -> tuple[list[str], list[str]]:
    """The ids and texts of the labels; a label may have no text.

    A line that cannot be used is still a label, without text and with its number as id: "#17".
    """
    ids: dict[str, None] = {}
    texts = []
    for line, row in _rows(path, report):
        id, text = f"#{line - 1}", ""
        try:
            if row is not None:
                text = text_of(row)
                uid = _uid(row)
                if uid in ids:
                    remedy = "give every label an id of its own"
                    raise BadRow("rows_with_repeated_id", f"label id {short(uid)} stands there twice", remedy)
                id = uid
        except BadRow as bad:
            bad.note(report, path, line)
        while id in ids:
            id += "#"
        ids[id] = None
        texts.append(text)
    return list(ids), texts


def _read_docs(path: Path, text_of: Callable, n_labels: int, report: Skips) -> Collector:
    docs = Collector()
    for line, row in _rows(path, report):
        if row is None:
            docs.leave_out()
            continue
        try:
            id = _uid(row)
            text = text_of(row)
            targets = _targets(row, n_labels)
            if not text or text.isspace():
                raise BadRow("rows_without_text", f"document {short(id)} has no text")
            if not targets:
                raise BadRow("rows_without_labels", f"document {short(id)} has no label")
        except BadRow as bad:
            docs.leave_out()
            bad.note(report, path, line)
            continue
        if not docs.add(id, text, targets):
            report.skip(path, line, "rows_with_repeated_id", f"id {short(id)} was given to another text before")
    return docs


def _string(row: dict, key: str) -> str:
    if key not in row:
        raise BadRow("rows_malformed", f"'{key}' is missing", "give every line its uid and title")
    if not isinstance(row[key], str):
        raise BadRow("rows_malformed", f"'{key}' is {short(row[key])}, not text")
    return checked(row[key], f"'{key}'")


def _uid(row: dict) -> str:
    """The row's id as text; whole numbers are taken too."""
    if isinstance(row.get("uid"), int) and not isinstance(row["uid"], bool):
        return str(row["uid"])
    uid = _string(row, "uid")
    if not uid:
        raise BadRow("rows_malformed", "'uid' is empty", "give every document and label an id")
    return uid


def _title(row: dict) -> str:
    return _string(row, "title")


def _title_and_content(row: dict) -> str:
    content = "" if row.get("content") is None else _string(row, "content")
    return " ".join(part for part in (_string(row, "title"), content) if part)


def _targets(row: dict, n_labels: int) -> list[int]:
    """The row's label ids, those with a relevance of 0 or less left out."""
    if "target_ind" not in row:
        raise BadRow("rows_malformed", "'target_ind' is missing", "give every document its list of label ids")
    targets = row["target_ind"]
    if not isinstance(targets, list) or not all(type(target) is int for target in targets):
        raise BadRow("rows_malformed", f"'target_ind' is {short(targets)}, not a list of whole numbers")
    if targets and not (0 <= min(targets) and max(targets) < n_labels):
        target = next(target for target in targets if not 0 <= target < n_labels)
        reason = f"label id {short(target)} is out of range, {FILES['labels']} has {n_labels} labels"
        raise BadRow("rows_with_unknown_label", reason, "correct 'target_ind' or the label file")
    relevances = row.get("target_rel")
    if relevances is None:
        return targets
    if not isinstance(relevances, list) or not all(type(relevance) in (int, float) for relevance in relevances):
        raise BadRow("rows_malformed", f"'target_rel' is {short(relevances)}, not a list of numbers")
    if len(relevances) != len(targets):
        raise BadRow(
            "rows_malformed", f"{len(relevances)} 'target_rel' for {len(targets)} 'target_ind'", "give one for each"
        )
    return [target for target, relevance in zip(targets, relevances, strict=True) if relevance > 0]


def write_xc(folder: Path, data: Dataset) -> None:
    """Write the dataset as an XC folder that load_dataset reads back the same, whole or not at all.

    Titles hold the whole text, so that read_xc finds the same texts whatever the dataset's name.
    """
    folder = Path(folder).resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} is there already and not an empty folder: name another one or remove it.")
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        _write_json_lines(draft / FILES["train"], _doc_rows(data.train))
        _write_json_lines(draft / FILES["test"], _doc_rows(data.test))
        labels = zip(data.label_ids, data.label_texts, strict=True)
        _write_json_lines(draft / FILES["labels"], ({"uid": id, "title": text, "content": ""} for id, text in labels))
        for split, pairs in (("train", data.train_filter), ("test", data.test_filter)):
            np.savetxt(draft / FILTERS[split][0], pairs, fmt="%d", encoding="ascii", newline="\n")
        (draft / DESCRIPTION).write_text(f"name: {json.dumps(data.name)}\nformat: xc\n", encoding="utf-8")
        if folder.is_dir():
            folder.rmdir()
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _doc_rows(corpus: Corpus) -> Iterator[dict]:
    for row, (id, text) in enumerate(zip(corpus.ids, corpus.texts, strict=True)):
        labels = corpus.positives[row].tolist()
        yield {"uid": id, "title": text, "content": "", "target_ind": labels, "target_rel": [1.0] * len(labels)}


def _write_json_lines(path: Path, rows: Iterable[dict]) -> None:
    """One object per line; no time or name in the gzip header, so that equal rows give equal bytes."""
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n")
