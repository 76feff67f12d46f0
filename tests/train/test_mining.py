"""Hard negatives: near, wrong, different, and the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from xcutils.core.vectors import unit
from xcutils.search import searcher
from xcutils.train.mining import Miner

DOCS, LABELS, DIMS = 12, 40, 6


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray, sparse.csr_matrix]:
    rng = np.random.default_rng(seed)
    known = sparse.csr_matrix((rng.random((DOCS, LABELS)) < 0.1).astype(np.float32))
    return unit(rng.standard_normal((DOCS, DIMS))), unit(rng.standard_normal((LABELS, DIMS))), known


def nearest_by_hand(query, labels, known, depth) -> set[int]:
    """Among the `depth` nearest labels, those that are not known."""
    order = sorted(range(len(labels)), key=lambda i: -float(query @ labels[i]))[:depth]
    return {label for label in order if not known[label]}


@pytest.mark.parametrize("through", ["exact", "graph"])
@pytest.mark.parametrize("depth", [5, 15, 100])
def test_negatives_are_the_nearest_labels_that_are_not_known(depth, through, monkeypatch):
    monkeypatch.setattr(searcher, "MINED_EXACTLY", 1 << 16 if through == "exact" else 0)
    docs, labels, known = world()
    miner = Miner(known, depth)
    some = np.array([7, 0, 3])
    miner.refresh(some, docs[some], labels, seed=0)
    drawn = miner.draw(some, depth, np.random.default_rng(0))
    for place, doc in enumerate(some):
        assert set(drawn[place]) == nearest_by_hand(docs[doc], labels, known[[doc]].toarray()[0], depth)
    assert len(miner.draw(np.array([1, 2]), 3, np.random.default_rng(0)).values) == 0  # not searched for yet


@pytest.mark.parametrize("depth, among", [(3, 20), (8, 12), (10, 5), (4, LABELS)])
def test_of_more_labels_the_nearest_wrong_ones_are_kept(depth, among):
    """A document's own labels take no place of them, however many are nearer."""
    docs, labels, known = world(2)
    known = known.tolil()
    for doc in range(DOCS):
        known[doc, np.argsort(-labels @ docs[doc])[:2]] = 1
    known = known.tocsr()
    miner = Miner(known, depth, among=among)
    miner.refresh(np.arange(DOCS), docs, labels, seed=0)
    for doc in range(DOCS):
        order = sorted(range(LABELS), key=lambda i: -float(docs[doc] @ labels[i]))[: max(depth, among)]
        wanted = [label for label in order if not known[doc, label]][:depth]
        found = miner.near[doc]
        assert set(found[found >= 0]) == set(wanted)
        assert among <= depth or found[: len(wanted)].tolist() == wanted


@given(seed=st.integers(0, 1000), count=st.integers(1, 12), depth=st.integers(1, 50))
def test_draws_are_different_wrong_and_at_most_so_many(seed, count, depth):
    docs, labels, known = world(seed)
    miner = Miner(known, depth)
    miner.refresh(np.arange(DOCS), docs, labels, seed=0)
    drawn = miner.draw(np.arange(DOCS), count, np.random.default_rng(seed))
    again = miner.draw(np.arange(DOCS), count, np.random.default_rng(seed))
    np.testing.assert_array_equal(drawn.values, again.values)
    for doc in range(DOCS):
        there = nearest_by_hand(docs[doc], labels, known[[doc]].toarray()[0], depth)
        assert len(set(drawn[doc])) == len(drawn[doc]) == min(count, len(there))
        assert set(drawn[doc]) <= there


def test_every_near_label_is_drawn_in_time():
    docs, labels, known = world(1)
    miner, rng = Miner(known, 8), np.random.default_rng(0)
    miner.refresh(np.arange(DOCS), docs, labels, seed=0)
    seen = {label for _ in range(60) for label in miner.draw(np.array([4]), 2, rng).values}
    assert seen == nearest_by_hand(docs[4], labels, known[[4]].toarray()[0], 8)
