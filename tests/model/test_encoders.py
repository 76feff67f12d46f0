import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import nn

from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, from_rows
from xcutils.model import transformer
from xcutils.model.bag import BagOfEmbeddings, bag_features, idf_weights
from xcutils.model.checkpoints import checkpoint_folder, checkpoint_hash, token_table
from xcutils.model.encoders import encode, load_encoder, move, rebuild, save_encoder
from xcutils.model.gru import BiGRU
from xcutils.model.padding import by_length
from xcutils.model.transformer import build_transformer

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SPECIAL = {"cls": 2, "sep": 3}
VOCABULARY = 16
ROWS = st.lists(st.lists(st.integers(0, 29), max_size=6), max_size=6)
steady = settings(derandomize=True, deadline=None)


def lists(ragged: Ragged) -> list[list[int]]:
    return [ragged[row].tolist() for row in range(len(ragged))]


def make_bag(ngrams: int = 3) -> BagOfEmbeddings:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(VOCABULARY + 20, 5, generator=generator)
    weights = torch.rand(VOCABULARY + 20, 1, generator=generator)
    return BagOfEmbeddings(vectors, weights, vocabulary=VOCABULARY, ngrams=ngrams)


def bag_of(folder, ngrams: int) -> SimpleNamespace:
    """The parameters of a bag."""
    return SimpleNamespace(model=str(folder), ngrams=ngrams, buckets=50)


def make_gru(dropout: float = 0.0) -> BiGRU:
    torch.manual_seed(0)
    return BiGRU(torch.randn(VOCABULARY, 5), hidden=4, dropout=dropout)


def make_transformer(folder, pooling: str = "mean", layers: int = 0, dropout: float = 0.0):
    return build_transformer(str(folder), SPECIAL, pooling=pooling, layers=layers, dropout=dropout)


@pytest.fixture(params=["bag-of-embeddings", "bi-gru", "transformer mean", "transformer cls"])
def encoder(request, tiny_model):
    """An encoder of each kind, in evaluation mode."""
    kind, *pooling = request.param.split()
    made = {"bag-of-embeddings": make_bag, "bi-gru": make_gru}.get(kind)
    return (make_transformer(tiny_model, *pooling) if made is None else made()).eval()


# --- every kind -------------------------------------------------------------------------------------------------------


def test_a_text_is_encoded_alone_as_among_others(encoder, texts):
    with torch.no_grad():
        together = encoder(texts)
        assert together.shape == (len(texts), encoder.dim) and together.dtype == torch.float32
        for row in range(len(texts)):
            torch.testing.assert_close(encoder(texts.take([row]))[0], together[row], rtol=1e-5, atol=1e-5)
        back = np.arange(len(texts))[::-1]
        torch.testing.assert_close(encoder(texts.take(back)), together.flip(0), rtol=1e-5, atol=1e-5)
    assert torch.isfinite(together).all()
    torch.testing.assert_close(together[0], together[4])  # equal texts
    assert (together[0] - together[3]).abs().max() > 1e-3


def test_texts_may_all_be_empty(encoder):
    with torch.no_grad():
        assert torch.isfinite(encoder(from_rows([[], []], np.int32))).all()


def test_chunks_do_not_change_the_embeddings(encoder, texts):
    whole = encode(encoder, texts, normalise=False)
    assert whole.dtype == np.float32 and whole.shape == (7, encoder.dim)
    for chunk in (1, 2, 7, 100):
        np.testing.assert_allclose(encode(encoder, texts, normalise=False, chunk=chunk), whole, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(whole, encoder(texts).numpy(), rtol=1e-5, atol=1e-5)


def test_chunks_side_by_side_give_the_same_embeddings(encoder, texts):
    alone, threads = encode(encoder, texts, chunk=1), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        np.testing.assert_array_equal(encode(encoder, texts, chunk=1), alone)
        assert torch.get_num_threads() == 3
        with pytest.raises(IndexError):
            encode(encoder, from_rows([[4], [10**6]], np.int32), chunk=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_embeddings_have_length_one_unless_told_otherwise(encoder, texts):
    raw, made = encode(encoder, texts, normalise=False), encode(encoder, texts)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(made, raw / np.where(lengths > 0, lengths, 1), rtol=1e-5, atol=1e-6)


def test_encoding_collects_no_gradient_and_keeps_the_mode(encoder, texts):
    seen = []

    def watch(chunks):
        seen.append(len(chunks))
        return chunks

    for mode in (True, False):
        encoder.train(mode)
        encode(encoder, texts, chunk=3, watch=watch)
        assert all(part.training == mode for part in encoder.modules())
    assert seen == [3, 3]
    assert all(table.gradients() == [] and table._used == [] for table in encoder.tables)
    assert encode(encoder, from_rows([], np.int32)).shape == (0, encoder.dim)


def test_a_rebuilt_encoder_gives_the_same_embeddings(encoder, texts):
    config = json.loads(json.dumps(encoder.config()))
    state = {name: tensor.detach().clone() for name, tensor in encoder.state().items()}
    np.testing.assert_array_equal(encode(rebuild(config, state), texts), encode(encoder, texts))


def test_a_saved_encoder_gives_the_same_embeddings(encoder, texts, tmp_path):
    save_encoder(tmp_path, encoder)
    loaded = load_encoder(tmp_path)
    np.testing.assert_array_equal(encode(loaded, texts), encode(encoder, texts))
    assert loaded.config() == encoder.config() and loaded.dim == encoder.dim


def test_an_encoder_learns(encoder, texts):
    """One step against its own output makes the output smaller."""
    encoder.train()
    before = encoder(texts).pow(2).sum()
    before.backward()
    for table in encoder.tables:
        table.lr = 1e-2
        table.step()
    with torch.no_grad():
        for p in encoder.parameters():
            if p.grad is not None:
                p -= 1e-4 * p.grad.sign()
        assert encoder(texts).pow(2).sum() < before
    assert move(encoder, torch.device("cpu")) is encoder


# --- bag of embeddings ------------------------------------------------------------------------------------------------


def mix_by_hand(key: int) -> int:
    key = (key + 1) * 0x9E3779B97F4A7C15 % 2**64
    return key ^ (key >> 32)


def features_by_hand(texts: list[list[int]], vocabulary: int, ngrams: int, rows: int) -> list[list[int]]:
    """Each text on its own, each n-gram on its own, in whole numbers of any size."""
    out = []
    for text in texts:
        features = list(text)
        for n in range(2, ngrams + 1):
            for first in range(len(text) - n + 1):
                key = text[first]
                for token in text[first + 1 : first + n]:
                    key = (mix_by_hand(key) + token) % 2**64
                features.append(vocabulary + (mix_by_hand(key) >> 32) % (rows - vocabulary))
        out.append(features)
    return out


@steady
@given(ROWS, st.integers(1, 5), st.integers(1, 50))
def test_features_are_the_tokens_and_hashed_ngrams_of_each_text(rows, ngrams, buckets):
    found = bag_features(from_rows(rows, np.int32), 30, ngrams, 30 + buckets)
    assert lists(found) == features_by_hand(rows, 30, ngrams, 30 + buckets)


def test_the_hash_never_changes():
    """Trained tables depend on it: a model that was saved must read the same rows for ever."""
    found = bag_features(from_rows([[101, 7, 30521, 0], [7]], np.int32), 30522, 3, 30522 + 65536)
    assert lists(found) == [[101, 7, 30521, 0, 34622, 47109, 79851, 41644, 86215], [7]]


def test_ngrams_know_the_order_and_spread_over_the_buckets():
    pairs = [[a, b] for a in range(100) for b in range(100)]
    found = bag_features(from_rows(pairs, np.int32), 100, 2, 100 + 65536)
    hashed = found.values.reshape(-1, 3)[:, 2] - 100
    assert len(np.unique(hashed)) > 0.9 * 65536 * (1 - np.exp(-10_000 / 65536))  # what random buckets would give
    assert np.abs(np.bincount(hashed // 8192) - 1250).max() < 150
    grid = hashed.reshape(100, 100)
    assert (grid == grid.T).mean() < 0.02


@pytest.mark.parametrize("ngrams", [1, 2, 3])
def test_a_bag_is_the_weighted_sum_of_its_vectors(texts, ngrams):
    bag = make_bag(ngrams)
    vectors, weights = bag.vectors.values.double(), bag.weights.values.double()
    for found, features in zip(bag(texts), features_by_hand(lists(texts), VOCABULARY, ngrams, VOCABULARY + 20)):
        expected = torch.zeros(5, dtype=torch.float64)
        for feature in features:
            expected += weights[feature] * vectors[feature]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_step_moves_the_rows_of_the_batch_alone(texts):
    bag = make_bag()
    before = [table.values.clone() for table in bag.tables]
    bag(texts).pow(2).sum().backward()
    used = np.unique(bag_features(texts, VOCABULARY, 3, VOCABULARY + 20).values)
    others = np.setdiff1d(np.arange(VOCABULARY + 20), used)
    assert len(others) > 0
    for table, old in zip(bag.tables, before):
        table.lr = 0.1
        table.step()
        assert torch.equal(table.values[others], old[others]) and (table.values[used] != old[used]).all()


def test_idf_weights_by_hand():
    features = from_rows([[0, 1, 1], [1, 2], [1], [5, 5, 5]], np.int64)
    frequency = [1, 3, 1, 0, 0, 1]  # texts, not occurrences
    plain = np.log(5 / (np.array(frequency) + 1))
    found = idf_weights([features], 6)
    assert found.shape == (6, 1) and found.dtype == torch.float32
    np.testing.assert_allclose(found[:, 0], plain / plain[[0, 1, 2, 5]].mean(), rtol=1e-6)
    assert torch.equal(found, idf_weights((features.take(rows) for rows in ([0], [1, 2], [3])), 6))


def test_a_bag_starts_from_the_checkpoints_tokens(tiny_model, texts):
    labels = from_rows([[4, 5], [6]], np.int32)
    bag = BagOfEmbeddings.build(bag_of(tiny_model, 2), [texts, labels], SPECIAL)
    assert bag.vectors.values.shape == (VOCABULARY + 50, 16) and bag.weights.values.shape == (VOCABULARY + 50, 1)
    torch.testing.assert_close(bag.vectors.values[:VOCABULARY], token_table(str(tiny_model)))
    assert (bag.vectors.values[VOCABULARY:] == 0).all()
    rows = features_by_hand(lists(texts) + lists(labels), VOCABULARY, 2, VOCABULARY + 50)
    torch.testing.assert_close(bag.weights.values, idf_weights([from_rows(rows, np.int64)], VOCABULARY + 50))
    assert len(BagOfEmbeddings.build(bag_of(tiny_model, 1), [texts], SPECIAL).vectors.values) == VOCABULARY


# --- bi-gru -----------------------------------------------------------------------------------------------------------


def test_a_gru_is_the_mean_of_the_states_of_each_text(texts):
    encoder = make_gru().eval()
    with torch.no_grad():
        found = encoder(texts)
        for row in range(len(texts)):
            rows = encoder.vectors.values[texts[row].astype(np.int64)]
            states = encoder.gru(rows if len(rows) else torch.zeros(1, 5))[0]  # an empty text is one zero vector
            torch.testing.assert_close(found[row], states.mean(dim=0), rtol=1e-5, atol=1e-6)


def test_a_gru_drops_in_training_alone(texts):
    encoder = make_gru(dropout=0.5)
    with torch.no_grad():
        assert not torch.equal(encoder.train()(texts), encoder(texts))
        assert torch.equal(encoder.eval()(texts), encoder(texts))


# --- transformer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_transformer_pools_what_the_library_computes(tiny_model, texts, pooling):
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(tiny_model).eval()
    with torch.no_grad():
        found = make_transformer(tiny_model, pooling).eval()(texts)
        for row in range(len(texts)):
            ids = torch.tensor([[SPECIAL["cls"], *texts[row].tolist(), SPECIAL["sep"]]])
            states = theirs(input_ids=ids).last_hidden_state[0]
            expected = states[0] if pooling == "cls" else states.mean(dim=0)
            torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("layers", "kept"), [(1, [5]), (2, [2, 5]), (3, [1, 3, 5]), (6, range(6)), (0, range(6))])
def test_the_kept_layers_are_spread_evenly_with_the_last_among_them(tiny_model, layers, kept):
    whole, cut = make_transformer(tiny_model), make_transformer(tiny_model, layers=layers)
    assert len(cut.model.encoder.layer) == cut.config()["model"]["num_hidden_layers"] == len(kept)
    for place, source in enumerate(kept):
        for one, other in zip(
            cut.model.encoder.layer[place].parameters(), whole.model.encoder.layer[source].parameters()
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize("layers", [4, 5])
def test_any_number_of_layers_are_different_ones_in_order(tiny_model, layers):
    whole, cut = make_transformer(tiny_model), make_transformer(tiny_model, layers=layers)
    sources = [layer.output.dense.weight for layer in whole.model.encoder.layer]
    kept = [
        next(i for i, weight in enumerate(sources) if torch.equal(weight, layer.output.dense.weight))
        for layer in cut.model.encoder.layer
    ]
    assert kept == sorted(set(kept)) and len(kept) == layers and kept[-1] == 5


def test_a_cut_transformer_is_rebuilt_cut(tiny_model, texts, tmp_path):
    cut = make_transformer(tiny_model, layers=2)
    save_encoder(tmp_path, cut)
    np.testing.assert_array_equal(encode(load_encoder(tmp_path), texts), encode(cut, texts))


def test_more_layers_than_there_are_or_none_to_be_found_is_refused(tiny_model):
    with pytest.raises(UserError, match="has 6 layers, not 7"):
        make_transformer(tiny_model, layers=7)
    with pytest.raises(UserError, match="layers of x could not be found"):
        transformer._keep_layers(nn.Sequential(nn.Linear(2, 2)), 1, "x")


def test_dropout_is_the_one_asked_for_and_works_from_the_first_step(tiny_model, texts):
    with torch.no_grad():
        dropping = make_transformer(tiny_model, dropout=0.4)
        assert {part.p for part in dropping.modules() if isinstance(part, nn.Dropout)} == {0.4}
        assert not torch.equal(dropping(texts), dropping(texts))
        still = make_transformer(tiny_model, dropout=0.0)
        torch.testing.assert_close(still.train()(texts), still.eval()(texts))


def test_dropout_outlives_saving(tiny_model, tmp_path):
    save_encoder(tmp_path, make_transformer(tiny_model, dropout=0.4))
    loaded = load_encoder(tmp_path)
    assert {part.p for part in loaded.modules() if isinstance(part, nn.Dropout)} == {0.4}


@pytest.mark.parametrize("most", [1, 9, 10, 4096])
def test_chunks_of_like_length_hold_few_pads_and_come_back_in_order(texts, most):
    chunks = []

    def sums(ids, mask):
        chunks.append(tuple(mask.shape))
        assert (ids[~mask] == 99).all()
        return torch.stack([(ids * mask).sum(dim=1), mask.sum(dim=1)], dim=1)

    found = by_length(texts, 99, sums, torch.device("cpu"), most=most)
    assert found.tolist() == [[sum(text), len(text)] for text in lists(texts)]
    assert all(rows == 1 or rows * width <= most for rows, width in chunks)
    assert sum(rows for rows, _ in chunks) == len(texts)
    assert len(chunks) == {1: 7, 4096: 1}.get(most, len(chunks))


def test_special_tokens_stand_around_every_text(texts):
    assert lists(transformer._frame(texts, 2, 3)) == [[2, *text, 3] for text in lists(texts)]
    assert lists(transformer._frame(from_rows([], np.int32), 2, 3)) == []


# --- token tables -----------------------------------------------------------------------------------------------------


def table_by_hand(raw: torch.Tensor) -> torch.Tensor:
    centred = raw.double() - raw.double().mean(dim=0)
    assert centred.mean(dim=0).abs().max() < 1e-6
    return (centred / centred.norm(dim=1, keepdim=True)).float()


def test_the_token_table_is_centred_and_of_length_one(tiny_model):
    raw = load_file(tiny_model / "model.safetensors")["embeddings.word_embeddings.weight"]
    torch.testing.assert_close(token_table(str(tiny_model)), table_by_hand(raw), rtol=1e-4, atol=1e-5)


def test_the_default_checkpoints_token_table():
    table = token_table(MINILM)
    assert table.shape == (30522, 384) and table.dtype == torch.float32
    torch.testing.assert_close(table.norm(dim=1), torch.ones(30522), rtol=1e-5, atol=0)
    (raw,) = (
        tensor
        for file in checkpoint_folder(MINILM).glob("*.safetensors")
        for name, tensor in load_file(file).items()
        if name.endswith("word_embeddings.weight")
    )
    torch.testing.assert_close(table, table_by_hand(raw), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_without_token_table_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no safetensors file"):
        token_table(str(tmp_path))
    save_file({"other": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="has no token table"):
        token_table(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 7, 100, -100])
def test_damaged_weights_are_a_sentence(tiny_model, tmp_path, keep):
    shutil.copytree(tiny_model, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    for load in (lambda name: token_table(name), lambda name: build(name)):
        with pytest.raises(UserError, match="model.safetensors is damaged .*fetch the model again"):
            load(str(tmp_path / "m"))


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_damaged_settings_are_a_sentence(tiny_model, tmp_path, content):
    shutil.copytree(tiny_model, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(content)
    with pytest.raises(UserError, match="config.json .*fetch the model again"):
        build(str(tmp_path / "m"))


def build(checkpoint: str):
    return build_transformer(checkpoint, {"cls": 2, "sep": 3}, pooling="mean", layers=0, dropout=0.0)


def test_the_fingerprint_of_a_checkpoint_follows_its_files(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "m")
    before = checkpoint_hash(str(tmp_path / "m"))
    assert before == checkpoint_hash(str(tiny_model))
    file = tmp_path / "m" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert checkpoint_hash(str(tmp_path / "m")) != before


def test_an_exception_does_not_wait_for_chunks_that_have_not_begun(texts):
    class Slow(BagOfEmbeddings):
        calls = 0

        def embed(self, tokens):
            Slow.calls += 1
            if Slow.calls == 2:
                raise KeyboardInterrupt
            return super().embed(tokens)

    many = from_rows([[1, 2]] * 200, np.int32)
    encoder = Slow(torch.ones(20, 4), torch.ones(20, 1), vocabulary=20, ngrams=1)
    with pytest.raises(KeyboardInterrupt):
        encode(encoder, many, chunk=1)
    assert Slow.calls < 150
