import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.errors import UserError
from xcutils.core.ragged import from_rows
from xcutils.core.vectors import unit
from xcutils.model.encoders import encode, save_encoder
from xcutils.model.gru import BiGRU
from xcutils.rank.packing import combined
from xcutils.rank.served import HELD, MORE, Model, Settings, constant, load_embed
from xcutils.rank.weights import Fusion
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES

DOCS, LABELS, DIMS, NEIGHBOURS, TAU = 40, 300, 6, 5, 0.2
CURVE = {"scores": [-1.0, 0.5, 2.0], "probabilities": [0.0, 0.2, 0.9]}
FUSION = Fusion(classifier=1.0, similarity=0.4, memory=0.7, propensity=0.05, overlap=0.6, curve=CURVE)
HALF = Building(m=8, ef_construction=100)


def half(vectors: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float16).astype(np.float64)


class Made:
    """A model made by hand, with the vectors that it was made of."""

    def __init__(
        self, search: str = "exact", fusion: Fusion = FUSION, neighbours: int = NEIGHBOURS, labels: int = LABELS
    ):
        rng = np.random.default_rng(0)
        self.labels, self.classifiers = (unit(rng.standard_normal((labels, DIMS))) for _ in range(2))
        self.docs = unit(rng.standard_normal((DOCS, DIMS)))
        self.propensity = np.log(rng.uniform(1, 9, labels))
        self.owned = [sorted(rng.choice(labels, rng.integers(1, 5), replace=False).tolist()) for _ in range(DOCS)]
        self.queries = unit(rng.standard_normal((11, DIMS)))
        self.fusion, self.neighbours = fusion, neighbours
        vectors = {"labels": self.labels, "classifiers": self.classifiers}
        self.combined = combined(vectors, {}, fusion, self.propensity)
        index = INDEXES[search]
        facts = {
            "labels": {"count": labels, "dim": self.combined.shape[1]},
            "docs": {"count": DOCS, "dim": DIMS},
            "ef": {"labels": 400, "docs": 400},
        }
        self.model = Model(
            lambda tokens: self.queries[np.asarray(tokens.values)],
            index.over(self.combined, HALF, ef=400),
            index.over(self.docs, HALF, ef=400),
            from_rows(self.owned, np.int32),
            fusion,
            Settings(search=search, views=[], neighbours=neighbours, tau=TAU, max_tokens=9, **facts),
        )

    def by_hand(self, query: int, k: int, excluded=()) -> list[tuple[int, float]]:
        """The formula of the fused score for every label, sorted; vectors are as precise as the indexes hold them."""
        x = self.model.docs.seen(self.queries[query][None])[0].astype(float)
        docs = self.model.docs.take(np.arange(DOCS)).astype(float)
        asked = self.model.labels.seen(self.model.settings.as_asked(self.queries[query][None]))[0].astype(float)
        vectors = self.model.labels.take(np.arange(len(self.labels))).astype(float)
        near = sorted(range(DOCS), key=lambda d: -float(docs[d] @ x))[: self.neighbours]
        shares = [math.exp(float(docs[d] @ x) / TAU) for d in near]
        scores = {}
        for label in set(range(len(self.labels))) - set(excluded):
            memory = sum(share for d, share in zip(near, shares) if label in self.owned[d]) / (sum(shares) or 1)
            linear = float(vectors[label] @ asked)
            scores[label] = linear + memory * max(0.0, self.fusion.memory - self.fusion.overlap * linear)
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


@pytest.mark.parametrize("search", INDEXES)
@pytest.mark.parametrize("k", [1, 10, 100])
def test_the_ranking_is_the_formula_for_every_label(search, k):
    made = Made(search)
    ids, scores = made.model.rank(made.queries, k)
    for query in range(len(made.queries)):
        expected = made.by_hand(query, k)
        np.testing.assert_allclose(scores[query], [score for _, score in expected], atol=1e-5)
        if search == "exact":
            assert ids[query].tolist() == [label for label, _ in expected]
        else:
            assert len(set(ids[query].tolist()) & {label for label, _ in expected}) >= 0.97 * k


@pytest.mark.parametrize("search", INDEXES)
def test_what_an_index_holds_of_a_score_is_near_the_formula_in_double_precision(search):
    made = Made(search)
    _, scores = made.model.rank(made.queries, LABELS)
    for query, x in enumerate(made.queries.astype(float)):
        near = np.argsort(-(made.docs @ x))[:NEIGHBOURS]
        shares = np.exp(made.docs[near] @ x / TAU)
        linear = made.classifiers @ x + 0.4 * made.labels @ x + 0.05 * made.propensity
        memory = np.zeros(LABELS)
        for doc, share in zip(near, shares / shares.sum()):
            memory[made.owned[doc]] += share
        score = linear + memory * np.maximum(0, 0.7 - 0.6 * linear)
        np.testing.assert_allclose(scores[query], np.sort(score)[::-1], atol=0.05)


def test_a_label_that_only_the_memory_knows_is_found():
    made = Made(fusion=Fusion(classifier=1.0, memory=9.0))
    ids, _ = made.model.rank(made.queries, 3)
    linear = half(made.combined) @ made.model.settings.as_asked(made.queries).astype(float).T
    far = 0
    for query in range(11):
        assert ids[query].tolist() == [label for label, _ in made.by_hand(query, 3)]
        place = np.argsort(np.argsort(-linear[:, query]))[ids[query]]
        far += int((place >= 3 + MORE).sum())  # beyond what the search of the labels gives
    assert far > 5


@pytest.mark.parametrize("search", INDEXES)
def test_one_text_is_answered_as_among_others(search):
    made = Made(search)
    tokens = from_rows([[i] for i in range(11)], np.int32)
    ids, probabilities = made.model.predict(tokens, 10)
    for i in range(11):
        one, share = made.model.predict(tokens.take(np.array([i])), 10)
        assert one[0].tolist() == ids[i].tolist()
        np.testing.assert_allclose(share[0], probabilities[i], atol=1e-6)


def test_many_texts_are_ranked_in_parts(monkeypatch):
    made = Made()
    whole = made.model.rank(made.queries, 10)
    monkeypatch.setattr("xcutils.rank.served.TOGETHER", 2)
    excluded = from_rows([[] for _ in range(11)], np.int32)
    for parts in (made.model.rank(made.queries, 10), made.model.rank(made.queries, 10, excluded)):
        np.testing.assert_array_equal(parts[0], whole[0])
        np.testing.assert_allclose(parts[1], whole[1], atol=1e-6)
    assert not made.model.scratch.sums.any() and HELD >= LABELS  # what a thread has summed up is forgotten


def test_probabilities_follow_the_curve():
    made = Made()
    _, probabilities = made.model.predict(from_rows([[3]], np.int32), 4)
    scores = [score for _, score in made.by_hand(3, 4)]
    assert all(0.5 < score < 2 for score in scores)
    expected = [0.2 + 0.7 * (score - 0.5) / 1.5 for score in scores]
    np.testing.assert_allclose(probabilities[0], expected, atol=1e-3)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.sets(st.integers(0, LABELS - 1), max_size=6), min_size=11, max_size=11), st.integers(1, 8))
def test_excluded_labels_are_never_given_and_their_places_are_filled(rows, k):
    made = MADE
    best = [[label for label, _ in made.by_hand(i, 3)][:2] for i in range(11)]  # the best ones among the excluded
    excluded = [sorted(row | set(best[i][: i % 3])) for i, row in enumerate(rows)]
    ids, _ = made.model.rank(made.queries, k, from_rows(excluded, np.int32))
    for i in range(11):
        assert ids[i].tolist() == [label for label, _ in made.by_hand(i, k, excluded[i])]


MADE = Made()


@pytest.mark.parametrize(
    "fusion",
    [
        Fusion(),
        Fusion(classifier=0.0, memory=1.0),
        Fusion(similarity=0.5, propensity=0.1),
        Fusion(similarity=0.5, memory=1.0, overlap=1.0),
    ],
)
@pytest.mark.parametrize("neighbours", [0, NEIGHBOURS])
def test_parts_may_be_missing(fusion, neighbours):
    made = Made(fusion=fusion, neighbours=neighbours)
    ids, scores = made.model.rank(made.queries, 5)
    for query in range(11):
        expected = made.by_hand(query, 5)
        np.testing.assert_allclose(
            np.where(np.isneginf(scores[query]), 0, scores[query]), [score for _, score in expected], atol=1e-5
        )
    assert ids.shape == (11, 5)


def test_fewer_labels_than_asked_for_are_padded():
    made = Made(labels=4)
    ids, probabilities = made.model.predict(from_rows([[0], [1]], np.int32), 7)
    assert (np.sort(ids[:, :4], axis=1) == np.arange(4)).all() and (ids[:, 4:] == -1).all()
    assert (probabilities[:, :4] >= 0).all() and (probabilities[:, 4:] == 0).all()


def test_no_texts_and_texts_without_a_vector_are_answered():
    made = Made()
    assert [part.shape for part in made.model.rank(np.zeros((0, DIMS), np.float32), 5)] == [(0, 5), (0, 5)]
    ids, scores = made.model.rank(np.zeros((1, DIMS), np.float32), 5)
    assert ids.shape == (1, 5) and np.isfinite(scores).all()


def test_an_embedding_that_is_not_finite_is_a_sentence():
    broken = MADE.queries.copy()
    broken[2, 1] = np.nan
    with pytest.raises(UserError, match="not finite.*train again"):
        MADE.model.rank(broken, 3)


def test_views_are_brought_to_length_one_by_themselves():
    rng = np.random.default_rng(1)
    labels, classifiers = unit(rng.standard_normal((9, 4))), unit(rng.standard_normal((9, 4)))
    views = {"labels": slice(0, 4), "classifiers": slice(4, 8)}
    vectors = combined({"labels": labels, "classifiers": classifiers}, views, FUSION, np.zeros(9))
    facts = {"labels": {"count": 9, "dim": 9}, "docs": {"count": 0, "dim": 8}, "ef": {}}
    asked = Settings(search="exact", views=[[0, 4], [4, 8]], neighbours=0, tau=1.0, max_tokens=9, **facts).as_asked
    query = rng.standard_normal((1, 8)).astype(np.float32)
    expected = 0.4 * unit(query[:, :4]) @ labels.T + unit(query[:, 4:]) @ classifiers.T
    np.testing.assert_allclose(asked(query).astype(float) @ vectors.T.astype(float), expected, atol=3e-3)


def test_without_classifiers_their_part_is_the_similarity():
    rng = np.random.default_rng(1)
    labels = unit(rng.standard_normal((9, 4)))
    np.testing.assert_allclose(
        combined({"labels": labels}, {}, FUSION, np.arange(9.0)),
        np.concatenate([1.4 * labels, 0.05 * np.arange(9.0)[:, None] / constant(4)], axis=1),
        atol=1e-3,
    )


@pytest.mark.parametrize(("weight", "dims"), [(0.05, 1), (2.0, 3), (90.0, 16)])
def test_the_propensity_has_as_many_dimensions_as_its_size_demands(weight, dims):
    labels = np.full((9, 16), 0.75)
    fusion = Fusion(classifier=0.0, similarity=1.0, propensity=weight)
    vectors = combined({"labels": labels}, {}, fusion, np.linspace(0, 1, 9))
    assert vectors.shape == (9, 16 + dims)
    np.testing.assert_allclose(
        vectors[:, 16:].astype(float).sum(axis=1) * constant(16), weight * np.linspace(0, 1, 9), rtol=2e-3
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("search", INDEXES)
def test_labels_without_a_vector_leave_no_score_that_is_no_number(search):
    made = Made(search, labels=12)
    model, vectors = made.model, made.combined.copy()
    vectors[3:] = 0
    model.labels = INDEXES[search].over(vectors, HALF, ef=400)
    ids, scores = model.rank(made.queries, 10)
    assert not np.isnan(scores).any() and not np.isnan(model.fusion.probabilities(scores)).any()
    assert ((ids >= 0) == (scores > -np.inf)).all() and (np.sort(ids)[:, -3:] >= 0).all()


def test_an_encoder_that_needs_torch_answers_without_dropout(tmp_path):
    encoder = BiGRU(torch.randn(20, 4), hidden=3, dropout=0.5)
    tokens = from_rows([[1, 2, 3], [4], [5, 6]], np.int32)
    save_encoder(tmp_path, encoder)
    embed = load_embed(tmp_path)
    np.testing.assert_allclose(embed(tokens), encode(encoder, tokens), atol=1e-6)
    assert np.array_equal(embed(tokens), embed(tokens))
