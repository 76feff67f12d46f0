"""A pretrained encoder beside a trained one: texts found again by their tokens, and what the two give together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.tiny import UNIDEC, branch, home, run_stages, small_checkpoint
from tests.model.test_heads import bag
from tests.stages.test_stages import load_csv
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, from_rows
from xcutils.model import pretrained
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.encoders import encode, load_encoder, save_encoder
from xcutils.model.heads import TwoHeads
from xcutils.model.pretrained import BesidePretrained, KnownTexts, Pretrained, build_pretrained, text_keys

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=12)
SPECIAL = {"cls": 2, "sep": 3}
steady = settings(derandomize=True, deadline=None)


def ragged(texts: list[list[int]]) -> Ragged:
    return from_rows(texts, np.int32)


def vectors_of(texts: list[list[int]], shift: float = 0.0) -> np.ndarray:
    """(texts, 2): the text's place, so that a wrong row shows."""
    return np.array([[i + shift, -i] for i in range(len(texts))], dtype=np.float32).reshape(-1, 2)


def known_by_hand(*sets: list[list[int]]) -> dict[tuple, tuple[int, int]]:
    """{text: (its first set, its row there)}"""
    out = {}
    for i, texts in enumerate(sets):
        for row, text in enumerate(texts):
            out.setdefault(tuple(text), (i, row))
    return out


def assert_found(first, second, asked):
    known = KnownTexts((ragged(first), vectors_of(first)), (ragged(second), vectors_of(second, 0.5)))
    by_hand, places = known_by_hand(first, second), known.find(ragged(asked))
    for text, place in zip(asked, places.tolist()):
        if tuple(text) not in by_hand:
            assert place == -1
            continue
        i, row = by_hand[tuple(text)]
        assert known.take(np.array([place])).tolist() == [[row + 0.5 * i, -row]]


@steady
@given(TEXTS, TEXTS, TEXTS)
def test_texts_are_found_by_their_tokens_and_others_are_not(first, second, asked):
    assert_found(first, second, [*asked, *first, *second])


@steady
@given(TEXTS, TEXTS)
def test_two_texts_of_one_hash_are_never_mixed_up(texts, asked):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "text_keys", lambda tokens: np.zeros(len(tokens), dtype=np.uint64))
        known = KnownTexts((ragged(texts), vectors_of(texts)))
        places = known.find(ragged([*asked, texts[0]])).tolist()
    assert places == [0 if text == texts[0] else -1 for text in asked] + [0]


def test_keys_tell_texts_apart_by_tokens_order_and_length():
    texts = [[], [0], [0, 0], [1], [1, 2], [2, 1], [1, 2, 3], [2, 2], [3], [300, 7]]
    keys = text_keys(ragged([*texts, *texts]))
    assert len(set(keys.tolist())) == len(texts) and (keys[: len(texts)] == keys[len(texts) :]).all()


@pytest.fixture
def facts(tiny_model) -> dict:
    """embed.json of the small checkpoint."""
    own = checkpoint_hash(str(tiny_model))
    return {"checkpoint": str(tiny_model), "pooling": "mean", "sha256": own}


def test_known_texts_are_looked_up_and_others_encoded(facts):
    texts = ragged([[4, 5], [6], [7, 8, 9]])
    by_hand = encode(build_pretrained(facts, SPECIAL), texts)
    known = KnownTexts((texts.take(np.array([2])), np.full((1, 16), 0.25, np.float32)))
    got = Pretrained(facts, SPECIAL, known)(texts)
    np.testing.assert_allclose(got[:2], by_hand[:2], atol=1e-6)
    assert (got[2] == 0.25).all()
    np.testing.assert_allclose(Pretrained(facts, SPECIAL)(texts), by_hand, atol=1e-6)


def test_where_all_texts_are_known_no_encoder_is_built(facts, monkeypatch):
    monkeypatch.setattr(pretrained, "build_pretrained", None)
    texts = ragged([[4, 5], [6]])
    known = KnownTexts((texts, np.eye(2, 16, dtype=np.float32)))
    assert (Pretrained(facts, SPECIAL, known)(texts) == np.eye(2, 16)).all()


def test_both_vectors_stand_side_by_side_and_only_one_is_trained(facts):
    texts, trained = ragged([[4, 5], [6], []]), bag()
    both = BesidePretrained(trained, Pretrained(facts, SPECIAL), 0.5)
    out = both(texts)
    own, other = encode(bag(), texts), encode(build_pretrained(facts, SPECIAL), texts)
    np.testing.assert_allclose(out.detach().numpy(), np.concatenate([own, 0.5 * other], axis=1), atol=1e-6)
    assert both.dim == out.shape[1] == trained.dim + 16 and not list(both.parameters())
    assert list(both.state()) == list(trained.state()) and both.tables == trained.tables


def test_the_encoder_comes_back_from_its_folder(facts, tmp_path):
    torch.manual_seed(0)
    model = TwoHeads(BesidePretrained(bag(), Pretrained(facts, SPECIAL), 0.7), dim=5, classifier=True)
    texts = ragged([[4, 5], [6], [7, 8, 9]])
    save_encoder(tmp_path, model)
    np.testing.assert_array_equal(encode(load_encoder(tmp_path), texts), encode(model, texts))


def test_a_checkpoint_that_has_changed_is_named_with_the_remedy(facts):
    with pytest.raises(UserError, match=r"has changed since .*dvc repro --force embed"):
        build_pretrained(facts | {"sha256": "0" * 64}, SPECIAL)


@pytest.mark.stage
@pytest.mark.parametrize("labels", [0.0, 1.0])
def test_the_unified_method_trains_beside_it(unidec_run, tiny_model, tmp_path, labels):
    changes = {f"{UNIDEC}:train.pretrained": 0.5, f"{UNIDEC}:gandalf.labels": labels}
    folder, left = branch(unidec_run, tmp_path, "unidec/gandalf", **small_checkpoint(tiny_model), **changes)
    said = run_stages(folder, left)
    assert all("arning" not in text for text in said.values())
    train, tokens = home("unidec/train"), artifacts.load_ragged(folder / "data" / "prepare" / "train", "tokens")
    config = artifacts.load_json(folder / train / "final", "encoder.json")
    assert config["encoder"]["kind"] == "beside-pretrained" and config["dim"] == 32
    docs, before = (artifacts.load_array(base / train / "final", "docs") for base in (folder, unidec_run))
    assert docs.shape == (len(tokens), 64) and before.shape == (len(tokens), 32)
    np.testing.assert_allclose(docs, encode(load_encoder(folder / train / "final"), tokens), atol=1e-5)
    curve = load_csv(folder / train / "curve-choose.csv")
    assert float(curve[-1]["loss"]) < float(curve[0]["loss"])
