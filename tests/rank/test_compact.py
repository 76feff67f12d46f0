import numpy as np
import pytest
import torch

from xcutils.core.ragged import from_rows
from xcutils.model.bag import BagOfEmbeddings
from xcutils.model.encoders import encode
from xcutils.rank.compact import CompactBag

WORDS, BUCKETS, DIMS = 30, 50, 16
TEXTS = from_rows([[1, 2, 3], [], [29], [4, 4, 5, 6, 7, 8], [0, 9]], np.int32)


def made(ngrams: int) -> BagOfEmbeddings:
    rng = np.random.default_rng(0)
    rows = WORDS + (BUCKETS if ngrams > 1 else 0)
    vectors = torch.from_numpy(rng.standard_normal((rows, DIMS))).float()
    vectors[WORDS + 3 : WORDS + 20] = 0  # buckets that training has not touched
    return BagOfEmbeddings(vectors, torch.rand(rows, 1) + 0.5, vocabulary=WORDS, ngrams=ngrams)


def compact(bag: BagOfEmbeddings) -> CompactBag:
    tables = bag.vectors.numpy(), bag.weights.numpy()
    return CompactBag.of(*tables, vocabulary=bag.vocabulary, ngrams=bag.ngrams)


@pytest.mark.parametrize("ngrams", [1, 2, 3])
def test_the_small_encoder_gives_nearly_the_vectors_of_the_trained_one(ngrams, tmp_path):
    bag = made(ngrams)
    small = compact(bag)
    small.save(tmp_path)
    for one in (small, CompactBag.load(tmp_path)):
        np.testing.assert_allclose(one.embed(TEXTS), encode(bag, TEXTS), atol=6e-3)
    if ngrams > 1:
        assert len(small.rows) == WORDS + BUCKETS - 17 + 1  # and the zero row
    assert small.rows.dtype == np.int8


def test_a_row_is_rounded_to_its_own_scale():
    """By hand: each row to 127 steps of its largest entry."""
    vectors = np.array([[1.0, -0.5, 0.001], [100.0, 3.0, 0.0]], dtype=np.float32)
    small = CompactBag.of(vectors, np.array([[2.0], [1.0]], dtype=np.float32), vocabulary=2, ngrams=1)
    assert small.rows.tolist() == [[127, -64, 0], [127, 4, 0], [0, 0, 0]]
    np.testing.assert_allclose(small.scales, [2 / 127, 100 / 127, 0], rtol=1e-6)


def test_a_text_alone_has_the_vector_that_it_has_among_others(monkeypatch):
    small = compact(made(2))
    together = small.embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), [1, 0, 1, 1, 1], atol=1e-6)
    monkeypatch.setattr("xcutils.rank.compact.TEXTS", 2)
    np.testing.assert_array_equal(small.embed(TEXTS), together)
    for i in range(len(TEXTS)):
        np.testing.assert_array_equal(small.embed(TEXTS.take(np.array([i])))[0], together[i])
