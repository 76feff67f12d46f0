"""The study's sparse dataset: which labels are kept, and that it reads back as a dataset."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from study.sparse import FULL, SPARSE, make_sparse, thin, write_sparse
from xcutils.core.ragged import from_rows
from xcutils.data.corpora import Corpus, Dataset, no_pairs
from xcutils.data.datasets import load_dataset, write_xc

LABELS = st.integers(0, 30)
ROWS = st.lists(st.sets(LABELS, min_size=1, max_size=12).map(sorted), min_size=1, max_size=20)


def corpus(rows: list[list[int]], name: str = "d") -> Corpus:
    ids = [f"{name}{row}" for row in range(len(rows))]
    return Corpus(ids, [f"text of {id}" for id in ids], from_rows(rows, np.int32))


@settings(max_examples=50, deadline=None)
@given(ROWS, st.integers(1, 6), st.integers(0, 3))
def test_thin_keeps_so_many_of_a_documents_own_labels(rows, per_doc, seed):
    thinned = thin(corpus(rows), per_doc, seed)
    for row, labels in enumerate(rows):
        kept = thinned.positives[row].tolist()
        assert len(kept) == min(per_doc, len(labels))
        assert kept == sorted(set(kept)) and set(kept) <= set(labels)
    assert np.array_equal(thin(corpus(rows), per_doc, seed).positives.values, thinned.positives.values)


def test_thin_draws_every_label_equally_often():
    thinned = thin(corpus([[3, 5, 8, 9]] * 4000), 1)
    counts = np.bincount(thinned.positives.values, minlength=10)[[3, 5, 8, 9]]
    assert counts.sum() == 4000 and (abs(counts - 1000) < 150).all()  # five standard deviations are 137


def test_labels_without_a_training_document_go_everywhere():
    train, test = corpus([[0, 1, 2, 3], [4]], "a"), corpus([[0, 1, 2, 3, 4], [4], [5]], "b")
    names = [f"L{label}" for label in range(6)]
    data = Dataset("full", train, test, names, [f"text {name}" for name in names], no_pairs(), no_pairs())
    sparse = make_sparse(data, 2)
    assert sparse.name == "full-2" and len(sparse.label_ids) == 3 and sparse.label_ids[-1] == "L4"
    assert sparse.label_texts == [f"text {name}" for name in sparse.label_ids]
    assert [row.tolist() for row in map(sparse.train.positives.__getitem__, range(2))] == [[0, 1], [2]]
    assert sparse.test.ids == ["b0", "b1"]  # the third one's label is gone
    assert sparse.test.positives[0].tolist() == [0, 1, 2] and sparse.test.positives[1].tolist() == [2]


def test_it_is_written_once_and_reads_back(tmp_path):
    rows = [[0, 1, 2, 3, 4], [1, 2, 3, 4], [0]]
    names = [f"L{label}" for label in range(5)]
    data = Dataset("full", corpus(rows, "a"), corpus(rows, "b"), names, names, no_pairs(), no_pairs())
    write_xc(tmp_path / FULL, data)
    write_sparse(tmp_path)
    read = load_dataset(tmp_path / SPARSE)
    assert np.array_equal(read.train.positives.values, make_sparse(data).train.positives.values)
    assert read.train.positives.lengths.tolist() == [3, 3, 1]
    before = (tmp_path / SPARSE / "trn.json.gz").stat().st_mtime_ns
    write_sparse(tmp_path)
    assert (tmp_path / SPARSE / "trn.json.gz").stat().st_mtime_ns == before
