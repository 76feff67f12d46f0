"""Gradient caching against encoding all texts at once."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from xcutils.core.ragged import Ragged, from_rows
from xcutils.model.bag import BagOfEmbeddings
from xcutils.model.caching import embed_cached
from xcutils.model.encoder import Encoder
from xcutils.train.training import Optimisers

WORDS, DIMS = 30, 6


def texts(count: int) -> Ragged:
    rng = np.random.default_rng(count)
    return from_rows([rng.integers(0, WORDS, rng.integers(1, 5)) for _ in range(count)], np.int32)


class Dense(Encoder):
    """An encoder with dense weights and dropout."""

    tables = []
    dim = DIMS

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, DIMS), nn.Linear(DIMS, DIMS)
        self.most = 0  # texts encoded at once

    def embed(self, tokens: Ragged) -> torch.Tensor:
        self.most = max(self.most, len(tokens))
        ids, offsets = torch.from_numpy(tokens.values).long(), torch.from_numpy(tokens.offsets[:-1])
        bags = F.embedding_bag(ids, self.words.weight, offsets, mode="mean")
        return F.dropout(self.layer(bags), 0.5, self.training)


def bag() -> BagOfEmbeddings:
    generator = torch.Generator().manual_seed(0)
    vectors, weights = torch.randn(WORDS, DIMS, generator=generator), torch.rand(WORDS, 1, generator=generator)
    encoder = BagOfEmbeddings(vectors, weights, vocabulary=WORDS, ngrams=1)
    for table in encoder.tables:
        table.lr = 0.1
    return encoder


def loss_of(docs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (F.normalize(docs, dim=1) @ F.normalize(labels, dim=1).T).exp().mean()


def test_a_step_is_that_of_all_texts_at_once():
    """The same encoder also encodes the documents, with their graph kept, as in DEXML."""
    whole, cached = bag(), bag()
    for step in range(4):
        docs, labels = texts(5 + step), texts(23)
        loss_of(whole(docs), whole(labels)).backward()
        loss_of(cached(docs), embed_cached(cached, cached.read(labels), 4)).backward()
        for encoder in (whole, cached):
            Optimisers(None, 0.1, tables=encoder.tables).step(1.0)
    torch.testing.assert_close(whole.vectors.values, cached.vectors.values, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(whole.weights.values, cached.weights.values, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("chunk", [1, 6, 100])
def test_dropout_falls_alike_both_times(chunk):
    torch.manual_seed(0)
    encoder, labels = Dense(), texts(17)
    torch.manual_seed(1)
    parts = [encoder(labels.take(np.arange(i, min(i + chunk, 17)))) for i in range(0, 17, chunk)]
    torch.cat(parts).pow(2).sum().backward()
    wanted = [p.grad.clone() for p in encoder.parameters()]
    after = torch.rand(3)
    encoder.zero_grad()
    torch.manual_seed(1)
    embed_cached(encoder, labels, chunk).pow(2).sum().backward()
    torch.testing.assert_close([p.grad for p in encoder.parameters()], wanted)
    assert torch.equal(torch.rand(3), after)  # the generator stands where it would have stood


def test_no_more_texts_than_a_chunk_are_encoded_at_once():
    encoder = Dense()
    embed_cached(encoder, texts(40), 7).sum().backward()
    assert encoder.most == 7


def test_without_gradients_nothing_waits_for_a_step():
    encoder = bag()
    with torch.no_grad():
        out = embed_cached(encoder, encoder.read(texts(9)), 4)
    torch.testing.assert_close(out, encoder(texts(9)).detach())
    encoder.vectors.clear(), encoder.weights.clear()
    assert out.requires_grad is False and all(not table.gradients() for table in encoder.tables)
