"""Experiments as they are told apart, found and run: in a git repository with made-up experiments; DVC is not run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from longtail.recipes import flat
from study import experiments
from study.experiments import Experiment, differences, with_values
from xcutils.core.errors import UserError
from xcutils.core.pipelines import UNIDEC

TREE = {"K": 4096, "seed": 0, "encoder": {"epochs": 10, "layers": 0}, "classifier": {"encoder_lr": 0.001}}


def test_with_values_leaves_the_tree_alone_and_refuses_unknown_names():
    before = json.dumps(TREE)
    assert with_values(TREE, {"K": 0, "encoder.epochs": 3})["encoder"] == {"epochs": 3, "layers": 0}
    assert json.dumps(TREE) == before
    for wrong in ("encoder.epoch", "encode.epochs", "k", "K.epochs"):
        with pytest.raises(UserError, match=f"{wrong} is not a parameter"):
            with_values(TREE, {wrong: 1})


def test_differences_leave_out_what_the_file_has_already():
    new = flat(with_values(TREE, {"K": 4096, "encoder.layers": 0, "classifier.encoder_lr": 0.0}))
    assert differences(flat(TREE), new) == ["classifier.encoder_lr=0.0"]
    assert differences({}, {"a": True, "b": "c+d"}) == ["a=true", "b=c+d"]


def test_arguments_name_the_pipeline_the_file_and_what_is_different():
    now = {"params.yaml": {"K": 1, "seed": 0}, "unidec/params.yaml": {"eta": 6, "seed": 0}}
    assert Experiment("a", {"params.yaml": {"K": 1, "seed": 2}}).arguments(now) == ["-S", "seed=2"]
    both = Experiment("b", {"unidec/params.yaml": {"eta": 0, "seed": 0}, "params.yaml": {"K": 2}}, UNIDEC)
    assert both.arguments(now) == ["unidec/dvc.yaml", "-S", "unidec/params.yaml:eta=0", "-S", "K=2"]


def committed(tree: dict, metrics: dict | None, folder: str = "") -> dict[str, str]:
    out = {f"{folder}params.yaml": json.dumps(tree)}
    return out if metrics is None else out | {f"{folder}metrics.json": json.dumps(metrics)}


def test_results_are_of_the_newest_finished_experiments_with_the_wanted_parameters(repository):
    other, elsewhere = {**TREE, "seed": 1}, "cd/" + 38 * "1"
    good = repository("good", committed(TREE, {"a": 2}), day=2)
    repository("good", committed(TREE, {"a": 1}), day=1, place=elsewhere)
    older = repository("others", committed(TREE, {"a": 3}), day=1)
    repository("others", committed(other, {"a": 4}), day=2, place=elsewhere)
    repository("empty", committed(TREE, None))
    repository("less", committed({"K": 4096}, {"a": 5}))
    repository("unasked", committed(TREE, {"a": 6}))
    repository("failed", committed(TREE, {"a": 7}), place="celery")  # DVC's own: queued, failed and running ones
    names = ("good", "others", "empty", "less", "failed", "missing")
    found = experiments.results([Experiment(name, {"params.yaml": flat(TREE)}) for name in names])
    assert found == {"good": (good, {"a": 2}), "others": (older, {"a": 3})}


def test_results_of_the_unified_pipeline_are_its_own(repository):
    both = committed(TREE, {"a": 1}) | committed({"eta": 6}, {"a": 2}, "unidec/")
    commit = repository("second", both)
    second = Experiment("second", {"unidec/params.yaml": {"eta": 6}, "params.yaml": {"K": 4096}}, UNIDEC)
    assert experiments.results([second]) == {"second": (commit, {"a": 2})}
    for file, value in (("unidec/params.yaml", {"eta": 0}), ("params.yaml", {"K": 0})):
        wrong = Experiment("second", {**second.values, file: value}, UNIDEC)
        assert experiments.results([wrong]) == {}


def fake_dvc(folder, monkeypatch, code: str) -> None:
    """Let `python -m dvc` be this code."""
    (folder / "dvc.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(experiments, "ROOT", folder)


def test_dvc_gives_what_it_prints_or_the_end_of_its_complaint(tmp_path, monkeypatch):
    code = "import sys; print(*sys.argv[1:]); sys.exit(sys.argv[1] == 'no' and 'it is broken')"
    fake_dvc(tmp_path, monkeypatch, code)
    assert experiments.dvc("exp", "list") == "exp list\n"
    with pytest.raises(UserError, match="`dvc no` failed:\nit is broken"):
        experiments.dvc("no")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C works, also where the tests run in the background of a shell, which lets them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", ["too long", "Ctrl-C"])
def test_dvc_and_its_stage_are_ended_as_by_ctrl_c(how, tmp_path, monkeypatch, ctrl_c):
    code = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    open("ready", "w").close()
    time.sleep(60)
except KeyboardInterrupt:
    open("ended", "w").close()
"""
    fake_dvc(tmp_path, monkeypatch, code)

    def wait_until_ready() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)

    def interrupt() -> None:
        wait_until_ready()
        os.kill(os.getpid(), signal.SIGINT)

    class Process(subprocess.Popen):
        """Its time begins when it is ready."""

        def wait(self, timeout: float | None = None) -> int:
            if how == "too long":
                wait_until_ready()
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Process)
    if how == "Ctrl-C":
        threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(UserError if how == "too long" else KeyboardInterrupt):
        experiments.dvc("exp", "run", minutes=0.1 / 60 if how == "too long" else None)
    assert (tmp_path / "ended").exists()
