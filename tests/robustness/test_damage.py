"""Artifacts damaged in every way, a few of the many reads of `python -m tests.robustness.damage`."""

import pytest

from testing.programs import output_of
from tests.robustness.damage import ARTIFACTS, changed, readers, short_name


@pytest.mark.stage
def test_damaged_artifacts_are_refused_with_one_sentence():
    printed = output_of("tests.robustness.damage", "--sample", 80)
    assert "80 of 80 reads of damaged artifacts were refused with one sentence" in printed
    assert [line.split()[0] for line in printed.splitlines()[1:-1]] == [short_name(one) for one in ARTIFACTS]


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty"])
def test_a_damage_changes_the_content(how):
    assert changed(b"abc", how) != b"abc" and changed(b"", how) == b""


def test_every_artifact_has_a_reader():
    assert [one for one in ARTIFACTS if not readers(one)] == ["data/score", "unidec/data/score"]  # results, for people
    assert "predict" in readers("data/index") and "unidec/predict" in readers("unidec/data/index")
