import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.errors import UserError
from xcutils.core.vectors import unit
from xcutils.search.eight import Eight, rounded
from xcutils.search.exact import exact
from xcutils.search.graphs import DRAFT, Drafts, grow, load, save
from xcutils.search.hnsw import Hnsw
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES
from xcutils.search.searcher import Searcher, nearest, recall

GRAPH = Building(m=8, ef_construction=100)
GRAPHS = {"hnsw": Eight, "hnswlib": Hnsw}
ROUNDING = {"hnsw": 5e-3, "hnswlib": 1e-6, "exact": 1e-3}  # of values: eight bits, single and half precision
both = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
every = pytest.mark.parametrize("name", INDEXES)


def random_unit(rows: int, seed: int, dims: int = 8) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((rows, dims)))


def nearest_by_hand(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[list, list]:
    """Full sort of all scores, padded with -1 and -inf."""
    ids, scores = [], []
    for query in queries:
        all_scores = [float(np.dot(query.astype(np.float64), vector)) for vector in vectors]
        order = sorted(range(len(vectors)), key=lambda i: -all_scores[i])[:k]
        ids.append(order + [-1] * (k - len(order)))
        scores.append([all_scores[i] for i in order] + [-np.inf] * (k - len(order)))
    return ids, scores


def assert_nearest(found: tuple, queries: np.ndarray, vectors: np.ndarray, k: int, atol: float = 1e-6) -> None:
    ids, scores = found
    assert ids.shape == scores.shape == (len(queries), k) and ids.dtype == np.int64 and scores.dtype == np.float32
    expected_ids, expected_scores = nearest_by_hand(queries, vectors, k)
    assert ids.tolist() == expected_ids
    np.testing.assert_allclose(scores, np.array(expected_scores).reshape(scores.shape), atol=atol)


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 30])
@pytest.mark.parametrize("chunk", [1, 95, 1 << 26])
def test_exact_search_is_the_full_sort(k, chunk):
    queries, vectors = random_unit(11, 1), random_unit(30, 2)
    assert_nearest(exact(queries, vectors, k, chunk=chunk), queries, vectors, k)


@pytest.mark.parametrize(("n_queries", "n_vectors"), [(3, 4), (3, 0), (0, 4), (0, 0)])
def test_fewer_vectors_than_asked_for_are_padded(n_queries, n_vectors):
    queries, vectors = random_unit(n_queries, 1), random_unit(n_vectors, 2)
    assert_nearest(exact(queries, vectors, 7), queries, vectors, 7)


def test_exact_search_takes_read_only_and_half_precision_vectors():
    queries, vectors = random_unit(3, 1), random_unit(9, 2).astype(np.float16)
    queries.setflags(write=False)
    vectors.setflags(write=False)
    assert_nearest(exact(queries, vectors, 4), queries, vectors.astype(np.float32), 4)


# --- unit -------------------------------------------------------------------------------------------------------------


def test_unit_rows_have_length_one_and_zero_rows_stay():
    made = unit(np.array([[3, 4], [0, 0], [-2, 0]]))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)
    assert unit(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused_by_row(bad):
    vectors = np.ones((5, 3))
    vectors[[2, 4], 1] = bad
    with pytest.raises(UserError, match="vector 2 .*not finite"):
        unit(vectors)


# --- graphs -----------------------------------------------------------------------------------------------------------


@both
def test_a_graph_finds_nearly_all_neighbours(graph):
    queries, vectors = random_unit(50, 1), random_unit(600, 2)
    index = graph.over(vectors, GRAPH, ef=200)
    ids, scores = Searcher(vectors, index).search(queries, 10)
    queries, vectors = as_held(index, queries, vectors)
    true_ids, true_scores = exact(queries, vectors, 10)
    assert recall(ids, true_ids) > 98
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ vectors.T, ids, axis=1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 1e-6).all() and scores.max() <= true_scores.max() + 1e-5


def as_held(index, queries: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as precise as the index compares them, and near to what they were."""
    held = index.seen(queries), index.take(np.arange(len(vectors)))
    for one, other in zip(held, (queries, vectors)):
        np.testing.assert_allclose(one, other, atol=5e-3)
    return held


@every
def test_an_index_of_few_vectors_gives_them_all_padded(name):
    queries, vectors = random_unit(3, 1), random_unit(4, 2)
    index = INDEXES[name].over(vectors, GRAPH, ef=300)
    found = Searcher(vectors, index).search(queries, 6)
    assert_nearest(found, *as_held(index, queries, vectors), 6)


@every
def test_an_index_holds_the_vectors_that_it_was_given(name, tmp_path):
    vectors = random_unit(30, 2)
    vectors[[0, 7, 28, 29]] = 0
    vectors[11] = vectors[3]
    INDEXES[name].build(vectors, tmp_path / "x", GRAPH)
    for index in (INDEXES[name].over(vectors, GRAPH, ef=9), INDEXES[name].open(tmp_path / "x", count=30, dim=8, ef=9)):
        assert len(index) == 26
        np.testing.assert_allclose(
            index.take(np.array([11, 0, 28, 3, 29, 5])), vectors[[11, 0, 28, 3, 29, 5]], atol=ROUNDING[name]
        )


@every
def test_an_index_of_zero_vectors_gives_them_back(name):
    nothing = np.zeros((5, 8), dtype=np.float32)
    assert not INDEXES[name].over(nothing, GRAPH, ef=9).take(np.array([0, 4])).any()


@both
def test_zero_vectors_are_near_nothing(graph):
    queries, vectors = random_unit(4, 1), random_unit(12, 2)
    vectors[[0, 5, 11]] = 0
    index = graph.over(vectors, GRAPH, ef=300)
    ids, scores = Searcher(vectors, index).search(queries, 12)
    queries, vectors = as_held(index, queries, vectors)
    others = np.setdiff1d(np.arange(12), [0, 5, 11])
    assert (np.sort(ids[:, :9], axis=1) == others).all() and (ids[:, 9:] == -1).all() and np.isinf(scores[:, 9:]).all()
    np.testing.assert_array_equal(ids[:, :9], others[exact(queries, vectors[others], 9)[0]])


@both
@pytest.mark.parametrize("vectors", [np.zeros((5, 8), np.float32), np.zeros((0, 8), np.float32)])
def test_a_graph_over_nothing_answers_with_pads(vectors, graph):
    ids, scores = Searcher(vectors, graph.over(vectors, GRAPH, ef=300)).search(random_unit(3, 0), 2)
    assert (ids == -1).all() and np.isneginf(scores).all() and ids.shape == scores.shape == (3, 2)


@both
def test_no_queries_no_answers(graph):
    vectors = random_unit(5, 0)
    for searcher in (Searcher(vectors), Searcher(vectors, graph.over(vectors, GRAPH, ef=300))):
        assert [part.shape for part in searcher.search(random_unit(0, 1), 3)] == [(0, 3), (0, 3)]


@both
def test_the_same_vectors_build_the_same_graph_to_the_byte(tmp_path, graph):
    vectors = random_unit(300, 3)
    for name, m in [("one", 8), ("two", 8), ("other", 9)]:
        save(grow(graph, vectors, Building(m=m, ef_construction=50)), tmp_path / name)
    one, two, other = ((tmp_path / name).read_bytes() for name in ("one", "two", "other"))
    assert one == two != other


@every
def test_a_saved_index_answers_as_before(tmp_path, name):
    queries, vectors = random_unit(20, 1), random_unit(100, 2)
    vectors[3] = 0
    INDEXES[name].build(vectors, tmp_path / "x", GRAPH)
    loaded = INDEXES[name].open(tmp_path / "x", dim=8, count=100, ef=300)
    answers = [
        Searcher(vectors, one).search(queries, 5) for one in (INDEXES[name].over(vectors, GRAPH, ef=300), loaded)
    ]
    for one, other in zip(*answers):
        np.testing.assert_array_equal(one, other)
    assert_nearest(answers[0], *as_held(loaded, queries, vectors), 5)


@every
def test_one_query_is_answered_as_among_others(name):
    queries, vectors = random_unit(9, 1), random_unit(200, 2)
    index = INDEXES[name].over(vectors, GRAPH, ef=50)
    ids, scores = index.search(queries, 7)
    for i in range(9):
        alone = index.search(queries[i : i + 1], 7)
        assert alone[0].tolist() == [ids[i].tolist()]
        np.testing.assert_allclose(alone[1][0], scores[i], atol=1e-6)


@pytest.mark.parametrize("most", [100, 20])
def test_mining_searches_through_an_index_where_there_are_many(monkeypatch, most):
    monkeypatch.setattr("xcutils.search.searcher.MINED_EXACTLY", most)
    queries, vectors = random_unit(6, 1), random_unit(60, 2)
    assert nearest(queries, vectors, 5, seed=0).tolist() == nearest_by_hand(queries, vectors, 5)[0]


@both
@pytest.mark.parametrize("keep", [None, 0, 4, 10])
def test_a_missing_or_truncated_graph_is_a_sentence(tmp_path, keep, graph):
    save(grow(graph, random_unit(100, 2), GRAPH), tmp_path / "full")
    if keep is not None:
        (tmp_path / "x.hnsw").write_bytes((tmp_path / "full").read_bytes()[:keep])
    with pytest.raises(UserError, match="x.hnsw is not a usable index.*dvc repro"):
        load(graph, tmp_path / "x.hnsw", dim=8, count=100)


@pytest.mark.parametrize(("dim", "count"), [(9, 100), (8, 99)])
def test_a_graph_over_other_vectors_is_refused(tmp_path, dim, count):
    Eight.build(random_unit(100, 2), tmp_path / "x.hnsw", GRAPH)
    with pytest.raises(UserError, match="has 100 vectors of 8 dimensions, not"):
        Eight.open(tmp_path / "x.hnsw", dim=dim, count=count, ef=50)


class Unreachable:
    """A graph that cannot reach as many neighbours as are asked for."""

    def get_current_count(self):
        return 30

    def set_ef(self, ef):
        self.ef = ef

    def knn_query(self, queries, k, num_threads):
        raise RuntimeError("Cannot return the results in a contiguous 2D array. Probably ef or M is too small")


def test_where_a_graph_fails_the_search_is_exact():
    queries, vectors, graph = random_unit(4, 1), random_unit(30, 2), Hnsw(Unreachable())
    graph.ef = 5
    assert_nearest(Searcher(vectors, graph).search(queries, 12), queries, vectors, 12)
    assert graph.graph.ef == 12  # a search looks at no fewer vectors than it returns


def test_a_graph_in_eight_bits_reaches_every_vector():
    vectors = np.repeat(random_unit(2, 0), 40, axis=0)  # duplicates: their links lead nowhere else
    index = Eight.over(vectors, Building(m=2, ef_construction=2), ef=2)
    for queries in (vectors[:1], vectors[[0, 50]]):
        ids, _ = index.search(queries, 80)
        assert (np.sort(ids, axis=1) == np.arange(80)).all()


@pytest.mark.parametrize("seed", range(3))
def test_values_in_eight_bits_are_off_by_half_a_step_at_most(seed):
    vectors = np.random.default_rng(seed).standard_normal((200, 16)).astype(np.float32)
    codes, step = rounded(vectors)
    assert codes.dtype == np.int8 and step == pytest.approx(np.abs(vectors).max() / 127)
    assert np.abs(codes * step - vectors).max() <= step / 2 * 1.001


def test_one_far_vector_does_not_cost_the_others_their_precision():
    vectors = random_unit(500, 0)
    vectors[7] *= 100
    codes, step = rounded(vectors)
    assert step < 0.3 and np.abs(codes[8:] * step - vectors[8:]).max() <= step / 2 * 1.001
    assert np.abs(codes[7]).max() == 127


def test_without_a_graph_the_search_is_exact():
    queries, vectors = random_unit(4, 1), random_unit(30, 2)
    assert_nearest(Searcher(vectors).search(queries, 12), queries, vectors, 12)


# --- recall -----------------------------------------------------------------------------------------------------------


# --- what must never fail or lie --------------------------------------------------------------------------------------


def searcher(vectors: np.ndarray, kind: str) -> Searcher:
    building = Building(m=8, ef_construction=50)
    return Searcher(vectors, INDEXES[kind].over(vectors, building, ef=50) if kind != "torch" else None)


any_kind = pytest.mark.parametrize("kind", ["torch", *INDEXES])


@any_kind
def test_zero_vectors_are_found_by_no_search(kind):
    vectors = random_unit(20, 0)
    vectors[[3, 7]] = 0
    ids, _ = searcher(vectors, kind).search(np.concatenate([random_unit(4, 1), np.zeros((1, 8), np.float32)]), 25)
    assert not np.isin(ids, [3, 7]).any() and ((ids >= 0).sum(axis=1) == 18).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_everywhere(bad):
    vectors = random_unit(20, 0)
    broken = vectors.copy()
    broken[5, 2] = bad
    for name in INDEXES:
        with pytest.raises(UserError, match="vector 5 .*not finite"):
            INDEXES[name].over(broken, GRAPH, ef=50)
    with pytest.raises(UserError, match="not finite"):
        Searcher(broken).search(random_unit(2, 1), 3)
    for kind in ("torch", *INDEXES):
        with pytest.raises(UserError, match="not finite"):
            searcher(vectors, kind).search(broken[4:7], 3)


@any_kind
def test_duplicates_are_all_found(kind):
    vectors = np.repeat(random_unit(4, 0), 50, axis=0)
    ids, scores = searcher(vectors, kind).search(vectors[[0, 60]], 50)
    assert [sorted(row) for row in ids.tolist()] == [list(range(50)), list(range(50, 100))]
    np.testing.assert_allclose(scores, 1, atol=1e-2)
    ids, _ = searcher(vectors, kind).search(vectors[:1], 300)
    assert sorted(ids[0, :200].tolist()) == list(range(200)) and (ids[0, 200:] == -1).all()


def graph_bytes(graph, folder) -> bytes:
    save(graph, folder / "x.hnsw")
    return (folder / "x.hnsw").read_bytes()


@both
def test_a_graph_that_was_interrupted_is_the_same_to_the_byte(tmp_path, monkeypatch, graph):
    vectors, settings = random_unit(3000, 0), Building(m=8, ef_construction=40, seed=3, block=700)
    whole = graph_bytes(grow(graph, vectors, settings, drafts=Drafts(graph, tmp_path / "a")), tmp_path)
    renew, said = Drafts.renew, []
    for cut in (0, 1, 2):

        def fails(self, unfinished, *args, cut=cut):
            made = renew(self, unfinished, *args)
            if len(unfinished) == 700 * (cut + 1):
                raise KeyboardInterrupt
            return made

        with monkeypatch.context() as patch:
            patch.setattr(Drafts, "renew", fails)
            with pytest.raises(KeyboardInterrupt):
                grow(graph, vectors, settings, drafts=Drafts(graph, tmp_path / "b"))
    newest = max((tmp_path / "b").glob("[0-9]*")) / DRAFT
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1  # the libraries would crash or give wrong answers
    newest.write_bytes(data)
    again = grow(graph, vectors, settings, drafts=Drafts(graph, tmp_path / "b", said.append))
    assert graph_bytes(again, tmp_path) == whole
    assert "passed over" in said[0] and f"{DRAFT} is damaged" in said[0]
    assert said[1] == "goes on after 1,400 of 3,000 vectors, where it was interrupted"


@both
def test_a_graph_has_few_drafts_however_large_it_is(tmp_path, monkeypatch, graph):
    counts, renew = [], Drafts.renew
    monkeypatch.setattr(Drafts, "renew", lambda *args: counts.append(len(args[1])) or renew(*args))
    grow(graph, random_unit(500, 0), Building(m=4, ef_construction=10, block=1), drafts=Drafts(graph, tmp_path))
    assert len(counts) == 15 and counts == sorted(counts)


def test_recall_by_hand():
    true = np.array([[1, 2, 3], [4, -1, -1]])
    assert recall(np.array([[3, 9, 1], [4, -1, -1]]), true) == 75
    assert recall(true, true) == 100
    assert recall(np.full((2, 3), -1), true) == 0  # pads agree with nothing
    assert recall(np.full((2, 3), -1), np.full((2, 3), -1)) == 0


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 8), max_size=4), st.sets(st.integers(0, 8), max_size=4)), max_size=5))
def test_recall_counts_shared_neighbours(rows):
    padded = [[sorted(part) + [-1] * (4 - len(part)) for part in row] for row in rows]
    found, true = (np.array([row[side] for row in padded]).reshape(-1, 4) for side in (0, 1))
    shared, wanted = sum(len(f & t) for f, t in rows), sum(len(t) for _, t in rows)
    assert recall(found, true) == pytest.approx(100 * shared / wanted if wanted else 0)
