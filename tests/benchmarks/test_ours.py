"""Longtail's own run for the comparison, with a clone that is made up."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import ours
from benchmarks.apart import Measured
from xcutils.core.errors import UserError


class Made:
    """A clone whose run took known times."""

    def __init__(self, folder: Path):
        self.folder, self.checkout = folder, folder / "checkout"
        (folder / "finished.json").write_text("{}")

    def finished(self) -> dict[str, Measured]:
        return {"embed": Measured(2e9, 30.0, 50.0), "score": Measured(3e9, 12.0, 20.0), "DVC": Measured(0.0, 4.0, 0.0)}


def test_costs_are_of_the_whole_run_and_of_prediction(tmp_path, monkeypatch):
    said = []

    def xc(clone, *words):
        said.append(words)
        Path(words[-1]).write_text(json.dumps({"ms_single": 0.5, "ms_p99": 1.2}))

    monkeypatch.setattr(ours, "xc", xc)
    found = ours.costs(Made(tmp_path))
    assert (found["train_seconds"], found["rss_mb"], found["ms_p99"]) == (46.0, 3000.0, 1.2)
    assert found["stages"]["embed"] == 30.0
    assert said[0][:2] == ("timings", "--predict-only")


def test_a_split_is_written_once_for_a_run(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(ours, "xc", lambda clone, word, folder: (calls.append(word), Path(folder).mkdir()))
    clone = Made(tmp_path)
    os.utime(tmp_path / "finished.json", (100, 100))
    for _ in range(2):
        ours.export(clone, tmp_path / "export")
    assert calls == ["export"]
    (tmp_path / "export" / "old").write_text("")
    os.utime(tmp_path / "export", (50, 50))
    ours.export(clone, tmp_path / "export")
    assert calls == ["export"] * 2 and not (tmp_path / "export" / "old").exists()


def test_a_mistake_is_told_before_anything_runs(tmp_path):
    assert ours.changes_for(None, ["K=8"]) == ["K=8"]
    assert ours.changes_for(tmp_path, []) == [f'dataset="{tmp_path}"']
    with pytest.raises(UserError, match="no dataset"):
        ours.changes_for(tmp_path / "missing", [])
    with pytest.raises(UserError, match="K is 'many'"):
        ours.changes_for(None, ["K=many"])
