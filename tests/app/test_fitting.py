"""A model trained from texts in memory, by the stages' own code."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import longtail
from testing.tiny import SETTINGS, dataset_rows, label_id, small_checkpoint
from xcutils.core.errors import UserError

pytestmark = pytest.mark.stage

ROWS = dataset_rows()
TEXTS = [row["title"] for row in ROWS["trn"]]
LABELS = [[label_id(label) for label in row["target_ind"]] for row in ROWS["trn"]]
NAMES = {row["uid"]: row["title"] for row in ROWS["lbl"]}
TESTS = ([row["title"] for row in ROWS["tst"]], [[label_id(i) for i in row["target_ind"]] for row in ROWS["tst"]])


@pytest.fixture(scope="module")
def params(tiny_model) -> dict:
    both = SETTINGS | small_checkpoint(tiny_model)
    return {name: value for name, value in both.items() if ":" not in name and name != "dataset"}


@pytest.fixture(scope="module")
def model(params) -> longtail.Model:
    return longtail.fit(TEXTS, LABELS, NAMES, params=params, progress=False)


def test_it_trains_and_answers_without_dvc_and_git(model, capfd):
    before = Path.cwd()
    assert len(model.labels) == 40 and model.info["parameters"]["encoder"]["epochs"] == 2
    assert model.info["metrics"] == {} and model.info["data"]["train_docs"] == len(set(TEXTS))
    own = sum(model.predict(text, k=1)[0].id in ids for text, ids in zip(TEXTS, LABELS))
    assert own > len(TEXTS) / 3
    assert Path.cwd() == before and capfd.readouterr().err == ""


def test_the_same_texts_give_the_same_model_and_another_seed_another(model, params):
    again = longtail.fit(TEXTS, LABELS, NAMES, params=params, progress=False)
    assert again.predict(TEXTS, k=40) == model.predict(TEXTS, k=40)
    other = longtail.fit(TEXTS, LABELS, NAMES, params=params, seed=1, progress=False)
    assert other.predict(TEXTS, k=40) != model.predict(TEXTS, k=40)


def test_what_a_process_had_set_is_put_back(params, capfd):
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(3).tolist(), np.random.random(3).tolist()
    torch.manual_seed(5)
    np.random.seed(5)
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    longtail.fit(TEXTS, LABELS, params=params)
    assert (torch.rand(3).tolist(), np.random.random(3).tolist()) == expected
    assert (torch.get_deterministic_debug_mode(), torch.get_num_threads()) == (mode, threads)
    assert "encoder" in capfd.readouterr().err  # progress


def test_test_documents_are_measured_and_a_folder_keeps_the_run(params, tmp_path):
    model = longtail.fit(TEXTS, LABELS, NAMES, test=TESTS, params=params, folder=tmp_path / "run", progress=False)
    assert model.info["metrics"]["fused"]["P@1"] > 0 and model.info["data"]["test_docs"] == len(set(TESTS[0]))
    assert longtail.load(tmp_path / "run").predict(TEXTS[:3]) == model.predict(TEXTS[:3])


def test_a_temporary_folder_goes_with_its_model_and_a_bundle_stays(params, tmp_path):
    model = longtail.fit(TEXTS, LABELS, params=params, progress=False)
    folder = model.place.folder
    assert model.labels.get("flat-red-box").text == "flat-red-box" and folder.is_dir()
    model.add_labels([("new", "small red box")])
    expected = model.predict(TEXTS, k=9)
    model.save(tmp_path / "bundle")
    del model
    assert not folder.exists()
    assert longtail.load(tmp_path / "bundle").predict(TEXTS, k=9) == expected


@pytest.mark.parametrize(
    "given, sentence",
    [
        ((TEXTS, LABELS[:-1]), "there are 60 texts and labels for 59"),
        (("text", LABELS), "texts must be a list of strings"),
        (([*TEXTS[:-1], 3], LABELS), "texts, number 59, has 3"),
        ((TEXTS, [*LABELS[:-1], [3]]), "texts, number 59, has 3"),
        (([], []), "texts is empty"),
        ((TEXTS[:3], LABELS[:3]), "prepare.validation leaves none of the 3"),
    ],
)
def test_texts_that_cannot_be_trained_on_are_refused(params, given, sentence):
    before = os.getcwd()
    with pytest.raises(UserError, match=re.escape(sentence)):
        longtail.fit(*given, params=params, progress=False)
    assert os.getcwd() == before


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"encoder.epoch": 3}, "encoder.epoch is not a parameter"),
        ({"encoder.epochs": "many"}, "encoder.epochs is 'many'"),
        ({"seed": 3}, "'seed' is no parameter to set here"),
        ({"K.a": 3}, "'K.a' is no parameter to set here"),
        ({"a.b.c": 3}, "'a.b.c' is no parameter to set here"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_done(changes, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        longtail.fit(TEXTS, LABELS, params=changes)
