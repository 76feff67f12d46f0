import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from testing.tiny import encode
from xcutils.core.errors import UserError
from xcutils.data import parquet as parquet_form
from xcutils.data.corpora import Dataset, hash_share
from xcutils.data.datasets import load_dataset
from xcutils.data.skips import Skips
from xcutils.data.tables import labels_of, read_texts

FORMS = ["csv", "tsv", "jsonl", "parquet", "csv.gz", "tsv.gz", "jsonl.gz"]


def write(folder, form: str, **parts: list[dict]):
    folder.mkdir(exist_ok=True)
    for part, rows in parts.items():
        (folder / f"{part}.{form}").write_bytes(encode(form, rows))
    return folder


def positives(data: Dataset) -> dict[str, list[str]]:
    """The label ids of each doc of both splits."""
    return {
        id: [data.label_ids[label] for label in corpus.positives[row]]
        for corpus in (data.train, data.test)
        for row, id in enumerate(corpus.ids)
    }


TRAIN = [
    {"id": "A1", "text": "a 😀 text", "labels": ["red", "box"]},
    {"id": "A2", "text": 'tab\there, "quoted"', "labels": ["red"]},
    {"id": "A3", "text": "שלום", "labels": ["lid"]},
]
TEST = [{"id": "B1", "text": "two\nlines", "labels": ["red", "lid"]}]
LABELS = [
    {"id": "red", "text": "Red"},
    {"id": "box", "text": ""},
    {"id": "lid", "text": "Lid"},
    {"id": "x", "text": "X"},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_with_all_three_files(tmp_path, form):
    data = load_dataset(write(tmp_path / "mine", form, train=TRAIN, test=TEST, labels=LABELS))
    assert data.name == "mine"
    assert data.train.ids == ["A1", "A2", "A3"] and data.train.texts == [row["text"] for row in TRAIN]
    assert data.test.ids == ["B1"] and data.test.texts == ["two\nlines"]
    assert data.label_ids == ["red", "box", "lid", "x"] and data.label_texts == ["Red", "", "Lid", "X"]
    assert positives(data) == {"A1": ["red", "box"], "A2": ["red"], "A3": ["lid"], "B1": ["red", "lid"]}
    assert not data.report.total


@pytest.mark.parametrize("form", FORMS)
def test_without_a_label_file_labels_are_their_own_texts_and_need_a_training_document(tmp_path, form):
    test = [*TEST, {"id": "B2", "text": "t", "labels": ["red", "new"]}, {"id": "B3", "text": "t", "labels": ["new"]}]
    data = load_dataset(write(tmp_path, form, train=TRAIN, test=test))
    assert data.label_ids == data.label_texts == ["box", "lid", "red"]
    assert positives(data) == {"A1": ["box", "red"], "A2": ["red"], "A3": ["lid"], "B1": ["lid", "red"], "B2": ["red"]}
    assert data.skipped == {"labels_without_training_docs": 1, "test_docs_without_known_labels": 1}


@pytest.mark.parametrize("form", FORMS)
def test_one_file_is_split_by_the_hash_of_the_id(tmp_path, form):
    rows = [{"id": f"D{n}", "text": f"text {n}", "labels": "one"} for n in range(40)]
    path = tmp_path / f"my.data.{form}"
    path.write_bytes(encode(form, rows))
    data = load_dataset(path)
    assert data.name == "my" and data.label_ids == ["one"]
    assert data.test.ids == [f"D{n}" for n in range(40) if hash_share(f"D{n}", "test") < 0.25]
    assert sorted(data.train.ids + data.test.ids) == sorted(row["id"] for row in rows)


@pytest.mark.parametrize("form", FORMS)
def test_without_ids_rows_of_one_text_are_one_document_and_order_does_not_matter(tmp_path, form):
    rows = [{"text": f"text {n % 30}", "label": f"l{n // 30}"} for n in range(60)]
    splits = []
    for name, ordered in (("one", rows), ("two", rows[::-1])):
        path = tmp_path / f"{name}.{form}"
        path.write_bytes(encode(form, ordered))
        data = load_dataset(path)
        assert all(own == ["l0", "l1"] for own in positives(data).values()) and len(positives(data)) == 30
        splits.append((set(data.train.texts), set(data.test.texts)))
    assert splits[0] == splits[1] and all(splits[0])
    assert sorted(map(int, data.train.ids + data.test.ids)) == list(range(1, 31))


def test_row_numbers_count_rows_that_were_skipped(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\n,x\nb\nc,\nd,x\n")
    (tmp_path / "test.csv").write_text("text,label\n,x\ne,x\n")
    data = load_dataset(tmp_path)
    assert data.train.ids == ["1", "5"] and data.test.ids == ["test-2"]
    assert [(row.file.rsplit("/")[-1], row.line) for row in data.report.rows] == [
        ("train.csv", 3),
        ("train.csv", 4),
        ("train.csv", 5),
        ("test.csv", 2),
    ]


def test_the_same_id_and_text_adds_labels_and_another_text_is_a_bad_row(tmp_path):
    rows = [("7", "a", "x"), ("8", "b", "x"), ("7", "a", "y"), ("8", "other", "y")]
    write(tmp_path, "csv", train=[{"id": i, "text": t, "label": v} for i, t, v in rows], test=TEST)
    data = load_dataset(tmp_path)
    assert positives(data) == {"7": ["x", "y"], "8": ["x"]}
    assert [(row.line, row.reason) for row in data.report.rows] == [(5, "id '8' was given to another text before")]


def test_ids_that_are_also_labels_are_filtered_only_if_the_description_says_so(tmp_path):
    rows = [{"id": "1", "text": "a", "label": "2"}, {"id": "2", "text": "b", "label": "3"}]
    folder = write(tmp_path, "csv", train=rows, test=[{"id": "3", "text": "c", "label": "2"}])
    assert load_dataset(folder).train_filter.tolist() == []
    (folder / "dataset.yaml").write_text("same_ids: true\n")
    data = load_dataset(folder)
    assert data.label_ids == ["2", "3"] and data.train_filter.tolist() == [[1, 0]]
    assert data.test_filter.tolist() == [[0, 0], [0, 1]]  # training says 2 -> 3; 3 is 3


# Bad rows

BAD_VALUES = [
    ({"text": None}, "rows_without_text"),
    ({"text": " \t"}, "rows_without_text"),
    ({"labels": []}, "rows_without_labels"),
    ({"labels": None}, "rows_without_labels"),
    ({"labels": ["red", "green"]}, "rows_with_unknown_label"),
    ({"id": "A1", "text": "other"}, "rows_with_repeated_id"),
    ({"id": " "}, "rows_malformed"),
    ({"text": "x" * ((1 << 20) + 1)}, "rows_too_long"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("change", "kind"), BAD_VALUES, ids=[f"{kind}-{n}" for n, (_, kind) in enumerate(BAD_VALUES)])
def test_a_bad_row_is_skipped_and_named(tmp_path, form, change, kind):
    train = [TRAIN[0], TRAIN[1] | change, TRAIN[2]]
    data = load_dataset(write(tmp_path, form, train=train, test=TEST, labels=LABELS))
    assert data.train.ids == ["A1", "A3"] and data.skipped == {kind: 1}
    (skip,) = data.report.rows
    line = 2 if form.startswith(("jsonl", "parquet")) else 3
    assert (skip.file, skip.line) == (str(tmp_path / f"train.{form}"), line) and skip.reason and skip.remedy
    with pytest.raises(UserError, match="1 of 3 rows cannot be used"):
        data.report.refuse_above(0.3)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"{", "rows_not_json"),
        (b"5", "rows_not_json"),
        (b'{"id": "Z", "text": "\xff", "labels": "red"}', "rows_not_utf8"),
        (b'{"id": "Z", "text": "\0", "labels": "red"}', "rows_with_nul"),
        (b'{"id": "Z", "text": "\\u0000", "labels": "red"}', "rows_with_nul"),
        (b'{"id": "Z", "text": "\\ud800", "labels": "red"}', "rows_malformed"),
        (b'{"id": "Z", "text": ["a"], "labels": "red"}', "rows_malformed"),
        (b'{"id": "Z", "text": "a", "labels": {"red": 1}}', "rows_malformed"),
        (b'{"id": "Z", "text": "a", "labels": [["red"]]}', "rows_malformed"),
    ],
)
def test_a_bad_json_line_is_skipped_and_named(tmp_path, line, kind):
    folder = write(tmp_path, "jsonl", train=TRAIN, test=TEST, labels=LABELS)
    content = (folder / "train.jsonl").read_bytes()
    (folder / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + content + b"\r\n" + line + b"\r\n")
    data = load_dataset(folder)
    assert data.train.ids == ["A1", "A2", "A3"] and data.skipped == {kind: 1} and data.report.rows[0].line == 5


def test_bad_rows_of_a_label_file(tmp_path):
    labels = [*LABELS, {"id": "", "text": "no id"}, {"id": "red", "text": "again"}]
    data = load_dataset(write(tmp_path, "csv", train=TRAIN, test=TEST, labels=labels))
    assert data.label_ids == ["red", "box", "lid", "x"] and data.label_texts[0] == "Red"
    assert [row.line for row in data.report.rows] == [6, 7]


def test_text_that_is_not_utf8_in_a_parquet_file(tmp_path):
    raw = pyarrow.StringArray.from_buffers(3, *pyarrow.array([b"one", b"\xff", b"three"]).buffers()[1:])
    table = pyarrow.table({"text": raw, "labels": pyarrow.array([1, 2, 3])})
    parquet.write_table(table, tmp_path / "train.parquet")
    data = load_dataset(write(tmp_path, "jsonl", test=[{"text": "t", "label": "1"}]))
    assert data.train.texts == ["one", "three"] and data.label_ids == ["1", "3"]
    assert [(row.line, row.reason) for row in data.report.rows] == [(2, "the text is not UTF-8")]


# Labels in a cell


@pytest.mark.parametrize(
    ("value", "separator", "labels"),
    [
        (" red ", None, ["red"]),
        ("red, box", None, ["red, box"]),
        ("red, box,,", ",", ["red", "box"]),
        ("a :: b", "::", ["a", "b"]),
        ('["red", "b,x", 3]', None, ["red", "b,x", "3"]),
        ("['red', \"it's\"]", None, ["red", "it's"]),
        ("[unread", None, ["[unread"]),
        ("[a] or [b]", None, ["[a] or [b]"]),
        ("[]", None, []),
        ("", None, []),
        (None, None, []),
        (float("nan"), None, []),
        (3, None, ["3"]),
        (3.0, None, ["3"]),
        (2.5, None, ["2.5"]),
        (True, None, ["true"]),
        ([1, "a", None, " "], ";", ["1", "a"]),
    ],
)
def test_labels_of_a_cell(value, separator, labels):
    assert labels_of(value, separator) == labels


# Columns


@pytest.mark.parametrize(
    ("head", "row", "says", "found"),
    [
        ("foo,bar", "a,x", {}, ("a", "x")),
        ("labels,text", "x,a", {}, ("a", "x")),
        ("Label,other", "x,a", {}, ("a", "x")),
        ("Title,Category,year", "a,x,1", {}, ("a", "x")),
        ("text,title,tags", "a,b,x", {}, ("a", "x")),
        ("uid,title,tags", "7,a,x", {}, ("a", "x")),
        ("one,two,three", "1,a,x", {"text": "two", "labels": "three"}, ("a", "x")),
        ("label,class,n", "a,x,1", {"text": "label"}, ("a", "x")),
        ("a,x", None, {"header": False}, ("a", "x")),
        ("1,a,x", None, {"header": False, "text": "2", "labels": "3", "id": "1"}, ("a", "x")),
    ],
)
def test_columns_are_found_by_name_or_place(tmp_path, head, row, says, found):
    (tmp_path / "train.csv").write_text("\n".join(filter(None, [head, row])) + "\n")
    (tmp_path / "test.csv").write_text("\n".join(filter(None, [head, row])) + "\n")
    data = load_dataset(tmp_path, says)
    assert (data.train.texts[0], data.label_ids[0]) == found
    has_ids = "uid" in head or "id" in says
    assert "text = " in data.report.notes[0] and ("no ids" in data.report.notes[0]) != has_ids


@pytest.mark.parametrize(
    ("head", "says", "told"),
    [
        ("one,two,three", {}, "has the columns 'one', 'two', 'three': say which holds the text and which the labels"),
        ("id,text", {}, "has the columns 'id', 'text': say which"),
        ("title,content,label", {}, "has the columns 'title', 'content', each of which may be its text"),
        ("text,label,text", {}, "may be its text|more than one column 'text'"),
        ("text,label", {"text": "body"}, "has no column 'body'; it has 'text', 'label'"),
        ("text;label", {}, "line 1: 'text;label' is one column: csv files have commas"),
        ("", {}, "is empty"),
    ],
)
def test_a_file_whose_columns_are_not_clear_gets_one_sentence(tmp_path, head, says, told):
    (tmp_path / "a.csv").write_text(f"{head}\n" if head else "")
    with pytest.raises(UserError, match=f"a.csv.*({told})"):
        load_dataset(tmp_path / "a.csv", says)


def test_a_description_beside_the_files_is_read(tmp_path):
    (tmp_path / "train.tsv").write_text(
        "nr\tbody\ttopics\tyear\n" + "".join(f"{n}\tt {n}\tx|y\t1\n" for n in range(20))
    )
    (tmp_path / "dataset.yaml").write_text("name: News\nid: nr\ntext: body\nlabels: topics\nseparator: '|'\n")
    data = load_dataset(tmp_path)
    assert data.name == "News" and data.label_ids == ["x", "y"] and "7" in data.train.ids + data.test.ids


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"train.csv": b"", "train.jsonl": b""}, "both train.csv and train.jsonl: keep one"),
        ({"train.json": b"[\n{}\n]\n"}, "train.json is one JSON list"),
        ({"train.jsonl": b'{"text": "a", "label": "x"}\n{"text": "b", "la'}, "line 2: the file ends in the middle"),
        ({"train.parquet": b"PAR1"}, "damaged"),
        ({"train.parquet": b"text"}, "no Parquet file"),
        ({"train.csv.gz": b"text,label\n"}, "damaged or no gzip file"),
        ({"test.csv": b"text,label\n"}, "holds no dataset"),
    ],
)
def test_files_that_cannot_be_trusted_are_refused(tmp_path, files, says):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        load_dataset(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"")
    with pytest.raises(UserError, match="a.xlsx is no dataset: give a folder, or a .csv"):
        load_dataset(tmp_path / "a.xlsx")


def test_parquet_files_that_are_cut_or_say_too_much_are_refused(tmp_path, monkeypatch):
    folder = write(tmp_path, "parquet", train=TRAIN * 20, test=TEST)
    whole = (folder / "train.parquet").read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2]):
        (folder / "train.parquet").write_bytes(content)
        with pytest.raises(UserError, match="train.parquet is cut off"):
            load_dataset(folder)
    (folder / "train.parquet").write_bytes(whole)
    monkeypatch.setattr(parquet_form, "FREE_BYTES", 10)
    monkeypatch.setattr(parquet_form, "MOST_RATIO", 0)
    with pytest.raises(UserError, match="train.parquet says it holds 60 rows"):
        load_dataset(folder)


# Written and read back

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
ID = TEXT.map(str.strip).filter(bool)
LABEL = ID.filter(lambda label: not label.startswith("["))


@st.composite
def any_tables(draw):
    vocabulary = draw(st.lists(LABEL, min_size=1, max_size=4, unique=True))
    own = st.lists(st.sampled_from(vocabulary), min_size=1, max_size=3, unique=True)
    ids = draw(st.lists(ID, min_size=2, max_size=6, unique=True))
    rows = [{"id": id, "text": draw(TEXT.filter(str.strip)), "labels": draw(own)} for id in ids]
    labels = [{"id": label, "text": draw(st.just("") | TEXT)} for label in vocabulary]
    return rows[:-1], rows[-1:], labels


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "jsonl.gz"])
@settings(derandomize=True, deadline=None, max_examples=50)
@given(tables=any_tables())
def test_written_and_read_back_the_same(tmp_path_factory, form, tables):
    train, test, labels = tables
    data = load_dataset(write(tmp_path_factory.mktemp("a"), form, train=train, test=test, labels=labels))
    assert not data.report.total
    assert [{"id": i, "text": t} for i, t in zip(data.label_ids, data.label_texts)] == labels
    for corpus, rows in ((data.train, train), (data.test, test)):
        assert corpus.ids == [row["id"] for row in rows] and corpus.texts == [row["text"] for row in rows]
        assert [set(positives(data)[row["id"]]) for row in rows] == [set(row["labels"]) for row in rows]


# Texts to predict


@pytest.mark.parametrize("form", FORMS)
def test_texts_to_predict_come_with_their_ids(tmp_path, form):
    path, report = tmp_path / f"new.{form}", Skips()
    path.write_bytes(encode(form, [{"id": 7, "text": "a"}, {"id": 8, "text": ""}, {"id": 9, "text": "c"}]))
    assert list(read_texts(path, None, None, report)) == [("7", "a"), ("9", "c")] and report.total == 1
    path.write_bytes(encode(form, [{"id": "7", "one": "a", "two": "b"}]))
    assert list(read_texts(path, "two", "one", Skips())) == [("a", "b")]
    with pytest.raises(UserError, match="has the columns 'id', 'one', 'two': say with --text"):
        list(read_texts(path, None, None, Skips()))
    path.write_bytes(encode(form, [{"anything": "a"}]))
    assert list(read_texts(path, None, None, Skips())) == [(None, "a")]
