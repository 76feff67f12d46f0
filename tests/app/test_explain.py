"""What an explanation says is so: each number is the difference of two predictions, and named words carry the score."""

import copy
import dataclasses
import json
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longtail.bundling import write_bundle
from longtail.cli import main
from longtail.explain import LEAST, NAMED, explain, reader, without, words_of
from longtail.models import Model
from longtail.places import Bundle, Run
from longtail.serving import System, load_system
from testing.tiny import LABELS, WORDS, dataset_rows, invoke, label_id
from xcutils.core.errors import UserError
from xcutils.core.pipelines import MODULAR, PIPELINES
from xcutils.model.tokens import tokenize

pytestmark = pytest.mark.stage

OFTEN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.lists(st.sampled_from([*WORDS[4:], "curious", "Red", "box,", "(lid)", "-", "flat-jar"]), max_size=9).map(
    " ".join
)


@lru_cache
def loaded(data, folder) -> System:
    return load_system(data, PIPELINES[folder])


@pytest.fixture(params=PIPELINES.values(), ids=lambda pipeline: pipeline.folder or "modular")
def system(request, tiny_run, unidec_run) -> System:
    run = tiny_run if request.param is MODULAR else unidec_run
    return loaded(run / "data", request.param.folder)


def probability(system: System, text: str, id: str) -> float:
    """The label's probability as a prediction gives it."""
    (answer,) = system.answers([text], len(LABELS))
    return next((label["score"] for label in answer.labels if label["id"] == id), 0.0)


def score(system: System, text: str, label: int) -> float:
    """The label's fused score as the model's ranking of all labels gives it."""
    tokens = tokenize(system.tokenizer, [text], system.model.settings.max_tokens)
    ids, scores = system.model.rank(system.model.embed(tokens), len(LABELS))
    return float(scores[0][ids[0] == label][0])


def taken(text: str, why, words) -> str:
    return without(text, [place for word in why.words if word.text in words for place in word.places])


@OFTEN
@given(text=TEXTS)
def test_taking_the_named_words_away_lowers_the_score(system, text):
    for why in explain(system, text, k=4):
        assert len(why.named) <= NAMED
        if not why.named:
            continue
        left = taken(text, why, why.named)
        (again,) = explain(system, left, [why.id])
        assert again.score == pytest.approx(why.without, abs=1e-5) and why.without <= why.score - LEAST
        assert again.probability <= why.probability + 1e-9
        assert probability(system, left, why.id) <= probability(system, text, why.id)


@OFTEN
@given(text=TEXTS)
def test_a_words_weight_is_the_difference_of_two_predictions(system, text):
    for why in explain(system, text, k=3):
        if not why.known:
            assert not why.named and not why.documents
            continue
        label = system.place(why.id)
        assert why.score == pytest.approx(score(system, text, label), abs=1e-5)
        assert why.score == pytest.approx(sum(why.parts.values()), abs=1e-6)
        assert why.probability == pytest.approx(probability(system, text, why.id), abs=1e-5)
        for word in why.words:
            left = without(text, word.places)
            if explain(system, left, [why.id])[0].known:
                assert word.weight == pytest.approx(why.score - score(system, left, label), abs=1e-5)
            else:
                assert word.weight == pytest.approx(why.score - why.parts["frequency"], abs=1e-5)
        assert all(word.weight > 0 for word in why.words if word.text in why.named)


def test_given_labels_are_scored_exactly_found_or_not(system):
    text = "small red box"
    ids = [label_id(label) for label in range(len(LABELS))]
    found = explain(system, text, ids)
    assert [why.id for why in found] == ids and [why.text for why in found] == LABELS
    np.testing.assert_allclose(
        [why.score for why in found], [score(system, text, label) for label in range(len(LABELS))], atol=1e-5
    )


def test_the_parts_are_those_that_the_model_can_tell_apart(system):
    (why,) = explain(system, "small red box", k=1)
    halves = ["label text", "classifier"] if system.model.settings.views else ["match"]
    assert list(why.parts) == [*halves, "frequency", "memory"]


def test_a_model_without_memory_is_explained_without_it(system):
    model = copy.copy(system.model)
    model.fusion = dataclasses.replace(model.fusion, memory=0.0)
    forgetful = dataclasses.replace(system, model=model)
    for why in explain(forgetful, "small red box", k=len(LABELS)):
        assert why.parts["memory"] == 0 and all(doc.share == 0 for doc in why.documents)
        assert why.score == pytest.approx(score(forgetful, "small red box", system.place(why.id)), abs=1e-5)


def test_the_best_labels_are_explained_in_their_order(system):
    (answer,) = system.answers(["flat green jar"], 5)
    found = explain(system, "flat green jar", k=5)
    assert [why.id for why in found] == [label["id"] for label in answer.labels]


def test_documents_are_those_of_the_label_nearest_first(system, tiny_run):
    rows = {row["uid"]: row for row in dataset_rows()["trn"]}
    text = rows["trn-30"]["title"]
    found = explain(system, text, k=len(LABELS), documents=reader(Run(tiny_run / "data", MODULAR).documents()))
    for why in found:
        label = LABELS.index(why.text)
        assert why.documents or not any(label in row["target_ind"] for row in rows.values())
        assert all(label in rows[doc.id]["target_ind"] and rows[doc.id]["title"] == doc.text for doc in why.documents)
        similarities = [doc.similarity for doc in why.documents]
        assert similarities == sorted(similarities, reverse=True)
        assert (why.parts["memory"] > 0) <= any(doc.share > 0 for doc in why.documents)
    assert any(doc.id == "trn-30" and doc.similarity == pytest.approx(1, abs=0.02) for doc in found[0].documents)


def test_without_its_training_documents_a_model_still_says_how_near_they_are(system):
    (why,) = explain(system, "small red box", k=1)
    assert why.documents and all((doc.id, doc.text) == (None, None) for doc in why.documents)


def test_an_unknown_label_is_refused(system):
    with pytest.raises(UserError, match="there is no label 'small-red-bo'"):
        explain(system, "small red box", ["small-red-bo"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("?!", []),
        ("box", ["box"]),
        ("small red box, red lid", ["small", "red", "box", "lid"]),
        ("Red RED red", ["Red"]),
        ("flat-jar (lid)", ["flat-jar", "lid"]),
        ("Crohn\u2019s box", ["Crohn\u2019s", "box"]),
        ("\u7bb1 bo\u0301x", ["\u7bb1", "bo\u0301x"]),
    ],
)
def test_words_are_whole_and_named_once(system, text, words):
    found = words_of(system, text)
    assert [word.text for word in found] == words
    for word in found:
        assert all(text[start:end].casefold() == word.text.casefold() for start, end in word.places)


def test_the_places_of_a_word_are_all_it_has(system):
    (word, _) = words_of(system, "red box red Red")
    assert word.places == [(0, 3), (8, 11), (12, 15)] and without("red box red Red", word.places) == "box "


def test_words_beyond_what_the_model_reads_are_not_asked_about(system):
    text = " ".join(["red"] * 40 + ["jar"])
    assert [word.text for word in words_of(system, text)] == ["red"]


class Read:
    """An encoding that counts how often each of its lists is made."""

    def __init__(self, encoding):
        self.encoding, self.reads = encoding, Counter()

    def __getattr__(self, name: str):
        self.reads[name] += 1
        return getattr(self.encoding, name)


def test_a_long_text_is_read_once(system):
    seen = []

    class Counted:
        def encode(self, *given, **options):
            seen.append(Read(system.tokenizer.encode(*given, **options)))
            return seen[-1]

    text = "red " * 4_000 + "jar red" + " lid" * 1_000
    (word,) = words_of(dataclasses.replace(system, tokenizer=Counted()), text)
    assert len(text) == 20_007 and word.text == "red" and len(word.places) == 4_001
    assert [read.reads for read in seen] == [{"ids": 1, "offsets": 1, "word_ids": 1}]
    assert [why.id for why in explain(system, text, ["small-red-box"])] == ["small-red-box"]


def test_a_word_in_pieces_is_one_word(system, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "bo": 1, "##x": 2, "red": 3}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    split = dataclasses.replace(system, tokenizer=pieces, unknown=0)
    assert [(word.text, word.places, word.known) for word in words_of(split, "box zzz red")] == [
        ("box", [(0, 3)], True),
        ("zzz", [(4, 7)], False),
        ("red", [(8, 11)], True),
    ]


@given(text=st.text(max_size=30), data=st.data())
def test_what_is_taken_away_is_gone_and_the_rest_is_there(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    left = without(text, [(start, end)])
    assert left.replace(" ", "").split() == (text[:start] + text[end:]).replace(" ", "").split()


@OFTEN
@given(text=st.text(max_size=40))
def test_any_text_is_explained_and_can_be_written_as_json(system, text):
    found = explain(system, text, k=2)
    assert len(found) == 2
    read = json.loads(json.dumps([dataclasses.asdict(why) for why in found]))
    assert [why["id"] for why in read] == [why.id for why in found]


def test_the_command_prints_what_there_is_to_say(tiny_run):
    result = invoke(tiny_run, main, ["explain", "small red box", "-k", "2"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("small red box\n  0.") and result.stdout.count("score ") == 2
    assert "for it: " in result.stdout and "nearest training documents" in result.stdout
    given = invoke(tiny_run, main, ["explain", "xyzzy", "--label", "small-red-box"]).stdout
    assert "no known word" in given and "small-red-box" in given
    told = invoke(tiny_run, main, ["explain", "red lid", "--label", "small-red-lid", "--json"]).stdout
    (why,) = map(json.loads, told.splitlines())
    assert why["id"] == "small-red-lid" and [word["text"] for word in why["words"]] == ["red", "lid"]
    refused = invoke(tiny_run, main, ["explain", "red lid", "--label", "none"])
    assert refused.exit_code == 1 and refused.stderr.startswith("error: there is no label")


def test_a_bundle_is_explained_with_labels_that_were_added(tiny_run, tmp_path):
    write_bundle(Run(tiny_run / "data", MODULAR), tmp_path / "bundle", with_documents=False)
    model = Model(Bundle(tmp_path / "bundle"))
    model.add_labels([{"id": "new", "text": "round box", "examples": ["round red box"]}])
    (why,) = explain(model.system, "round red box", ["new"])
    assert (why.id, why.text) == ("new", "round box") and "round" in why.named
    (answer,) = model.predict(["round red box"], k=len(LABELS) + 1)
    assert why.probability == pytest.approx({label.id: label.probability for label in answer}["new"], abs=1e-5)
    assert [(doc.id, doc.text) for doc in why.documents] == [(None, "round red box")]
    result = invoke(tmp_path, main, ["explain", "--bundle", "bundle", "small red box", "-k", "1"])
    assert (result.exit_code, result.stderr) == (0, "") and "(its text is not in the bundle)" in result.stdout
