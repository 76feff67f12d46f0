"""A model in Python: what it answers, what it refuses, and that threads do not disturb each other."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import longtail
from longtail.cli import main
from longtail.serving import load_system
from testing.tiny import LABELS, invoke, label_id
from xcutils.core.errors import UserError
from xcutils.core.ragged import to_strings

pytestmark = pytest.mark.stage

TEXTS = ["small red box", "large green cup", "flat blue lid small red ball", "curious", ""]


@pytest.fixture(scope="module")
def model(tiny_run) -> longtail.Model:
    return longtail.load(tiny_run)


def test_a_run_answers_as_the_command_does(model, tiny_run):
    found = [
        json.loads(line) for line in invoke(tiny_run, main, ["predict", "--json", "-k", 3, *TEXTS]).stdout.splitlines()
    ]
    answers = model.predict(TEXTS, k=3)
    assert [[(label.id, label.text) for label in labels] for labels in answers] == [
        [(label["id"], label["text"]) for label in answer["labels"]] for answer in found
    ]
    said = [[round(label.probability, 6) for label in labels] for labels in answers]
    assert said == [[label["score"] for label in answer["labels"]] for answer in found]
    assert model.known(TEXTS) == [answer["known"] for answer in found] == [True, True, True, False, False]


def test_one_text_gets_one_list(model):
    alone = model.predict("small red box", k=2)
    assert alone == model.predict(["small red box"], k=2)[0] and len(alone) == 2
    assert isinstance(alone[0], longtail.Label) and alone[0].probability >= alone[1].probability
    with pytest.raises(FrozenInstanceError):
        alone[0].id = "other"
    assert model.predict([]) == []


@pytest.mark.parametrize("place", [".", "data"])
def test_a_run_is_found_by_its_folder_or_its_data(tiny_run, model, place):
    assert longtail.load(tiny_run / place).predict(TEXTS[0]) == model.predict(TEXTS[0])


def test_the_second_pipeline_is_loaded_by_its_name(unidec_run):
    model = longtail.load(unidec_run, pipeline="unidec")
    assert model.info["pipeline"] == "unidec" and len(model.predict(TEXTS[0], k=4)) == 4


def test_a_cut_off_leaves_out_what_is_below_it(model):
    every = model.predict(TEXTS[:3], k=40)
    for threshold in (0.0, 0.05, 1.0):
        kept = [[label for label in labels if label.probability >= threshold] for labels in every]
        assert model.predict(TEXTS[:3], k=40, threshold=threshold) == kept
    best = model.cutoffs.thresholds[model.cutoffs.best()]
    assert model.predict(TEXTS[0], k=40, threshold="f1") == model.predict(TEXTS[0], k=40, threshold=best)
    asked = model.cutoffs.precision[0]
    assert model.predict(TEXTS[0], precision=asked) == model.predict(TEXTS[0], threshold=model.cutoffs.at(asked))


def test_a_subset_is_answered_by_its_exact_scores(model):
    chosen = [label_id(label) for label in (3, 17, 30)]
    every = {label.id: label.probability for label in model.predict(TEXTS[2], k=40)}
    found = model.predict(TEXTS[2], k=10, among=chosen)
    assert {label.id for label in found} == set(chosen)
    assert [label.probability for label in found] == sorted((label.probability for label in found), reverse=True)
    for label in found:
        assert abs(label.probability - every[label.id]) < 1e-4
    unknown = model.predict("curious", k=2, among=chosen)
    frequency = {id: model.labels.get(id).docs for id in chosen}
    assert [label.id for label in unknown] == sorted(chosen, key=lambda id: -frequency[id])[:2]


def test_vectors_are_of_length_one(model):
    vectors = model.embed(TEXTS)
    assert vectors.shape == (5, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors[:3], axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS[0])[0], vectors[0], atol=1e-6)


def test_labels_are_looked_up_and_searched(model, tiny_run):
    system = load_system(tiny_run / "data")
    assert len(model.labels) == len(list(model.labels)) == len(LABELS) and label_id(3) in model.labels
    info = model.labels.get(label_id(3))
    assert (info.id, info.text, info.docs) == (label_id(3), LABELS[3], int(system.frequency[3]))
    assert model.labels.search(LABELS[3].upper())[0] == info
    found = model.labels.search("box RED", limit=2)
    assert len(found) == 2 and all("red" in label.text and "box" in label.text for label in found)
    assert found[0].docs >= found[1].docs and model.labels.search("nothing like it") == []


def test_more_labels_than_there_are_may_be_asked_for(model):
    for among in (None, [label_id(3), label_id(17)]):
        assert model.predict(TEXTS, k=10**9, among=among) == model.predict(TEXTS, k=len(LABELS), among=among)
    assert model.predict(TEXTS[0], k=10**30) == model.predict(TEXTS[0], k=40)
    assert len(model.explain("red box", k=10**9)) == len(LABELS)
    assert len(model.labels.neighbours(label_id(3), k=10**9)) == len(LABELS) - 1


def test_neighbours_are_near_and_not_the_label_itself(model):
    near = model.labels.neighbours(label_id(3), k=5)
    assert len(near) == 5 and label_id(3) not in [label.id for label in near]
    labels, dim = model.system.model.labels, 16
    vectors = labels.take(np.arange(len(LABELS)))[:, :dim]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors[3]
    cosines[3] = -2
    assert [label.id for label in near] == [label_id(label) for label in np.argsort(-cosines, kind="stable")[:5]]


def test_what_a_model_is_stands_in_its_info(model, tiny_run):
    info = model.info
    assert info["version"] == longtail.__version__ and len(info["hash"]) == 64 and info["dataset"] == "tiny"
    assert info["metrics"]["fused"]["P@1"] > 0 and info["data"]["labels"] == len(LABELS)
    assert info["parameters"]["encoder"]["epochs"] == 2 and info["created"][:2] == "20"
    texts = to_strings(model.documents.texts)
    assert len(texts) == len(model.positives) == info["data"]["train_docs"] and any("box" in text for text in texts)


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"k": 0}, "k is 0; it must be a whole number"),
        ({"k": True}, "k is True"),
        ({"k": 2.5}, "k is 2.5"),
        ({"threshold": 1.5}, "threshold is 1.5; it must be a number from 0 to 1, or f1"),
        ({"threshold": "half"}, "threshold is 'half'"),
        ({"precision": -1}, "precision is -1; it must be a number from 0 to 1."),
        ({"threshold": 0.1, "precision": 0.1}, "threshold and precision both"),
        ({"among": ["no-such"]}, "there is no label 'no-such'"),
        ({"among": "flat-red-box"}, "the ids of among are the text 'flat-red-box': give a list of them."),
        ({"among": 5}, "the ids of among are 5: give a list of them."),
        ({"among": [["flat-red-box"]]}, "an id of among is ['flat-red-box'], of type list: give strings."),
    ],
)
def test_what_cannot_be_answered_is_refused_in_a_sentence(model, asked, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        model.predict("small red box", **asked)


@pytest.mark.parametrize(
    "ask, sentence",
    [
        (lambda model: model.predict(None), "the texts are None: give a list of them."),
        (lambda model: model.predict(5), "the texts are 5: give a list of them."),
        (lambda model: model.known("red"), "the texts are the text 'red': give a list of them."),
        (lambda model: model.embed(None), "the texts are None"),
        (lambda model: model.explain(None), "a text is None, of type NoneType"),
        (lambda model: model.explain("red", labels="flat-red-box"), "the ids of labels are the text 'flat-red-box'"),
        (lambda model: model.explain("red", labels=[3]), "an id of labels is 3, of type int: give strings."),
        (lambda model: model.labels.get(["a"]), "the id of a label is ['a']: give a string."),
        (lambda model: model.labels.search(None), "the query is None: give words of the label's text, or its id."),
        (lambda model: model.labels.search("red", limit=1.5), "limit is 1.5; it must be a whole number of at least 1."),
        (lambda model: model.labels.search("red", limit=0), "limit is 0; it must be a whole number"),
        (lambda model: model.labels.neighbours("flat-red-box", k=-1), "k is -1; it must be a whole number"),
        (lambda model: model.labels.neighbours("flat-red-box", k=0), "k is 0; it must be a whole number"),
    ],
)
def test_whatever_python_gives_is_answered_or_refused_in_a_sentence(model, ask, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        ask(model)
    assert ["a"] not in model.labels and 3 not in model.labels


def test_what_is_no_text_is_refused(model):
    with pytest.raises(UserError, match="a text is 3, of type int"):
        model.predict(["small red box", 3])
    with pytest.raises(UserError, match="there is no label 'x'"):
        model.labels.neighbours("x")
    assert model.predict("small red box \ud800", k=1)  # half a character counts as none


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match="is neither a bundle nor a folder in which `dvc repro` has run"):
        longtail.load(tmp_path)
    with pytest.raises(UserError, match="there is no pipeline 'third': choose among unidec"):
        longtail.load(tmp_path, pipeline="third")


def test_the_package_imports_nothing_slow_until_it_is_asked():
    code = "import sys, longtail; print(sorted({'numpy', 'torch'} & set(sys.modules)), dir(longtail)[:2])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] ['Label', 'LabelInfo']\n"
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = longtail.lode


def test_many_threads_get_the_answers_of_one_while_labels_come_and_go(bundle):
    model = longtail.load(bundle)
    texts = [f"{a} {b}" for a in LABELS[:20] for b in LABELS[20:24]]
    states = {}  # what each text gets in either state of the labels, asked by one thread
    states["before"] = [model.predict(text, k=5) for text in texts]
    change = [("new-1", "small red box"), ("new-2", "flat green lid", ["flat green lid small"])]
    model.add_labels(change)
    states["after"] = [model.predict(text, k=5) for text in texts]
    model.undo()
    assert states["before"] != states["after"]

    def ask(number: int) -> list[str]:
        wrong = []
        for i in range(200):
            place = (number * 7 + i) % len(texts)
            found = model.predict(texts[place], k=5)
            if found not in (states["before"][place], states["after"][place]):
                wrong.append(texts[place])
        return wrong

    def change_labels() -> list[str]:
        for _ in range(15):
            model.add_labels(change)
            model.undo()
        return []

    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(change_labels), *(threads.submit(ask, number) for number in range(7))]
        assert [job.result() for job in jobs] == [[]] * 8
    assert [model.predict(text, k=5) for text in texts] == states["before"]
