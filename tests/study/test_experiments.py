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

from study import experiments
from study.experiments import Experiment, changed, differences, flat
from xcutils.core.errors import UserError

TREE = {"K": 4096, "seed": 0, "encoder": {"epochs": 10, "layers": 0}, "classifier": {"encoder_lr": 0.001}}


def test_changed_leaves_the_tree_alone_and_refuses_unknown_names():
    before = json.dumps(TREE)
    assert changed(TREE, {"K": 0, "encoder.epochs": 3})["encoder"] == {"epochs": 3, "layers": 0}
    assert json.dumps(TREE) == before
    for wrong in ("encoder.epoch", "encode.epochs", "k", "K.epochs"):
        with pytest.raises(UserError, match=f"{wrong} is not a parameter"):
            changed(TREE, {wrong: 1})


def test_differences_leave_out_what_the_file_has_already():
    new = flat(changed(TREE, {"K": 4096, "encoder.layers": 0, "classifier.encoder_lr": 0.0}))
    assert differences(flat(TREE), new) == ["classifier.encoder_lr=0.0"]
    assert differences({}, {"a": True, "b": "c+d"}) == ["a=true", "b=c+d"]


def test_arguments_are_read_as_yaml():
    given = ("encoder.lr=0.0001", "K=8", "encoder.normalise_first=false", "encoder.kind=bi-gru")
    assert list(experiments.parse(given).values()) == [0.0001, 8, False, "bi-gru"]
    for wrong in ("K", "=3"):
        with pytest.raises(UserError, match="NAME=VALUE"):
            experiments.parse((wrong,))


def test_arguments_name_the_pipeline_the_file_and_what_is_different():
    now = {"params.yaml": {"K": 1, "seed": 0}, "unidec/params.yaml": {"eta": 6, "seed": 0}}
    assert Experiment("a", {"params.yaml": {"K": 1, "seed": 2}}).arguments(now) == ["-S", "seed=2"]
    both = Experiment("b", {"unidec/params.yaml": {"eta": 0, "seed": 0}, "params.yaml": {"K": 2}}, "unidec/")
    assert both.arguments(now) == ["unidec/dvc.yaml", "-S", "unidec/params.yaml:eta=0", "-S", "K=2"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A function that makes an experiment of some files: (name, {path: text}, day) -> commit."""
    monkeypatch.setattr(experiments, "ROOT", tmp_path)
    who = {f"GIT_{role}_{part}": "x@y.z" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}

    def git(*words: str, day: int = 1) -> str:
        env = {**os.environ, **who, "GIT_COMMITTER_DATE": f"2024-01-{day:02}T00:00:00Z"}
        command = ["git", "-c", "commit.gpgsign=false", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, env=env).stdout.strip()

    git("init", "--quiet")

    def make(name: str, files: dict[str, str], day: int = 1, place: str = "ab/" + 38 * "0") -> str:
        git("read-tree", "--empty")
        for path, text in files.items():
            (tmp_path / "blob").write_text(text)
            git("update-index", "--add", "--cacheinfo", f"100644,{git('hash-object', '-w', 'blob')},{path}")
        (tmp_path / "blob").unlink(missing_ok=True)
        commit = git("commit-tree", git("write-tree"), "-m", name, day=day)
        git("update-ref", f"refs/exps/{place}/{name}", commit)
        return commit

    return make


def files(tree: dict, metrics: dict | None, folder: str = "") -> dict[str, str]:
    out = {f"{folder}params.yaml": json.dumps(tree)}
    return out if metrics is None else out | {f"{folder}metrics.json": json.dumps(metrics)}


def test_results_are_of_the_newest_finished_experiments_with_the_wanted_parameters(repository):
    other, elsewhere = {**TREE, "seed": 1}, "cd/" + 38 * "1"
    good = repository("good", files(TREE, {"a": 2}), day=2)
    repository("good", files(TREE, {"a": 1}), day=1, place=elsewhere)
    older = repository("others", files(TREE, {"a": 3}), day=1)
    repository("others", files(other, {"a": 4}), day=2, place=elsewhere)
    repository("empty", files(TREE, None))
    repository("less", files({"K": 4096}, {"a": 5}))
    repository("unasked", files(TREE, {"a": 6}))
    repository("failed", files(TREE, {"a": 7}), place="celery")  # DVC's own: queued, failed and running ones
    names = ("good", "others", "empty", "less", "failed", "missing")
    found = experiments.results([Experiment(name, {"params.yaml": flat(TREE)}) for name in names])
    assert found == {"good": (good, {"a": 2}), "others": (older, {"a": 3})}


def test_results_of_the_second_pipeline_are_its_own(repository):
    both = files(TREE, {"a": 1}) | files({"eta": 6}, {"a": 2}, "unidec/")
    commit = repository("second", both)
    second = Experiment("second", {"unidec/params.yaml": {"eta": 6}, "params.yaml": {"K": 4096}}, "unidec/")
    assert experiments.results([second]) == {"second": (commit, {"a": 2})}
    for file, value in (("unidec/params.yaml", {"eta": 0}), ("params.yaml", {"K": 0})):
        wrong = Experiment("second", {**second.values, file: value}, "unidec/")
        assert experiments.results([wrong]) == {}


def test_code_that_has_changed_since(repository, tmp_path):
    def stage(*names: str) -> dict:
        return {"deps": [{"path": f"{name}.py", "md5": f"of {name}"} for name in names] + [{"path": "data"}]}

    for name, text in {
        "same": "a = 1",
        "new": "a = 2",
        "loss": '"""What it is."""\n\n\na = (  # why\n    1\n)',
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    root = {"stages": {"prepare": stage("same"), "encoder": stage("new", "gone", "loss")}}
    second = {"stages": {"train": stage("../loss", "../same"), "score": stage("new")}}
    places = {"stages": {"train": {}, "score": {"wdir": ".."}}}  # of the paths in the lock file
    texts = {"dvc.lock": root, "unidec/dvc.lock": second, "unidec/dvc.yaml": places}
    code = {f"{name}.py": "a = 1" for name in ("same", "new", "gone", "loss")}
    commit = repository("one", {file: json.dumps(tree) for file, tree in texts.items()} | code)
    assert set(experiments.code_of(commit)) == set(code)  # data is not code
    assert len(set(experiments.code_of(commit).values())) == 1
    assert experiments.other_code(commit) == ["new.py", "gone.py"]  # a comment in loss.py changes nothing
    assert experiments.other_code(commit, "unidec/") == ["new.py"]
    assert experiments.other_code(repository("two", {"a": "b"})) == []


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("def f():\n    return 1", "def f():  # one\n    'It is one.'\n    return 1\n", True),
        ("def f():\n    return 1", "def f():\n    return 2", False),
        ("class A:\n    'An A.'", "class A:\n    'A B.'", True),
        ("A = 'text'", "A = 'other text'", False),
        ("f(a, b=None)", "f(a)", False),
        ("A = None", "A = 0", False),
        ("A = [1, 2]", "A = [[1], 2]", False),
    ],
)
def test_what_code_means_is_what_it_does(one, other, same):
    assert (experiments.meaning(one) == experiments.meaning(other)) == same


def test_what_code_means_is_the_same_in_every_version_of_python():
    """The records of one machine are read on another: this digest was made with Python 3.11."""
    code = "@a\nclass A(B):\n  n: int = 1\n  def f(self, *x, y=None) -> str:\n    return f'{x!r:>{y}} {self.n}'\n"
    assert experiments.meaning(code) == "32fe3147bd70883ba8cc2d7c406f7713"


def fake_dvc(folder, monkeypatch, code: str) -> None:
    """Let `python -m dvc` be this code."""
    (folder / "dvc.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(experiments, "ROOT", folder)


def test_dvc_gives_what_it_prints_or_the_end_of_its_complaint(tmp_path, monkeypatch):
    fake_dvc(
        tmp_path, monkeypatch, "import sys; print(*sys.argv[1:]); sys.exit(sys.argv[1] == 'no' and 'it is broken')"
    )
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

    def interrupt() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    if how == "Ctrl-C":
        threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(UserError if how == "too long" else KeyboardInterrupt):
        experiments.dvc("exp", "run", minutes=8 / 60 if how == "too long" else None)
    assert (tmp_path / "ended").exists()
