import csv
import json
from pathlib import Path

import optuna
import pytest

from longtail import recipes, tuning
from testing.tiny import load_yaml, make_project, small_checkpoint
from xcutils.core.errors import UserError

pytestmark = pytest.mark.stage


@pytest.fixture
def project(tmp_path, tiny_model, monkeypatch) -> Path:
    """A project with tiny data, in which the command is called."""
    monkeypatch.chdir(make(tmp_path / "project", tiny_model))
    return Path.cwd()


def make(folder: Path, model: Path) -> Path:
    made = make_project(folder, **small_checkpoint(model))
    (made / "dvc.yaml").write_text((Path(__file__).parents[2] / "dvc.yaml").read_text(encoding="utf-8"))
    return made


def values(tree: dict) -> dict:
    return {name: value for name, value in recipes.flat(tree).items() if name not in ("dataset", "prepare.refit")}


@pytest.fixture(scope="module")
def searched(tmp_path_factory, tiny_model):
    """(the project, the search, its study, what it said) after two calls, with time for a trial each."""
    folder = make(tmp_path_factory.mktemp("tuning") / "project", tiny_model)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tuning.search(tuning.Tuning(), 1e-6, seed=0, say=said.append)
        search = tuning.Tuning()
        yield folder, search, tuning.search(search, 1e-6, seed=0, say=said.append), said


def test_a_search_tries_the_present_values_first_and_goes_on_where_it_was(searched):
    project, search, study, said = searched
    assert [trial.number for trial in study.trials] == [0, 1] and len(said) == 2
    assert said[0].startswith("trial 0: ") and "best so far" in said[0]
    first, second = (load_yaml(search.folder / f"trial-{i}" / "params.yaml") for i in range(2))
    assert values(first) == values(load_yaml(project / "params.yaml")) and first["prepare"]["refit"] is False
    changed = {name for name, value in values(second).items() if value != values(first)[name]}
    assert changed and changed <= {*tuning.SPACE, "K"}
    assert not (search.folder / "trial-1" / "data" / "score").exists()  # nothing looks at test documents


def test_the_value_of_a_trial_is_the_goal_on_validation_documents(searched):
    project, search, study, _ = searched
    trial = study.trials[0]
    fused = json.loads((search.folder / "trial-0/data/index/validation.json").read_text())["fused"]
    tail = load_yaml(project / "params.yaml")["score"]["tail"]
    assert trial.value == pytest.approx((1 - tail) * fused["N@5"] + tail * fused["PSN@5"])
    with open(search.folder / "trial-0/data/encoder/curve-choose.csv", newline="") as opened:
        assert trial.intermediate_values == {0: max(float(row["N@5"]) for row in csv.DictReader(opened))}


def test_the_best_values_are_a_recipe_that_can_be_put_in_place(searched, monkeypatch):
    project, search, study, _ = searched
    monkeypatch.chdir(project)
    (project / "recipes").mkdir(exist_ok=True)
    (project / "recipes/tuned.yaml").write_text(tuning.recipe_of(search, study))
    found = recipes.load("tuned")
    best = load_yaml(search.folder / f"trial-{study.best_trial.number}" / "params.yaml")
    assert values(found.tree) == values(best) and found.tree["prepare"]["refit"] is True
    assert "N@5" in (project / "recipes/tuned.yaml").read_text()


def made_up(numbers: list[tuple[float, float]], monkeypatch, folder: Path) -> optuna.Study:
    """A search whose trials give these figures: of the encoder, of the end."""
    search = tuning.Tuning.__new__(tuning.Tuning)
    search.folder = folder

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("encoder.lr", 0.001, 0.1, log=True)
        trial.report(numbers[trial.number][0], 0)
        if trial.should_prune():
            raise optuna.TrialPruned
        return numbers[trial.number][1]

    monkeypatch.setattr(search, "prepare", lambda: None)
    monkeypatch.setattr(search, "first", lambda: {"encoder.lr": 0.01})
    monkeypatch.setattr(search, "objective", objective)
    for _ in numbers:
        study = tuning.search(search, 1e-9, seed=0, say=lambda text: None)
    return study


def test_a_trial_that_is_behind_after_the_encoder_is_given_up(tmp_path, monkeypatch):
    good = [(50.0 + i, 60.0 + i) for i in range(tuning.FIRST)]
    study = made_up([*good, (10.0, 99.0), (59.0, 61.0)], monkeypatch, tmp_path)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE"] * tuning.FIRST + ["PRUNED", "COMPLETE"]
    assert study.best_trial.number == tuning.FIRST - 1


def test_a_stage_that_fails_is_a_sentence(project, monkeypatch):
    search = tuning.Tuning()
    monkeypatch.setitem(search.commands, "prepare", {"cmd": "python -c 'import sys; sys.exit(\"no room\")'"})
    with pytest.raises(UserError, match="stage prepare of a trial failed .no room.*prepare.log"):
        tuning.search(search, 1, seed=0, say=lambda text: None)


def test_other_values_or_data_are_another_search(project):
    one = tuning.Tuning().folder
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("positives: 3", "positives: 2", 1))
    assert tuning.Tuning().folder != one
