import math

import numpy as np
import pytest
import torch

from xcutils.core.ragged import from_rows
from xcutils.core.vectors import unit
from xcutils.model.bag import BagOfEmbeddings
from xcutils.rank.fusion import Fusion
from xcutils.rank.predictor import Predictor
from xcutils.search.hnsw import Hnsw
from xcutils.search.index import Building
from xcutils.search.searcher import Searcher

DOCS, LABELS, WORDS, DIMS = 10, 14, 9, 4
SHORTLIST, NEIGHBOURS, TAU = 3, 2, 0.2
QUERIES = from_rows([[1, 2], [5], [3, 3, 8], [0, 4, 6, 7]], np.int32)
FUSION = Fusion(classifier=1.0, similarity=0.4, memory=0.7, propensity=0.05, slope=3.0, offset=-1.0)


@pytest.fixture(params=["exact", "graph"])
def system(request) -> Predictor:
    """A system made by hand, searched either way."""
    rng = np.random.default_rng(0)
    words = torch.from_numpy(rng.standard_normal((WORDS, DIMS))).float()
    tables = {name: unit(rng.standard_normal((n, DIMS))) for name, n in [("l", LABELS), ("c", LABELS), ("d", DOCS)]}
    owned = [sorted(rng.choice(LABELS, rng.integers(1, 4), replace=False)) for _ in range(DOCS)]

    def searcher(vectors):
        building = Building(m=8, ef_construction=50)
        return Searcher(vectors, Hnsw.over(vectors, building, ef=300) if request.param == "graph" else None)

    return Predictor(
        encoder=BagOfEmbeddings(words, torch.full((WORDS, 1), 2.0), vocabulary=WORDS, ngrams=1),
        searchers={
            "labels": searcher(tables["l"]),
            "classifiers": searcher(tables["c"]),
            "docs": searcher(tables["d"]),
        },
        views={},
        positives=from_rows(owned, np.int32).csr(LABELS),
        propensity=np.log(rng.uniform(1, 9, LABELS)),
        shortlist=SHORTLIST,
        neighbours=NEIGHBOURS,
        tau=TAU,
    )


def largest(scores, k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:k]


def parts_by_hand(system: Predictor, tokens) -> tuple[dict[int, list[float]], dict[str, list[int]]]:
    """For one text: label -> its four scores, for every label of the shortlist; and each search's own answer."""
    query = system.encoder.vectors.values[list(tokens)].sum(dim=0).double().numpy()
    query /= np.linalg.norm(query)
    classifier, similarity = system.searchers["classifiers"].vectors @ query, system.searchers["labels"].vectors @ query
    closeness = system.searchers["docs"].vectors @ query
    near = largest(closeness, NEIGHBOURS)
    norm = sum(math.exp(closeness[doc] / TAU) for doc in near)
    memory = np.zeros(LABELS)
    for doc in near:
        memory += math.exp(closeness[doc] / TAU) / norm * system.positives.toarray()[doc]
    found = {
        "classifier": largest(classifier, SHORTLIST),
        "similarity": largest(similarity, SHORTLIST),
        "memory": [label for label in largest(memory, SHORTLIST) if memory[label] > 0],
    }
    union = sorted({label for ids in found.values() for label in ids})
    return {i: [classifier[i], similarity[i], memory[i], system.propensity[i]] for i in union}, found


def fused_by_hand(system: Predictor, tokens) -> list[tuple[int, float]]:
    """Labels of the shortlist and their fused scores, best first."""
    parts, _ = parts_by_hand(system, tokens)
    weights = FUSION.classifier, FUSION.similarity, FUSION.memory, FUSION.propensity
    scores = {label: sum(w * s for w, s in zip(weights, row)) for label, row in parts.items()}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def test_every_pair_of_the_union_has_all_four_scores(system):
    shortlist, found = system.pairs(system.embed(QUERIES))
    assert shortlist.count == len(QUERIES) and shortlist.parts.dtype == np.float32
    for row in range(len(QUERIES)):
        parts, answers = parts_by_hand(system, QUERIES[row])
        here = shortlist.rows == row
        assert shortlist.labels[here].tolist() == list(parts)
        np.testing.assert_allclose(shortlist.parts[here], list(parts.values()), atol=1e-5)
        assert len(parts) < LABELS  # a shortlist, not everything
        for name, ids in answers.items():
            assert [label for label in found[name][0][row] if label >= 0] == ids


def test_the_prediction_is_the_fused_ranking_by_hand(system):
    ids, probabilities = system.predict(QUERIES, FUSION, 5)
    for row in range(len(QUERIES)):
        expected = fused_by_hand(system, QUERIES[row])[:5]
        assert len(expected) >= 4
        assert [label for label in ids[row] if label >= 0] == [label for label, _ in expected]
        curve = [1 / (1 + math.exp(-(3.0 * score - 1.0))) for _, score in expected]
        np.testing.assert_allclose(probabilities[row][: len(expected)], curve, atol=1e-5)


def test_a_prediction_deeper_than_the_shortlist_is_padded(system):
    ids, probabilities = system.predict(QUERIES, FUSION, LABELS)
    for row in range(len(QUERIES)):
        count = len(fused_by_hand(system, QUERIES[row]))
        assert (ids[row, :count] >= 0).all() and (ids[row, count:] == -1).all()
        assert (probabilities[row, :count] > 0).all() and (probabilities[row, count:] == 0).all()


def test_a_text_is_answered_alone_as_among_others(system):
    ids, probabilities = system.predict(QUERIES, FUSION, 5)
    for row in range(len(QUERIES)):
        one_ids, one_probabilities = system.predict(QUERIES.take(np.array([row])), FUSION, 5)
        assert one_ids.tolist() == [ids[row].tolist()]
        np.testing.assert_allclose(one_probabilities[0], probabilities[row], atol=1e-6)


def test_no_texts_and_texts_without_words_are_answered(system):
    ids, probabilities = system.predict(from_rows([], np.int32), FUSION, 5)
    assert ids.shape == probabilities.shape == (0, 5)
    ids, probabilities = system.predict(from_rows([[]], np.int32), FUSION, 5)
    assert ids.shape == (1, 5) and np.isfinite(probabilities).all()
