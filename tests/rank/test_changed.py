"""An index with vectors added and taken out answers as one that was built anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.rank.changed import Changed
from xcutils.rank.served import search
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES

BUILDING = Building(m=8, ef_construction=64)
DIM = 8


def vectors(count: int, seed: int) -> np.ndarray:
    """Vectors of length one, in sixteenths so that half precision holds them; the first and every tenth are zero."""
    rng = np.random.default_rng(seed)
    out = rng.integers(-16, 17, (count, DIM)).astype(np.float32) / 16
    out[::10] = 0
    return out


def rebuilt(own: np.ndarray, dead: np.ndarray, added: np.ndarray, queries: np.ndarray, k: int) -> list[list[float]]:
    """The k highest products of each query with the vectors that are there, by hand."""
    left = [v for i, v in enumerate([*own, *added]) if i not in set(dead.tolist()) and np.any(v)]
    return [sorted((float(query @ v) for v in left), reverse=True)[:k] for query in queries]


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 5, 60]), st.sampled_from([0, 1, 30]), st.sampled_from([1, 7, 200]))
@settings(max_examples=40, deadline=None)
def test_an_exact_index_with_changes_finds_what_one_that_is_built_anew_would(seed, n_dead, n_added, k):
    rng = np.random.default_rng(seed)
    own, added, queries = vectors(60, seed), vectors(n_added, seed + 1), vectors(5, seed + 2)[1:]
    dead = rng.choice(60, n_dead, replace=False)
    index = Changed(INDEXES["exact"].over(own, BUILDING, ef=0), 60, dead, added)
    expected = rebuilt(own, dead, added, queries, k)
    ids, scores = search(index, queries, k, 60 + n_added)
    assert len(index) == sum(bool(np.any(v)) for i, v in enumerate([*own, *added]) if i not in dead.tolist())
    for row, row_scores, best in zip(ids, scores, expected):
        found = row >= 0
        np.testing.assert_allclose(row_scores[found], best, rtol=1e-6, atol=1e-6)
        assert not np.isin(row[found], dead).any() and len(set(row[found].tolist())) == found.sum()
    taken = index.take(np.arange(60 + n_added))
    assert not taken[dead].any()
    is_alive = ~np.isin(np.arange(60 + n_added), dead)
    np.testing.assert_array_equal(taken[is_alive], np.concatenate([own, added])[is_alive])


@pytest.mark.parametrize("name", ["hnsw", "hnswlib"])
def test_a_graph_with_changes_finds_nearly_what_is_there_and_never_what_is_gone(name):
    rng = np.random.default_rng(0)
    own, added = (rng.normal(size=(count, DIM)).astype(np.float32) for count in (2000, 100))
    own, added = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (own, added))
    queries = own[:50]
    near = np.argsort(-(queries @ own.T), axis=1)[:, :40]
    dead = np.unique(near)  # all that a search would find first
    index = Changed(INDEXES[name].over(own, BUILDING, ef=64), 2000, dead, added)
    ids, scores = search(index, queries, 10, 2100)
    assert not np.isin(ids, dead).any() and (ids >= 0).all() and (np.diff(scores, axis=1) <= 0).all()
    left = np.setdiff1d(np.arange(2100), dead)
    truth = left[np.argsort(-(queries @ np.concatenate([own, added])[left].T), axis=1)[:, :10]]
    share = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(ids, truth)])
    assert share > 0.9


def test_an_index_that_cannot_answer_leaves_it_to_exact_search():
    class Short:
        def __len__(self):
            return 3

        def search(self, queries, k, threads=1):
            return None

        def seen(self, queries):
            return queries

        def take(self, ids):
            return own[ids]

    own = np.eye(3, dtype=np.float32)
    index = Changed(Short(), 3, np.array([1]), np.array([[1, 1, 0]], np.float32))
    ids, scores = search(index, own[:2], 3, 4)
    assert ids.tolist() == [[0, 3, 2], [3, 0, 2]] and scores[0].tolist() == [1, 1, 0]
