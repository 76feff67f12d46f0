"""Rooms: which code a stage runs, found from its imports; an interrupted run goes on while that code is the same."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from testing.tiny import EVERY, ROOT, module
from xcutils.core import processor, runtime
from xcutils.core.rooms import code_of, imports, reached, rooms_of
from xcutils.core.scratch import work_key

MADE_UP = {
    "xcutils/__init__.py": '"""The library."""',
    "xcutils/core/__init__.py": "",
    "xcutils/core/errors.py": "import os",
    "xcutils/core/costs.py": "from xcutils.core.errors import UserError",
    "xcutils/model/__init__.py": "",
    "xcutils/model/encoder.py": "import torch\nfrom xcutils.core import errors",
    "xcutils/model/bag.py": "from xcutils.model.encoder import Encoder",
    "xcutils/search/__init__.py": "",
    "xcutils/search/exact.py": "import numpy as np",
    "xcutils/search/hnsw.py": "import hnswlib",
    "xcutils/rank/__init__.py": "",
    "xcutils/rank/fusion.py": "from xcutils.model import bag\nfrom xcutils.search import exact",
    "stages/__init__.py": "from xcutils.core import errors",
    "stages/embed.py": "from stages import parameters\nimport xcutils.model.bag",
    "stages/index.py": "def main():\n    from xcutils.search.exact import exact",
    "unidec/__init__.py": "import stages",
    "unidec/score.py": "from xcutils.rank.fusion import fuse",
    "longtail/__init__.py": "",
    "longtail/estimates.py": "from stages import embed",
    "recipes/dexa.yaml": "K: 5",
    "docs/methods.md": "# Methods",
}


@pytest.fixture
def house(tmp_path) -> Path:
    """A small project with the packages of this one."""
    for name, text in MADE_UP.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def names(files, root: Path) -> set[str]:
    return {file.relative_to(root).as_posix() for file in files}


# --- imports ----------------------------------------------------------------------------------------------------------

PACKAGE = {"xcutils/__init__.py", "xcutils/model/__init__.py"}
BAG = {*PACKAGE, "xcutils/model/bag.py"}


@pytest.mark.parametrize(
    "text, found",
    [
        ("import xcutils.model.bag", BAG),
        ("import xcutils.model.bag as b, os", BAG),
        ("from xcutils.model import bag", BAG),
        ("from xcutils.model import bag as b, nothing", BAG),
        ("from xcutils.model.bag import Bag, token_table", BAG),
        ("from xcutils.model.bag import *", BAG),
        ("import xcutils.model", PACKAGE),
        ("from xcutils import model", PACKAGE),
        ("def f():\n    from xcutils.model import bag", BAG),
        ("class A:\n    async def f(self):\n        import xcutils.model.bag", BAG),
        ("try:\n    import torch\nexcept ImportError:\n    from xcutils.model import bag", BAG),
        ("if TYPE_CHECKING:\n    from xcutils.model.bag import Bag", BAG),
        ("import stages.embed", {"stages/__init__.py", "stages/embed.py"}),
        ("import os, numpy.linalg\nfrom torch import nn", set()),
        ("from __future__ import annotations", set()),
        ("import xcutilsx.model.bag\nfrom xcutils.gone import nothing", {"xcutils/__init__.py"}),
    ],
)
def test_an_import_is_followed_in_every_form_with_the_packages_around_it(house, text, found):
    (house / "file.py").write_text(text)
    assert names(imports(house / "file.py", house), house) == found


@pytest.mark.parametrize(
    "text", ["from . import bag", "from .bag import Bag", "def f():\n    from ..core import errors"]
)
def test_a_relative_import_is_refused(house, text):
    file = house / "xcutils" / "model" / "gru.py"
    file.write_text(text)
    with pytest.raises(ValueError, match="gru.py: a relative import cannot be followed"):
        imports(file, house)


def test_what_a_file_reaches_has_no_end_in_a_circle(house):
    (house / "xcutils" / "core" / "errors.py").write_text("import xcutils.core.costs")
    found = names(reached(house / "xcutils" / "core" / "costs.py", house), house)
    assert found == {"xcutils/__init__.py", *(f"xcutils/core/{name}.py" for name in ("__init__", "costs", "errors"))}


def test_a_stage_reaches_its_package_and_what_others_import_for_it(house):
    found = names(reached(house / "unidec" / "score.py", house), house)
    assert {"unidec/__init__.py", "stages/__init__.py", "xcutils/model/encoder.py", "xcutils/core/errors.py"} <= found
    assert not {"stages/embed.py", "xcutils/search/hnsw.py", "longtail/estimates.py"} & found


# --- rooms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stage, listed",
    [
        ("stages/embed.py", ["stages/__init__.py", "stages/embed.py", "xcutils/core", "xcutils/model"]),
        ("stages/index.py", ["stages/__init__.py", "stages/index.py", "xcutils/core", "xcutils/search"]),
        (
            "unidec/score.py",
            [
                *("stages/__init__.py", "unidec/__init__.py", "unidec/score.py"),
                *("xcutils/core", "xcutils/model", "xcutils/rank", "xcutils/search"),
            ],
        ),
    ],
)
def test_a_stages_rooms_are_listed_as_dvc_lists_them(house, stage, listed):
    assert rooms_of(house / stage, house) == listed


def test_the_code_of_a_stage_is_all_of_its_rooms_and_nothing_else(house):
    (house / "xcutils" / "search" / "__pycache__").mkdir()
    (house / "xcutils" / "search" / "__pycache__" / "exact.pyc").write_text("")
    (house / "xcutils" / "search" / "deep").mkdir()
    (house / "xcutils" / "search" / "deep" / "down.py").write_text("")
    code = code_of(house / "stages" / "index.py", house)
    assert code == sorted(code) and names(code, house) == {
        *("stages/__init__.py", "stages/index.py"),
        *(f"xcutils/core/{name}.py" for name in ("__init__", "costs", "errors")),
        *(f"xcutils/search/{name}.py" for name in ("__init__", "exact", "hnsw", "deep/down")),
    }


def test_an_import_brings_its_room_with_it(house):
    (house / "stages" / "score.py").write_text("from xcutils.search import exact\nimport xcutils.rank.fusion\n")
    more = {*rooms_of(house / "stages" / "score.py", house)} - {*rooms_of(house / "stages" / "index.py", house)}
    assert more == {"stages/score.py", "xcutils/model", "xcutils/rank"}


# --- unfinished work --------------------------------------------------------------------------------------------------

ELSEWHERE = [
    "longtail/estimates.py",
    "recipes/dexa.yaml",
    "docs/methods.md",
    "stages/index.py",
    "unidec/__init__.py",
    "xcutils/__init__.py",
    "xcutils/search/exact.py",
    "xcutils/rank/new.py",
    "xcutils/core/notes.md",
]
OWN = [
    "stages/embed.py",
    "stages/__init__.py",
    "xcutils/model/bag.py",
    "xcutils/core/errors.py",
    "xcutils/core/costs.py",  # of a room it uses, though it does not import this file
    "xcutils/model/new.py",
]


def append(file: Path) -> None:
    with open(file, "a", encoding="utf-8") as out:
        out.write("# a comment\n")


def test_the_key_of_unfinished_work_is_that_of_the_stages_rooms(house):
    def made() -> str:
        return work_key({"K": 5}, [], code_of(house / "stages" / "embed.py", house))

    first = made()
    for file in ELSEWHERE:
        append(house / file)
        assert made() == first, file
    known = {first}
    for file in OWN:
        append(house / file)
        assert made() not in known, file
        known.add(made())


@dataclass(frozen=True)
class Params:
    epochs: int = 3


def interrupted(stage: Path) -> tuple[str, bool]:
    """(the scratch folder of a run that is interrupted, whether it held what an earlier run had done)."""
    with pytest.raises(KeyboardInterrupt), runtime.resumable(stage, Params(), []) as work:
        found = (work.folder / "done").is_file()
        (work.folder / "done").touch()
        raise KeyboardInterrupt
    return work.folder.name, found


def test_an_interrupted_run_goes_on_until_its_own_rooms_are_edited(house, monkeypatch):
    monkeypatch.setattr(runtime, "code_of", partial(code_of, root=house))
    monkeypatch.setenv("DVC_ROOT", str(house))
    stage = house / "stages" / "embed.py"
    name, found = interrupted(stage)
    assert name.startswith("embed-") and not found
    for file in ELSEWHERE:
        append(house / file)
    assert interrupted(stage) == (name, True)
    append(house / "xcutils" / "model" / "bag.py")
    other, found = interrupted(stage)
    assert other != name and not found


# --- the stages of this project ---------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_only_with_the_same_instructions_and_numbers(house, monkeypatch):
    monkeypatch.setattr(runtime, "code_of", partial(code_of, root=house))
    monkeypatch.setattr(processor, "multiplies_bfloat16", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(house))
    names = set()
    for settings in ({}, {"XC_PORTABLE": "0", "XC_PRECISION": "float32"}, {"XC_PORTABLE": "0"}):
        for name in ("XC_PORTABLE", "XC_PRECISION"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        folder, found = interrupted(house / "stages" / "embed.py")
        assert folder not in names and not found
        names.add(folder)
    monkeypatch.setenv("XC_PRECISION", "bfloat16")  # what `auto` was here
    assert interrupted(house / "stages" / "embed.py") == (folder, True)


def test_unfinished_work_is_keyed_on_the_files_that_dvc_looks_at():
    """Of every file of the project: an edit voids the work of the stages that dvc would run again, and of no others."""
    keyed = {stage: names(code_of(Path(module(stage).__file__)), ROOT) for stage in EVERY}
    packages = ("xcutils", "stages", "unidec", "longtail", "testing", "study", "benchmarks", "tests")
    for file in (file for package in packages for file in names((ROOT / package).rglob("*.py"), ROOT)):
        room = "/".join(file.split("/")[:2])
        listed = {stage for stage, facts in EVERY.items() if {file, room} & {*facts["deps"]}}
        assert {stage for stage in EVERY if file in keyed[stage]} == listed, file
        assert bool(listed) == (file.startswith(("xcutils/", "stages/", "unidec/")) and file != "xcutils/__init__.py")


def test_packages_beside_an_installed_project_are_not_followed(house):
    (house / "click").mkdir()
    (house / "click" / "__init__.py").write_text("from . import core\n")  # as many libraries do
    stage = house / "stages" / "embed.py"
    stage.write_text("import click\n" + stage.read_text())
    assert not any("click" in place for place in rooms_of(stage, house))
