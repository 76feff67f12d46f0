"""The code that an experiment ran with, as one digest; which code gives the same figures is in same-results.yaml.

python -m study.code    prints the digest of each pipeline's present code, and what same-results.yaml says of it

The code of a pipeline is every Python file of the rooms and stages that its dvc.yaml names as dependencies, and of
those that the stages before it need: the unified pipeline reads what the modular one's `prepare` and `embed` write. The
digest is of what the files do: comments, docstrings and line breaks do not count.

A change of the code that changes no figure gives another digest, and every experiment would count as one of older code.
same-results.yaml, written by hand, prevents that: the digests of one group give the same figures to the byte.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import posixpath
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from ruamel.yaml import YAML

from study import experiments
from study.experiments import dvc_file, git, read_tree
from study.records import digest
from xcutils.core import console, params
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES, Pipeline

SAME_RESULTS = Path(__file__).with_name("same-results.yaml")
Groups = dict[str, dict[str, str]]  # {group: {digest of code: how its figures were found to be the group's}}

# --- which code gives the figures of the present code -----------------------------------------------------------------


def current() -> set[str]:
    """The digests of all code, of any pipeline, that gives the same figures as the present code."""
    groups = read_groups(SAME_RESULTS)
    present = [digest_now(pipeline) for pipeline in PIPELINES.values()]
    return {*present, *(one for group in groups.values() if group.keys() & present for one in group)}


def read_groups(file: Path) -> Groups:
    """same-results.yaml, in which a digest is in one group only."""
    groups = params.read(file)
    known: set[Any] = set()
    for name, group in groups.items():
        for one, reason in group.items() if isinstance(group, dict) else [(group, None)]:
            if not isinstance(one, str) or not isinstance(reason, str):
                raise UserError(f'{file}: {name} must hold lines like "7462c590e98f": how it was checked.')
            if one in known:
                raise UserError(f"{file}: {one} is there twice.")
            known.add(one)
    return groups


# --- digests ----------------------------------------------------------------------------------------------------------


def digest_at(commit: str, pipeline: Pipeline) -> str:
    """The digest of the pipeline's code in the commit."""
    listed = blobs(commit)
    dvc_files = {other.folder: read_tree(commit, dvc_file(other)) for other in PIPELINES.values()}
    files = source_files(listed, dependencies(dvc_files, pipeline))
    return digest({file: meaning_of_blob(listed[file]) for file in files})


def digest_now(pipeline: Pipeline) -> str:
    """The digest of the pipeline's code as it is in the working tree."""
    root = experiments.ROOT
    listed = (git("ls-files", "--cached", "--others", "--exclude-standard", "*.py") or "").splitlines()
    read = YAML(typ="safe").load
    places = {other.folder: root / dvc_file(other) for other in PIPELINES.values()}
    dvc_files = {folder: read(file.read_text(encoding="utf-8")) for folder, file in places.items() if file.is_file()}
    files = source_files(listed, dependencies(dvc_files, pipeline))
    texts = {file: (root / file).read_text(encoding="utf-8") for file in files if (root / file).is_file()}
    return digest({file: meaning(text) for file, text in texts.items()})


@functools.cache
def blobs(commit: str) -> dict[str, str]:
    """{file: git's name of its content} of a commit."""
    lines = (git("ls-tree", "-r", commit) or "").splitlines()
    return {name: facts.split()[2] for facts, _, name in (line.partition("\t") for line in lines)}


def dependencies(dvc_files: dict[str, dict], pipeline: Pipeline) -> set[str]:
    """The paths that the pipeline's stages read, and that the stages read which write these.

    dvc_files  {folder: dvc.yaml of the pipeline in that folder}
    """
    own: list[str] = []
    inputs: dict[str, list[str]] = {}  # of the stage that writes a path
    for folder, tree in dvc_files.items():
        for stage in (tree.get("stages") or {}).values():
            start = posixpath.join(folder, stage.get("wdir", ""))
            read, written = ([_path(start, one) for one in stage.get(key, [])] for key in ("deps", "outs"))
            inputs |= dict.fromkeys(written, read)
            own += read if folder == pipeline.folder else []
    found: set[str] = set()
    while own:
        path = own.pop()
        if path not in found:
            found.add(path)
            own += inputs.get(path, [])
    return found


def _path(start: str, item: str | dict) -> str:
    """The path of a dependency or output, which dvc.yaml may write as {path: facts}."""
    return posixpath.normpath(posixpath.join(start, item if isinstance(item, str) else next(iter(item))))


def source_files(listed: Iterable[str], paths: set[str]) -> list[str]:
    """Those of the listed files that are Python code and are among the paths, or in a folder among them."""
    return [
        file
        for file in listed
        if file.endswith(".py") and (file in paths or any(str(folder) in paths for folder in Path(file).parents))
    ]


@functools.cache
def meaning_of_blob(blob: str) -> str:
    """`meaning` of a content that git has."""
    return meaning(git("cat-file", "blob", blob) or "")


def meaning(text: str) -> str:
    """A digest of what Python code does: comments, docstrings and line breaks do not count."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.md5(repr(_plain(tree)).encode(), usedforsecurity=False).hexdigest()


def _plain(part: Any) -> Any:
    """A syntax tree as lists, without what is empty: every version of Python prints `ast.dump` in its own way."""
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, ast.AST):
        return part
    fields = [[name, _plain(value)] for name, value in ast.iter_fields(part) if value is not None and value != []]
    return [type(part).__name__, *fields]


# --- command ----------------------------------------------------------------------------------------------------------


@click.command()
@console.command
def main() -> None:
    """Print the digest of each pipeline's present code, and the group of same-results.yaml that it is in."""
    groups = read_groups(SAME_RESULTS)
    for pipeline in PIPELINES.values():
        present = digest_now(pipeline)
        group = next((name for name, members in groups.items() if present in members), None)
        known = f"in the group `{group}`" if group else "in no group"
        click.echo(f'{dvc_file(pipeline)}: "{present}" is {known} of {SAME_RESULTS.name}')


if __name__ == "__main__":
    main()
