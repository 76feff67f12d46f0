"""A bundle: complete, checked, loads anywhere; damaged, older and newer ones are refused."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import longtail
from longtail import bundles, bundling
from longtail.bundles import size_of
from longtail.bundling import write_bundle
from longtail.cli import main
from longtail.places import Bundle, find_place
from testing.tiny import invoke
from xcutils.core import artifacts
from xcutils.core.errors import UserError

pytestmark = pytest.mark.stage

TEXTS = ["small red box", "large green cup flat", "curious"]


def test_a_bundle_answers_as_its_run(tiny_run, tiny_bundle):
    run, bundle = longtail.load(tiny_run), longtail.load(tiny_bundle)
    assert bundle.predict(TEXTS, k=40) == run.predict(TEXTS, k=40)
    assert bundle.info == run.info and bundle.cutoffs == run.cutoffs
    assert bundle.documents.texts.values.tobytes() == run.documents.texts.values.tobytes()
    assert longtail.load(tiny_bundle, check=False).predict(TEXTS[0]) == run.predict(TEXTS[0])


def test_a_bundle_holds_no_pickle_and_names_every_file(tiny_bundle):
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    names = {file.name for file in tiny_bundle.iterdir()}
    assert names == {*manifest["files"], "manifest.json"} and {"README.md", "standin.json", "metrics.json"} <= names
    kinds = {".csv", ".json", ".jsonl", ".npy", ".hnsw", ".md", ".safetensors"}
    assert {Path(name).suffix for name in names} <= kinds
    assert manifest["parameters"] == {"bundle": bundles.BUNDLE} and "torch" in manifest["libraries"]
    assert manifest["files"]["ids.offsets.npy"]["arrays"] == {"": ["int64", 41]}


def test_it_works_outside_the_repository_without_what_it_was_made_from(tiny_bundle, tmp_path):
    elsewhere = Path(shutil.copytree(tiny_bundle, tmp_path / "elsewhere" / "model"))
    command = [sys.executable, "-m", "longtail.cli", "predict", "--bundle", "model", "--json", *TEXTS]
    env = os.environ | {"PYTHONPATH": str(Path(longtail.__file__).parents[1])}
    done = subprocess.run(command, cwd=elsewhere.parent, env=env, capture_output=True, text=True, check=True)
    found = [[label["id"] for label in json.loads(line)["labels"]] for line in done.stdout.splitlines()]
    assert found == [[label.id for label in labels] for labels in longtail.load(tiny_bundle).predict(TEXTS)]


def test_the_second_pipeline_and_other_encoders_are_bundled_too(unidec_run, tmp_path):
    run = longtail.load(unidec_run, pipeline="unidec")
    run.save(tmp_path / "bundle")
    found = longtail.load(tmp_path / "bundle")
    assert found.predict(TEXTS, k=5) == run.predict(TEXTS, k=5) and found.info["pipeline"] == "unidec"
    found.add_labels([("new", "small red box")])
    assert "new" in [label.id for label in found.predict("small red box", k=40)]


def test_documents_may_be_left_out(tiny_run, tmp_path):
    result = invoke(tiny_run, main, ["bundle", "--no-documents", tmp_path / "small"])
    assert result.exit_code == 0 and result.stdout.startswith(f"wrote {tmp_path / 'small'}: 0.")
    model = longtail.load(tmp_path / "small")
    assert model.documents is None and model.predict(TEXTS[0]) == longtail.load(tiny_run).predict(TEXTS[0])
    assert "holds no training documents" in (tmp_path / "small" / "README.md").read_text()
    whole = find_place(tiny_run)
    write_bundle(whole, tmp_path / "whole")
    longtail.load(tmp_path / "whole").save(tmp_path / "smaller", with_documents=False)
    assert {file.name for file in (tmp_path / "smaller").iterdir()} == {
        file.name for file in (tmp_path / "small").iterdir()
    }


def test_the_card_is_read_as_the_hub_reads_it(tiny_bundle, tiny_run):
    _, front, text = (tiny_bundle / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    facts = YAML(typ="safe").load(front)
    metrics = json.loads((tiny_run / "metrics.json").read_text())
    (result,) = facts["model-index"][0]["results"]
    assert facts["library_name"] == "longtail" and facts["pipeline_tag"] == "text-classification"
    assert {m["type"]: m["value"] for m in result["metrics"]}["P@5"] == metrics["fused"]["P@5"]
    for said in (
        "`dvc repro` measures them",
        "| training documents | 60 |",
        "epochs: 2",
        'longtail.load("',
        "## Limits",
    ):
        assert said in text, said


# --- what is refused --------------------------------------------------------------------------------------------------


def refusal(bundle: Path) -> str:
    """What loading the bundle says, which must be one sentence."""
    with pytest.raises(UserError) as error:
        longtail.load(bundle)
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text and "xc bundle" in text
    return text


def every_file(bundle: Path) -> list[Path]:
    return [file for file in sorted(bundle.iterdir()) if file.stat().st_size]


def test_every_file_that_is_damaged_cut_off_or_gone_is_named(bundle):
    files = every_file(bundle)
    assert len(files) > 25
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        for damaged in (
            content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :],
            content[:middle],
            content + b" ",
            b"",
            None,
        ):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            if damaged is None and file.name == "manifest.json":
                assert "no whole bundle (manifest.json is missing)" in refusal(bundle)
            elif file.name == "manifest.json" and damaged == content + b" ":
                longtail.load(bundle)  # a blank says nothing
            else:
                assert file.name in refusal(bundle)
            file.write_bytes(content)
    longtail.load(bundle)


@pytest.mark.parametrize("name, age", [("older", -1), ("newer", 1)])
def test_an_older_and_a_newer_bundle_are_refused(bundle, name, age):
    for change in ({"format": artifacts.FORMAT + age}, {"parameters": {"bundle": bundles.BUNDLE + age}}):
        file = bundle / "manifest.json"
        before = file.read_text()
        facts = {key: value for key, value in (json.loads(before) | change).items() if key != "seal"}
        file.write_text(json.dumps(facts | {"seal": artifacts.seal(facts)}))
        said = refusal(bundle)
        assert f"written by a{'n' * (age < 0)} {name} version of Longtail" in said
        file.write_text(before)


@pytest.mark.parametrize("content", ["[]", "3", '{"format": 2}', '{"format": 2, "parameters": 3}', "{" * 100_000])
def test_a_manifest_that_is_none_is_refused(bundle, content):
    (bundle / "manifest.json").write_text(content)
    assert "is damaged" in refusal(bundle)


def test_files_that_the_hub_puts_beside_it_do_no_harm(bundle):
    (bundle / ".gitattributes").write_text("*.npy filter=lfs\n")
    (bundle / ".cache").mkdir()
    assert longtail.load(bundle).predict(TEXTS[0])


def test_without_the_check_only_sizes_are_looked_at(bundle):
    file = bundle / "README.md"
    file.write_bytes(b"#" * file.stat().st_size)
    assert longtail.load(bundle, check=False).predict(TEXTS[0])
    assert "README.md is damaged" in refusal(bundle)


# --- written whole or not at all --------------------------------------------------------------------------------------


def test_another_folder_and_a_bundle_with_changes_are_not_written_over(tiny_run, bundle, tmp_path):
    place = find_place(tiny_run)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="mine is there and is no bundle: name a folder that is not there yet"):
        write_bundle(place, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert write_bundle(place, bundle) == bundle  # one without changes may be written anew
    longtail.load(bundle).add_labels([("new", "small red box")])
    with pytest.raises(UserError, match="labels were changed, which would be lost"):
        write_bundle(place, bundle)


def said(bundle: Path) -> list[str]:
    return [entry.said() for entry in longtail.load(bundle).changes()]


def test_a_bundle_that_is_served_is_replaced_and_keeps_its_changes(tiny_run, bundle):
    served = longtail.load(bundle)
    served.add_labels([("new", "small red box", ["small red box flat"])])
    served.remove_labels(["flat-red-box"])
    served.undo()
    before = served.predict(TEXTS, k=50)
    refused = invoke(tiny_run, main, ["bundle", bundle])
    assert refused.exit_code == 1 and "--keep-changes" in refused.stderr and said(bundle)[0] == "added new"
    result = invoke(tiny_run, main, ["bundle", bundle, "--keep-changes", "--no-documents"])
    assert result.exit_code == 0, result.stderr
    again = longtail.load(bundle)
    assert again.documents is None and again.predict(TEXTS, k=50) == before and not (bundle / "changes").exists()
    assert said(bundle) == ["added new", "removed flat-red-box", "undid 2"] and again.undo() == "added new"
    with pytest.raises(UserError, match="labels were changed, which would be lost"):
        write_bundle(find_place(tiny_run), bundle)  # changes that were kept once are as dear as before


def test_changes_of_both_sides_are_joined(bundle, tmp_path):
    model = longtail.load(bundle)
    model.add_labels([("first", "red")])
    model.add_labels([("second", "green")])
    model.save(tmp_path / "served")
    served = longtail.load(tmp_path / "served")
    assert served.undo() == "added second"  # a change that both have
    served.add_labels([("third", "blue")])
    served.remove_labels(["first"])
    served.undo()
    model.rename_labels({"first": "small red"})
    model.save(tmp_path / "served", keep_changes=True)
    found = longtail.load(tmp_path / "served")
    assert {"first", "third"} <= {label.id for label in found.labels} and "second" not in found.labels
    assert found.labels.get("first").text == "small red"
    assert said(tmp_path / "served")[2:] == ["renamed first", "undid 2", "added third"]
    found.save(tmp_path / "served", keep_changes=True)  # onto itself: nothing is there twice
    assert len(said(tmp_path / "served")) == 5


@pytest.mark.parametrize("keep", [True, False])
def test_a_change_that_is_made_just_before_the_swap_is_kept_or_refuses_it(tiny_run, bundle, monkeypatch, keep):
    served = longtail.load(bundle)
    written = bundling.card

    def changed_meanwhile(*given):
        served.add_labels([("late", "small red box")])
        return written(*given)

    monkeypatch.setattr("longtail.bundling.card", changed_meanwhile)
    if keep:
        write_bundle(find_place(tiny_run), bundle, keep_changes=True)
    else:
        with pytest.raises(UserError, match="labels were changed, which would be lost"):
            write_bundle(find_place(tiny_run), bundle)
    assert said(bundle) == ["added late"] and "late" in longtail.load(bundle).labels


def test_nobody_changes_labels_while_the_folders_are_swapped(tiny_run, bundle, monkeypatch):
    """A change that comes then waits for the new bundle, and is refused as the labels are another model's."""
    served, swap, outcome = longtail.load(bundle), os.replace, []

    def change() -> None:
        try:
            served.add_labels([("late", "small red box")])
        except UserError as error:
            outcome.append(str(error))

    writer = threading.Thread(target=change)

    def slowly(source, target):
        if not writer.ident:
            writer.start()
            writer.join(0.3)
            assert writer.is_alive() and not outcome  # it waits for the lock
        swap(source, target)

    monkeypatch.setattr("xcutils.core.artifacts.os.replace", slowly)
    write_bundle(find_place(tiny_run), bundle, with_documents=False)
    writer.join(30)
    assert outcome and "load it again" in outcome[0] and said(bundle) == []


def test_a_bundle_that_could_not_be_written_leaves_the_old_one(tiny_run, bundle, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = {file.name: file.read_bytes() for file in bundle.iterdir()}
    monkeypatch.setattr("longtail.bundling.card", full)
    with pytest.raises(UserError, match="make room on the disk and run `xc bundle` again"):
        write_bundle(find_place(tiny_run), bundle)
    assert {file.name: file.read_bytes() for file in bundle.iterdir()} == before
    assert [file.name for file in bundle.parent.iterdir()] == ["bundle"]


def test_the_changes_of_a_bundle_go_with_a_copy_of_it_and_can_be_undone_there(bundle, tmp_path):
    model = longtail.load(bundle)
    model.add_labels([("new", "small red box")])
    model.remove_labels(["flat-red-box"])
    model.save(tmp_path / "second")
    second = longtail.load(tmp_path / "second")
    assert second.predict(TEXTS, k=40) == model.predict(TEXTS, k=40) and len(second.changes()) == 2
    assert second.undo() == "removed flat-red-box" and second.undo() == "added new"
    assert second.predict(TEXTS, k=40) == longtail.load(tmp_path / "second").predict(TEXTS, k=40)
    assert "new" not in second.labels and "flat-red-box" in second.labels and "new" in longtail.load(bundle).labels
    assert size_of(tmp_path / "second") > size_of(Bundle(bundle).folder) / 2
