"""What decides on the epoch, against the metrics' own definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from xcutils.core.ragged import from_rows
from xcutils.train.fitting import Judge

POSITIVES = [[0, 3], [1], [2, 4, 5], [5]]
EXCLUDED = [(2, 0), (3, 1)]
INVERSE = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
steady = settings(derandomize=True, deadline=None, max_examples=50)


def by_hand(scores: np.ndarray, docs: list[int], weights: np.ndarray) -> float:
    """N@5, or with weights PSN@5: each document's gain over the best there could be, in percent."""
    gain = best = 0.0
    for doc, row in zip(docs, scores):
        allowed = [label for label in range(6) if (doc, label) not in EXCLUDED]
        ranked = sorted(allowed, key=lambda label: -row[label])[:5]
        norm = sum(1 / math.log2(place + 2) for place in range(min(5, len(POSITIVES[doc]))))
        own = sorted((weights[label] for label in POSITIVES[doc]), reverse=True)[:5]
        gain += (
            sum(weights[label] / math.log2(i + 2) for i, label in enumerate(ranked) if label in POSITIVES[doc]) / norm
        )
        best += sum(weight / math.log2(i + 2) for i, weight in enumerate(own)) / norm
    return 100 * gain / best


@steady
@given(seed=st.integers(0, 1000), tail=st.sampled_from([0.0, 0.3, 1.0]), docs=st.sampled_from([[2, 3], [0, 1, 2, 3]]))
def test_the_goal_is_ndcg_and_its_weighted_form_by_their_shares(seed, tail, docs):
    rng = np.random.default_rng(seed)
    queries, labels = rng.normal(size=(len(docs), 4)).astype(np.float32), rng.normal(size=(6, 4)).astype(np.float32)
    excluded = sparse.csr_matrix((np.ones(len(EXCLUDED)), np.array(EXCLUDED).T), (4, 6))
    judge = Judge(from_rows(POSITIVES, np.int32), excluded, INVERSE, tail)
    figures = judge(np.array(docs), queries, labels)
    scores = queries @ labels.T
    plain, weighted = by_hand(scores, docs, np.ones(6)), by_hand(scores, docs, INVERSE)
    assert next(iter(figures)) == "goal"  # the first figure decides
    assert figures["goal"] == pytest.approx((1 - tail) * plain + tail * weighted, rel=1e-6)
    assert (figures["N@5"], figures["PSN@5"]) == pytest.approx((plain, weighted), rel=1e-6)
