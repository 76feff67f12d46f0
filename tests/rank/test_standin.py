"""The vector of a label that was not trained, and the line that scores it."""

import math

import numpy as np
import pytest

from xcutils.rank.served import constant
from xcutils.rank.standin import LEAST, Line, StandIn, blend, fit_line
from xcutils.rank.weights import Fusion

STEEP = np.linspace(-1, 2, 61)
FUSION = Fusion(
    classifier=1.0,
    similarity=0.5,
    memory=0.8,
    overlap=0.4,
    curve={"scores": STEEP.tolist(), "probabilities": (1 / (1 + np.exp(-4 * (STEEP - 1)))).tolist()},
)


def pairs(scale: float, offset: float, count: int = 40_000):
    """Pairs whose labels are right as often as the fusion's curve says of a score on this line."""
    rng = np.random.default_rng(0)
    similarity = rng.uniform(-0.2, 1, count)
    shares = np.where(rng.random(count) < 0.1, rng.random(count), 0)
    rest = scale * similarity + offset
    return similarity, shares, rng.random(count) < FUSION.probabilities(rest + FUSION.remembered(rest, shares))


@pytest.mark.parametrize("scale, offset", [(1.5, 0.0), (1.0, -0.3), (2.0, -0.5)])
def test_the_line_that_made_the_pairs_is_found_again(scale, offset):
    line, likelihood = fit_line(*pairs(scale, offset), FUSION)
    assert line.pairs > 1000 and likelihood < 0
    assert abs(line.scale - scale) < 0.2 and abs(line.offset - offset) < 0.1


def test_the_likelihood_is_the_mean_of_all_pairs_by_hand():
    similarity, shares, right = pairs(1.0, 0.0, 300)  # so few that every pair is looked at
    line, likelihood = fit_line(similarity, shares, right, FUSION)
    total = 0.0
    for s, m, is_right in zip(similarity, shares, right):
        rest = line.scale * s + line.offset
        said = float(FUSION.probabilities(np.array([rest + m * max(0.0, 0.8 - 0.4 * rest)]))[0])
        total += math.log(said if is_right else 1 - said)
    assert math.isclose(likelihood, total / 300, rel_tol=1e-9)


def test_few_right_pairs_leave_the_text_in_the_place_of_embedding_and_classifier():
    similarity, shares = np.linspace(0, 1, 500), np.zeros(500)
    right = np.arange(500) >= 500 - LEAST + 1
    assert fit_line(similarity, shares, right, FUSION)[0] == Line(1.5, 0.0) == StandIn.unfitted(FUSION).text


def test_a_query_gets_the_lines_score():
    rng = np.random.default_rng(0)
    fit = StandIn(Line(2.0, -0.4), Line(1.5, -0.7), blend=0.25)
    dim = 6
    texts, means, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(3, 4, dim)))
    texts[3] = 0  # a label without a known word and without examples
    has_examples = np.array([False, True, True, False])
    vectors = fit.vectors(texts, means * 3, has_examples, dim + 2)
    asked = np.concatenate([queries, np.full((4, 2), constant(dim))], axis=1)
    scores = asked @ vectors.T
    np.testing.assert_allclose(scores[:, 0], 2.0 * queries @ texts[0] - 0.4, atol=1e-6)
    mixed = 0.75 * texts[1:3] + 0.25 * means[1:3]
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    np.testing.assert_allclose(scores[:, 1:3], 1.5 * queries @ mixed.T - 0.7, atol=1e-6)
    np.testing.assert_allclose(blend(texts[1:3], means[1:3] * 7, 0.25), mixed, atol=1e-6)
    assert not vectors[3].any()


def test_a_stand_in_comes_back_from_what_is_stored():
    fit = StandIn(Line(2.0, -0.4, 30), Line(1.5, -0.7, 50), blend=0.25)
    assert StandIn.of(fit.as_dict()) == fit
