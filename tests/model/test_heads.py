"""Two heads on one encoder: what each gives, how they start, and that they come back from a folder as they were."""

import math

import numpy as np
import pytest
import torch

from xcutils.model.bag import BagOfEmbeddings
from xcutils.model.encoders import encode, load_encoder, save_encoder
from xcutils.model.gru import BiGRU
from xcutils.model.heads import TwoHeads
from xcutils.model.transformer import build_transformer

WORDS, DIMS = 16, 6


def bag(seed: int = 0) -> BagOfEmbeddings:
    generator = torch.Generator().manual_seed(seed)
    vectors, weights = torch.randn(WORDS + 8, DIMS, generator=generator), torch.rand(WORDS + 8, 1, generator=generator)
    return BagOfEmbeddings(vectors, weights, vocabulary=WORDS, ngrams=2)


def heads(dim: int = 4, *, classifier: bool = True, encoder=None, dropouts=(0.0, 0.0)) -> TwoHeads:
    """Two heads that have moved away from their start."""
    made = TwoHeads(encoder or bag(), dim=dim, classifier=classifier, dropouts=dropouts)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in made.state().items():
            if name.startswith("head."):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return made


def unit_by_hand(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def head_by_hand(layer: torch.nn.Linear, row: list[float], squash) -> list[float]:
    weights, bias = layer.weight.tolist(), layer.bias.tolist()
    return unit_by_hand([squash(sum(w * x for w, x in zip(line, row)) + b) for line, b in zip(weights, bias)])


def both_of(model: TwoHeads, texts) -> tuple:
    return model.both(model.read(texts))


def test_each_head_is_the_formula_at_length_one(texts):
    model = heads()
    text, label = both_of(model, texts)
    embeddings = model.encoder(texts)
    for row in (row for row in range(len(texts)) if len(texts[row])):
        raw = unit_by_hand(embeddings[row].tolist())
        assert text[row].tolist() == pytest.approx(head_by_hand(model.text, raw, math.tanh), abs=1e-5)
        assert label[row].tolist() == pytest.approx(head_by_hand(model.label, raw, lambda x: x), abs=1e-5)


def test_the_heads_as_the_source_has_them(texts):
    """It does not bring E to length one, and trains the second head as it is."""
    model = heads()
    model.normalise_first = False
    text, label = model.both(model.read(texts), False)
    embeddings = model.encoder(texts)
    for row in (row for row in range(len(texts)) if len(texts[row])):
        raw = embeddings[row].tolist()
        assert text[row].tolist() == pytest.approx(head_by_hand(model.text, raw, math.tanh), abs=1e-5)
        lines = zip(model.label.weight.tolist(), model.label.bias.tolist())
        wanted = [sum(w * x for w, x in zip(line, raw)) + bias for line, bias in lines]
        assert label[row].tolist() == pytest.approx(wanted, abs=1e-4)
    assert model.config()["normalise_first"] is False
    assert torch.equal(model.both(model.read(texts))[1], torch.nn.functional.normalize(label, dim=1))


def test_a_text_without_words_has_a_finite_vector(texts):
    for part in both_of(heads(), texts):
        assert torch.isfinite(part).all() and part.norm(dim=1).tolist() == pytest.approx([1.0] * len(texts))
    fresh = TwoHeads(bag(), dim=DIMS, classifier=True)  # a bias of zero: nothing to point anywhere
    assert torch.isfinite(fresh(texts)).all()


def test_as_an_encoder_one_dot_product_is_the_mean_of_both_cosines(texts):
    model = heads()
    text, label = both_of(model, texts)
    assert model.dim == 8 and torch.equal(model(texts), torch.cat([text, label], dim=1))
    vectors = encode(model, texts)
    expected = (text @ text.T + label @ label.T) / 2
    np.testing.assert_allclose(vectors @ vectors.T, expected.detach().numpy(), atol=1e-5)


def test_without_a_classifier_there_is_one_head(texts):
    model = heads(classifier=False)
    text, nothing = both_of(model, texts)
    assert nothing is None and model.dim == model.size == 4
    assert torch.equal(model(texts), text) and torch.equal(text, both_of(heads(), texts)[0])
    assert sorted(name for name in model.state() if name.startswith("head.")) == ["head.text.bias", "head.text.weight"]


def test_heads_of_the_encoders_size_start_in_its_space(texts):
    model = TwoHeads(bag(), dim=DIMS, classifier=True)
    raw = torch.nn.functional.normalize(model.encoder(texts), dim=1)
    text, label = both_of(model, texts)
    torch.testing.assert_close(label, raw)
    torch.testing.assert_close(text, torch.nn.functional.normalize(torch.tanh(raw), dim=1))


@pytest.mark.parametrize("dim", [3, 10])
def test_heads_of_another_size_start_as_projections(dim):
    torch.manual_seed(0)
    weight = TwoHeads(bag(), dim=dim, classifier=True).text.weight
    square = weight @ weight.T if dim < DIMS else weight.T @ weight
    torch.testing.assert_close(square, torch.eye(min(dim, DIMS)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("moved", [0, 1])
def test_each_head_has_a_dropout_of_its_own_while_training_alone(texts, moved):
    model = heads(dropouts=(0.5, 0.0) if moved == 0 else (0.0, 0.5))
    still = both_of(heads(), texts)
    torch.manual_seed(0)
    found = both_of(model.train(), texts)
    assert not torch.allclose(found[moved], still[moved]) and torch.equal(found[1 - moved], still[1 - moved])
    assert torch.isfinite(found[moved]).all()
    assert all(torch.equal(one, other) for one, other in zip(both_of(model.eval(), texts), still))


def test_tables_and_state_are_the_live_ones(texts):
    model = heads()
    assert model.tables is model.encoder.tables
    before = encode(model, texts)
    with torch.no_grad():
        for tensor in model.state().values():
            tensor.mul_(1.5).add_(0.1)
    assert np.abs(encode(model, texts) - before).max() > 1e-3


def test_a_loss_of_either_head_reaches_the_encoder(texts):
    model = heads()
    for part, other in (("text", "label"), ("label", "text")):
        model.zero_grad(set_to_none=True)
        for table in model.tables:
            table.clear()
        both_of(model, texts)[0 if part == "text" else 1].square().mul(torch.arange(4.0)).sum().backward()
        assert getattr(model, part).weight.grad.abs().sum() > 0 and getattr(model, other).weight.grad is None
        assert all(sum(g.abs().sum() for g in table.gradients()) > 0 for table in model.tables)


@pytest.mark.parametrize("classifier", [True, False])
@pytest.mark.parametrize("kind", ["bag-of-embeddings", "bi-gru", "transformer"])
def test_a_saved_model_gives_the_same_vectors_to_the_bit(texts, tiny_model, tmp_path, kind, classifier):
    torch.manual_seed(2)
    encoders = {
        "bag-of-embeddings": bag,
        "bi-gru": lambda: BiGRU(torch.randn(WORDS, DIMS), hidden=5, dropout=0.0),
        "transformer": lambda: build_transformer(
            str(tiny_model), {"cls": 2, "sep": 3}, pooling="mean", layers=1, dropout=0.0
        ),
    }
    model = heads(classifier=classifier, encoder=encoders[kind]())
    save_encoder(tmp_path, model)
    loaded = load_encoder(tmp_path)
    assert loaded.config() == model.config() and loaded.config()["encoder"]["kind"] == kind
    assert (loaded.dim, loaded.size) == (model.dim, model.size)
    np.testing.assert_array_equal(encode(loaded, texts), encode(model, texts))
