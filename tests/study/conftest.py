"""What the tests of the study share."""

import os
import subprocess

import pytest

from study import code, experiments, findings
from tests.study.made_up import FILES, MadeUpDVC


@pytest.fixture(scope="session")
def files() -> findings.Files:
    """The parameter files and recipes of this repository."""
    return findings.read_files(experiments.ROOT)


@pytest.fixture
def unchecked(monkeypatch):
    """Any value is good."""
    monkeypatch.setattr(findings, "check_parameters", lambda *_: None)


@pytest.fixture
def made_up(monkeypatch, unchecked):
    """A study in which DVC, the clock, the code and the parameter files are made up."""
    made = MadeUpDVC()
    monkeypatch.setattr(findings, "dvc", made)
    monkeypatch.setattr(findings, "read_files", lambda _: FILES)
    monkeypatch.setattr(findings, "read_bins", lambda _: {})
    monkeypatch.setattr(findings.time, "monotonic", lambda: made.clock)
    monkeypatch.setattr(findings.signal, "signal", lambda *_: None)
    monkeypatch.setattr(experiments, "results", made.results)
    monkeypatch.setattr(code, "digest_at", lambda name, _: made.code_of[name])
    monkeypatch.setattr(code, "current", lambda: {made.code})
    monkeypatch.setattr(experiments, "warn_of_changes", lambda: None)
    return made


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
