"""Clusters: exact sizes, determinism, and quality against slow by-hand versions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.errors import UserError
from xcutils.train import clustering
from xcutils.train.clustering import balanced_clusters, kmeans_clusters, mean_cosine


def mixture(n: int, centres: int, seed: int = 0, dims: int = 16, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (n, dims) around random centres, of random lengths, and the centre of each; equal counts, shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % centres)
    vectors = rng.standard_normal((centres, dims))[labels] + noise * rng.standard_normal((n, dims))
    return (vectors * rng.uniform(0.1, 10, (n, 1))).astype(np.float32), labels


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def split_by_hand(x: np.ndarray, ids: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """One balanced spherical 2-means as the papers' code does it: x unit vectors, ids the node's points."""
    half = -(-len(ids) // 2)
    x = x[ids]
    centroids = x[rng.choice(len(ids), 2, replace=False)]
    scores = x @ centroids.T
    before, now = -1e6, -2.0
    while now - before >= 1e-4:
        order = np.argsort(scores[:, 1] - scores[:, 0], kind="stable")
        parts = order[:half], order[half:]
        scores = x @ np.stack([unit(x[part].mean(axis=0)) for part in parts]).T
        before, now = now, (scores[parts[0], 0].sum() + scores[parts[1], 1].sum()) / len(ids)
    return [ids[part] for part in parts]


def balanced_by_hand(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """Hierarchical balanced 2-means for k a power of two: slow and obviously right."""
    x, rng = unit(vectors.astype(np.float64)), np.random.default_rng(seed)
    nodes = [np.arange(len(vectors))]
    while len(nodes) < k:
        nodes = [part for node in nodes for part in split_by_hand(x, node, rng)]
    clusters = np.empty(len(vectors), dtype=int)
    for cluster, node in enumerate(nodes):
        clusters[node] = cluster
    return clusters


def mean_cosine_by_hand(vectors: np.ndarray, clusters: np.ndarray) -> float:
    x = unit(vectors.astype(np.float64))
    total = 0.0
    for cluster in set(clusters.tolist()):
        members = x[clusters == cluster]
        centroid = unit(members.mean(axis=0))
        total += sum(float(member @ centroid) for member in members)
    return total / len(vectors)


def kmeans_by_hand(vectors: np.ndarray, start: np.ndarray, rounds: int) -> np.ndarray:
    """Spherical Lloyd k-means from given vectors, for data on which no cluster gets empty."""
    x = unit(vectors.astype(np.float64))
    centroids = x[start]
    for _ in range(rounds):
        clusters = (x @ centroids.T).argmax(axis=1)
        centroids = unit(np.stack([x[clusters == cluster].mean(axis=0) for cluster in range(len(start))]))
    return clusters


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = len(np.unique(np.stack([one, other]), axis=1).T)
    return pairs == len(np.unique(one)) == len(np.unique(other))


def assert_balanced(clusters: np.ndarray, n: int, k: int) -> None:
    sizes = np.bincount(clusters, minlength=k)
    assert clusters.dtype == np.int32 and clusters.shape == (n,)
    assert len(sizes) == k
    assert sizes.min() == n // k and sizes.max() == -(-n // k)


@pytest.fixture
def small_constants(monkeypatch):
    """Make the three ways of cutting a node (sampled, direct, Gram) all happen within a few hundred points."""
    monkeypatch.setattr(clustering, "SUBTREE", 100)
    monkeypatch.setattr(clustering, "GRAM", 20)
    monkeypatch.setattr(clustering, "SCANNED", 37)


# --- balanced: sizes --------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_sizes_differ_by_at_most_one(data):
    n = data.draw(st.integers(1, 300))
    k = data.draw(st.integers(1, n))
    vectors = np.random.default_rng(n).standard_normal((n, 5), dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "SUBTREE", data.draw(st.sampled_from([32, 8192])))
        patch.setattr(clustering, "GRAM", data.draw(st.sampled_from([0, 16, 128])))
        assert_balanced(balanced_clusters(vectors, k, seed=0), n, k)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_shares_keep_every_cluster_within_one(n, k):
    k = min(n, k)
    nodes = {(n, k)}
    while any(count > 1 for _, count in nodes):
        assert len(nodes) <= 6, "nodes of one depth are alike, which is what makes batches of them cheap"
        children = set()
        for size, count in nodes:
            left, points = clustering._shares(count, size)
            children |= {(points, left), (size - points, count - left)} if count > 1 else {(size, count)}
        nodes = children
    assert {size for size, _ in nodes} <= {n // k, -(-n // k)}


@pytest.mark.parametrize("k", [1, 2, 3, 300])
def test_few_clusters_and_one_for_each_vector(k, small_constants):
    vectors, _ = mixture(300, 10)
    assert_balanced(balanced_clusters(vectors, k, seed=0), 300, k)


def test_real_constants_cut_a_sampled_node():
    vectors, _ = mixture(2 * clustering.SUBTREE + 777, 50, dims=4)
    assert_balanced(balanced_clusters(vectors, 1000, seed=0), len(vectors), 1000)


# --- balanced: quality ------------------------------------------------------------------------------------------------


def qualities(vectors: np.ndarray, k: int, seeds: int) -> tuple[float, float]:
    """Mean cosine of ours and of the by-hand version, over several seeds: one start more or less lucky is noise."""
    ours = [mean_cosine(vectors, balanced_clusters(vectors, k, seed=seed)) for seed in range(seeds)]
    by_hand = [mean_cosine(vectors, balanced_by_hand(vectors, k, seed)) for seed in range(seeds)]
    return float(np.mean(ours)), float(np.mean(by_hand))


def test_one_cut_is_as_good_as_the_by_hand_version():
    vectors, _ = mixture(1024, 128)  # too many for a Gram matrix, so both have a single start
    ours, by_hand = qualities(vectors, 2, seeds=40)
    assert ours == pytest.approx(by_hand, abs=0.002)  # one seed scatters by 0.004, a mean of 40 by 0.0007


@pytest.mark.parametrize("k", [16, 64, 128])
def test_quality_is_not_below_the_by_hand_version(k):
    vectors, _ = mixture(1024, 128)
    ours, by_hand = qualities(vectors, k, seeds=6)
    assert ours >= by_hand


def test_quality_holds_when_directions_come_from_samples(monkeypatch):
    monkeypatch.setattr(clustering, "SUBTREE", 512)  # 32 points per dimension; the real constants have 21 at 384
    vectors, _ = mixture(4000, 256)
    ours, by_hand = qualities(vectors, 512, seeds=2)
    assert ours >= by_hand


@pytest.mark.parametrize("constants", [{}, {"GRAM": 0}, {"SUBTREE": 100}])
def test_planted_clusters_are_found(constants, monkeypatch):
    for name, value in constants.items():
        monkeypatch.setattr(clustering, name, value)
    vectors, labels = mixture(640, 8, dims=64, noise=0.05)
    found = balanced_clusters(vectors, 8, seed=0)
    assert same_partition(found, labels)


def test_gram_matrix_changes_only_the_number_of_starts(monkeypatch):
    vectors, _ = mixture(100, 16)
    monkeypatch.setattr(clustering, "STARTS", 1)
    with_gram = balanced_clusters(vectors, 16, seed=0)
    monkeypatch.setattr(clustering, "GRAM", 0)
    assert np.array_equal(with_gram, balanced_clusters(vectors, 16, seed=0))


def test_length_of_a_vector_does_not_matter():
    vectors, _ = mixture(500, 20)
    scaled = vectors * np.float32(2.0) ** np.random.default_rng(0).integers(-20, 20, (500, 1)).astype(np.float32)
    assert np.array_equal(balanced_clusters(vectors, 33, seed=0), balanced_clusters(scaled, 33, seed=0))


def test_iteration_cap_still_gives_a_whole_clustering():
    vectors, _ = mixture(500, 20)
    assert_balanced(balanced_clusters(vectors, 33, seed=0, max_iterations=1), 500, 33)


# --- balanced: determinism --------------------------------------------------------------------------------------------


def test_same_seed_same_clusters_other_seed_others(small_constants):
    vectors, _ = mixture(1000, 50)
    once, again, other = (balanced_clusters(vectors, 77, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(once, again)
    assert not same_partition(once, other)


def test_threads_do_not_matter_and_are_given_back(small_constants):
    vectors, _ = mixture(1000, 50)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(balanced_clusters(vectors, 77, seed=0))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_global_random_state_is_neither_read_nor_moved(small_constants):
    vectors, _ = mixture(300, 10)
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = balanced_clusters(vectors, 9, seed=0), kmeans_clusters(vectors, 9, seed=0)
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())
    np.random.seed(1)
    torch.manual_seed(1)
    second = balanced_clusters(vectors, 9, seed=0), kmeans_clusters(vectors, 9, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


def test_nodes_draw_different_bits():
    keys = clustering._hash(0, np.arange(1000), np.full(1000, 7))
    assert len(np.unique(keys)) == 1000
    assert 0.45 < (keys % np.uint64(2)).mean() < 0.55
    assert clustering._hash(-1, np.arange(3)).tolist() == clustering._hash(2**64 - 1, np.arange(3)).tolist()


# --- odd input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [balanced_clusters, kmeans_clusters])
@pytest.mark.parametrize("k", [1, 7, 64, 200])
def test_zero_and_duplicate_rows(method, k, small_constants):
    vectors, _ = mixture(200, 10)
    vectors[::3] = 0
    vectors[1::3] = vectors[1]
    clusters = method(vectors, k, seed=0)
    assert len(np.unique(clusters)) == k
    if method is balanced_clusters:
        assert_balanced(clusters, 200, k)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_rows_equal(value, small_constants):
    vectors = np.full((150, 4), value, dtype=np.float32)
    assert_balanced(balanced_clusters(vectors, 31, seed=0), 150, 31)
    assert len(np.unique(kmeans_clusters(vectors, 31, seed=0))) == 31


def test_opposite_rows_cancel_without_harm():
    half = np.random.default_rng(0).standard_normal((100, 8), dtype=np.float32)
    assert_balanced(balanced_clusters(np.concatenate([half, -half]), 13, seed=0), 200, 13)


@pytest.mark.parametrize("method", [balanced_clusters, kmeans_clusters])
def test_read_only_memory_map_is_enough(method, tmp_path, small_constants, recwarn):
    vectors, _ = mixture(300, 10)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    kept = vectors.copy()
    assert np.array_equal(method(mapped, 30, seed=0), method(vectors, 30, seed=0))
    assert np.array_equal(vectors, kept)
    mean_cosine(mapped, method(mapped, 30, seed=0))
    assert not recwarn.list


@pytest.mark.parametrize("method", [balanced_clusters, kmeans_clusters])
def test_errors(method):
    vectors, _ = mixture(20, 4)
    for k in (0, -1, 21):
        with pytest.raises(ValueError, match="between 1 and the number of vectors"):
            method(vectors, k, seed=0)
    with pytest.raises(ValueError, match="float32"):
        method(vectors.astype(np.float64), 2, seed=0)
    with pytest.raises(ValueError, match="float32"):
        method(vectors[0], 1, seed=0)
    with pytest.raises(ValueError, match="max_iterations"):
        method(vectors, 2, seed=0, max_iterations=0)
    for bad in (np.nan, np.inf):
        broken = vectors.copy()
        broken[[7, 9], 3] = bad
        with pytest.raises(UserError, match="2 of 20 vectors .* row 7"):
            method(broken, 2, seed=0)


# --- k-means ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_kmeans_is_lloyd_from_the_same_start(rounds, monkeypatch):
    monkeypatch.setattr(clustering, "SCORES", 100)  # 12 rows at a time
    vectors, _ = mixture(400, 8)
    start = np.random.default_rng(5).choice(400, size=8, replace=False)
    ours = kmeans_clusters(vectors, 8, seed=5, tolerance=-1.0, max_iterations=rounds)
    assert ours.dtype == np.int32
    assert np.array_equal(ours, kmeans_by_hand(vectors, start, rounds))


def test_kmeans_improves_and_stops():
    vectors, _ = mixture(2000, 30)
    values = [mean_cosine(vectors, kmeans_clusters(vectors, 30, seed=0, max_iterations=i)) for i in (1, 3, 100)]
    assert values[0] < values[1] < values[2]
    enough = kmeans_clusters(vectors, 30, seed=0, max_iterations=100)
    assert np.array_equal(enough, kmeans_clusters(vectors, 30, seed=0, max_iterations=200))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_kmeans_leaves_no_cluster_empty(data):
    n = data.draw(st.integers(1, 120))
    k = data.draw(st.integers(1, n))
    distinct = data.draw(st.integers(1, n))
    vectors = np.random.default_rng(n).standard_normal((distinct, 3), dtype=np.float32)[np.arange(n) % distinct]
    sizes = np.bincount(kmeans_clusters(vectors, k, seed=0), minlength=k)
    assert len(sizes) == k and sizes.min() >= 1


def test_an_empty_cluster_takes_the_worst_fitting_vector():
    clusters = np.array([0, 0, 0, 2, 2, 4], dtype=np.int32)
    cosines = np.array([0.9, 0.3, 0.8, 0.5, 0.2, 0.1], dtype=np.float32)  # the worst is alone in cluster 4: it stays
    clustering._fill_empty(clusters, cosines, 5)
    assert clusters.tolist() == [0, 3, 0, 2, 1, 4]


# --- measures ---------------------------------------------------------------------------------------------------------


def test_mean_cosine_is_the_by_hand_mean(small_constants):
    vectors, labels = mixture(300, 7)
    for clusters in (labels, np.arange(300), np.zeros(300, dtype=int), labels * 3):
        assert mean_cosine(vectors, clusters) == pytest.approx(mean_cosine_by_hand(vectors, clusters), abs=1e-5)


def test_mean_cosine_counts_zero_vectors_as_zero():
    vectors = np.array([[1, 0], [2, 0], [0, 0], [0, 0]], dtype=np.float32)
    assert mean_cosine(vectors, np.array([0, 0, 0, 1])) == pytest.approx(0.5)


def test_mean_cosine_refuses_clusters_of_another_length():
    vectors, labels = mixture(30, 3)
    with pytest.raises(ValueError, match="one for each vector"):
        mean_cosine(vectors, labels[:-1])
