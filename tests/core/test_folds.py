from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcutils.core.folds import CHOOSE, FINAL, folds, last_fit, spread

IS_VALIDATION = np.array([False, True, False, False, True])


def test_the_first_fit_leaves_the_validation_docs_out_and_the_last_takes_all():
    choose, final = folds(IS_VALIDATION, refit=True)
    assert (choose.name, choose.training.tolist(), choose.validation.tolist()) == (CHOOSE, [0, 2, 3], [1, 4])
    assert (final.name, final.training.tolist(), final.validation.tolist()) == (FINAL, [0, 1, 2, 3, 4], [])


def test_without_refit_there_is_one_fit():
    assert [fold.name for fold in folds(IS_VALIDATION, refit=False)] == [CHOOSE]


def test_the_final_fit_trains_as_many_epochs_as_the_first_chose():
    trained = []
    for fold in folds(IS_VALIDATION, refit=True):
        trained.append(fold.epochs(most=20))
        fold.done(7)
    assert trained == [20, 7]


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 300), st.integers(1, 300))
def test_some_documents_are_from_all_over(count, most):
    docs = 7 * np.arange(count)
    some = spread(docs, most)
    assert len(some) == min(count, most) and np.isin(some, docs).all() and (np.diff(some) > 0).all()
    if count and most > 1:
        assert some[0] == docs[0] and some[-1] == docs[-1]
        assert np.diff(some, prepend=-7).max() <= 7 * -(-count // max(1, len(some) - 1))


def test_runs_share_nothing():
    one, other = (list(folds(IS_VALIDATION, refit=True)) for _ in range(2))
    one[0].done(3)
    other[0].done(4)
    assert one[1].epochs(20) == 3 and other[1].epochs(20) == 4


@pytest.mark.parametrize("refit", [True, False])
def test_new_texts_meet_the_models_of_the_last_fit(refit):
    assert last_fit(refit) == list(folds(IS_VALIDATION, refit))[-1].name


def test_training_is_watched_on_some_validation_documents_where_there_are_many(monkeypatch):
    is_validation = np.arange(100) % 2 == 1
    every = np.flatnonzero(is_validation)
    monkeypatch.setattr("xcutils.core.folds.WATCHED", 50)
    assert next(folds(is_validation, refit=True)).validation.tolist() == every.tolist()
    monkeypatch.setattr("xcutils.core.folds.WATCHED", 7)
    choose, final = folds(is_validation, refit=True)
    assert len(set(choose.validation.tolist()) & set(every.tolist())) == 7  # different ones, from first to last
    assert (choose.validation[0], choose.validation[-1]) == (every[0], every[-1])
    assert choose.training.tolist() == np.flatnonzero(~is_validation).tolist() and len(final.training) == 100


def test_the_final_fit_goes_on_only_where_that_is_shorter():
    for refit, kept, more, goes_on in [
        ("continue", 7, 3, True),
        ("continue", 3, 3, False),
        ("continue", 7, 0, False),
        ("continue", 0, 3, False),
        (True, 7, 3, False),
    ]:
        choose, final = folds(IS_VALIDATION, refit=refit)
        choose.done(kept, Path("models"))
        assert final.goes_on(more) == goes_on and final.first == Path("models") and not choose.goes_on(more)
