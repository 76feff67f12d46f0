import numpy as np
import pytest

from xcutils.core.vectors import unit
from xcutils.rank.packing import EFS, reach
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES

GRAPH = Building(m=3, ef_construction=4)


def vectors(rows: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((rows, 24)))


def found_share(index, queries: np.ndarray, all_vectors: np.ndarray, k: int, ef: int) -> float:
    """By hand: how many of the true k nearest are found with this ef."""
    index.ef = ef
    found = index.search(queries, k)[0]
    true = np.argsort(-(queries @ all_vectors.T), axis=1)[:, :k]
    return float(np.mean([len(set(f) & set(t)) / k for f, t in zip(found.tolist(), true.tolist())]))


@pytest.mark.parametrize("least", [0.5, 0.8, 0.95])
def test_the_smallest_reach_that_is_enough_is_taken(least):
    queries, all_vectors = vectors(40, 1), vectors(3000, 2)
    index = INDEXES["hnsw"].over(all_vectors, GRAPH, ef=32)
    ef = reach(index, queries, all_vectors, 10, least)
    shares = {one: found_share(index, queries, all_vectors, 10, one) for one in EFS}
    enough = [one for one in EFS if shares[one] >= least - 0.01]
    assert ef in EFS and shares[ef] >= min(least - 0.01, shares[EFS[-1]])
    assert not enough or ef <= enough[0] * 2


def test_a_reach_is_never_below_the_one_that_is_given():
    queries, all_vectors = vectors(5, 1), vectors(50, 2)
    index = INDEXES["hnsw"].over(all_vectors, Building(m=8, ef_construction=50), ef=32)
    assert reach(index, queries, all_vectors, 10, 0.5, 70) == 70
    assert reach(index, queries, all_vectors, 10, 0.5) == EFS[0]


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_without_vectors_or_queries_reaches_nothing(name):
    nothing = np.zeros((4, 8), dtype=np.float32)
    assert reach(INDEXES[name].over(nothing, GRAPH, ef=9), vectors(3, 0)[:, :8], nothing, 10, 0.9, 5) == EFS[0]
    some = vectors(9, 0)
    assert reach(INDEXES[name].over(some, GRAPH, ef=9), some[:0], some, 10, 0.9, 70) == 70
