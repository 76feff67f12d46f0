import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.ragged import Ragged, concatenate, from_rows, from_strings, starts, to_strings

ROWS = st.lists(st.lists(st.integers(0, 20), max_size=5), max_size=8)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8)
steady = settings(derandomize=True, deadline=None)


def lists(ragged: Ragged) -> list[list]:
    return [ragged[row].tolist() for row in range(len(ragged))]


def test_layout_by_hand():
    ragged = from_rows([[3, 1], [], [2]], np.int32)
    assert ragged.values.tolist() == [3, 1, 2] and ragged.values.dtype == np.int32
    assert ragged.offsets.tolist() == [0, 2, 2, 3] and ragged.offsets.dtype == np.int64
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert ragged.row_ids().tolist() == [0, 0, 2]
    assert starts(np.array([], dtype=np.int64)).tolist() == [0]


@steady
@given(ROWS)
def test_rows_come_back(rows):
    assert lists(from_rows(rows, np.int32)) == rows


@steady
@given(ROWS, st.data())
def test_take_gives_the_named_rows_in_order(rows, data):
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=10)) if rows else []
    taken = from_rows(rows, np.int32).take(chosen)
    assert lists(taken) == [rows[row] for row in chosen]
    assert taken.values.dtype == np.int32


@steady
@given(ROWS, st.integers(0, 6))
def test_cut_keeps_the_first_values(rows, most):
    assert lists(from_rows(rows, np.int32).cut(most)) == [row[:most] for row in rows]


@steady
@given(ROWS, ROWS)
def test_concatenate_puts_parts_one_after_another(first, second):
    assert lists(concatenate(from_rows(first, np.int32), from_rows(second, np.int32))) == first + second


@steady
@given(st.lists(st.sets(st.integers(0, 9)).map(sorted), max_size=6))
def test_csr_has_ones_at_the_values(rows):
    dense = np.zeros((len(rows), 10))
    for row, columns in enumerate(rows):
        dense[row, columns] = 1
    assert np.array_equal(from_rows(rows, np.int32).csr(10).toarray(), dense)


@steady
@given(TEXTS)
def test_strings_come_back(strings):
    made = from_strings(strings)
    assert to_strings(made) == strings
    assert made.values.dtype == np.uint8
    assert to_strings(made, range(len(strings))[::-1]) == strings[::-1]


def test_half_a_character_is_no_string():
    with pytest.raises(UnicodeEncodeError):
        from_strings(["\ud800"])
