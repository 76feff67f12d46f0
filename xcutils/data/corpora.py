"""Texts of docs and labels, positives, splits and filter pairs: what every form of a dataset is read into."""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from xcutils.core.ragged import Ragged, starts
from xcutils.data.skips import Skips

TEST_SHARE = 0.25  # of the docs, where a dataset comes without a test split


@dataclass
class Corpus:
    """The docs of one split: N ids, N texts and their positives.

    positives  N rows int32  label ids, ascending, each once
    keys       what the splits by hash look at, and what makes two docs the same: the ids where the dataset gives any,
               the texts where the ids are only row numbers (None: the ids)
    """

    ids: list[str]
    texts: list[str]
    positives: Ragged
    keys: list[str] | None = None

    @property
    def identity(self) -> list[str]:
        return self.ids if self.keys is None else self.keys

    def take(self, rows: np.ndarray) -> "Corpus":
        """The docs of the named rows."""
        keys = None if self.keys is None else [self.keys[row] for row in rows]
        ids, texts = ([items[row] for row in rows] for items in (self.ids, self.texts))
        return Corpus(ids, texts, self.positives.take(rows), keys)

    def relabelled(self, label_to_new: np.ndarray) -> "Corpus":
        """The docs under new label ids, -1 for a label that is dropped; docs left without a label are dropped too."""
        labels = label_to_new[self.positives.values]
        kept = labels >= 0
        positives = from_pairs(self.positives.row_ids()[kept], labels[kept], len(self.ids))
        corpus = Corpus(self.ids, self.texts, positives, self.keys)
        return corpus if positives.lengths.all() else corpus.take(np.flatnonzero(positives.lengths))


@dataclass
class Dataset:
    """Two splits over the same L labels, and the pairs that are taken out of every ranking.

    train_filter, test_filter  (F, 2) int64  (doc row, label id), ascending, each once
    skipped                    how much was left out, by reason
    report                     the rows that could not be used, with their places
    """

    name: str
    train: Corpus
    test: Corpus
    label_ids: list[str]
    label_texts: list[str]
    train_filter: np.ndarray
    test_filter: np.ndarray
    skipped: dict[str, int] = field(default_factory=dict)
    report: Skips = field(default_factory=Skips)


def hash_share(id: str, salt: str) -> float:
    """A number in [0, 1) that depends on the id and the salt alone: the same in every run, order and version."""
    digest = hashlib.sha256(f"{salt}:{id}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_validation(ids: Sequence[str], share: float) -> np.ndarray:
    """(N,) bool: is the training doc one of the `share` held out for validation?"""
    return np.fromiter((hash_share(id, "validation") < share for id in ids), dtype=bool, count=len(ids))


def split_test(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """(training docs, test docs): TEST_SHARE of the docs are for test, by the hash of what identifies them."""
    keys = corpus.identity
    is_test = np.fromiter((hash_share(key, "test") < TEST_SHARE for key in keys), dtype=bool, count=len(keys))
    return corpus.take(np.flatnonzero(~is_test)), corpus.take(np.flatnonzero(is_test))


def known_labels(train: Corpus, test: Corpus, ids: list[str]) -> tuple[Corpus, Corpus, list[str], dict[str, int]]:
    """Both splits over the labels that have a training doc, in the order of their ids, and what that left out."""
    used = np.bincount(train.positives.values, minlength=len(ids)) > 0
    order = sorted(np.flatnonzero(used).tolist(), key=ids.__getitem__)
    label_to_new = np.full(len(ids), -1, dtype=np.int64)
    label_to_new[order] = np.arange(len(order))
    n_unused = int((~used[np.unique(test.positives.values)]).sum())
    train, known = train.relabelled(label_to_new), test.relabelled(label_to_new)
    skipped = {
        "labels_without_training_docs": n_unused,
        "test_docs_without_known_labels": len(test.ids) - len(known.ids),
    }
    return train, known, [ids[code] for code in order], {name: count for name, count in skipped.items() if count}


def from_pairs(docs: np.ndarray, labels: np.ndarray, n_docs: int) -> Ragged:
    """N rows int32: the labels of each doc, ascending, each once."""
    width = int(labels.max()) + 1 if len(labels) else 1
    pairs = np.unique(docs * width + labels)
    return Ragged((pairs % width).astype(np.int32), starts(np.bincount(pairs // width, minlength=n_docs)))


def no_pairs() -> np.ndarray:
    return np.zeros((0, 2), dtype=np.int64)


class Collector:
    """The docs of a file as its rows come in: flat arrays, one entry per doc or per (doc, label) pair.

    by_text   the file gives no ids: rows of the same text are one doc, whose id is its first row's number
    numbered  every row is a doc of its own, whatever its id and text
    """

    def __init__(self, *, by_text: bool = False, numbered: bool = False):
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.row_to_doc = array("q")  # -1 where the row was left out
        self._pair_docs, self._pair_labels = array("q"), array("i")
        self._by_text, self._numbered = by_text, numbered
        self._doc_of: dict[str, int] = {}

    def add(self, id: str, text: str, labels: Iterable[int]) -> bool:
        """Add the next row; False if its id belongs to a doc of another text already: then the row is left out."""
        doc = -1
        if not self._numbered:
            doc = self._doc_of.setdefault(text if self._by_text else id, len(self.ids))
            if doc == len(self.ids):
                doc = -1
            elif self.texts[doc] != text:
                self.leave_out()
                return False
        if doc < 0:
            doc = len(self.ids)
            self.ids.append(id)
            self.texts.append(text)
        self.row_to_doc.append(doc)
        before = len(self._pair_labels)
        self._pair_labels.extend(labels)
        self._pair_docs.extend([doc] * (len(self._pair_labels) - before))
        return True

    def leave_out(self) -> None:
        """Note that the next row belongs to no doc."""
        self.row_to_doc.append(-1)

    def corpus(self) -> Corpus:
        """All docs with their positives."""
        docs, labels = np.array(self._pair_docs, dtype=np.int64), np.array(self._pair_labels, dtype=np.int64)
        keys = self.texts if self._by_text or self._numbered else None
        return Corpus(self.ids, self.texts, from_pairs(docs, labels, len(self.ids)), keys)
