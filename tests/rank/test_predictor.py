import math

import numpy as np
import pytest
import torch

from xcutils.core.ragged import from_rows
from xcutils.core.vectors import unit
from xcutils.model.bag import BagOfEmbeddings
from xcutils.rank.predictor import Predictor
from xcutils.search.searcher import Searcher

DOCS, LABELS, WORDS, DIMS = 10, 14, 9, 4
SHORTLIST, NEIGHBOURS, TAU = 3, 2, 0.2
QUERIES = from_rows([[1, 2], [5], [3, 3, 8], [0, 4, 6, 7]], np.int32)


@pytest.fixture
def system() -> Predictor:
    """A system made by hand."""
    rng = np.random.default_rng(0)
    words = torch.from_numpy(rng.standard_normal((WORDS, DIMS))).float()
    tables = {name: unit(rng.standard_normal((n, DIMS))) for name, n in [("l", LABELS), ("c", LABELS), ("d", DOCS)]}
    owned = [sorted(rng.choice(LABELS, rng.integers(1, 4), replace=False)) for _ in range(DOCS)]
    return Predictor(
        encoder=BagOfEmbeddings(words, torch.full((WORDS, 1), 2.0), vocabulary=WORDS, ngrams=1),
        searchers={
            "labels": Searcher(tables["l"]),
            "classifiers": Searcher(tables["c"]),
            "docs": Searcher(tables["d"]),
        },
        views={},
        positives=from_rows(owned, np.int32).csr(LABELS),
        propensity=np.log(rng.uniform(1, 9, LABELS)),
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


def test_every_pair_of_the_union_has_all_four_scores(system):
    queries = system.embed(QUERIES)
    shortlist = system.shortlist(queries, SHORTLIST)
    found, _ = system.search(queries, SHORTLIST)
    assert shortlist.count == len(QUERIES) and shortlist.parts.dtype == np.float32
    for row in range(len(QUERIES)):
        parts, answers = parts_by_hand(system, QUERIES[row])
        here = shortlist.rows == row
        assert shortlist.labels[here].tolist() == list(parts)
        np.testing.assert_allclose(shortlist.parts[here], list(parts.values()), atol=1e-5)
        assert len(parts) < LABELS  # a shortlist, not everything
        for name, ids in answers.items():
            assert [label for label in found[name][0][row] if label >= 0] == ids


def test_without_neighbours_there_is_no_memory(system):
    system.neighbours = 0
    queries = system.embed(QUERIES)
    found, memory = system.search(queries, SHORTLIST)
    assert list(found) == ["classifier", "similarity"] and memory.nnz == 0
    assert (system.shortlist(queries, SHORTLIST).parts[:, 2] == 0).all()
