"""BM25 against sums over words, one pair of a query and a label at a time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.ragged import from_rows
from xcutils.rank import bm25

steady = settings(derandomize=True, deadline=None, max_examples=100)
TEXTS = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=9)


def bm25_by_hand(query: list[int], label: list[int], labels: list[list[int]]) -> float:
    """The formula as it is printed, with Lucene's idf."""
    mean = sum(map(len, labels)) / len(labels)
    total = 0.0
    for token in query:
        having = sum(token in other for other in labels)
        idf = math.log(1 + (len(labels) - having + 0.5) / (having + 0.5))
        count = label.count(token)
        if count:
            total += idf * count * 2.2 / (count + 1.2 * (1 - 0.75 + 0.75 * len(label) / mean))
    return total


def search(queries: list[list[int]], labels: list[list[int]], k: int, **options):
    return bm25.search(from_rows(queries, np.int32), from_rows(labels, np.int32), k, **options)


@steady
@given(queries=TEXTS, labels=TEXTS, k=st.integers(1, 12), chunk=st.sampled_from([1, 20, 1000]))
def test_the_best_labels_are_those_found_by_hand(queries, labels, k, chunk):
    ids, scores = search(queries, labels, k, chunk=chunk)
    assert ids.shape == scores.shape == (len(queries), k) and ids.dtype == np.int64
    for query, row, values in zip(queries, ids.tolist(), scores.tolist()):
        by_hand = [bm25_by_hand(query, label, labels) for label in labels]
        best = sorted((score for score in by_hand if score > 0), reverse=True)[:k]
        found = [label for label in row if label >= 0]
        assert row == found + [-1] * (k - len(found)) and values[len(found) :] == [-math.inf] * (k - len(found))
        assert len(set(found)) == len(found)
        assert [by_hand[label] for label in found] == pytest.approx(best, rel=1e-5)
        assert values[: len(found)] == pytest.approx(best, rel=1e-5)


@steady
@given(queries=TEXTS, labels=TEXTS, k=st.integers(1, 12))
def test_labels_of_the_same_words_come_by_their_id(queries, labels, k):
    twice = [*labels, *(label[::-1] for label in labels)]  # the order of words does not count
    ids, scores = search(queries, twice, k)
    for row, values in zip(ids.tolist(), scores.tolist()):
        for one, other, score, next_score in zip(row, row[1:], values, values[1:]):
            assert score > next_score or one < other or other == -1
        for place, label in enumerate(row):
            if label >= len(labels):
                assert label - len(labels) in row[:place]


@steady
@given(queries=TEXTS, labels=TEXTS, chunk=st.integers(1, 50))
def test_the_size_of_a_chunk_changes_nothing(queries, labels, chunk):
    for one, other in zip(search(queries, labels, 5), search(queries, labels, 5, chunk=chunk)):
        np.testing.assert_array_equal(one, other)


@steady
@given(queries=TEXTS, labels=TEXTS)
def test_fewer_labels_are_the_first_of_more(queries, labels):
    many, few = search(queries, labels, 8), search(queries, labels, 3)
    for one, other in zip(many, few):
        np.testing.assert_array_equal(one[:, :3], other)


def test_a_rare_word_counts_more_than_a_frequent_one_and_a_short_label_more_than_a_long_one():
    labels = [[1, 2], [1, 3], [1, 4], [1, 5, 6, 7], [8]]
    ids, scores = search([[1], [2, 1], [9], []], labels, 5)
    assert ids.tolist() == [[0, 1, 2, 3, -1], [0, 1, 2, 3, -1], [-1] * 5, [-1] * 5]
    assert scores[0, 0] == scores[0, 2] > scores[0, 3] > 0  # though four of five labels have the word
    assert scores[1, 0] > 2 * scores[1, 1]


def test_a_word_twice_in_the_query_counts_twice_and_in_the_label_less_than_twice():
    labels = [[1, 2], [1, 1], [3, 4]]
    _, once = search([[1]], labels, 3)
    ids, twice = search([[1, 1]], labels, 3)
    assert ids.tolist() == [[1, 0, -1]] and twice[0, :2].tolist() == pytest.approx((2 * once[0, :2]).tolist())
    assert once[0, 1] < once[0, 0] < 2 * once[0, 1]


@pytest.mark.parametrize("queries, labels", [([], []), ([[1]], []), ([], [[1]]), ([[]], [[], []])])
def test_nothing_to_search_finds_nothing(queries, labels):
    ids, scores = search(queries, labels, 2)
    assert ids.shape == (len(queries), 2) and (ids == -1).all() and (scores == -np.inf).all()


def test_texts_that_are_mapped_from_files_stay_as_they_are(tmp_path):
    labels = from_rows([[5, 1, 1], [2, 1]], np.int32)
    np.save(tmp_path / "values.npy", labels.values)
    mapped = type(labels)(np.load(tmp_path / "values.npy", mmap_mode="r"), labels.offsets)
    ids, _ = bm25.search(mapped, mapped, 1)
    assert ids.tolist() == [[0], [1]] and mapped.values.tolist() == [5, 1, 1, 2, 1]
