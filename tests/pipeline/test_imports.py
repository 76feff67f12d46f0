"""The import graph, drawn from the code: imports go one way, and each rule is seen to refuse what breaks it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import xcutils
from testing.tiny import ROOT
from xcutils.core import rooms

# What each part of the project may import, besides other modules of the same room or of the same package.
ROOMS: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "model": {"core"},
    "search": {"core"},
    "train": {"core", "model", "search"},
    "rank": {"core", "model", "search"},
}
STAGES = {*ROOMS, "stages", "unidec"}
APPLICATION = {*STAGES, "a stage", "longtail"}
DIRECTIONS: dict[str, set[str]] = ROOMS | {
    "xcutils": set(),  # its __init__.py alone
    "stages": {"core"},  # likewise: every stage reads it
    "unidec": {"stages"},
    "a stage": STAGES,
    "longtail": APPLICATION,
    "study": APPLICATION,
    "testing": APPLICATION,
    "benchmarks": {*APPLICATION, "testing"},
    "tests": {*APPLICATION, "xcutils", "testing", "study", "benchmarks"},
}
PACKAGES = ("xcutils", "stages", "unidec", "longtail", "testing", "study", "benchmarks", "tests")
ONE_MODULE = {"hnswlib": "xcutils/search/hnsw.py"}  # a library -> the one file that may import it
TABLE = "xcutils/core/pipelines.py"  # the one file of the library that names stages, as data
AT_ONCE = ("longtail/cli.py", "longtail/commands/*.py", "xcutils/core/console.py")  # imported before a word is answered
SLOW = {"dvc", "hnswlib", "numpy", "pyarrow", "scipy", "tokenizers", "torch", "transformers"}
BY_NAME = {"__import__", "eval", "exec", "exec_module", "import_module", "run_module", "run_path"}


@dataclass(frozen=True)
class Import:
    """A name that a file imports.

    name   the dotted name of the module
    whole  the same with the name that is taken from it, which may be a module itself
    first  it is imported with the file, not when a function is called or for a type checker alone
    """

    line: int
    name: str
    whole: str
    first: bool


class Source:
    """A file of the project and what it imports."""

    def __init__(self, file: Path, root: Path):
        self.path = file.relative_to(root).as_posix()
        self.tree = ast.parse(file.read_text(encoding="utf-8"))

    @property
    def place(self) -> str:
        """The part of the project it belongs to, a key of DIRECTIONS; of xcutils/new/ it is the folder's name."""
        package, *rest = self.path.split("/")
        if package == "xcutils":
            return rest[0] if len(rest) > 1 else package
        return "a stage" if package in ("stages", "unidec") and rest != ["__init__.py"] else package

    @cached_property
    def imports(self) -> list[Import]:
        return [*_imports(self.tree, first=True)]

    @cached_property
    def strings(self) -> list[ast.Constant]:
        """Its texts, docstrings left out."""
        bodies = [node.body for node in ast.walk(self.tree) if isinstance(getattr(node, "body", None), list)]
        docs = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        return [node for node in found if id(node) not in docs]


def _imports(node: ast.AST, *, first: bool) -> Iterator[Import]:
    """What is imported in the node, in every form that Python has."""
    if isinstance(node, ast.Import):
        yield from (Import(node.lineno, alias.name, alias.name, first) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        name = "." * node.level + (node.module or "")
        yield from (Import(node.lineno, name, f"{name}.{alias.name}", first) for alias in node.names)
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    later |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, first=first and not later)


class Graph:
    """The project's files and which of them imports which."""

    def __init__(self, root: Path):
        files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
        self.sources = {source.path: source for source in (Source(file, root) for file in files)}

    def file(self, name: str) -> str | None:
        """The file of a dotted name; None where the project has none."""
        path = name.replace(".", "/")
        return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in self.sources), None)

    def target(self, found: Import) -> str | None:
        """The file that is imported: the module taken from a package, or the one that something is taken from."""
        return self.file(found.whole) or self.file(found.name)

    def edges(self, *, first: bool = False) -> dict[str, set[str]]:
        """File -> the files it imports, the packages around these included; `first`: when it is itself imported."""
        out = {}
        for path, source in self.sources.items():
            targets = [self.target(found) for found in source.imports if found.first or not first]
            known = {target for target in targets if target is not None}
            out[path] = (known | {package for target in known for package in self._around(target)}) - {path}
        return out

    def _around(self, path: str) -> set[str]:
        parents = [parent.as_posix() for parent in Path(path).parents]
        return {f"{parent}/__init__.py" for parent in parents} & set(self.sources)

    def drawn(self) -> dict[str, set[str]]:
        """Part of the project -> the other parts it imports."""
        out: dict[str, set[str]] = {}
        for source in self.sources.values():
            targets = {self.sources[target].place for found in source.imports if (target := self.target(found))}
            out.setdefault(source.place, set()).update(targets - {source.place})
        return out


# --- the rules: each gives a line per offence -------------------------------------------------------------------------


def relative(graph: Graph) -> Iterator[str]:
    for path, source in graph.sources.items():
        for found in source.imports:
            if found.name.startswith("."):
                yield f"{path}:{found.line}: relative import: write the module's whole name"


def against_the_direction(graph: Graph) -> Iterator[str]:
    for path, source in graph.sources.items():
        if source.place not in DIRECTIONS:
            yield f"{path}: {source.place} is no part of the project that the table of directions knows"
            continue
        allowed = DIRECTIONS[source.place] | ({source.place} - {"a stage"})
        for found in source.imports:
            target = graph.target(found)
            if target is not None and graph.sources[target].place not in allowed:
                yield f"{path}:{found.line}: {source.place} may not import {graph.sources[target].place} ({target})"


def circles(graph: Graph) -> Iterator[str]:
    for what, edges in (("files", graph.edges()), ("parts", graph.drawn())):
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            yield f"{what} in a circle: {' - '.join(error.args[1])}"


def by_name(graph: Graph) -> Iterator[str]:
    """Imports whose target the code does not show, in the library and in stages; `stages` itself reads the table."""
    for path, source in graph.sources.items():
        if source.place not in (*STAGES, "xcutils", "a stage") or path == "stages/__init__.py":
            continue
        for node in ast.walk(source.tree):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            is_method = isinstance(node, ast.Call) and called == "eval" and isinstance(node.func, ast.Attribute)
            if called in BY_NAME and not is_method:  # encoder.eval() is torch's
                yield f"{path}:{node.lineno}: import by name: {ast.unparse(node)}"
        for found in source.imports:
            if found.whole.rpartition(".")[2] in BY_NAME:
                yield f"{path}:{found.line}: import by name: {found.whole}"


def stages_named(graph: Graph) -> Iterator[str]:
    for path, source in graph.sources.items():
        if path.startswith("xcutils/") and path != TABLE:
            for text in source.strings:
                if re.fullmatch(r"(stages|unidec|longtail)\.\w*(\.\w*)*", text.value):
                    yield f"{path}:{text.lineno}: {text.value!r} names a stage, which only {TABLE} may"


def one_module(graph: Graph) -> Iterator[str]:
    for path, source in graph.sources.items():
        for found in source.imports:
            place = ONE_MODULE.get(found.name.partition(".")[0], path)
            if place != path:
                yield f"{path}:{found.line}: {found.name} is imported in {place} alone"


def slow(graph: Graph) -> Iterator[str]:
    """Slow libraries that are imported before a command line has said what it wants."""
    edges = graph.edges(first=True)
    for path in sorted(graph.sources):
        if not any(Path(path).match(pattern) for pattern in AT_ONCE):
            continue
        for reached in sorted(closure(edges, path)):
            for found in graph.sources[reached].imports:
                if found.first and found.name.partition(".")[0] in SLOW:
                    yield f"{path}: imports {found.name}, which is slow, through {reached}:{found.line}"


def closure(edges: dict[str, set[str]], path: str) -> set[str]:
    """The file, the packages around it, and all they import."""
    found, waiting = {path}, [path, *(parent for parent in edges if _is_package_of(parent, path))]
    while waiting:
        found.add(here := waiting.pop())
        waiting += edges[here] - found
    return found


def _is_package_of(package: str, path: str) -> bool:
    return package.endswith("/__init__.py") and path.startswith(package.removesuffix("__init__.py"))


RULES = (relative, against_the_direction, circles, by_name, stages_named, one_module, slow)


def offences(root: Path) -> list[str]:
    graph = Graph(root)
    return [line for rule in RULES for line in rule(graph)]


# --- the project ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_every_rule(graph, rule):
    assert [*rule(graph)] == []


def test_the_graph_is_of_the_whole_project(graph):
    assert {source.place for source in graph.sources.values()} == set(DIRECTIONS)
    assert {"xcutils/train/losses.py", "stages/__init__.py"} <= graph.edges()["stages/encoder.py"]
    assert graph.drawn()["longtail"] > {"core", "stages"} and graph.drawn()["core"] == set()


def test_the_rooms_are_those_that_the_library_describes():
    described = [line.split()[0] for line in xcutils.__doc__.split("\n\n")[1].splitlines()]
    assert described == list(ROOMS)
    assert {folder.name for folder in (ROOT / "xcutils").iterdir() if any(folder.glob("*.py"))} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_opens_with_nothing(room):
    """What an __init__.py imports, every module of its room would import with it."""
    assert (ROOT / "xcutils" / room / "__init__.py").read_text() == ""


def test_what_a_stage_reaches_is_found_alike_by_the_library(graph):
    """xcutils.core.rooms decides by its own reading of the imports what an edit re-runs."""
    edges = graph.edges()
    for path, source in graph.sources.items():
        if source.place == "a stage":
            found = {file.relative_to(ROOT).as_posix() for file in rooms.reached(ROOT / path)}
            assert found == closure(edges, path), path


# --- the rules refuse what breaks them --------------------------------------------------------------------------------

MADE_UP = {
    "xcutils/__init__.py": '"""The library, of which stages.one knows."""',
    **{f"xcutils/{room}/__init__.py": "" for room in ROOMS},
    "xcutils/core/errors.py": "import sys",
    "xcutils/core/pipelines.py": "from xcutils.core import errors\nSTAGES = {'one': 'stages.one'}",
    "xcutils/data/reader.py": "from xcutils.core.errors import UserError",
    "xcutils/model/encoder.py": "import torch\nfrom xcutils.core import errors\nmodel.eval()",
    "xcutils/search/exact.py": "import numpy",
    "xcutils/search/hnsw.py": "import hnswlib\nimport xcutils.search.exact as exact",
    "xcutils/train/loop.py": "from xcutils.model.encoder import Encoder\nfrom xcutils.search import hnsw",
    "xcutils/rank/fusion.py": "from xcutils.model import encoder\nfrom xcutils.search.exact import exact",
    "stages/__init__.py": "import importlib\nfrom xcutils.core import errors\nimportlib.import_module('stages.one')",
    "stages/one.py": "from stages import parameters\nfrom xcutils.train import loop\nfrom xcutils.data import reader",
    "stages/two.py": "import stages\nfrom xcutils.rank import fusion",
    "unidec/__init__.py": "import stages",
    "unidec/train.py": "import unidec\nfrom stages import parameters\nfrom xcutils.train import loop",
    "longtail/__init__.py": "",
    "longtail/estimates.py": "import torch\nfrom stages import one\nfrom longtail import sizes",
    "longtail/sizes.py": "import numpy",
    "longtail/cli.py": (
        "from typing import TYPE_CHECKING\nimport click\nfrom xcutils.core import pipelines\n"
        "if TYPE_CHECKING:\n    import torch\ndef main():\n    from longtail import estimates"
    ),
    "testing/tiny.py": "from longtail import cli\nfrom stages import one",
    "study/findings.py": "from longtail import sizes",
    "benchmarks/speed.py": "from testing import tiny\nfrom unidec.train import Unified",
    "tests/test_one.py": "from testing import tiny\nfrom study import findings\nfrom benchmarks import speed",
}


def made_up(folder: Path, files: dict[str, str]) -> Path:
    for name, text in (MADE_UP | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return folder


def test_a_project_that_keeps_the_rules_is_not_refused(tmp_path):
    assert offences(made_up(tmp_path, {})) == []


BROKEN = {
    against_the_direction: [
        # a room imports one beside it or above it, or the library one that nobody knows
        ("xcutils/data/reader.py", "from xcutils.search import exact"),
        ("xcutils/model/encoder.py", "import xcutils.train.loop as loop"),
        ("xcutils/rank/fusion.py", "from xcutils.train.loop import fit"),
        ("xcutils/core/errors.py", "def f():\n    from xcutils.search import exact"),
        ("xcutils/attic/old.py", "import os"),
        # a package imports for all of its modules
        ("xcutils/__init__.py", "from xcutils.core import errors"),
        ("stages/__init__.py", "from xcutils.model import encoder"),
        # the library imports a stage, or its package
        ("xcutils/core/errors.py", "import stages.one"),
        ("xcutils/train/loop.py", "class A:\n    def f(self):\n        from stages import one"),
        ("xcutils/rank/fusion.py", "from unidec.train import fit"),
        ("xcutils/core/errors.py", "from stages import parameters"),
        # a stage imports another
        ("stages/two.py", "from stages.one import Params"),
        ("unidec/train.py", "from stages import parameters, one"),
        # a stage or the library imports the command line or estimates
        ("stages/one.py", "from longtail.cli import main"),
        ("unidec/train.py", "from longtail import estimates"),
        ("stages/two.py", "try:\n    import longtail.estimates\nexcept ImportError:\n    pass"),
        ("stages/__init__.py", "from longtail import sizes"),
        ("xcutils/train/loop.py", "def f():\n    from longtail import estimates"),
        # what is run imports what only tests and measures need
        ("stages/one.py", "from testing.tiny import ROOT"),
        ("stages/one.py", "import tests.test_one"),
        ("stages/one.py", "from study import findings"),
        ("stages/one.py", "from benchmarks.speed import f"),
        ("longtail/sizes.py", "from testing import tiny"),
        ("longtail/sizes.py", "import study.findings"),
        ("testing/tiny.py", "import tests.test_one"),
        ("testing/tiny.py", "from benchmarks import speed"),
        ("testing/tiny.py", "from study import findings"),
        ("study/findings.py", "from tests import test_one"),
    ],
    circles: [
        ("xcutils/search/exact.py", "from xcutils.search import hnsw"),
        ("xcutils/search/exact.py", "def f():\n    import xcutils.search.hnsw"),
        ("longtail/__init__.py", "from longtail import estimates"),
    ],
    by_name: [
        ("xcutils/core/errors.py", "import importlib\nimportlib.import_module('st' + 'ages.one')"),
        ("xcutils/core/errors.py", "from importlib import import_module as f\nf('st' + 'ages.one')"),
        ("xcutils/core/errors.py", "stage = __import__('st' + 'ages.one')"),
        ("xcutils/core/pipelines.py", "import runpy\nrunpy.run_module(STAGES['one'])"),
        ("xcutils/core/pipelines.py", "exec('import ' + STAGES['one'])"),
        ("stages/two.py", "import importlib\nimportlib.import_module('longtail.estimates')"),
        ("unidec/__init__.py", "import importlib\nimportlib.import_module('unidec.train')"),
    ],
    stages_named: [
        ("xcutils/core/errors.py", "STAGE = 'stages.one'"),
        ("xcutils/train/loop.py", "def f(name):\n    return f'unidec.{name}'"),
        ("xcutils/rank/fusion.py", "def f():\n    return ['longtail.estimates']"),
    ],
    one_module: [
        ("xcutils/search/exact.py", "import hnswlib"),
        ("stages/two.py", "def f():\n    from hnswlib import Index"),
        ("tests/test_one.py", "import hnswlib as h"),
    ],
    slow: [
        ("longtail/cli.py", "import torch"),
        ("longtail/cli.py", "from longtail.estimates import report"),
        ("longtail/cli.py", "class A:\n    import scipy.sparse"),
        ("longtail/commands/table.py", "import numpy as np"),
        ("xcutils/core/console.py", "from transformers.models import bert"),
    ],
    relative: [
        ("xcutils/search/hnsw.py", "from . import exact"),
        ("xcutils/search/hnsw.py", "def f():\n    from ..core.errors import UserError"),
    ],
}
CASES = [(rule, *case) for rule, cases in BROKEN.items() for case in cases]


def test_every_rule_is_broken_once():
    assert set(BROKEN) == set(RULES)


@pytest.mark.parametrize("rule, file, line", CASES, ids=[f"{rule.__name__}-{file}" for rule, file, _ in CASES])
def test_a_broken_rule_is_said(tmp_path, rule, file, line):
    """The line stands in an otherwise good project, behind what the file imports there."""
    graph = Graph(made_up(tmp_path, {file: "\n".join([MADE_UP.get(file, ""), line])}))
    found = [*rule(graph)]
    assert found and all(file in offence for offence in found)


def test_a_slow_import_is_found_through_other_files(tmp_path):
    found = [*slow(Graph(made_up(tmp_path, {"longtail/__init__.py": "from longtail import sizes"})))]
    assert found == ["longtail/cli.py: imports numpy, which is slow, through longtail/sizes.py:1"]


def test_two_rooms_are_in_a_circle_where_no_two_files_are(tmp_path):
    found = [*circles(Graph(made_up(tmp_path, {"xcutils/core/pipelines.py": "from xcutils.model import encoder"})))]
    assert len(found) == 1 and set(found[0].removeprefix("parts in a circle: ").split(" - ")) == {"core", "model"}


def test_the_line_of_the_offence_is_named(tmp_path):
    found = offences(made_up(tmp_path, {"stages/two.py": "import os\n\nfrom longtail import sizes"}))
    assert found[0] == "stages/two.py:3: a stage may not import longtail (longtail/sizes.py)"
