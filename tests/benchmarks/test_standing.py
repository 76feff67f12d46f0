"""The table of several seeds against the best of the other tools, with runs that are made up."""

import json
from pathlib import Path

import pytest

from benchmarks import standing
from benchmarks.peers import ACCURACY
from xcutils.core.errors import UserError


def figures(value: float, **others: float) -> dict[str, float]:
    return {column: value for column in ACCURACY} | others


def peers_of(folder: Path, **rows: dict) -> None:
    (folder / "peers").mkdir(parents=True)
    found = [{"method": name, **row} for name, row in rows.items()]
    (folder / "peers" / "peers.json").write_text(json.dumps({"rows": found}))


@pytest.fixture
def made(monkeypatch):
    """The figures of runs that are made up: (dataset, seed) -> figures; what was asked for."""
    runs, asked = {}, []

    class Clone:
        is_finished = False

        def __init__(self, folder: Path, changes):
            self.folder, self.checkout = folder, folder / "checkout"
            asked.append((folder.parent.name, changes))

        def finished(self) -> None:
            self.checkout.mkdir(parents=True)
            own = runs[self.folder.parent.name, self.folder.name]
            (self.checkout / "metrics.json").write_text(json.dumps({"fused": own}))

    monkeypatch.setattr(standing, "Clone", Clone)
    return runs, asked


def test_a_dataset_has_its_best_tool_the_mean_the_spread_and_the_gain(tmp_path, made):
    runs, asked = made
    tools = {"bonsai": figures(20.0), "xr-linear": figures(10.0, **{"C@5": 40.0}), "fused": figures(99.0)}
    peers_of(tmp_path / "default", **tools)
    runs["default", "seed-0"], runs["default", "seed-1"] = figures(21.0), figures(23.0, **{"C@5": 59.0})
    lines = standing.standing([None], [0, 1], tmp_path).splitlines()
    head, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:6]]
    assert head == ["dataset", "", *ACCURACY]
    assert cells[0] == ["default", "best of the other tools", *["20.00"] * 9, "40.00"]
    assert cells[1] == ["", "Longtail, mean of 2 seeds", *["22.00"] * 9, "40.00"]
    assert cells[2] == ["", "largest less smallest", *["2.00"] * 9, "38.00"]
    assert cells[3] == ["", "above the best", *["+10%"] * 9, "+0%"]
    assert "omikuji Bonsai is the best other tool at P@1" in lines[7] and "PECOS XR-Linear" in lines[7]
    assert asked == [("default", ["seed=0"]), ("default", ["seed=1"])]


def test_every_dataset_has_its_own_folder_and_one_seed_no_spread(tmp_path, made):
    runs, asked = made
    (tmp_path / "mine").mkdir()
    work = tmp_path / "work"
    for name, value in (("default", 1.0), ("mine", 2.0)):
        peers_of(work / name, bonsai=figures(value))
        runs[name, "seed-3"] = figures(4.0)
    text = standing.standing([None, tmp_path / "mine"], [3], work)
    assert "| mine | best of the other tools | 2.00 |" in text and "largest" not in text
    assert "| Longtail | 4.00 |" in text and "+300%" in text and "+100%" in text
    assert asked[1] == ("mine", [f'dataset="{tmp_path / "mine"}"', "seed=3"])


def test_nothing_runs_before_every_tool_has_been_compared(tmp_path, made):
    _, asked = made
    peers_of(tmp_path / "default", bonsai=figures(1.0))
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"mine/peers/peers.json is missing: `make standing`"):
        standing.standing([None, tmp_path / "mine"], [0], tmp_path)
    assert not asked


def test_seeds_are_whole_numbers():
    assert standing.numbers("0,1,2") == [0, 1, 2]
    with pytest.raises(UserError, match="'0,x'; it must be whole numbers"):
        standing.numbers("0,x")
