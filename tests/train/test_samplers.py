from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.ragged import from_rows
from xcutils.train import samplers
from xcutils.train.samplers import (
    ClusteredEpochs,
    KnownPairs,
    cluster_size,
    clustered_batches,
    first_columns,
    sample_positives,
)

steady = settings(derandomize=True, deadline=None)
CURRICULUM = {"first_epoch": 2, "first": 4, "double_every": 3, "last": 20}


def batches_of(clusters, size: int, seed: int) -> list[list[int]]:
    return [batch.tolist() for batch in clustered_batches(np.array(clusters), size, np.random.default_rng(seed))]


# --- batches ----------------------------------------------------------------------------------------------------------


@steady
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_visits_each_doc_once_and_keeps_clusters_together(clusters, size, seed):
    batches = batches_of(clusters, size, seed)
    order = [doc for batch in batches for doc in batch]
    assert sorted(order) == list(range(len(clusters)))
    assert all(len(batch) == size for batch in batches[:-1]) and 1 <= len(batches[-1]) <= size
    changes = sum(clusters[one] != clusters[other] for one, other in zip(order, order[1:]))
    assert changes == len(set(clusters)) - 1


def test_the_order_is_the_generators():
    clusters = np.arange(30) // 3
    assert batches_of(clusters, 6, 1) == batches_of(clusters, 6, 1) != batches_of(clusters, 6, 2)
    rng = np.random.default_rng(0)
    first, second = ([b.tolist() for b in clustered_batches(clusters, 6, rng)] for _ in range(2))
    assert first != second


def test_clusters_come_in_uniformly_random_order():
    rng = np.random.default_rng(0)
    seen = Counter(tuple(next(clustered_batches(np.arange(3), 3, rng))) for _ in range(3000))
    assert len(seen) == 6
    assert sum((count - 500) ** 2 / 500 for count in seen.values()) < 20.5  # chi-square, 5 degrees, p = 0.001


@pytest.mark.parametrize(
    ("epoch", "size"),
    [(0, 1), (1, 1), (2, 4), (3, 4), (4, 4), (5, 8), (7, 8), (8, 16), (10, 16), (11, 20), (14, 20), (10**6, 20)],
)
def test_cluster_sizes_double_from_the_first_to_the_last(epoch, size):
    assert cluster_size(epoch, **CURRICULUM) == size


def test_the_curriculum_of_the_papers_configuration():
    sizes = [cluster_size(e, first_epoch=10, first=4, double_every=25, last=512) for e in (9, 10, 34, 35, 60, 185, 299)]
    assert sizes == [1, 4, 4, 8, 16, 512, 512]


def test_a_last_size_below_the_first_holds_the_first():
    assert [cluster_size(e, first_epoch=0, first=32, double_every=1, last=8) for e in range(4)] == [32] * 4


@pytest.fixture
def clusterings(monkeypatch):
    """Every clustering that is asked for: (vectors, count, seed)."""
    calls, real = [], samplers.balanced_clusters

    def spy(vectors, count, *, seed):
        calls.append((vectors.copy(), count, seed))
        return real(vectors, count, seed=seed)

    monkeypatch.setattr(samplers, "balanced_clusters", spy)
    return calls


def test_epochs_are_random_then_clustered_anew_every_few(clusterings):
    docs = np.arange(3, 51)  # not all docs are visited
    bank = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    epochs = ClusteredEpochs(docs, bank, batch_size=7, refresh=2, seed=100, **CURRICULUM)
    sizes, seeds = [], []
    for epoch in range(10):
        bank += 1  # the encoder moves on: clusters follow the latest embeddings
        before = len(clusterings)
        batches = epochs(epoch, np.random.default_rng([0, epoch]))
        assert sorted(np.concatenate(batches)) == docs.tolist() and len(batches) == 7
        sizes.append(np.bincount(epochs.clusters).max())
        if len(clusterings) > before:
            vectors, count, seed = clusterings[-1]
            assert np.array_equal(vectors, bank[docs]) and count == round(48 / cluster_size(epoch, **CURRICULUM))
            seeds.append(seed)
        members = [set(docs[epochs.clusters == cluster]) for cluster in range(epochs.clusters.max() + 1)]
        order = np.concatenate(batches).tolist()
        for group in members:
            place = sorted(order.index(doc) for doc in group)
            assert place[-1] - place[0] == len(group) - 1
    # Clustered in epochs 2, 4, 6 and 8; the size is the one of the epoch in which the clusters were made.
    assert seeds == [102, 104, 106, 108]
    assert sizes == [1, 1, 4, 4, 4, 4, 8, 8, 16, 16]


def test_epochs_after_others_go_on_with_their_curriculum(clusterings):
    bank = np.random.default_rng(0).standard_normal((48, 4)).astype(np.float32)
    epochs = ClusteredEpochs(np.arange(48), bank, batch_size=7, refresh=4, seed=0, after=7, **CURRICULUM)
    for epoch in range(4):
        epochs(epoch, np.random.default_rng(epoch))
    # Clusters are made at once, and then when the epochs before and these together say so: before the eleventh.
    sizes = [cluster_size(epoch, **CURRICULUM) for epoch in (7, 10)]
    assert [count for _, count, _ in clusterings] == [round(48 / size) for size in sizes]


def test_clusters_act_in_the_epoch_that_makes_them():
    bank = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    settings_ = {"first_epoch": 1, "first": 5, "double_every": 9, "last": 5}
    epochs = ClusteredEpochs(np.arange(20), bank, batch_size=5, refresh=1, seed=0, **settings_)
    assert any(len(set(batch // 5)) > 1 for batch in epochs(0, np.random.default_rng(0)))
    assert all(len(set(batch // 5)) == 1 for batch in epochs(1, np.random.default_rng(0)))


def test_a_cluster_larger_than_the_data_is_one_cluster():
    settings_ = {"first_epoch": 0, "first": 64, "double_every": 1, "last": 64}
    epochs = ClusteredEpochs(np.arange(9), np.eye(9, dtype=np.float32), batch_size=4, refresh=1, seed=0, **settings_)
    assert sorted(np.concatenate(epochs(0, np.random.default_rng(0)))) == list(range(9))
    assert (epochs.clusters == 0).all()


# --- positives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_sampled_positives_are_different_own_and_at_most_count(positives, count):
    docs = np.array([6, 0, 3, 2, 6])
    for seed in range(20):
        sampled = sample_positives(positives, docs, count, np.random.default_rng(seed))
        assert len(sampled) == len(docs)
        for row, doc in enumerate(docs):
            own = positives[doc].tolist()
            drawn = sampled[row].tolist()
            assert len(drawn) == len(set(drawn)) == min(count, len(own)) and set(drawn) <= set(own)


def test_sampled_positives_are_uniform_and_the_generators(positives):
    docs = np.array([0, 6])
    drawn = [tuple(sorted(sample_positives(positives, docs, 2, np.random.default_rng(s))[1])) for s in range(4000)]
    seen = Counter(drawn)
    assert set(seen) == set(combinations(positives[6].tolist(), 2))
    assert sum((count - 400) ** 2 / 400 for count in seen.values()) < 27.9  # chi-square, 9 degrees, p = 0.001
    once, again = (sample_positives(positives, docs, 2, np.random.default_rng(5)).values for _ in range(2))
    assert np.array_equal(once, again)


@steady
@given(st.lists(st.sets(st.integers(0, 11)).map(sorted), min_size=1, max_size=8), st.data())
def test_known_pairs_are_the_slice_of_the_label_matrix(rows, data):
    positives = from_rows(rows, np.int32)
    known = KnownPairs(positives, 12)
    soft = KnownPairs(positives, 12, np.arange(len(positives.values), dtype=np.float32))
    for _ in range(2):  # the second time on the same scratch
        docs = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)), dtype=np.int64)
        labels = np.array(data.draw(st.lists(st.integers(0, 11), unique=True)), dtype=np.int64)
        expected = positives.csr(12).toarray()[docs][:, labels] > 0
        found, columns, nothing = known.within(docs, labels)
        mask = np.zeros(expected.shape, dtype=bool)
        mask[found, columns] = True
        assert nothing is None and np.array_equal(mask, expected)
        weights = dict(zip(zip(positives.row_ids().tolist(), positives.values.tolist()), range(len(positives.values))))
        assert soft.within(docs, labels)[2].tolist() == [
            weights[docs[row], labels[column]] for row, column in zip(found, columns)
        ]
        assert list(zip(found.tolist(), columns.tolist())) == [
            (row, labels.tolist().index(label))
            for row, doc in enumerate(docs)
            for label in rows[doc]
            if label in labels
        ]
        assert (known.column == -1).all()


def test_first_columns_are_places_in_the_pool():
    sampled = from_rows([[7, 2], [], [4], [2, 9, 4]], np.int32)
    pool = np.array([2, 4, 7, 9])
    assert first_columns(sampled, pool, 3).tolist() == [[2, 0, -1], [-1, -1, -1], [1, -1, -1], [0, 3, 1]]


def test_first_columns_lead_back_to_the_sampled_labels(positives):
    sampled = sample_positives(positives, np.arange(7), 3, np.random.default_rng(0))
    pool = np.unique(sampled.values)
    for row, columns in enumerate(first_columns(sampled, pool, 3)):
        assert pool[columns[columns >= 0]].tolist() == sampled[row].tolist()
