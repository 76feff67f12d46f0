"""Pairs of a doc and a label that are taken out of every ranking: the repository's filter files, or found by ids."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import sparse

from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, starts
from xcutils.data.corpora import Corpus, Dataset
from xcutils.data.lines import cut_off, lines, short
from xcutils.data.skips import Skips

FILTERS = {
    "train": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


def read_filter(folder: Path, split: str, row_to_doc: Sequence[int], n_labels: int, report: Skips) -> np.ndarray | None:
    """(F, 2) int64 pairs of the split's filter file, ascending, each once; None where there is no file.

    row_to_doc  the doc of each row of the split's file, -1 where the row was left out; the pairs name rows
    """
    paths = [path for path in (Path(folder) / name for name in FILTERS[split]) if path.exists()]
    if not paths:
        return None
    if len(paths) > 1:
        raise UserError(f"{folder} holds both {paths[0].name} and {paths[1].name}: keep one of them.")
    path = paths[0]
    pairs = array("q")
    rows = 0
    for line in lines(path):
        if line.text is not None and not line.text.strip():
            continue
        rows += 1
        kind = line.kind
        reason = line.reason
        pair = None
        if line.text is not None:
            pair, kind, reason = _pair(line.text, len(row_to_doc), n_labels)
        if pair is None:
            if kind == "rows_malformed" and not line.end:
                raise cut_off(path, line.number)
            report.skip(path, line.number, kind, reason, "correct the pair")
        elif row_to_doc[pair[0]] >= 0:
            pairs.extend((row_to_doc[pair[0]], pair[1]))
    report.count(path, rows)
    return _unique_pairs(np.array(pairs, dtype=np.int64).reshape(-1, 2))


def _pair(text: str, n_rows: int, n_labels: int) -> tuple[tuple[int, int] | None, str, str]:
    """(the pair, "", ""), or (None, the kind of what is wrong with it, the reason)."""
    try:
        row, label = map(int, text.split())
    except ValueError:
        return None, "rows_malformed", f"{short(text.strip())} is not a pair `row label` of whole numbers"
    if not 0 <= row < n_rows:
        return None, "rows_malformed", f"row {row} is out of range, the split has {n_rows} documents"
    if not 0 <= label < n_labels:
        return None, "rows_with_unknown_label", f"label id {label} is out of range, there are {n_labels} labels"
    return (row, label), "", ""


def _unique_pairs(pairs: np.ndarray) -> np.ndarray:
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    is_new = np.ones(len(pairs), dtype=bool)
    is_new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[is_new]


def filter_pairs(train: Corpus, test_ids: Sequence[str], label_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Pairs whose answer is known already: a doc as its own label, and A -> B where a training doc has B -> A.

    returns  train: (F, 2) int64 self pairs; test: (F', 2) int64 self and reciprocal pairs; ascending, each once
    """
    codes: dict[str, int] = {}
    label_codes = np.fromiter((codes.setdefault(id, len(codes)) for id in label_ids), np.int64, len(label_ids))
    code_to_label = _indicator(label_codes, len(codes)).T.tocsr()
    train_self, test_self = (  # (docs, labels) each, a one where doc and label have the same id
        _indicator(np.fromiter((codes.get(id, -1) for id in ids), np.int64, len(ids)), len(codes)) @ code_to_label
        for ids in (train.ids, test_ids)
    )
    rows = np.flatnonzero(np.diff(train_self.indptr))  # training docs that are labels
    names_test_doc = test_self @ train.positives.take(rows).csr(len(label_ids)).T.tocsr()
    reciprocal = names_test_doc @ train_self[rows]
    return {"train": _nonzeros(train_self), "test": _nonzeros(test_self + reciprocal)}


def as_in_test(data: Dataset, is_validation: np.ndarray) -> np.ndarray:
    """(F, 2) int64: the pairs of training docs, with those that the validation docs would have if they were for test.

    Choices that are made on validation docs are then made on the task that test docs pose. Where no pair of a test doc
    is found by its id, or one that is found stays, ids of docs and labels mean different things: nothing is added.
    """
    found = filter_pairs(data.train, data.test.ids, data.label_ids)["test"]
    if not len(found) or not _are_among(found, data.test_filter, len(data.label_ids)):
        return data.train_filter
    fitted, held_out = np.flatnonzero(~is_validation), np.flatnonzero(is_validation)
    ids = [data.train.ids[row] for row in held_out]
    pairs = filter_pairs(data.train.take(fitted), ids, data.label_ids)["test"]
    pairs = np.stack([held_out[pairs[:, 0]], pairs[:, 1]], axis=1)
    return _unique_pairs(np.concatenate([data.train_filter, pairs]))


def _are_among(pairs: np.ndarray, others: np.ndarray, n_labels: int) -> bool:
    """Is each of the pairs (F, 2) one of the others (F', 2)?"""
    one, other = (found[:, 0] * n_labels + found[:, 1] for found in (pairs, others))
    return bool(np.isin(one, other).all())


def _indicator(codes: np.ndarray, n_codes: int) -> sparse.csr_matrix:
    """(items, n_codes) with a one at each item's code; nothing for -1."""
    known = codes >= 0
    return Ragged(codes[known], starts(known.astype(np.int64))).csr(n_codes)


def _nonzeros(matrix: sparse.csr_matrix) -> np.ndarray:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    return np.stack(matrix.nonzero(), axis=1).astype(np.int64)
