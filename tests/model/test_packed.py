"""Texts without padding give what the Hugging Face model gives for each, and the same gradients."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.ragged import Ragged, from_rows
from xcutils.model import packed, transformer
from xcutils.model.packed import Packed, packable
from xcutils.model.transformer import Transformer, _keep_layers

KINDS = ["Bert", "Roberta", "XLMRoberta", "DistilBert", "MPNet"]
PAD = 1  # of RoBERTa and MPNet, whose positions depend on it
CPU = torch.device("cpu")
steady = settings(derandomize=True, deadline=None)


def make_model(kind: str, layers: int = 3):
    """A small random model of the kind, without dropout."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": layers}
    if kind == "DistilBert":
        sizes = {"dim": 16, "hidden_dim": 32, "n_heads": 2, "n_layers": layers}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")
    made = config(vocab_size=30, max_position_embeddings=20, initializer_range=0.3, pad_token_id=PAD, **sizes)
    model = getattr(transformers, f"{kind}Model")(made)
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim == 1:  # biases start at 0 and norms at 1, which would hide one in the wrong place
                values += torch.randn_like(values) * 0.2
    return model.eval()


@pytest.fixture
def many() -> Ragged:
    """Texts of 0 to 8 tokens, the id of the padding among them, in no order."""
    rng = np.random.default_rng(0)
    return from_rows([rng.integers(0, 30, rng.integers(0, 9)).tolist() for _ in range(40)] + [[PAD, 4, PAD]], np.int32)


def gradients(encode: Callable[[], torch.Tensor], model) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(embeddings, gradient of each parameter), of a sum in which every number has another weight."""
    model.zero_grad(set_to_none=True)
    found = encode()
    (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
    named = ((name, values.grad) for name, values in model.named_parameters())
    return found.detach(), {name: gradient.clone() for name, gradient in named if gradient is not None}


def one_by_one(model, texts: Ragged, pooling: str) -> torch.Tensor:
    """The library's own model on each text alone."""
    rows = []
    for row in range(len(texts)):
        states = model(input_ids=torch.tensor([[2, *texts[row].tolist(), 3]])).last_hidden_state[0]
        rows.append(states[0] if pooling == "cls" else states.mean(dim=0))
    return torch.stack(rows)


def assert_same(ours, theirs) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in ours[1].items():
        torch.testing.assert_close(gradient, theirs[1][name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("layers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_texts_give_what_the_model_gives_padded_or_alone(kind, layers, pooling, many):
    model = make_model(kind)
    if layers:
        _keep_layers(model, layers, "x")
    encoder = Transformer(model, pooling=pooling, cls=2, sep=3).eval()
    assert encoder.packed is not None and len(encoder.packed.layers) == (layers or 3)
    ours = gradients(lambda: encoder(many), model)
    assert_same(ours, gradients(lambda: one_by_one(model, many, pooling), model))
    encoder.packed = None
    assert_same(ours, gradients(lambda: encoder(many), model))


def test_in_bfloat16_the_products_are_rounded_and_the_rest_is_not(many, monkeypatch):
    model = make_model("Bert")
    encoder = Transformer(model, pooling="mean", cls=2, sep=3).eval()
    exact = gradients(lambda: encoder(many), model)
    monkeypatch.setattr(transformer, "mixed_precision", lambda device: torch.autocast("cpu", torch.bfloat16))
    rounded = gradients(lambda: encoder(many), model)
    assert rounded[0].dtype == torch.float32 and all(part.dtype == torch.float32 for part in rounded[1].values())
    apart = 1 - torch.cosine_similarity(rounded[0], exact[0])
    assert not torch.equal(rounded[0], exact[0]) and apart.max() < 1e-3
    assert exact[1].keys() == rounded[1].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_wider_units_give_the_same(kind, many, monkeypatch):
    model = make_model(kind)
    encoder = Transformer(model, pooling="mean", cls=2, sep=3).eval()
    narrow = gradients(lambda: encoder(many), model)
    monkeypatch.setenv("XC_PORTABLE", "0")
    monkeypatch.setenv("XC_PRECISION", "float32")
    assert_same(gradients(lambda: encoder(many), model), narrow)


@pytest.mark.parametrize("most", [1, 7, 30, 10**6])
def test_chunks_of_any_size_give_the_same(most, many):
    model = make_model("Bert")
    lengths = many.lengths + 2
    framed = Ragged(np.arange(lengths.sum()) % 30, np.concatenate([[0], np.cumsum(lengths)]))
    whole, parts = (
        gradients(lambda most=size: Packed(model).pool(framed, "mean", CPU, most), model) for size in (4096, most)
    )
    assert_same(parts, whole)


@steady
@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 30))
def test_chunks_hold_every_text_once_and_no_more_tokens_than_asked_for(lengths, most):
    lengths = sorted(lengths)
    chunks = list(packed._chunks(np.array(lengths, dtype=np.int64), most))
    unfolded = [length for groups in chunks for texts, length in groups for _ in range(texts)]
    assert unfolded == lengths
    for groups in chunks:
        assert packed._size(groups) <= most or [texts for texts, _ in groups] == [1]
        assert len({length for _, length in groups}) == len(groups)


def test_positions_are_those_of_the_library(many):
    rows = many.take(np.flatnonzero(many.lengths))
    plain, after = (packed._positions(rows, pad) for pad in (None, PAD))
    embeddings = make_model("Roberta").embeddings
    for row in range(len(rows)):
        here = slice(rows.offsets[row], rows.offsets[row + 1])
        assert plain[here].tolist() == list(range(rows.lengths[row]))
        ids = torch.from_numpy(rows[row].astype(np.int64))[None]
        assert after[here].tolist() == embeddings.create_position_ids_from_input_ids(ids, PAD)[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["attention", "hidden"])
def test_each_dropout_works_in_training_and_not_in_evaluation(kind, part, many):
    encoder = Transformer(make_model(kind), pooling="mean", cls=2, sep=3)
    attention = {id(layer.dropout) for layer in encoder.packed.layers}
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5 if (id(module) in attention) == (part == "attention") else 0.0
    with torch.no_grad():
        assert torch.equal(encoder.eval()(many), encoder(many))
        assert not torch.allclose(encoder.train()(many), encoder(many))


def test_a_layout_that_is_not_known_is_padded(many):
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.ElectraModel(transformers.ElectraConfig(vocab_size=30, embedding_size=16, **sizes)).eval()
    encoder = Transformer(model, pooling="mean", cls=2, sep=3).eval()
    assert not packable(model) and encoder.packed is None
    with torch.no_grad():
        torch.testing.assert_close(encoder(many), one_by_one(model, many, "mean"), rtol=1e-5, atol=1e-5)
    decoder = make_model("Bert")
    decoder.config.is_decoder = True  # a token would see only those before it
    assert not packable(decoder)


def test_a_copy_has_weights_of_its_own_and_none_is_held_twice(many):
    encoder = Transformer(make_model("Bert"), pooling="mean", cls=2, sep=3).eval()
    assert encoder.state().keys() == encoder.model.state_dict().keys()
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        before = encoder(many)
        for values in other.parameters():
            values.mul_(1.1)
        assert torch.equal(encoder(many), before) and not torch.allclose(other(many), before)
