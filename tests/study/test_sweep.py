"""The sweeps' rows, what is read from the queue's status, and the document, on made-up results; DVC is not run."""

import pytest

from longtail.recipes import flat
from stages import check_parameters
from study import sweep
from study.experiments import with_values
from xcutils.core.errors import UserError
from xcutils.core.params import read
from xcutils.core.pipelines import MODULAR

TREE = {
    "K": 4096,
    "seed": 0,
    "prepare": {"refit": True},
    "encoder": {
        "kind": "bag-of-embeddings",
        "loss": "decoupled-softmax",
        "layers": 0,
        "ngrams": 2,
        "epochs": 10,
        "patience": 3,
        "positives": 6,
        "lr": 0.002,
        "aux_lr": 0.002,
        "normalise_first": True,
    },
    "classifier": {"encoder_lr": 0.001, "epochs": 8},
}


def metrics(p1: float) -> dict:
    figures = {name: p1 - place for place, name in enumerate(sweep.FIGURES)}
    return {"encoder": figures, "fused": {"P@1": p1 + 10}}


def made_up(rows: list[sweep.Row]) -> dict[str, dict]:
    return {row.name: metrics(30.0 + place) for place, row in enumerate(rows)}


def test_the_sweeps_are_those_that_were_asked_for():
    assert [row.k for row in sweep.make_rows("k", TREE)] == [0, 512, 2048, 4096, 65536]
    loss = [(row.group, row.k) for row in sweep.make_rows("loss", TREE)]
    bags = ["triplet", "triplet-tokens", "decoupled-softmax"]
    assert loss == [(loss, k) for loss in bags for k in (0, 4096)]
    encoders = ["bag-of-embeddings", "bi-gru", "MiniLM-L3", "MiniLM-L6"]
    assert [(row.group, row.k) for row in sweep.make_rows("encoder", TREE)] == [
        (e, k) for e in encoders for k in (0, 4096)
    ]


@pytest.mark.parametrize("name", sweep.SWEEPS)
def test_every_change_is_to_a_parameter_of_this_repository(name):
    tree = read(sweep.ROOT / "params.yaml")
    for row in sweep.make_rows(name, tree):
        new = with_values(tree, dict(row.changes))
        assert new["K"] == row.k
        assert set(flat(new)) == set(flat(tree))
        check_parameters(new, "params.yaml", MODULAR)  # each value of its type and in its range


def test_the_rows_of_a_pair_differ_in_k_alone():
    for name in ("loss", "encoder"):
        rows = sweep.make_rows(name, TREE)
        for without, aux in zip(rows[::2], rows[1::2]):
            assert (without.group, without.k, aux.k) == (aux.group, 0, 4096)
            assert without.changes[1:] == aux.changes[1:]


def test_rows_of_one_name_are_one_experiment():
    rows = [row for name in sweep.SWEEPS for row in sweep.make_rows(name, TREE)]
    assert len({row.name for row in rows}) == len(set(rows)) == 5 + 4 + 8  # default loss: two rows are in two sweeps


def test_overrides():
    row = sweep.make_rows("loss", TREE, {"encoder.normalise_first": False, "encoder.lr": 0.0001})[1]
    words = row.overrides
    assert set(words[::2]) == {"-S"}
    assert words[1] == "K=4096"
    wanted = {"encoder.loss=triplet", "encoder.normalise_first=false", "encoder.lr=0.0001"}
    assert wanted <= set(words[1::2])
    assert sum(word.startswith("encoder.lr=") for word in words) == 1
    assert sweep.make_rows("k", TREE)[0].overrides == ["-S", "K=0"]
    layers = {row.group: dict(row.changes).get("encoder.layers") for row in sweep.make_rows("encoder", TREE)}
    assert layers == {"bag-of-embeddings": None, "bi-gru": None, "MiniLM-L3": 3, "MiniLM-L6": 0}


def test_extra_changes_win_and_are_in_every_row():
    for name in sweep.SWEEPS:
        for row in sweep.make_rows(name, TREE, {"encoder.epochs": 1}):
            assert sweep.experiment(TREE, row).values["params.yaml"]["encoder.epochs"] == 1
            assert row.overrides.count("encoder.epochs=1") == 1


STATUS = """Task     Name            Created    Status
401de0e  sweep-a-K0      05:52 AM   Failed
5a70e40  sweep-a-K4096   05:52 AM   Success
77aa0e4  sweep-b-K0      Nov 15, 2026  Running
88aa0e4                  05:53 AM   Queued
99aa0e4  sweep-b-K4096   05:54 PM   Queued

Worker status: 1 active, 2 idle
"""


def test_status_of_the_queue():
    states, active, idle = sweep.read_status(STATUS)
    ours = {name: state for name, state in states.items() if name.startswith("sweep-")}
    assert list(ours.values()) == ["Failed", "Success", "Running", "Queued"]
    assert (active, idle) == (1, 2)
    nothing = "No experiment tasks in the queue.\n\nWorker status: 0 active, 0 idle\n"
    assert sweep.read_status(nothing) == ({}, 0, 0)
    assert sweep.progress(ours) == "sweep: 2 of 4 done, sweep-b-K0 is running, sweep-a-K0 failed"


def test_queue_that_cannot_go_on():
    fine = [(["a"], 0, 1, False), (["a"], sweep.LOOKS - 1, 1, False), ([], sweep.LOOKS, 1, False), ([], 1, 9, False)]
    for state in fine:
        sweep.check_queue(*state)
    with pytest.raises(UserError, match="dvc queue kill a"):
        sweep.check_queue(["a"], sweep.LOOKS, 1, False)
    with pytest.raises(UserError, match="started"):
        sweep.check_queue([], sweep.LOOKS, sweep.STARTS, False)
    with pytest.raises(UserError, match="--minutes"):
        sweep.check_queue(["a"], 0, 1, True)


def test_gains_are_of_pairs():
    rows = sweep.make_rows("loss", TREE)
    found = made_up(rows)
    found[rows[1].name] = metrics(36.5)
    assert sweep.gains(rows, found) == {"triplet": 6.5, **dict.fromkeys(list(sweep.LOSSES)[1:], 1.0)}
    rows = sweep.make_rows("k", TREE)
    assert sweep.gains(rows, made_up(rows)) == {}


def test_section_has_a_line_for_each_row():
    rows = sweep.make_rows("loss", TREE)
    text = sweep.section("loss", rows, made_up(rows), TREE)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    figures = "| triplet, K = 0 | 30.00 | 29.00 | 28.00 | 27.00 | 26.00 | 25.00 | 40.00 |"
    assert table[2].startswith(f"{figures} `K=0` `encoder.loss=triplet`")
    assert table[-1].endswith("| 45.00 | nothing |")
    assert len({line.count("|") for line in table}) == 1
    assert "triplet +1.00" in text and "decoupled-softmax +1.00." in text
    assert "(sweep-loss.png)" in text and "`python -m study.sweep loss`" in text
    text = sweep.section("loss", rows, made_up(rows), TREE, ("encoder.epochs=1",))
    assert "`python -m study.sweep loss -S encoder.epochs=1`" in text


def test_document_joins_the_sections():
    text = sweep.document(["## One\n", "## Two\n"])
    assert text.startswith("# Sweeps\n") and text.index("## One") < text.index("## Two") and text.endswith("\n")


@pytest.mark.parametrize("name", ["k", "encoder"])
def test_plots_are_the_same_each_time(name, tmp_path):
    rows = sweep.make_rows(name, TREE)
    for file in ("one.png", "two.png"):
        sweep.draw(name, rows, made_up(rows), tmp_path / file)
    first, second = ((tmp_path / file).read_bytes() for file in ("one.png", "two.png"))
    assert first == second and first.startswith(b"\x89PNG") and b"Software" not in first
