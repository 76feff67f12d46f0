"""dvc.yaml against the code: DVC does not follow imports, so what it lists must be what the stages really use."""

import ast
import configparser
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path, PurePosixPath

import pytest
from ruamel.yaml import YAML
from tiny import PIPELINE, ROOT, STAGES

from xcutils.params import Top

PARAMS = YAML(typ="safe").load((ROOT / "params.yaml").read_text(encoding="utf-8"))
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
    listed = [*STAGES[stage].get("outs", []), *STAGES[stage].get("metrics", []), *STAGES[stage].get("plots", [])]
    return {path: facts for item in listed for path, facts in (item if isinstance(item, dict) else {item: {}}).items()}


def inside(path: str, folders) -> bool:
    """Is the path one of the folders, or in one?"""
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def test_imports_are_followed_in_every_form(tmp_path, monkeypatch):
    monkeypatch.setattr("test_pipeline_file.ROOT", tmp_path)
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / "pack").mkdir(exist_ok=True)
        (tmp_path / "pack" / f"{name}.py").write_text("import os\n")
    (tmp_path / "pack" / "a.py").write_text("from pack import b\ndef f():\n    from pack.c import thing\n")
    (tmp_path / "pack" / "c.py").write_text("import numpy, pack.d\nimport pack.a\n")
    assert all_imports("pack/a.py") == {f"pack/{name}.py" for name in "abcd"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_exactly_the_code_it_imports(stage):
    code = {dep for dep in STAGES[stage]["deps"] if dep not in NOT_CODE and not dep.startswith("data/")}
    assert code == all_imports(f"stages/{stage}.py")


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_listed_twice(stage):
    for part in ("deps", "params", "outs"):
        listed = STAGES[stage][part]
        assert len(listed) == len(set(listed))


@pytest.mark.parametrize("stage", STAGES)
def test_one_word_names_script_stage_section_and_folder(stage):
    assert (ROOT / "stages" / f"{stage}.py").is_file()
    assert STAGES[stage]["cmd"].startswith(f"python -m stages.{stage} ")
    assert stage in PARAMS and stage in STAGES[stage]["params"]
    written = [path for path, facts in outputs(stage).items() if facts.get("cache", True)]
    assert written and all(inside(path, [f"data/{stage}"]) for path in written)


def test_every_stage_script_is_in_the_pipeline():
    assert {file.stem for file in (ROOT / "stages").glob("*.py")} - {"__init__"} == set(STAGES)


def test_sections_of_the_parameters_are_exactly_the_stages():
    assert [name for name, value in PARAMS.items() if isinstance(value, dict)] == list(STAGES)
    assert {name for name, value in PARAMS.items() if not isinstance(value, dict)} == {f.name for f in fields(Top)}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_follows_its_own_section_and_what_stands_above_the_sections(stage):
    assert set(STAGES[stage]["params"]) <= {stage, "K", "seed"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_reads_the_top_values_lists_the_ones_it_uses(stage):
    tree = ast.parse((ROOT / "stages" / f"{stage}.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_top"]
    used = {name for name in ("K", "seed") if any(ast.unparse(node).endswith(f".{name}") for node in ast.walk(tree))}
    assert (used if calls else set()) == set(STAGES[stage]["params"]) & {"K", "seed"}


def test_k_is_a_parameter_of_cluster_alone():
    assert [stage for stage in STAGES if "K" in STAGES[stage]["params"]] == ["cluster"]
    assert not any("${K}" in STAGES[stage]["cmd"] for stage in STAGES)


def test_only_score_reads_the_test_documents():
    folder = "data/prepare/test"
    readers = [s for s in STAGES if any(inside(folder, [d]) or inside(d, [folder]) for d in STAGES[s]["deps"])]
    assert readers == ["score"]
    told = [s for s in STAGES if any(inside(folder, [word]) for word in shlex.split(STAGES[s]["cmd"]))]
    assert set(told) == {"prepare", "score"}


@pytest.mark.parametrize("stage", STAGES)
def test_paths_on_the_command_line_are_declared(stage):
    declared = {*STAGES[stage]["deps"], *outputs(stage)}
    for word in shlex.split(STAGES[stage]["cmd"])[3:]:
        assert word in declared or any(inside(path, [word]) for path in declared), word


@pytest.mark.parametrize("stage", STAGES)
def test_data_that_a_stage_reads_is_written_by_an_earlier_one(stage):
    earlier = list(STAGES)[: list(STAGES).index(stage)]
    written = {path for name in earlier for path in outputs(name)}
    assert {dep for dep in STAGES[stage]["deps"] if dep.startswith("data/")} <= written


def test_every_cached_output_is_ignored_by_git_and_the_rest_is_not(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    kept = {path: not facts.get("cache", True) for stage in STAGES for path, facts in outputs(stage).items()}
    kept |= {"data/raw/hpo/dataset.yaml": True, "dvc.lock": True, "data/raw/other/trn.json.gz": False}
    for path, in_git in kept.items():
        path = path if PurePosixPath(path).suffix else f"{path}/manifest.json"
        ignored = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=tmp_path).returncode == 0
        assert ignored != in_git, path


def test_plots_and_artifacts_are_outputs():
    written = [path for stage in STAGES for path in outputs(stage)]
    named = [facts["path"] for facts in PIPELINE["artifacts"].values()]
    for plot in PIPELINE["plots"]:
        for name, facts in plot.items():
            named += list(facts["y"]) if isinstance(facts["y"], dict) else [name]
    assert named and all(inside(path, written) for path in named)


def test_dvc_sends_nothing_and_asks_for_no_update():
    config = configparser.ConfigParser()
    config.read_string("\n".join(line.strip() for line in (ROOT / ".dvc" / "config").read_text().splitlines()))
    assert config["core"]["analytics"] == config["core"]["check_update"] == "false"
