"""Which code a stage runs: its own file and the rooms of the library that its imports reach.

dvc.yaml lists the same rooms (a test compares them), and an interrupted stage is resumed only if their code is the
same. After an edit anywhere else, of the command line or of another room, results and unfinished work remain valid.
"""

import ast
from functools import cache
from pathlib import Path

from xcutils.core.pipelines import PIPELINES

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "xcutils"
OTHERS = {module.partition(".")[0] for pipeline in PIPELINES.values() for module in pipeline.stages.values()}
OWN = {LIBRARY, "longtail", *OTHERS}  # the project's packages; where it is installed, others stand beside them
if (ROOT / "pyproject.toml").is_file():  # a checkout
    OWN |= {"benchmarks", "study", "testing", "tests"}


@cache
def imports(file: Path, root: Path = ROOT) -> set[Path]:
    """The project's own files that the file imports, at its top or inside a function, packages' __init__ included."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{file}: a relative import cannot be followed; write the module's whole name.")
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return {path for name in names for path in _files(name, root)}


def _files(name: str, root: Path) -> set[Path]:
    """The files that Python reads to import this module: its own and those of the packages around it."""
    parts = name.split(".")
    if parts[0] not in OWN:
        return set()
    files = {Path(*parts).with_suffix(".py")} | {Path(*parts[:n], "__init__.py") for n in range(1, len(parts) + 1)}
    return {root / file for file in files if (root / file).is_file()}


def reached(file: Path, root: Path = ROOT) -> set[Path]:
    """The file and every file of the project that it imports, directly or through others."""
    found = _files(".".join(file.relative_to(root).with_suffix("").parts), root)  # the file and its package's __init__
    waiting = list(found)
    while waiting:
        fresh = imports(waiting.pop(), root) - found
        found |= fresh
        waiting += fresh
    return found


def rooms_of(stage: Path, root: Path = ROOT) -> list[str]:
    """The rooms that the stage's imports reach, and files outside the library, as paths from the root."""
    inside = {path.relative_to(root) for path in reached(stage, root)}
    rooms = {Path(*path.parts[:2]) for path in inside if path.parts[0] == LIBRARY and len(path.parts) > 2}
    others = {path for path in inside if path.parts[0] != LIBRARY}
    return sorted(path.as_posix() for path in rooms | others)


def code_of(stage: Path, root: Path = ROOT) -> list[Path]:
    """Every source file in the stage's rooms, and the files outside the library."""
    places = [root / place for place in rooms_of(stage, root)]
    return sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
