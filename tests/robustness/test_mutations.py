"""Mutated files of every form, a few of the many that `python -m tests.robustness.mutations` reads."""

import pytest
from click.testing import CliRunner

from tests.robustness import mutations
from tests.robustness.mutations import FORMS, OUTCOMES, outcome, run_form


@pytest.mark.parametrize("form", FORMS)
def test_a_mutated_file_is_read_or_refused_with_a_sentence(tmp_path, form):
    result = run_form(form, count=150, seed=7, folder=tmp_path)
    assert not result["failures"] and result["counts"].get("uncaught", 0) == 0
    assert sum(result["counts"].values()) == 150 and set(result["counts"]) <= set(OUTCOMES)
    assert min(result["counts"].get(name, 0) for name in ("read whole", "refused")) > 0


def test_what_nobody_caught_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(mutations, "load_dataset", lambda folder: 1 / 0)
    found, told = outcome(tmp_path)
    assert found == "uncaught" and "ZeroDivisionError" in told


def test_the_command_prints_a_row_per_form_and_ends_with_1_after_a_failure(monkeypatch):
    good = {"form": "csv", "counts": {"refused": 3}, "slowest": 0.002, "peak_mb": 100, "failures": []}
    monkeypatch.setattr(mutations, "in_own_process", lambda form, *_: {**good, "form": form})
    done = CliRunner().invoke(mutations.main, ["--form", "csv", "--form", "tsv"])
    assert done.exit_code == 0 and [line.split()[0] for line in done.stdout.splitlines()] == ["form", "csv", "tsv"]
    monkeypatch.setattr(mutations, "in_own_process", lambda *_: {**good, "failures": ["csv 7: a traceback"]})
    done = CliRunner().invoke(mutations.main, ["--form", "csv"])
    assert done.exit_code == 1 and done.stderr == "csv 7: a traceback\n"
