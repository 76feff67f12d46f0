"""Profiles: seconds by cause from made-up statistics, and a stage really profiled."""

import pytest
from click.testing import CliRunner

from benchmarks import profile_run
from benchmarks.profile_run import Profile

MAIN = ("/p/stages/embed.py", 10, "main")
LOAD = ("/p/xcutils/core/artifacts.py", 20, "load")
HASH = ("/p/xcutils/core/artifacts.py", 30, "sha256")
READ = ("~", 0, "<method 'read' of files>")
FIND = ("<frozen importlib._bootstrap>", 40, "_find_and_load")
# main (5 s of its own) calls load (1), which calls sha256 (2), which reads (4); 3 s of imports.
STATS = {
    MAIN: (1, 1, 5.0, 15.0, {}),
    LOAD: (1, 1, 1.0, 7.0, {MAIN: (1, 1, 1.0, 7.0)}),
    HASH: (2, 2, 2.0, 6.0, {LOAD: (2, 2, 2.0, 6.0)}),
    READ: (9, 9, 4.0, 4.0, {HASH: (9, 9, 4.0, 4.0)}),
    FIND: (3, 1, 3.0, 3.0, {MAIN: (3, 1, 3.0, 3.0)}),
}


def test_seconds_are_told_by_cause():
    assert Profile("embed", 16.5, STATS).row() == ["embed", 16.5, 1.5, 3.0, 7.0, 5.0]


def test_functions_are_ordered_by_their_own_time():
    top = Profile("embed", 16.5, STATS).top(2)
    assert top == [(5.0, 1, "stages/embed.py:10 main"), (4.0, 9, "method 'read' of files")]


DVC_FILE = """
stages:
  first:
    cmd: python -m work.first "${dataset}" data/first
    deps: ["${dataset}", work/first.py]
    outs: [data/first]
  second:
    cmd: python -m work.second data/first metrics.json
    deps: [data/first, work/second.py]
    metrics:
      - metrics.json:
          cache: false
"""
WORK = "import sys\nfrom pathlib import Path\nPath(sys.argv[2]).write_text(Path(sys.argv[1]).read_text() + 'more')\n"


@pytest.fixture
def project(tmp_path):
    """A checkout whose first stage has run."""
    folder = tmp_path / "project"
    files = {"dvc.yaml": DVC_FILE, "params.yaml": "dataset: raw.txt\n", "raw.txt": "raw ", "data/first": "kept"}
    for name, text in {**files, "work/first.py": WORK, "work/second.py": WORK}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_stage_runs_in_a_folder_of_its_own(project, tmp_path):
    options = ["--project", str(project), "--out", str(tmp_path / "out"), "--top", "3"]
    done = CliRunner().invoke(profile_run.main, options)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["stage", "first", "second", "all"]
    assert "second: own seconds, calls, function" in lines and len(lines) == 4 + 2 * 5
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"first.prof", "second.prof"}
    assert (project / "data" / "first").read_text() == "kept" and not (project / "metrics.json").exists()


def test_mistakes_are_told_in_a_sentence(project):
    done = CliRunner().invoke(profile_run.main, ["third", "--project", str(project)])
    assert done.exit_code == 1 and "There is no stage third; known: first, second." in done.output
    (project / "data" / "first").unlink()
    done = CliRunner().invoke(profile_run.main, ["second", "--project", str(project)])
    assert done.exit_code == 1 and "run `dvc repro`" in done.output
