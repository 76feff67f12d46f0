"""A git repository as the dataset of the pipeline, through dvc: named by its path, imported, and the project's own.

The commands are run once, as in test_pipeline.py, and the tests read the record.
"""

import json
from itertools import product

import pytest

from longtail.cli import main
from testing.tiny import COLOURS, LOOKS, PARAMS, STAGES, THINGS, invoke
from tests.data.test_git_history import History
from tests.pipeline.test_pipeline import Repository, Step, environment

pytestmark = pytest.mark.pipeline

FILES = {f"{colour}/{thing}" for colour, thing in product(COLOURS, THINGS)}


@pytest.fixture(scope="module")
def project(tiny_model, tmp_path_factory) -> Repository:
    folder = tmp_path_factory.mktemp("pipeline")
    repository = Repository(folder / "project", environment(folder))
    repository.copy_project(tiny_model)
    return repository


@pytest.fixture(scope="module")
def other(project) -> History:
    """A repository beside the project: a message names the file that its commit changes."""
    made = History(project.folder.with_name("other"))
    for look, colour, thing in product(LOOKS, COLOURS, THINGS):
        made.touch(f"{look} {colour} {thing}", f"{colour}/{thing}")
    return made


def own_commits(project: Repository) -> None:
    """Small commits to the project itself: their hashes are of the day and draw the split, so that few would not do."""
    (project.folder / "notes").mkdir()
    for n in range(80):
        with open(project.folder / "notes" / f"{THINGS[n % 3]}.md", "a") as file:
            file.write(f"note {n}\n")
        project.git("add", "notes")
        project.git("commit", "--quiet", "--message", f"{THINGS[n % 3]} note {n}")


def prepared(project: Repository) -> dict:
    return json.loads((project.folder / "data" / "prepare" / "stats.json").read_text())


@pytest.fixture(scope="module")
def day(project, other) -> dict[str, Step | str | dict]:
    """Every command of the day, by name, and what was prepared after some of them."""
    steps: dict = {"direct": project.dvc("exp", "run", "-S", "dataset=../other")}
    steps["prepared directly"] = prepared(project)
    steps["again"] = project.dvc("repro")
    steps["import"] = invoke(project.folder, main, ["import", "../other", "data/raw/other"]).output
    steps["imported"] = project.dvc("exp", "run", "-S", "dataset=data/raw/other")
    steps["back"] = project.dvc("exp", "run", "-S", "dataset=../other")
    other.touch("large red box again", "red/box")
    steps["new commit"] = project.dvc("repro", "prepare")
    steps["prepared anew"] = prepared(project)
    (other.folder / ".dvcignore").write_text("")
    steps["with .dvcignore"] = project.dvc("repro", "prepare")
    (project.folder / PARAMS).write_text(project.git("show", f"HEAD:{PARAMS}"), encoding="utf-8")
    steps["itself"] = project.dvc("exp", "run", "-S", "dataset=.", "prepare")
    (project.folder / PARAMS).write_text(project.git("show", f"HEAD:{PARAMS}"), encoding="utf-8")
    own_commits(project)
    invoke(project.folder, main, ["import", ".", "data/raw/own"])
    steps["own history"] = project.dvc("exp", "run", "-S", "dataset=data/raw/own", "prepare")
    return steps


def test_a_repository_beside_the_project_is_a_dataset(day):
    assert day["direct"].code == 0, day["direct"].output
    assert day["direct"].ran == list(STAGES)
    assert "../other: text = messages of 45 commits up to" in day["direct"].output
    facts = day["prepared directly"]
    assert (facts["dataset"], facts["labels"]) == ("other", len(FILES))
    assert (facts["train_docs"], facts["test_docs"]) == (34, 11)
    assert json.loads(day["direct"].metrics)["fused"]["P@1"] > 100 / len(FILES)


def test_it_is_prepared_again_only_after_a_change(day):
    assert day["again"].ran == [] and day["again"].unchanged == list(STAGES)
    assert day["new commit"].ran == ["prepare"]
    assert day["prepared anew"]["train_docs"] + day["prepared anew"]["test_docs"] == 46


def test_an_import_leads_to_the_same_model(day):
    assert "wrote data/raw/other: 34 training and 11 test documents" in day["import"]
    assert day["imported"].ran == ["prepare"]
    assert set(day["imported"].unchanged) == set(STAGES) - {"prepare"}
    assert day["imported"].metrics == day["direct"].metrics
    assert day["back"].ran == [] and day["back"].restored == ["prepare"]


def test_dvc_takes_no_repository_with_a_dvcignore(day):
    assert day["with .dvcignore"].code != 0 and day["with .dvcignore"].ran == []
    assert ".dvcignore file should not be in collected dir path" in day["with .dvcignore"].output


def test_the_projects_own_history_is_a_dataset_once_it_is_imported(day, project):
    assert day["itself"].code != 0 and day["itself"].ran == []
    assert "both a dependency and an output" in day["itself"].output
    assert day["own history"].code == 0, day["own history"].output
    assert day["own history"].ran == ["prepare"]
    assert prepared(project)["dataset"] == "project" and prepared(project)["labels"] == 3
