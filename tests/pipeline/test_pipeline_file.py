"""Both dvc.yaml against the code: DVC does not follow imports, so what they list must be what the stages really use."""

import ast
import configparser
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path, PurePosixPath

import pytest

from testing.tiny import EVERY, PARAMS, PIPELINES, ROOT, STAGES, UNIDEC, UNIFIED, home, load_yaml, module
from xcutils.core.params import Top, UnifiedTop, pipeline

FILES = {PARAMS: (STAGES, Top), UNIDEC: (UNIFIED, UnifiedTop)}  # parameter file -> its stages, what stands on top
NOT_CODE = {"constraints.txt", "${dataset}"}


def module_file(name: str) -> str | None:
    """The project's file of a dotted module name; None for packages and for what others wrote."""
    file = Path(*name.split(".")).with_suffix(".py")
    return file.as_posix() if (ROOT / file).is_file() else None


def direct_imports(file: str) -> set[str]:
    """The project's modules that the file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import cannot be followed here"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {found for name in names if (found := module_file(name))}


def all_imports(file: str) -> set[str]:
    """The file and every module of the project it imports, directly or through others."""
    found, waiting = {file}, [file]
    while waiting:
        fresh = direct_imports(waiting.pop()) - found
        found |= fresh
        waiting += fresh
    return found


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


def script(stage: str) -> str:
    """The file of the stage's code."""
    return module_file(module(stage).__name__)


def is_data(path: str) -> bool:
    return inside(path, ["data", "unidec/data"])


def inside(path: str, folders) -> bool:
    """Is the path one of the folders, or in one?"""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def test_imports_are_followed_in_every_form(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.pipeline.test_pipeline_file.ROOT", tmp_path)
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / "pack").mkdir(exist_ok=True)
        (tmp_path / "pack" / f"{name}.py").write_text("import os\n")
    (tmp_path / "pack" / "a.py").write_text("from pack import b\ndef f():\n    from pack.c import thing\n")
    (tmp_path / "pack" / "c.py").write_text("import numpy, pack.d\nimport pack.a\n")
    assert all_imports("pack/a.py") == {f"pack/{name}.py" for name in "abcd"}


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_depends_on_exactly_the_code_it_imports(stage):
    code = {dep for dep in EVERY[stage]["deps"] if dep not in NOT_CODE and not is_data(dep)}
    assert code == all_imports(script(stage)) | all_imports(
        "xcutils/core/processor.py"
    )  # which `stages` itself imports


@pytest.mark.parametrize("stage", EVERY)
def test_nothing_is_listed_twice(stage):
    for listed in (EVERY[stage]["deps"], EVERY[stage]["outs"], *followed(stage).values()):
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


@pytest.mark.parametrize("file", FILES)
def test_the_parameters_are_checked_by_the_code_that_runs(file):
    stages, top = FILES[file]
    assert pipeline(Path(file), {}) == (top, {own_name(stage): module(stage).__name__ for stage in sorted(stages)})


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


@pytest.mark.parametrize("file", FILES)
def test_sections_of_the_parameters_are_exactly_the_stages(file):
    tree, (stages, top) = load_yaml(file), FILES[file]
    assert [name for name, value in tree.items() if isinstance(value, dict)] == [own_name(stage) for stage in stages]
    assert {name for name, value in tree.items() if not isinstance(value, dict)} == {f.name for f in fields(top)}


def top_names(stage: str) -> set[str]:
    """What stands above the sections of the stage's parameter file, but for the dataset, which is a dep."""
    return {field.name for field in fields(FILES[own_file(stage)][1])} - {"dataset"}


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_follows_its_own_section_and_what_stands_above_the_sections(stage):
    assert list(followed(stage)) == [own_file(stage)]
    assert set(followed(stage)[own_file(stage)]) <= {own_name(stage), *top_names(stage)}


@pytest.mark.parametrize("stage", EVERY)
def test_a_stage_that_reads_the_top_values_lists_the_ones_it_uses(stage):
    tree = ast.parse((ROOT / script(stage)).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_top"]
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {name for name in top_names(stage) if any(found.endswith(f".{name}") for found in names)}
    assert (used if calls else set()) == set(followed(stage)[own_file(stage)]) & top_names(stage)


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
    for word in (word for word in words if word != "--params"):
        assert word in declared or any(inside(path, [word]) for path in declared), word


@pytest.mark.parametrize("stage", EVERY)
def test_data_that_a_stage_reads_is_written_by_an_earlier_one(stage):
    earlier = list(EVERY)[: list(EVERY).index(stage)]
    written = {path for name in earlier for path in outputs(name)}
    read = {dep for dep in EVERY[stage]["deps"] if is_data(dep)}
    assert read <= written
    others = {path for name in STAGES if name not in ("prepare", "embed") for path in outputs(name)}
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


@pytest.mark.parametrize("folder", PIPELINES)
def test_plots_and_artifacts_are_outputs(folder):
    """They are named from the folder of their dvc.yaml, outputs from the root."""
    written = [path for stage in (UNIFIED if folder else STAGES) for path in outputs(stage)]
    named = [facts["path"] for facts in PIPELINES[folder]["artifacts"].values()]
    named += [file for plot in PIPELINES[folder]["plots"] for facts in plot.values() for file in facts["y"]]
    assert named and all(inside(folder + path, written) for path in named)


def test_no_plot_is_named_by_its_file():
    """Or dvc, saving an experiment of one pipeline, looks into the folders of the other, and fails where a dvc.lock
    names what is not there: both are in git, and a clone may have run only one of the pipelines."""
    plots = [plot for folder in PIPELINES for plot in PIPELINES[folder]["plots"]]
    assert all(isinstance(facts["y"], dict) for plot in plots for facts in plot.values())
    assert len({name for plot in plots for name in plot}) == len(plots)


def test_dvc_sends_nothing_and_asks_for_no_update():
    config = configparser.ConfigParser()
    config.read_string("\n".join(line.strip() for line in (ROOT / ".dvc" / "config").read_text().splitlines()))
    assert config["core"]["analytics"] == config["core"]["check_update"] == "false"
