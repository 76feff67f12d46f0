"""Both dvc.yaml against the code: DVC does not follow imports, so what they list must be what the stages really use."""

import ast
import configparser
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path, PurePosixPath

import pytest

from testing.tiny import DVC_FILES, EVERY, PARAMS, ROOT, STAGES, UNIDEC, UNIFIED, home, load_yaml, module
from tests.pipeline.test_pipeline import environment
from xcutils.core import pipelines
from xcutils.core.pipelines import Pipeline
from xcutils.core.rooms import ROOT as RUN_FROM
from xcutils.core.rooms import rooms_of
from xcutils.model.encoders import Architecture

LONGEST = {"": 150, "unidec/": 90}  # lines of a dvc.yaml
TABLE = list(pipelines.PIPELINES.values())


def outputs(stage: str) -> dict[str, dict]:
    """Each path the stage writes, with the settings it has in dvc.yaml."""
    listed = [item for part in ("outs", "metrics", "plots") for item in EVERY[stage].get(part, [])]
    return {path: facts for item in listed for path, facts in (item if isinstance(item, dict) else {item: {}}).items()}


def followed(stage: str) -> dict[str, list[str]]:
    """Parameter file -> the names in it whose values re-run the stage."""
    listed = [item if isinstance(item, dict) else {PARAMS: [item]} for item in EVERY[stage]["params"]]
    return {file: [name for item in listed for name in item.get(file, [])] for item in listed for file in item}


def own_file(stage: str) -> str:
    return UNIDEC if stage in UNIFIED else PARAMS


def own_name(stage: str) -> str:
    """The stage's name in its own dvc.yaml."""
    return stage.rpartition("/")[2]


def pipeline(stage: str) -> Pipeline:
    """The row of the table that the stage belongs to."""
    return pipelines.PIPELINES[stage.rpartition("/")[0]]


def script(stage: str) -> str:
    """The file of the stage's code."""
    return Path(*module(stage).__name__.split(".")).with_suffix(".py").as_posix()


def is_data(path: str) -> bool:
    return inside(path, ["data", "unidec/data"])


def inside(path: str, folders) -> bool:
    """Is the path one of the folders, or in one?"""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_depends_on_its_own_file_and_exactly_the_rooms_that_its_imports_reach(stage):
    besides = {"${dataset}", "constraints.txt"} if stage == "prepare" else set()
    listed = {dep for dep in EVERY[stage]["deps"] if not is_data(dep)}
    assert listed == besides | {*rooms_of(ROOT / script(stage))}
    assert script(stage) in listed and RUN_FROM == ROOT


@pytest.mark.parametrize("stage", EVERY)
def test_no_stage_depends_on_the_application_or_on_what_is_only_read_by_people(stage):
    code = [dep for dep in EVERY[stage]["deps"] if not is_data(dep) and dep not in ("${dataset}", "constraints.txt")]
    assert code and all(inside(dep, ["xcutils", "stages", "unidec"]) for dep in code)


@pytest.mark.parametrize("folder", DVC_FILES)
def test_a_pipeline_is_read_on_a_page(folder):
    assert len((ROOT / folder / "dvc.yaml").read_text(encoding="utf-8").splitlines()) <= LONGEST[folder]


def test_what_python_writes_beside_the_code_is_not_looked_at():
    """Or every room would be found changed once a stage has run."""
    assert {"__pycache__/", "*.pyc", "/.scratch"} <= {*(ROOT / ".dvcignore").read_text().splitlines()}


@pytest.mark.parametrize("stage", EVERY)
def test_nothing_is_listed_twice(stage):
    for listed in (EVERY[stage]["deps"], [*map(str, EVERY[stage]["outs"])], *followed(stage).values()):
        assert len(listed) == len(set(listed))
    assert len(EVERY[stage]["params"]) == len({str(item) for item in EVERY[stage]["params"]})


def test_no_two_stages_write_the_same():
    written = [path for stage in EVERY for path in outputs(stage)]
    assert not any(inside(one, [other]) for one in written for other in written if one is not other)


@pytest.mark.parametrize("stage", EVERY)
def test_one_word_names_script_stage_section_and_folder(stage):
    name, file = own_name(stage), own_file(stage)
    package = PurePosixPath(script(stage)).parent.as_posix()
    assert EVERY[stage]["cmd"].startswith(f"python -m {package}.{name} ") and script(stage) == f"{package}/{name}.py"
    assert package == "stages" or (stage in UNIFIED and package == "unidec")
    assert name in load_yaml(file) and name in followed(stage)[file]
    written = [path for path, facts in outputs(stage).items() if facts.get("cache", True)]
    assert written and all(inside(path, [home(stage)]) for path in written)


def test_every_pipeline_is_a_row_of_the_table():
    found = {file.parent.relative_to(ROOT).as_posix() for file in [ROOT / "dvc.yaml", *ROOT.glob("*/dvc.yaml")]}
    assert {"" if folder == "." else folder for folder in found} == {row.folder for row in TABLE}
    assert all(row.folder == folder for folder, row in pipelines.PIPELINES.items())


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.folder or "root")
def test_the_table_has_the_stages_of_the_pipeline_and_the_modules_that_run(row):
    stages = load_yaml(Path(row.folder, "dvc.yaml"))["stages"]
    assert list(row.stages.items()) == [(name, shlex.split(facts["cmd"])[2]) for name, facts in stages.items()]
    assert row.command == ("dvc repro unidec/dvc.yaml" if row.folder else "dvc repro")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.folder or "root")
def test_the_table_knows_what_is_trained_and_what_is_searched(row):
    """`index` builds over the vectors of these stages, `score` searches them, both in this order."""
    stages = load_yaml(Path(row.folder, "dvc.yaml"))["stages"]
    folders = [Path(row.folder, "data", name).as_posix() for name in row.searched]
    for reader in ("index", "score"):
        words = shlex.split(stages[reader]["cmd"])
        assert [word for word in words if word in folders] == folders
    assert row.trains in row.stages and Path(row.folder, "data", row.trains).as_posix() in stages["score"]["deps"]
    others = {*row.stages} - {*row.searched}
    assert not any(Path(row.folder, "data", name).as_posix() in stages["index"]["deps"] for name in others)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.folder or "root")
def test_the_table_has_the_rows_of_the_metrics(row):
    score = load_yaml(Path(row.folder, "dvc.yaml"))["stages"]["score"]
    assert [*score["metrics"][0]] == [row.metrics.as_posix()]
    found = json.loads((ROOT / row.metrics).read_text(encoding="utf-8"))
    assert {*row.rows} == {*found} - {"index", "probabilities", "docs"} and {*row.absent} <= {*row.rows}


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_has_parameters_a_cost_and_a_command(stage):
    found = module(stage)
    assert fields(found.Params) and callable(found.cost) and found.main.params
    assert hasattr(found, "network") or own_name(stage) not in (pipeline(stage).trains, "embed")


@pytest.mark.parametrize("file, row", [(PARAMS, pipelines.MODULAR), (UNIDEC, pipelines.UNIDEC)])
def test_a_parameter_file_and_what_a_run_writes_show_their_pipeline(file, row):
    assert row.params == Path(file) and pipelines.pipeline_of(Path(file)) is row
    assert pipelines.pipeline_of(ROOT / file) is row
    for path in (row.metrics, row.data(Path("data")) / "score", ROOT / row.metrics):
        assert pipelines.writer_of(path) is row, path


@pytest.mark.parametrize("stage", UNIFIED)
def test_the_unified_stages_run_in_the_root_with_their_own_parameters(stage):
    words = shlex.split(UNIFIED[stage]["cmd"])
    assert UNIFIED[stage]["wdir"] == ".." and words[3:5] == ["--params", UNIDEC]


def test_every_stage_script_is_in_a_pipeline():
    found = {f"{folder}/{file.name}" for folder in ("stages", "unidec") for file in (ROOT / folder).glob("*.py")}
    assert {file for file in found if not file.endswith("__init__.py")} == {script(stage) for stage in EVERY}
    assert {script(stage) for stage in STAGES} == {file for file in found if file.startswith("stages/")} - {
        "stages/__init__.py"
    }


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.folder or "root")
def test_sections_of_the_parameters_are_exactly_the_stages(row):
    tree = load_yaml(row.params)
    assert [name for name, value in tree.items() if isinstance(value, dict)] == list(row.stages)
    assert {name for name, value in tree.items() if not isinstance(value, dict)} == {f.name for f in fields(row.top)}


def top_names(stage: str) -> set[str]:
    """What stands above the sections of the stage's parameter file, but for the dataset, which is a dep."""
    return {field.name for field in fields(pipeline(stage).top)} - {"dataset"}


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_follows_its_own_section_and_what_stands_above_the_sections(stage):
    assert list(followed(stage)) == [own_file(stage)]
    names = {own_name(stage), *top_names(stage)}
    names |= {"score"} if own_name(stage) == "index" else set()  # how the parts of the score are combined
    # `embed` and `cluster` build the encoder as it is before training; dropout is off then.
    first = stage in ("embed", "cluster")
    names |= {f"encoder.{f.name}" for f in fields(Architecture) if f.name != "dropout"} if first else set()
    assert set(followed(stage)[own_file(stage)]) <= names
    assert not first or set(followed(stage)[own_file(stage)]) >= names - top_names(stage)


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_lists_the_top_values_it_uses(stage):
    """Those it takes from `settings.top`, under this name or shorter."""
    tree = ast.parse((ROOT / script(stage)).read_text(encoding="utf-8"))
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in taken if ast.unparse(node.value).split(".")[-1] == "top"}
    assert used == {*followed(stage)[own_file(stage)]} & top_names(stage)
    assert used <= top_names(stage)


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_uses_its_own_section_of_the_parameters_alone(stage):
    """It sees the others as `settings.values`, which no result depends on: a cost, or a refusal before the work."""
    tree = ast.parse((ROOT / script(stage)).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "settings.section"]
    others = {"embed": ["encoder"], "cluster": ["encoder"], "index": ["score"]}.get(own_name(stage), [])
    assert sorted(asked) == [own_name(stage), *others]
    told = [ast.unparse(call.func) for call in calls if "settings.values" in map(ast.unparse, call.args)]
    assert set(told) <= {"costs.announce", "check_models"}
    assert len(told) == ast.unparse(tree).count("settings.values")


def test_k_is_a_parameter_of_cluster_alone():
    assert [stage for stage in EVERY if "K" in followed(stage)[own_file(stage)]] == ["cluster"]
    assert not any("${K}" in EVERY[stage]["cmd"] for stage in EVERY)


def test_only_the_score_stages_read_the_test_documents():
    folder = "data/prepare/test"
    readers = [s for s in EVERY if any(inside(folder, [d]) or inside(d, [folder]) for d in EVERY[s]["deps"])]
    assert readers == ["score", "unidec/score"]
    told = [s for s in EVERY if any(inside(folder, [word]) for word in shlex.split(EVERY[s]["cmd"]))]
    assert set(told) == {"prepare", "score", "unidec/score"}


@pytest.mark.parametrize("stage", EVERY)
def test_paths_on_the_command_line_are_declared(stage):
    declared = {*EVERY[stage]["deps"], *outputs(stage), *followed(stage)}
    words = shlex.split(EVERY[stage]["cmd"])[3:]
    for word in (word for word in words if not word.startswith("--")):
        assert word in declared or any(inside(path, [word]) for path in declared), word


@pytest.mark.parametrize("stage", EVERY)
def test_data_that_a_stage_reads_is_written_by_an_earlier_one(stage):
    earlier = list(EVERY)[: list(EVERY).index(stage)]
    written = {path for name in earlier for path in outputs(name)}
    read = {dep for dep in EVERY[stage]["deps"] if is_data(dep)}
    assert read <= written
    others = {path for name in STAGES if name != "prepare" for path in outputs(name)}
    assert stage in STAGES or not read & others  # of the other pipeline it needs nothing that was trained


def test_every_cached_output_is_ignored_by_git_and_the_rest_is_not(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    kept = {path: not facts.get("cache", True) for stage in EVERY for path, facts in outputs(stage).items()}
    kept |= {"data/raw/hpo/dataset.yaml": True, "dvc.lock": True, "data/raw/other/trn.json.gz": False}
    kept |= {"unidec/dvc.lock": True, "unidec/params.yaml": True}
    kept |= {str(home(stage).with_name(f".{home(stage).name}.draft")): False for stage in EVERY}
    for path, in_git in kept.items():
        path = (
            path
            if PurePosixPath(path).suffix in (".csv", ".gz", ".json", ".lock", ".yaml")
            else f"{path}/manifest.json"
        )
        ignored = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=tmp_path).returncode == 0
        assert ignored != in_git, path


@pytest.mark.parametrize("folder", DVC_FILES)
def test_plots_and_artifacts_are_outputs(folder):
    """They are named from the folder of their dvc.yaml, outputs from the root."""
    written = [path for stage in (UNIFIED if folder else STAGES) for path in outputs(stage)]
    named = [facts["path"] for facts in DVC_FILES[folder]["artifacts"].values()]
    named += [file for plot in DVC_FILES[folder]["plots"] for facts in plot.values() for file in facts["y"]]
    assert named and all(inside(folder + path, written) for path in named)


def test_no_plot_is_named_by_its_file():
    """Or dvc, saving an experiment of one pipeline, looks into the folders of the other, and fails where a dvc.lock
    names what is not there: both are in git, and a clone may have run only one of the pipelines."""
    plots = [plot for folder in DVC_FILES for plot in DVC_FILES[folder]["plots"]]
    assert all(isinstance(facts["y"], dict) for plot in plots for facts in plot.values())
    assert len({name for plot in plots for name in plot}) == len(plots)


def test_dvc_sends_nothing_and_asks_for_no_update():
    config = configparser.ConfigParser()
    config.read_string("\n".join(line.strip() for line in (ROOT / ".dvc" / "config").read_text().splitlines()))
    assert config["core"]["analytics"] == config["core"]["check_update"] == "false"


# --- dvc itself, asked what an edit re-runs ---------------------------------------------------------------------------

EDITS = {
    "xcutils/data/hpo.py": ["prepare"],
    "xcutils/rank/fusion.py": ["index", "score", "unidec/index", "unidec/score"],
    "xcutils/search/hnsw.py": [
        *("encoder", "classifier", "index", "score"),
        *("unidec/train", "unidec/index", "unidec/score"),
    ],
    "stages/index.py": ["index", "unidec/index"],
    "unidec/train.py": ["unidec/train"],
}
READ_BY_NO_STAGE = [
    "longtail/estimates.py",
    "longtail/cli.py",
    "recipes/dexa.yaml",
    "docs/methods.md",
    "README.md",
    "testing/tiny.py",
    "study/code.py",
    "tests/conftest.py",
    "xcutils/__init__.py",
    "xcutils/rank/__pycache__/fusion.cpython-311.pyc",
    "xcutils/rank/fusion.pyc",
    ".scratch/encoder-0/state.json",
]


def dvc(folder: Path, *args: str) -> str:
    command = [str(Path(sys.executable).parent / "dvc"), *args]
    done = subprocess.run(command, cwd=folder, env=environment(folder.parent), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def append(file: Path) -> None:
    """A comment at its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a", encoding="utf-8") as out:
        out.write("\n# a comment\n")


def would_run(folder: Path) -> list[str]:
    """The stages that dvc would run because of themselves; those behind them follow when they write something new."""
    return [name.replace("dvc.yaml:", "") for name in json.loads(dvc(folder, "status", "--json"))]


@pytest.fixture(scope="module")
def committed(tmp_path_factory) -> Path:
    """The project beside outputs that no stage wrote, which dvc was told to take for up to date."""
    folder = tmp_path_factory.mktemp("edits") / "project"
    for name in ("xcutils", "stages", "longtail", "recipes", "data/raw/hpo"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "unidec", folder / "unidec", ignore=shutil.ignore_patterns("__pycache__", "data", "*.lock"))
    (folder / ".dvc").mkdir()
    for name in ("dvc.yaml", "params.yaml", "constraints.txt", ".dvcignore", ".dvc/config"):
        shutil.copy(ROOT / name, folder / name)
    for path in (path for stage in EVERY for path in outputs(stage)):
        append(folder / path if Path(path).suffix else folder / path / "made-up.txt")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    dvc(folder, "commit", "--force")
    return folder


@pytest.mark.pipeline
@pytest.mark.parametrize("file", EDITS)
def test_dvc_reruns_the_stages_that_use_the_room_of_an_edited_file(committed, file):
    before = (committed / file).read_bytes()
    append(committed / file)
    found = would_run(committed)
    (committed / file).write_bytes(before)
    assert found == EDITS[file]


@pytest.mark.pipeline
def test_dvc_reruns_nothing_after_edits_of_estimates_the_command_line_recipes_or_docs(committed):
    for file in READ_BY_NO_STAGE:
        append(committed / file)
    assert would_run(committed) == []
