"""Damaged files of every form, a few of the many that `python -m tests.robustness.mutations` reads."""

import pytest

from tests.robustness.mutations import FORMS, OUTCOMES, outcome, run_form


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_read_or_refused_with_a_sentence(tmp_path, form):
    result = run_form(form, count=150, seed=7, folder=tmp_path)
    assert not result["shown"] and result["counts"].get("uncaught", 0) == 0
    assert sum(result["counts"].values()) == 150 and set(result["counts"]) <= set(OUTCOMES)
    assert min(result["counts"].get(name, 0) for name in ("read whole", "refused")) > 0


def test_what_nobody_caught_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.robustness.mutations.load_dataset", lambda folder: 1 / 0)
    found, told = outcome(tmp_path)
    assert found == "uncaught" and "ZeroDivisionError" in told
