"""Both pipelines through dvc, in a copy of the project that knows only the tiny dataset.

A stage takes seconds to start, so the commands are run once, as in a user's day, and the tests read the record.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from testing.tiny import (
    DATASET,
    LABELS,
    PARAMS,
    ROOT,
    STAGES,
    UNIDEC,
    UNIFIED,
    dataset_rows,
    make_project,
    small_checkpoint,
    write_dataset,
)

pytestmark = pytest.mark.pipeline

FROM_CLUSTER = list(STAGES)[list(STAGES).index("cluster") :]
CHECKPOINT = Path("data/raw/checkpoint")
AUTHOR = {"user.name": "Test", "user.email": "test@example.org"}


@dataclass(frozen=True)
class Step:
    """What a dvc command left: its exit code, all it printed, and the metrics and parameters after it."""

    code: int
    output: str
    metrics: bytes
    unified: bytes  # metrics of the unified pipeline, empty before its first run
    params: dict

    def stages(self, line: str) -> list[str]:
        """The stages in lines of this form; 'unidec/dvc.yaml:train' is unidec/train."""
        found = re.findall(line.format(r"'([\w/.:]+)'"), self.output, flags=re.MULTILINE)
        return [name.replace("dvc.yaml:", "") for name in found]

    @property
    def ran(self) -> list[str]:
        return self.stages("^Running stage {}")

    @property
    def unchanged(self) -> list[str]:
        return self.stages("^Stage {} didn't change, skipping")

    @property
    def restored(self) -> list[str]:
        return self.stages("^Stage {} is cached - skipping run")


def environment(scratch: Path) -> dict[str, str]:
    """Our python first, one thread, and no settings of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "DVC_"))}
    own = {"XC_THREADS": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        own[name] = str(scratch / name)
    return kept | own | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}


class Repository:
    """The project's files under git, with the tiny dataset and checkpoint beside them."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.folder, self.env = folder, env

    def copy_project(self, checkpoint: Path) -> None:
        self.git("init", "--quiet", ".")
        for name in self.git("--work-tree", str(ROOT), "ls-files", "--others", "--exclude-standard", "-z").split("\0"):
            if name:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        shutil.copytree(checkpoint, self.folder / CHECKPOINT)
        make_project(self.folder, **small_checkpoint(CHECKPOINT))
        self.commit()

    def clone(self, folder: Path) -> "Repository":
        """What git keeps, and the raw data: neither outputs of any stage nor dvc's cache."""
        author = [f"--config={name}={value}" for name, value in AUTHOR.items()]
        self.git("clone", "--quiet", *author, ".", str(folder))
        shutil.copytree(self.folder / "data" / "raw", folder / "data" / "raw", dirs_exist_ok=True)
        return Repository(folder, self.env)

    def git(self, *args: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        place = [] if args[0] == "init" else ["--git-dir", str(self.folder / ".git")]
        cwd = ROOT if "--work-tree" in args else self.folder
        return subprocess.run(
            ["git", *place, *args], cwd=cwd, env=self.env, check=True, capture_output=True
        ).stdout.decode()

    def commit(self) -> None:
        for name, value in AUTHOR.items():
            self.git("config", name, value)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a step")

    def dvc(self, *args: str) -> Step:
        command = [str(Path(sys.executable).parent / "dvc"), *args]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=self.folder, env=self.env, text=True, **both)
        return self.step(done.returncode, done.stdout)

    def step(self, code: int, output: str) -> Step:
        unified = self.folder / "unidec" / "metrics.json"
        metrics = [(self.folder / "metrics.json").read_bytes(), unified.read_bytes() if unified.exists() else b""]
        return Step(code, output, *metrics, YAML(typ="safe").load((self.folder / PARAMS).read_text(encoding="utf-8")))

    def dvc_killed(self, stage: str, *args: str) -> Step:
        """The same, the stage being killed as soon as there is a snapshot of it."""
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        env = self.env | {"XC_SNAPSHOT": "0"}
        command = [str(Path(sys.executable).parent / "dvc"), *args]
        process = subprocess.Popen(command, cwd=self.folder, env=env, text=True, **both)
        self.wait(lambda: process.poll() is not None or self.has_snapshot(stage))
        self.kill(stage)
        output = process.communicate()[0]
        return self.step(process.returncode, output)

    def start_queue(self) -> None:
        """The worker holds on to the output it was given, so that a pipe would stay open until all tasks have ended."""
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [str(Path(sys.executable).parent / "dvc"), "queue", "start"]
        subprocess.run(command, cwd=self.folder, env=self.env | {"XC_SNAPSHOT": "0"}, check=True, **nowhere)

    def queue_task(self, name: str, *, until: str) -> Step:
        """The task's own log, once the queue says that it has come to this state."""
        self.wait(lambda: re.search(rf"{name}\s.*{until}", self.dvc("queue", "status").output), every=1.0)
        return self.dvc("queue", "logs", name)

    def has_snapshot(self, stage: str) -> bool:
        return any(self.folder.glob(f".scratch/{stage}-*/*.snapshots/0*/manifest.json"))

    def kill(self, stage: str) -> None:
        """The stage of this project, wherever dvc checked it out."""
        for found in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if f"stages.{stage}" in found.cmdline() and Path(found.cwd()).is_relative_to(self.folder.resolve()):
                    found.kill()

    @staticmethod
    def wait(ready: Callable[[], object], *, every: float = 0.01, at_most: float = 180) -> None:
        end = time.monotonic() + at_most
        while not ready():
            assert time.monotonic() < end, "it did not come to this"
            time.sleep(every)


@pytest.fixture(scope="module")
def project(tiny_model, tmp_path_factory) -> Repository:
    folder = tmp_path_factory.mktemp("pipeline")
    repository = Repository(folder / "project", environment(folder))
    repository.copy_project(tiny_model)
    return repository


@pytest.fixture(scope="module")
def day(project) -> dict[str, Step]:
    """Every command of the day, by name."""
    steps = {"first": project.dvc("repro"), "again": project.dvc("repro")}
    project.commit()
    steps["K"] = project.dvc("exp", "run", "-S", "K=7")
    steps["diff"] = project.dvc("metrics", "diff", "--json")
    steps["mistyped"] = project.dvc("exp", "run", "-S", "k=5")
    steps["classifier"] = project.dvc("exp", "run", "-S", "classifier.lr=0.05")
    back = project.git("show", f"HEAD:{PARAMS}")
    (project.folder / PARAMS).write_text(back, encoding="utf-8")
    steps["back"] = project.dvc("repro")
    steps["unidec"] = project.dvc("repro", "unidec/dvc.yaml")
    project.commit()
    beta = ["exp", "run", "unidec/dvc.yaml", "-S", f"{UNIDEC}:beta=3"]
    steps["clone"] = project.clone(project.folder.with_name("clone")).dvc(*beta)
    steps["beta"] = project.dvc(*beta)
    steps["show"] = project.dvc("metrics", "show", "--json")
    steps["plots"] = project.dvc("plots", "show")
    steps["gandalf"] = project.dvc("exp", "run", "-S", "gandalf.labels=0.5")
    (project.folder / PARAMS).write_text(back, encoding="utf-8")
    rows = dataset_rows()
    rows["trn"][20]["title"] += " round"
    write_dataset(project.folder / DATASET, rows)
    steps["dataset"] = project.dvc("repro", "prepare")
    elsewhere = ["exp", "run", "--temp", "-C", DATASET, "-C", str(CHECKPOINT), "-S", "encoder.epochs=9"]
    steps["killed"] = project.dvc_killed("encoder", *elsewhere)
    steps["resumed"] = project.dvc(*elsewhere)
    queued = ["exp", "run", "--queue", "-C", DATASET, "-C", str(CHECKPOINT), "-S", "encoder.epochs=12", "-n"]
    project.dvc(*queued, "interrupted")
    project.start_queue()
    project.wait(lambda: project.has_snapshot("encoder"))
    project.kill("encoder")
    steps["killed in the queue"] = project.queue_task("interrupted", until="Failed")
    project.dvc(*queued, "continued")
    project.start_queue()
    steps["resumed in the queue"] = project.queue_task("continued", until="Success")
    lines = [f"{row['title']},{LABELS[row['target_ind'][0]]}" for row in rows["trn"]]
    (project.folder / "data" / "raw" / "my.csv").write_text("\n".join(["text,label", *lines, ""]))
    steps["csv"] = project.dvc("exp", "run", "-S", "dataset=data/raw/my.csv", "prepare")
    return steps


GOOD = ["first", "again", "K", "diff", "classifier", "back", "unidec", "clone", "beta", "show", "plots", "gandalf"]


@pytest.mark.parametrize("name", [*GOOD, "dataset", "csv"])
def test_every_step_ends_well(day, name):
    assert day[name].code == 0, day[name].output
    assert "ERROR" not in day[name].output and "Traceback" not in day[name].output


def test_a_fresh_copy_runs_every_stage_in_order(day):
    assert day["first"].ran == list(STAGES)
    assert json.loads(day["first"].metrics)["fused"]["P@1"] > 0
    assert day["first"].metrics != (ROOT / "metrics.json").read_bytes()


def test_outputs_stay_out_of_git(day, project):
    listed = project.git("ls-files").splitlines()
    assert {"dvc.lock", "metrics.json", "unidec/dvc.lock", "unidec/metrics.json"} <= set(listed)
    inside = [name for name in listed if name.startswith(("data/", "unidec/data/"))]
    assert inside == ["data/raw/hpo/dataset.yaml"]


def test_a_second_run_runs_nothing(day):
    assert day["again"].ran == [] and day["again"].unchanged == list(STAGES)
    assert "Data and pipelines are up to date." in day["again"].output
    assert day["again"].metrics == day["first"].metrics


def test_k_reruns_cluster_and_what_follows_only(day):
    assert day["K"].params["K"] == 7
    assert day["K"].ran == FROM_CLUSTER
    assert set(day["K"].unchanged) == {"prepare", "embed", "gandalf"}
    assert "cluster: 7 auxiliary vectors" in day["K"].output


def test_metrics_diff_shows_what_k_changed(day):
    shown = day["diff"].output.splitlines()[-1]  # above it dvc may say that the unified pipeline has no metrics yet
    changes = json.loads(shown)["metrics.json"]
    before, after = (json.loads(day[name].metrics) for name in ("first", "K"))
    assert any(name.startswith("encoder.") for name in changes)
    assert not any(name.startswith("zero-shot.") for name in changes)
    for name, change in changes.items():
        row, metric = name.split(".", 1)
        assert (change["old"], change["new"]) == (before[row][metric], after[row][metric])
        assert change["diff"] == pytest.approx(after[row][metric] - before[row][metric])


def test_a_mistyped_parameter_is_refused_before_anything_runs(day):
    assert day["mistyped"].code != 0 and "Could not override 'k'" in day["mistyped"].output
    assert day["mistyped"].ran == []
    assert (day["mistyped"].params, day["mistyped"].metrics) == (day["K"].params, day["K"].metrics)


def test_a_value_of_the_classifier_reruns_classifier_index_and_score_only(day):
    assert day["classifier"].ran == ["classifier", "index", "score"]
    assert set(day["classifier"].unchanged) == {"prepare", "embed", "gandalf", "cluster", "encoder", "augment"}
    before, after = (json.loads(day[name].metrics) for name in ("K", "classifier"))
    assert before["encoder"] == after["encoder"] and before["classifier"] != after["classifier"]


def test_plots_are_written_as_one_page_with_their_data(day, project):
    page = project.folder / "dvc_plots" / "index.html"
    assert page.as_uri() in day["plots"].output
    html = page.read_text(encoding="utf-8")
    for words in ("M1: validation by epoch", "M4: validation by epoch", "P@5 by label frequency", "recall@5", "torso"):
        assert words in html
    for words in ("UniDEC: validation by epoch", "UniDEC: P@5 by label frequency", "concatenated, torso"):
        assert words in html
    assert "failed to load" not in day["plots"].output


def test_going_back_to_old_values_computes_nothing(day):
    assert day["back"].ran == [] and day["back"].restored == FROM_CLUSTER
    assert day["back"].metrics == day["first"].metrics


def test_the_unified_pipeline_runs_on_what_was_prepared(day, unidec_run):
    assert sorted(day["unidec"].ran) == sorted(UNIFIED) and day["unidec"].unchanged == ["prepare"]
    assert day["unidec"].ran[2:] == list(UNIFIED)[2:]  # the first two do not depend on each other
    assert day["unidec"].metrics == day["back"].metrics
    assert day["unidec"].unified == (unidec_run / "unidec" / "metrics.json").read_bytes()


def test_beta_reruns_training_and_what_follows_only(day):
    assert day["beta"].ran == ["unidec/train", "unidec/index", "unidec/score"]
    assert set(day["beta"].unchanged) == {"prepare", "unidec/embed", "unidec/gandalf"}
    assert day["beta"].unified != day["unidec"].unified and day["beta"].metrics == day["unidec"].metrics


def test_a_clone_that_has_run_nothing_can_experiment_with_the_unified_pipeline(day):
    """Both dvc.lock files name outputs, plots' files among them, that neither the clone nor its cache has."""
    assert sorted(day["clone"].ran) == sorted(["prepare", *UNIFIED])
    assert "Ran experiment(s)" in day["clone"].output
    assert (day["clone"].unified, day["clone"].metrics) == (day["beta"].unified, day["beta"].metrics)


def test_metrics_of_both_pipelines_are_shown(day):
    shown = json.loads(day["show"].output)[""]["data"]
    assert set(shown) == {"metrics.json", "unidec/metrics.json"}
    assert shown["unidec/metrics.json"]["data"] == json.loads(day["beta"].unified)


def test_label_texts_as_points_rerun_gandalf_classifier_index_and_score_only(day):
    assert day["gandalf"].ran == ["gandalf", "classifier", "index", "score"]
    assert set(day["gandalf"].unchanged) == {"prepare", "embed", "cluster", "encoder", "augment"}
    before, after = (json.loads(day[name].metrics) for name in ("back", "gandalf"))
    assert before["encoder"] == after["encoder"] and before["classifier"] != after["classifier"]
    assert day["gandalf"].unified == day["beta"].unified


def test_a_changed_dataset_is_prepared_again(day):
    assert day["dataset"].ran == ["prepare"]


def test_a_stage_killed_in_a_temporary_checkout_is_resumed_in_the_next(day, project):
    assert day["killed"].code != 0 and "failed to reproduce 'encoder'" in day["killed"].output
    assert day["resumed"].code == 0, day["resumed"].output
    assert re.search(r"^encoder: goes on from step \d+ of epoch \d+, where it was", day["resumed"].output, re.MULTILINE)
    assert not any(project.folder.glob(".scratch/encoder-*"))


def test_a_stage_killed_in_the_queue_is_resumed_by_the_next_task(day, project):
    assert "failed to reproduce 'encoder'" in day["killed in the queue"].output
    printed = day["resumed in the queue"].output
    assert re.search(r"^encoder: goes on from step \d+ of epoch \d+, where it was", printed, re.MULTILINE)
    assert not any(project.folder.glob(".scratch/encoder-*"))


def test_a_csv_file_is_a_dataset(day, project):
    assert day["csv"].ran == ["prepare"] and day["csv"].params["dataset"] == "data/raw/my.csv"
    assert json.loads((project.folder / "data" / "prepare" / "stats.json").read_text())["dataset"] == "my"


def test_a_fresh_run_with_the_same_seed_gives_the_same_metrics_to_the_byte(day, tiny_run):
    """The other run's stages were started without dvc, in one process; test_stages.py changes the seed."""
    assert day["first"].metrics == (tiny_run / "metrics.json").read_bytes()
