"""Labels that come and go: what is answered under any sequence of changes, and that none is ever half made."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import longtail
from longtail import models
from longtail.bundling import write_bundle
from longtail.changes import SAME
from longtail.cli import main
from longtail.journal import ADD, Journal
from longtail.places import find_place
from testing.tiny import LABELS, WORDS, encode, invoke, label_id
from xcutils.core.errors import UserError
from xcutils.core.ragged import to_strings

pytestmark = pytest.mark.stage

TEXTS = ["small red box", "large green cup flat", "blue jar lid"]


# --- the answers, by hand ---------------------------------------------------------------------------------------------


def by_hand(model: longtail.Model, text: str) -> dict[str, float]:
    """Label -> its probability, of all labels that are there: the sums of the fusion as loops."""
    system = model.system
    net, fusion = system.model, system.model.fusion
    query = model.embed(text)[0]
    asked = net.labels.seen(net.settings.as_asked(query[None]))[0]
    docs = net.docs.take(np.arange(len(net.positives)))
    near = [(float(net.docs.seen(query[None])[0] @ vector), row) for row, vector in enumerate(docs) if np.any(vector)]
    near = sorted(near, key=lambda found: -found[0])[: net.settings.neighbours]
    weights = [math.exp((score - near[0][0]) / net.settings.tau) for score, _ in near]
    shares: dict[int, float] = {}
    for weight, (_, row) in zip(weights, near):
        for label in net.positives[row].tolist():
            shares[label] = shares.get(label, 0.0) + weight / sum(weights)
    out = {}
    for place in system.alive.tolist():
        rest = float(asked @ net.labels.take(np.array([place]))[0])
        score = rest + shares.get(place, 0.0) * max(0.0, fusion.memory - fusion.overlap * rest)
        out[system.named(place)[0]] = float(fusion.probabilities(np.array([score]))[0])
    return out


def check_answers(model: longtail.Model) -> None:
    """The model's answers are those by hand, of the labels that are there and no others."""
    for text, labels in zip(TEXTS, model.predict(TEXTS, k=100)):
        expected = by_hand(model, text)
        assert {label.id for label in labels} == set(expected)
        assert [label.probability for label in labels] == pytest.approx(
            sorted(expected.values(), reverse=True), abs=2e-3
        )
        for label in labels:
            assert label.probability == pytest.approx(expected[label.id], abs=2e-3)


def test_the_trained_model_is_answered_as_by_hand(tiny_bundle):
    check_answers(longtail.load(tiny_bundle))


class Twin:
    """The labels as a list that is edited by hand: id -> text, and the states before for undo."""

    def __init__(self):
        self.states = [{label_id(i): text for i, text in enumerate(LABELS)}]

    @property
    def labels(self) -> dict[str, str]:
        return self.states[-1]

    def add(self, labels):
        self.states.append(self.labels | {label[0]: label[1] for label in labels})

    def remove(self, ids):
        self.states.append({id: text for id, text in self.labels.items() if id not in ids})

    def rename(self, texts):
        self.states.append(self.labels | texts)


def some_texts(rng: np.random.Generator, most: int) -> list[str]:
    """At most so many texts of one to four words."""
    return [" ".join(rng.choice(WORDS[4:], rng.integers(1, 5))) for _ in range(rng.integers(0, most + 1))]


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_changes_gives_the_answers_of_a_model_built_for_it(bundle, seed):
    folder, rng = bundle, np.random.default_rng(seed)
    model, twin = longtail.load(folder), Twin()
    for _ in range(8):
        kind = str(rng.choice(["add", "add", "remove", "rename", "undo"]))
        there = sorted(twin.labels)
        if kind == "add":
            may = sorted({f"new-{i}" for i in range(8)} | set(map(label_id, range(len(LABELS)))) - set(there))
            ids = [str(id) for id in rng.permutation([id for id in may if id not in there])[:3]]
            if not ids:
                continue
            change = [(id, (some_texts(rng, 1) or ["jar"])[0], some_texts(rng, 2)) for id in ids]
            model.add_labels(change)
        elif kind == "undo":
            if len(twin.states) == 1:
                with pytest.raises(UserError, match="no change of labels to undo"):
                    model.undo()
            else:
                model.undo()
                twin.states.pop()
            continue
        else:
            ids = [str(id) for id in rng.permutation(there)[: rng.integers(1, 20)]]
            change = ids if kind == "remove" else {id: (some_texts(rng, 1) or ["lid"])[0] for id in ids}
            (model.remove_labels if kind == "remove" else model.rename_labels)(change)
        getattr(twin, kind)(change)
    assert {label.id: label.text for label in model.labels} == twin.labels and len(model.labels) == len(twin.labels)
    check_answers(model)
    again = longtail.load(folder)  # from the disk, with the vectors that were kept
    assert again.predict(TEXTS, k=100) == model.predict(TEXTS, k=100)
    for file in (folder / "changes" / "vectors").glob("*"):
        file.unlink()
    assert longtail.load(folder).predict(TEXTS, k=100) == model.predict(TEXTS, k=100)  # and with them made again


# --- what a change means ----------------------------------------------------------------------------------------------


@pytest.fixture
def model(bundle) -> longtail.Model:
    return longtail.load(bundle)


def test_a_model_without_changes_answers_by_its_own_index(model):
    before = model.system
    assert model.system is model._base and not hasattr(before.model.labels, "index")
    model.add_labels([("new", "small red box")])
    assert model.system is not before
    model.undo()
    assert model.system is before


def test_an_added_label_is_found_by_its_text(model):
    model.add_labels([("new", "curious green lid"), {"id": "other", "text": "red jar"}])
    label = model.labels.get("new")
    assert (label.text, label.docs) == ("curious green lid", 0) and len(model.labels) == 42
    assert "new" in [found.id for found in model.predict("green lid", k=8)]
    assert model.labels.search("curious") == [label]
    assert label in model.labels.neighbours(label_id(LABELS.index("flat green lid")), k=20)


def test_examples_join_the_memory(model):
    text = "round round lid flat"
    model.add_labels([("plain", "unheard of")])
    alone = model.predict(text, k=60)
    model.undo()
    model.add_labels([("new", "unheard of", [text, "round lid"])])
    found = {label.id: label.probability for label in model.predict(text, k=60)}
    assert found["new"] > {label.id: label.probability for label in alone}["plain"]
    assert model.labels.get("new").docs == 2
    assert to_strings(model.documents.texts)[-2:] == [text, "round lid"]
    assert len(model.positives) == len(model.documents.ids) == 62 and model.positives[61].tolist() == [40]


def test_an_example_that_was_a_training_document_is_the_same_document(model):
    doc = 7
    text = to_strings(model.documents.texts)[doc]
    before = model.positives[doc].tolist()
    model.add_labels([("new", "unheard of", [text]), ("other", "never", ["round flat lid lid", text])])
    assert model.positives[doc].tolist() == [*before, 40, 41] and len(model.positives) == 61
    near = model.system.model.docs.take(np.array([doc]))[0]
    assert np.abs(near - model.embed(text)[0]).max() < SAME / 4


def test_a_removed_label_is_gone_from_answers_memory_and_search(model):
    gone = model.predict(TEXTS[0], k=3)
    model.remove_labels([label.id for label in gone])
    assert not {label.id for label in gone} & {label.id for label in model.predict(TEXTS[0], k=100)}
    assert gone[0].id not in model.labels and gone[0].id not in [x.id for x in model.labels.search(gone[0].text)]
    assert not np.isin(model.positives.values, [LABELS.index(label.text) for label in gone]).any()
    with pytest.raises(UserError, match="there is no label"):
        model.predict(TEXTS[0], among=[gone[0].id])
    unknown = [label.id for label in model.predict("curious", k=100)]
    assert len(unknown) == 37 and gone[0].id not in unknown


def test_all_labels_may_be_removed(model):
    model.remove_labels([label.id for label in model.labels])
    assert model.predict([*TEXTS, "curious"]) == [[]] * 4 and len(model.labels) == 0
    model.add_labels([("new", "small red box")])
    assert [label.id for label in model.predict("small red box")] == ["new"]


def test_a_removed_label_that_comes_back_with_its_text_is_what_it_was(model):
    before = model.predict(TEXTS, k=40)
    id = before[0][0].id
    model.remove_labels([id])
    model.add_labels([(id, model._base.text_of(id))])
    assert model.predict(TEXTS, k=40) == before and model.system is model._base
    model.remove_labels([id])
    model.add_labels([(id, "another thing")])  # another label under the same id
    assert model.labels.get(id).text == "another thing" and model.predict(TEXTS, k=40) != before
    check_answers(model)


def test_a_trained_label_keeps_its_vector_under_a_new_name_and_an_added_one_follows_it(model):
    before = model.predict(TEXTS[0], k=40)
    id = before[0].id
    model.rename_labels({id: "a new name"})
    after = model.predict(TEXTS[0], k=40)
    assert after[0] == longtail.Label(id, "a new name", before[0].probability) and after[1:] == before[1:]
    assert model.labels.search("new name")[0].id == id
    model.add_labels([("new", "jar")])
    vector = model.system.model.labels.take(np.array([40]))
    model.rename_labels({"new": "small ball"})
    assert not np.allclose(model.system.model.labels.take(np.array([40])), vector)


def test_other_models_of_the_same_bundle_take_changes_over(model, bundle):
    other = longtail.load(bundle)
    assert not other.refresh()
    model.add_labels([("new", "small red box")])
    assert "new" not in other.labels and other.refresh() and "new" in other.labels and not other.refresh()
    other.remove_labels(["new"])
    model.rename_labels({label_id(0): "first"})  # which sees first what the other has done
    assert "new" not in model.labels and [entry.number for entry in model.changes()] == [1, 2, 3]
    assert other.refresh() and other.labels.get(label_id(0)).text == "first"


@pytest.mark.parametrize(
    "change, sentence",
    [
        (("add_labels", []), "there is no label to add"),
        (("add_labels", [("flat-red-box", "x")]), "'flat-red-box' is there already: rename"),
        (("add_labels", [("a", "x"), ("a", "y")]), "'a' is named more than once"),
        (("add_labels", ["ab"]), "a label to add is 'ab'"),
        (("add_labels", [{"id": "a"}]), "it must have id and text"),
        (("add_labels", [(1, "x")]), "the id of the label 1 is 1: give a string"),
        (("add_labels", [("a", None)]), "the text of the label 'a' is None"),
        (("add_labels", [(" ", "x")]), "has an empty id"),
        (("add_labels", [("a", "x", "one text")]), "the examples of a label are 'one text': give a list"),
        (("add_labels", [("a", "x", [3])]), "the example of the label 'a' is 3"),
        (("add_labels", [("a", "\ud800")]), "is no Unicode text"),
        (("add_labels", [("a", " \n")]), "the text of the label 'a' is blank: give it one"),
        (("add_labels", None), "the labels to add are None: give a list of them"),
        (("add_labels", "ab"), "the labels to add are the text 'ab'"),
        (("remove_labels", []), "no label is named"),
        (("remove_labels", None), "the ids are None: give a list of them"),
        (("remove_labels", [["a"]]), r"the id of a label is \['a'\]: give a string"),
        (("remove_labels", "flat-red-box"), "the ids are the text 'flat-red-box'"),
        (("remove_labels", ["a", "b", "c", "d"]), "'a', 'b', 'c' and 1 more are not among the labels"),
        (("rename_labels", {"a": "x"}), "'a' is not among the labels"),
        (("rename_labels", {"flat-red-box": 3}), "the text of the label 'flat-red-box' is 3"),
        (("rename_labels", {"flat-red-box": ""}), "the text of the label 'flat-red-box' is blank"),
        (("rename_labels", ["flat-red-box"]), "the new texts are .* give a dict"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_changed(model, change, sentence):
    before = model.system
    with pytest.raises(UserError, match=sentence):
        getattr(model, change[0])(change[1])
    assert model.system is before and model.changes() == []


def test_after_a_new_training_the_changes_are_put_on_the_new_model(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder, symlinks=True)
    model = longtail.load(folder)
    model.add_labels([("new", "small red box"), ("other", "green lid")])
    model.remove_labels([label_id(3)])
    assert json.loads((folder / "data/changes/standin.json").read_text())["model"] == model.info["hash"]
    index = folder / "data" / "index"  # another model, whose labels have one of the new ones and lack the removed one
    ids = [{0: "new", 3: "gone"}.get(i, label_id(i)) for i in range(len(LABELS))]
    _rewrite(index, ids)
    again = longtail.load(folder)
    assert len(again.labels) == 41 and "other" in again.labels and label_id(3) not in again.labels
    assert again.labels.get("new").text == LABELS[0]  # the trained one
    assert len(again.changes()) == 2 and again.undo() == f"removed {label_id(3)}"


def _rewrite(index: Path, ids: list[str]) -> None:
    """Give the labels of a model other ids."""
    from xcutils.core import artifacts
    from xcutils.core.ragged import from_strings

    manifest = artifacts.load_manifest(index)
    artifacts.save_ragged(index, "ids", from_strings(ids))
    for name in ("ids.values.npy", "ids.offsets.npy"):
        file = index / name
        manifest["files"][name] |= {"bytes": file.stat().st_size, "sha256": artifacts.sha256(file)}
    facts = {key: value for key, value in manifest.items() if key != "seal"}
    artifacts.save_json(index, "manifest.json", facts | {"seal": artifacts.seal(facts)})


# --- the journal ------------------------------------------------------------------------------------------------------


def test_a_line_that_was_not_written_to_its_end_is_no_change(model, bundle):
    model.add_labels([("one", "red")])
    file = bundle / "changes" / "journal.jsonl"
    first = file.read_bytes()
    model.add_labels([("two", "blue")])
    second = file.read_bytes()
    for cut in range(len(first), len(second)):
        file.write_bytes(second[:cut])
        assert [entry.number for entry in Journal(bundle / "changes").entries()] == [1]
    found = longtail.load(bundle)
    assert "one" in found.labels and "two" not in found.labels
    found.add_labels([("three", "green")])  # takes the half line away
    assert [entry.said() for entry in longtail.load(bundle).changes()] == ["added one", "added three"]


def test_a_damaged_journal_is_refused(model, bundle):
    for name in ("one", "two", "three"):
        model.add_labels([(name, "red")])
    file = bundle / "changes" / "journal.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for damaged in (
        [lines[0].replace(b"one", b"own"), *lines[1:]],
        [lines[0], lines[2]],
        [lines[1], lines[0], lines[2]],
        [lines[0], b"[]\n", lines[2]],
        [lines[0], lines[1].replace(b'"number": 2', b'"number": 3'), lines[2]],
    ):
        file.write_bytes(b"".join(damaged))
        with pytest.raises(UserError, match=r"journal.jsonl, line [12] is damaged"):
            longtail.load(bundle)


def test_what_was_undone_stays_in_the_journal(model):
    model.add_labels([("one", "red")])
    model.add_labels([("two", "blue")])
    assert model.undo() == "added two" and model.undo() == "added one"
    model.add_labels([("three", "green")])
    assert model.undo() == "added three"
    assert [entry.said() for entry in model.changes()] == [
        *("added one", "added two", "undid 2", "undid 1", "added three", "undid 5")
    ]


KILLED = """
import sys
import longtail
model = longtail.load(sys.argv[1])
print("ready", flush=True)
for number in range(10_000):
    model.add_labels([(f"k{number}-{i}", f"small red box {i}") for i in range(20)])
"""


def test_a_process_that_is_killed_leaves_whole_changes_only(bundle, tmp_path):
    rng = np.random.default_rng(0)
    env = os.environ | {"PYTHONPATH": str(Path(longtail.__file__).parents[1])}
    counts = []
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", KILLED, bundle], stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(float(rng.uniform(0.02, 0.4)))
            process.send_signal(signal.SIGKILL)
        model = longtail.load(bundle)
        entries = model.changes()
        assert len(model.labels) == 40 + 20 * len(entries)
        assert all(entry.kind == ADD and len(entry.what) == 20 for entry in entries)
        check = [label.id for label in model.predict("small red box", k=30)]
        assert (len(entries) == 0) == all(not id.startswith("k") for id in check)
        counts.append(len(entries))
        for _ in entries:
            model.undo()
        assert len(longtail.load(bundle).labels) == 40
        (bundle / "changes" / "journal.jsonl").unlink()
    assert max(counts) > 0


def test_a_full_disk_changes_nothing(model, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = model.predict(TEXTS)
    monkeypatch.setattr("longtail.journal.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model.add_labels([("new", "small red box")])
    assert model.predict(TEXTS) == before


@pytest.fixture
def replaced(bundle, tiny_bundle) -> longtail.Model:
    """A model with a label added, in whose place another one with a label of its own has been put since."""
    model = longtail.load(bundle)
    model.add_labels([("new", "small red box")])
    shutil.rmtree(bundle)
    write_bundle(find_place(tiny_bundle), bundle, with_documents=False)
    longtail.load(bundle).add_labels([("other", "green lid")])
    return model


def test_a_model_whose_files_were_replaced_changes_no_labels(replaced, bundle):
    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}

    before, answers = files(), replaced.predict(TEXTS, k=50)
    for change in (
        lambda: replaced.add_labels([("more", "blue lid")]),
        lambda: replaced.remove_labels(["new"]),
        lambda: replaced.rename_labels({"new": "box"}),
        replaced.undo,
    ):
        with pytest.raises(UserError, match="bundle were replaced: load it again"):
            change()
    assert replaced.is_behind and not replaced.refresh() and "other" not in replaced.labels
    assert replaced.predict(TEXTS, k=50) == answers and files() == before
    assert longtail.load(bundle).undo() == "added other"


def test_a_model_whose_files_were_replaced_says_what_it_was_read_from(replaced, bundle, tiny_bundle):
    assert replaced.info == longtail.load(tiny_bundle).info
    assert replaced.documents is not None and longtail.load(bundle).documents is None
    assert replaced.explain("small red box", ["small-red-box"])[0].documents[0].text


def test_a_writer_that_waited_looks_again_at_whose_labels_it_changes(bundle, tiny_bundle, monkeypatch):
    model, locked = longtail.load(bundle), Journal.locked

    def replaced_meanwhile(journal):
        monkeypatch.setattr(Journal, "locked", locked)
        write_bundle(find_place(tiny_bundle), bundle, with_documents=False)
        return locked(journal)

    monkeypatch.setattr(Journal, "locked", replaced_meanwhile)
    with pytest.raises(UserError, match="load it again"):
        model.add_labels([("new", "small red box")])
    assert longtail.load(bundle).changes() == [] and not (bundle / "changes" / "vectors").exists()


def test_to_undo_nothing_leaves_nothing_behind(model, bundle):
    with pytest.raises(UserError, match="no change of labels to undo"):
        model.undo()
    assert not (bundle / "changes").exists()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def xc(bundle):
    def run(*args, code: int = 0):
        result = invoke(bundle.parent, main, ["labels", *args, "--bundle", "bundle"])
        assert result.exit_code == code, result.stderr
        return result.stderr if code else result.stdout

    return run


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_labels_of_a_file_are_added(xc, bundle, form):
    rows = [
        {"id": "new-1", "text": "green lid round", "examples": ["round green lid", "a lid"]},
        {"id": "new-2", "text": "a ball", "examples": []},
    ]
    (bundle.parent / f"more.{form}").write_bytes(encode(form, rows))
    assert xc("add", f"more.{form}") == "added 2; the model has 42 labels (`xc labels undo` takes it back)\n"
    found = longtail.load(bundle)
    assert found.labels.get("new-1").docs == 2 and found.labels.get("new-2").docs == 0
    said = invoke(bundle.parent, main, ["predict", "--bundle", "bundle", "-k", 50, "green lid round"]).stdout
    assert "new-1  green lid round" in said
    assert xc("undo") == "undone: added new-1, new-2; the model has 40 labels (`xc labels undo` takes it back)\n"


def test_labels_are_removed_renamed_and_listed(xc, bundle):
    (bundle.parent / "names.csv").write_text("ID,Text\nflat-red-cup,cups\n")
    (bundle.parent / "gone.csv").write_text("id\nflat-red-ball\n")
    assert xc("log") == "no label was changed\n"
    assert xc("remove", "flat-red-box", "--file", "gone.csv").startswith("removed 2; the model has 38")
    assert xc("rename", "flat-red-jar", "jars", "--file", "names.csv").startswith("renamed 2;")
    assert xc("undo").startswith("undone: renamed flat-red-jar, flat-red-cup;")
    lines = xc("log").splitlines()
    assert lines[0].endswith("Z  removed flat-red-box, flat-red-ball") or "removed flat-red-box" in lines[0]
    assert lines[1].endswith("(undone)") and lines[2].endswith("undid 2") and len(lines) == 3


@pytest.mark.parametrize(
    "args, sentence",
    [
        (["add", "bad.csv"], "nothing was changed: "),
        (["add", "twice.csv"], "'a' is named more than once"),
        (["add", "wrong.csv"], "wrong.csv has no column 'text'; its columns are id, name."),
        (["add", "words.txt"], "words.txt is no table"),
        (["remove", "nobody"], "'nobody' is not among the labels"),
        (["remove"], "no label is named"),
        (["rename", "flat-red-box"], "say which label and its new text"),
        (["rename", "a", "b", "--file", "twice.csv"], "a label is named more than once"),
        (["undo"], "there is no change of labels to undo"),
    ],
)
def test_what_the_command_cannot_do_is_said(xc, bundle, args, sentence):
    home = bundle.parent
    (home / "bad.csv").write_text("id,text\na,x\nb\n")
    (home / "twice.csv").write_text("id,text\na,x\na,y\n")
    (home / "wrong.csv").write_text("id,name\na,x\n")
    (home / "words.txt").write_text("a\n")
    assert sentence in xc(*args, code=1)
    assert longtail.load(bundle).changes() == []


def test_the_labels_of_the_present_run_are_changed_without_touching_what_stages_wrote(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run, folder, symlinks=True)
    index = find_place(folder).hash()
    (folder / "more.csv").write_text("id,text\nnew,small red box\n")
    result = invoke(folder, main, ["labels", "add", "more.csv"])
    assert result.exit_code == 0, result.stderr
    assert "new  small red box" in invoke(folder, main, ["predict", "-k", 9, "small red box"]).stdout
    assert find_place(folder).hash() == index and models.load(folder).labels.get("new").docs == 0
    result = invoke(folder, main, ["bundle", "out"])
    assert result.exit_code == 0 and "new" in longtail.load(folder / "out").labels
