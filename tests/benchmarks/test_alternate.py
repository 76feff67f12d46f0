"""Two commits in turns, with clones that are made up."""

import json

import pytest

from benchmarks import alternate
from benchmarks.alternate import Side
from benchmarks.apart import Measured
from benchmarks.runs import DVC
from tests.benchmarks.test_growth import cells, took


class Made:
    """A clone each of whose runs takes a second more than the one before."""

    def __init__(self, folder, name, said):
        self.folder, self.checkout, self.name, self.said = folder / name, folder / name, name, said
        self.folder.mkdir()
        (self.folder / "metrics.json").write_text(json.dumps({"fused": {"P@1": len(name)}}))

    def repro(self, option):
        self.said.append((self.name, option))

    def records(self):
        return {"embed": took(float(len(self.said)), 1.0)}


def test_the_commits_take_turns_and_finished_rounds_are_kept(tmp_path):
    said = []
    clones = {name: Made(tmp_path, name, said) for name in ("old", "new")}
    sides = alternate.alternate(clones, 3)
    assert [name for name, _ in said] == ["old", "new", "new", "old", "old", "new"]
    assert {option for _, option in said} == {"--force"}
    assert [found["embed"].seconds for found in sides["old"].rounds] == [1, 4, 5]
    assert alternate.alternate(clones, 3) == sides and len(said) == 6
    assert sides["old"].metrics == {"fused": {"P@1": 3}}


OLD = Side(
    [
        {"embed": took(60.0, 1.0), "score": took(30.0, 2.0), DVC: took(5.0, 0)},
        {"embed": took(70.0, 1.5), "score": took(20.0, 2.0), DVC: took(5.0, 0)},
    ],
    {"fused": {"P@1": 59.5, "P@5": 41.7, "gone": 1.0}},
)
NEW = Side(
    [{"embed": took(13.0, 1.0), "pack": Measured(1e9, 2.0, 2.0), DVC: took(2.5, 0)}],
    {"fused": {"P@1": 59.25, "P@5": 42.0}},
)


def test_medians_and_ratios_are_shown_stage_by_stage():
    table = cells(alternate.times_table(OLD, NEW))
    assert table["embed"] == ["65.0", "13.0", "0.20", "1.50", "1.00"]
    assert table["score"] == ["25.0", "-", "-", "2.00", "-"]
    assert table["pack"] == ["-", "2.0", "-", "-", "1.00"]
    assert table["DVC"] == ["5.0", "2.5", "0.50", "-", "-"]
    assert table["all"] == ["95.0", "17.5", "0.18", "2.00", "1.00"]


def test_metrics_that_both_have_are_compared():
    table = cells(alternate.metrics_table(OLD, NEW))
    assert table["fused"] == ["P@1", "P@5"]
    assert table["difference"] == ["-0.25", "+0.30"]


@pytest.mark.parametrize(("stage", "median"), [("score", 25.0), ("none", None), ("all", 95.0)])
def test_a_stage_that_is_not_there_has_no_median(stage, median):
    assert OLD.median(stage) == median
