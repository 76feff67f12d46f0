import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.errors import UserError
from xcutils.data.corpora import hash_share
from xcutils.data.datasets import load_dataset

WHOLE = {
    "trn_X.txt": "one\ntwo\tdoc\nthree\n",
    "tst_X.txt": "four\n😀 שלום\n",
    "Y.txt": "red\n\nblue\n",
    "trn_X_Y.txt": "3 3\n0:1.00000 2:1\n1:1\n0:1\n",
    "tst_X_Y.txt": "2 3\n2:1\n0:1 1:0.5\n",
}


def write(folder, changes=None):
    for name, content in (WHOLE | (changes or {})).items():
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def rows_of(corpus) -> list[list[int]]:
    return [corpus.positives[row].tolist() for row in range(len(corpus.ids))]


def test_documents_and_labels_have_their_row_numbers_as_ids(tmp_path):
    data = load_dataset(write(tmp_path))
    assert (data.train.ids, data.train.texts) == (["0", "1", "2"], ["one", "two\tdoc", "three"])
    assert (data.test.ids, data.test.texts) == (["test-0", "test-1"], ["four", "😀 שלום"])
    assert (data.label_ids, data.label_texts) == (["0", "1", "2"], ["red", "", "blue"])
    assert rows_of(data.train) == [[0, 2], [1], [0]] and rows_of(data.test) == [[2], [0, 1]]
    assert data.train_filter.shape == data.test_filter.shape == (0, 2)  # document 0 is not label 0
    assert not data.report.total


@pytest.mark.parametrize("name", ["filter_labels_test.txt", "tst_filter_labels.txt"])
def test_filter_files_in_both_spellings(tmp_path, name):
    data = load_dataset(write(tmp_path, {name: "1 2\n0 0\n"}))
    assert data.test_filter.tolist() == [[0, 0], [1, 2]]


def test_without_test_files_a_quarter_of_the_documents_is_for_test(tmp_path):
    texts = [f"text {n}" for n in range(40)]
    files = {"trn_X.txt": "".join(f"{text}\n" for text in texts), "trn_X_Y.txt": "40 3\n" + "0:1\n" * 40}
    data = load_dataset(write(tmp_path, files | {"tst_X.txt": None, "tst_X_Y.txt": None}))
    assert data.test.texts == [text for text in texts if hash_share(text, "test") < 0.25]
    assert len(data.train.ids) + len(data.test.ids) == 40


@pytest.mark.parametrize(
    ("name", "content", "line", "says"),
    [
        ("trn_X.txt", "one\n \nthree\n", 2, "no text"),
        ("trn_X.txt", b"one\n\xff\nthree\n", 2, "not UTF-8"),
        ("trn_X.txt", b"one\n\0\nthree\n", 2, "NUL"),
        ("trn_X.txt", "one\n" + "x" * (1 << 21) + "\nthree\n", 2, "2,097,152 characters"),
        ("trn_X_Y.txt", "3 3\n0:1\n\n0:1\n", 3, "no label"),
        ("trn_X_Y.txt", "3 3\n0:1\n1:0\n0:1\n", 3, "no label"),
        ("trn_X_Y.txt", "3 3\n0:1\n3:1\n0:1\n", 3, "out of range, Y.txt has 3 labels"),
        ("trn_X_Y.txt", "3 3\n0:1\n-1:1\n0:1\n", 3, "out of range"),
        ("trn_X_Y.txt", "3 3\n0:1\n1\n0:1\n", 3, "'1' is not `label:value`"),
        ("trn_X_Y.txt", "3 3\n0:1\n1:x\n0:1\n", 3, "'1:x' is not `label:value`"),
    ],
    ids=range(10),
)
def test_a_bad_line_is_skipped_and_named(tmp_path, name, content, line, says):
    data = load_dataset(write(tmp_path, {name: content, "trn_filter_labels.txt": "2 1\n1 1\n"}))
    assert data.train.ids == ["0", "2"] and data.train_filter.tolist() == [[1, 1]]
    (skip,) = data.report.rows
    assert (skip.file, skip.line) == (str(tmp_path / name), line) and says in skip.reason and skip.remedy


def test_a_bad_label_text_is_named_and_the_label_kept(tmp_path):
    data = load_dataset(write(tmp_path, {"Y.txt": b"red\n\xff\nblue\n"}))
    assert data.label_texts == ["red", "", "blue"] and len(data.train.ids) == 3
    assert [(row.line, row.reason) for row in data.report.rows] == [(2, "byte 1 of the line is not UTF-8")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Y.txt": "red\nblue\n"}, "trn_X_Y.txt, line 1: the header says 3 labels, .*Y.txt has 2"),
        ({"tst_X_Y.txt": "2 4\n2:1\n0:1\n"}, "tst_X_Y.txt, line 1: the header says 4 labels"),
        ({"trn_X_Y.txt": "4 3\n0:1\n1:1\n0:1\n"}, "trn_X_Y.txt, line 1: the header says 4 documents, 3 are there"),
        ({"trn_X.txt": "one\ntwo\n"}, "trn_X.txt has 2 documents, .*trn_X_Y.txt has more"),
        ({"trn_X.txt": "1\n2\n3\n4\n"}, "trn_X_Y.txt has 3 documents, .*trn_X.txt has more"),
        ({"trn_X_Y.txt": "3 3\n0:1\n1:1\n0:"}, "trn_X_Y.txt, line 4: the file ends in the middle of a line"),
        ({"trn_X_Y.txt": "0:1\n1:1\n0:1\n"}, "trn_X_Y.txt, line 1: the header is '0:1'"),
        ({"trn_X_Y.txt": ""}, "trn_X_Y.txt, line 1: the header is missing"),
        ({"trn_X_Y.txt": None}, "trn_X_Y.txt is missing: a folder of raw texts holds"),
        ({"tst_X.txt": None}, "tst_X.txt is missing"),
        ({"trn_filter_labels.txt": "", "tst_X.txt": None, "tst_X_Y.txt": None}, "counts in a split that is not given"),
        ({"trn.json.gz": "", "lbl.json.gz": ""}, "more than one form"),
    ],
)
def test_files_that_disagree_are_refused(tmp_path, changes, says):
    with pytest.raises(UserError, match=says):
        load_dataset(write(tmp_path, changes))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"), max_size=8)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=st.data(), end=st.sampled_from(["\n", "\r\n"]), bom=st.booleans())
def test_written_and_read_back_the_same(tmp_path_factory, data, end, bom):
    labels = data.draw(st.lists(TEXT, min_size=1, max_size=4))
    doc = st.tuples(TEXT.filter(str.strip), st.sets(st.integers(0, len(labels) - 1), min_size=1).map(sorted))
    splits = {name: data.draw(st.lists(doc, min_size=1, max_size=4)) for name in ("trn", "tst")}
    files = {"Y.txt": "".join(text + end for text in labels)}
    for name, docs in splits.items():
        files[f"{name}_X.txt"] = "\ufeff" * bom + "".join(text + end for text, _ in docs)
        rows = [" ".join(f"{label}:1" for label in own) for _, own in docs]
        files[f"{name}_X_Y.txt"] = end.join([f"{len(docs)} {len(labels)}", *rows]) + end
    made = load_dataset(write(tmp_path_factory.mktemp("a"), files))
    assert made.label_texts == labels and not made.report.total
    for corpus, docs in ((made.train, splits["trn"]), (made.test, splits["tst"])):
        assert list(zip(corpus.texts, rows_of(corpus))) == docs and corpus.positives.values.dtype == np.int32
