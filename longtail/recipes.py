"""Recipes: the parameters of a method, to be put in place of params.yaml or unidec/params.yaml.

A recipe names its base, another recipe, and holds what differs from it:

    # NGAME: encoder trained on batches of neighbouring documents, then a classifier per label.
    base: dexa
    K: 0  # [DEXA]
    index: {m: 100, ef_construction: 300}  # [NGAME code]

The comment behind a value is a note on it, such as where it comes from; behind a section in braces it is that of each
value there. A recipe without a base is complete, every value with its comment: recipes/dexa.yaml, recipes/unidec.yaml,
or a user's own. What is put in place is always a whole parameter file: the head of the recipe, then the lines of the
complete one that its bases end at, with the values and notes of the recipes between.

The comments are kept in those two recipes. The params.yaml of the repository is the copy that `xc recipe dexa` writes,
without the head, and a test compares the two. It cannot be what bases end at, since users, `dvc exp run -S` and
`xc recipe` change it.
"""

import difflib
import json
import os
import re
import subprocess
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from longtail.files import find
from stages import check_parameters
from xcutils.core.errors import UserError
from xcutils.core.params import read
from xcutils.core.pipelines import MODULAR, PIPELINES, Pipeline

ANY = "data/raw/hpo"  # a recipe of the default dataset goes with any other
ABSENT = "-"  # shown where a file lacks a line


# --- the files of a recipe --------------------------------------------------------------------------------------------


def by_name(root: Path = Path()) -> dict[str, Path]:
    """{recipe: its file}: those of recipes/ in `root`, and of other names those that came with Longtail."""
    shipped = find("recipes/dexa.yaml").parent
    return {file.stem: file for folder in (shipped, root / "recipes") for file in folder.glob("*.yaml")}


def names(root: Path = Path()) -> list[str]:
    """Every recipe, those for the size of a published dataset last."""
    found = sorted(by_name(root))
    if not found:
        raise UserError("there are no recipes in recipes/ here: run from the folder that holds dvc.yaml.")
    return sorted(found, key=lambda name: bool(re.search(r"-[\d.]+[km]$", name)))


@dataclass(frozen=True)
class Layer:
    """One file of a recipe: its own, its base's, and so on.

    base  the recipe that it changes; empty where it is complete
    tree  the values that stand in it
    """

    file: Path
    text: str
    base: str
    tree: dict

    @property
    def head(self) -> str:
        """The comment at its top; of a complete file up to an empty line of it, since the rest is on the values."""
        lines = self.text.splitlines(keepends=True)
        return "".join(takewhile(lambda line: line.startswith("#") and (self.base or line != "#\n"), lines))

    @property
    def body(self) -> str:
        """What follows the head."""
        return self.text.removeprefix(self.head).removeprefix("#\n")

    @cached_property
    def given(self) -> dict[str, tuple[str, str]]:
        """{name: (its value as it is written there, the note on it)}, in its order."""
        return {name: (_spelled(self.text, node), note) for name, node, note in _values(self.text) if name != "base"}


def _layer(file: Path) -> Layer:
    return _parsed(file, file.read_bytes())


@lru_cache(maxsize=100)
def _parsed(file: Path, content: bytes) -> Layer:
    """The file of this content; many recipes end at the same one, which is parsed once."""
    tree = read(file)
    base = tree.pop("base", "")
    if not isinstance(base, str):
        raise UserError(f"{file}: base is {base!r}; it must be the name of a recipe.")
    return Layer(file, file.read_text(encoding="utf-8"), base, tree)


def _layers(name: str, root: Path) -> list[Layer]:
    """The files of a recipe: the complete one first, its own last."""
    known, met = by_name(root), [name]
    layers = [_layer(known[name])]
    while base := layers[-1].base:
        if base not in known:
            raise UserError(f"{layers[-1].file}: its base {base!r} is no recipe: {_meant(base, known)}")
        met.append(base)
        if base in met[:-1]:
            raise UserError(
                f"{known[name]}: its bases go in a circle, {' - '.join(met)}: one of them must be complete."
            )
        layers.append(_layer(known[base]))
    return layers[::-1]


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return (f"did you mean {' or '.join(near)}? " if near else "") + "`xc recipe` lists them all."


def _over(below: dict, layer: Layer) -> dict:
    """The tree `below` with the layer's values; a layer has no value that its base does not have."""
    tree = dict(below)
    _refuse_unknown(layer, "", layer.tree, below)
    for name, given in layer.tree.items():
        here = below[name]
        if isinstance(here, dict) != isinstance(given, dict):
            wanted = "a section of `name: value` lines" if isinstance(here, dict) else "a value"
            raise UserError(f"{layer.file}: {name} must be {wanted}, not {given!r}.")
        if isinstance(here, dict):
            _refuse_unknown(layer, f"{name}.", given, here)
            given = here | given
        tree[name] = given
    return tree


def _refuse_unknown(layer: Layer, section: str, given: dict, below: dict) -> None:
    for name in given:
        if name not in below:
            known = ", ".join(map(str, below))
            raise UserError(f"{layer.file}: {section}{name} is not in its base {layer.base}; known there: {known}.")


def _trees(layers: list[Layer]) -> list[dict]:
    """The complete values up to each layer."""
    return [*accumulate(layers[1:], _over, initial=layers[0].tree)]


# --- a recipe as a whole parameter file -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """All parameters of a method.

    layers  the files it is made from: the complete one first, its own last
    tree    every value
    """

    name: str
    layers: list[Layer]
    tree: dict

    @cached_property
    def text(self) -> str:
        """The whole parameter file: its head, then every value with its comment and its note."""
        bottom, own = self.layers[0], self.layers[-1]
        if own is bottom:
            return own.text
        given = {name: found for layer in self.layers[1:] for name, found in layer.given.items()}
        text = _filled(f"{own.head}#\n{bottom.body}" if own.head else bottom.body, given)
        if not _holds(text, self.tree):
            raise UserError(f"{own.file} does not go with the lines of {bottom.file}: write one value a line there.")
        return text

    @property
    def title(self) -> str:
        """The first line of the comment at its head."""
        return self.layers[-1].head.partition("\n")[0].removeprefix("#").strip()

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline whose parameters it has."""
        return _pipeline(self.tree)

    @property
    def place(self) -> Path:
        """The file it can be put in place of."""
        return self.pipeline.params

    @property
    def command(self) -> str:
        """The command at its head that runs it on its dataset; empty where there is none."""
        found = re.match(r"(?:#.*\n)*?# *(dvc exp run .*)", self.layers[-1].text)
        return found[1].strip() if found else ""

    def dataset(self, present: dict) -> str | None:
        """What it will run on beside the values `present`: its own dataset, or the present one if its own is ANY."""
        own, other = self.tree.get("dataset"), present.get("dataset")
        return other if own == ANY and isinstance(other, str) and other else own

    def on(self, dataset: str | None) -> str:
        """Its text with this dataset."""
        if dataset is None or dataset == self.tree.get("dataset"):
            return self.text
        text = _filled(self.text, {"dataset": (_scalar(dataset), "")})
        if not _holds(text, self.tree | {"dataset": dataset}):
            raise UserError(f"the dataset {dataset!r} cannot be put into recipe {self.name}: give it a plainer path.")
        return text


def _pipeline(tree: dict) -> Pipeline:
    """The pipeline whose sections and top values are nearest to the tree's."""
    return min(PIPELINES.values(), key=lambda one: len(set(tree) ^ {*one.stages, *(f.name for f in fields(one.top))}))


def _values(text: str) -> list[tuple[str, Node, str]]:
    """(name, its value, the comment behind it) of every value of a YAML text, in its order.

    A comment behind a section in braces is that of each value in it that has none of its own.
    """
    out = []
    for key, node in YAML().compose(text).value:
        if isinstance(node, MappingNode):
            shared = _comment(text, node) if node.flow_style else ""
            out += [(f"{key.value}.{name.value}", part, _comment(text, part) or shared) for name, part in node.value]
        else:
            out.append((key.value, node, _comment(text, node)))
    return out


def _spelled(text: str, node: Node) -> str:
    """The value as its author wrote it."""
    return text[node.start_mark.index : node.end_mark.index]


def _comment(text: str, node: Node) -> str:
    found = re.match(r"[ \t]+#[ \t]*(.*)", text[node.end_mark.index :])
    return found[1].strip() if found else ""


def _filled(text: str, given: dict[str, tuple[str, str]]) -> str:
    """A whole parameter file with other values and notes.

    given  name -> (its value as it is to be written, its note)
    """
    for name, node, comment in reversed(_values(text)):
        if name not in given:
            continue
        value, note = given[name]
        start, end = node.start_mark.index, node.end_mark.index
        first, rest = text.rfind("\n", 0, start) + 1, text[end:].partition("\n")[0]
        line = text[first:start] + value
        alone = not rest.strip() or rest.strip().startswith("#")  # no other value follows on its line
        line = _commented(line, comment, note) if alone else line + rest
        text = text[:first] + line + text[end + len(rest) :]
    return text


def _commented(line: str, comment: str, note: str) -> str:
    """The line with comment and note behind it; the note goes below where it does not fit."""
    both = f"{comment.rstrip(',')}; {note}" if comment and note else comment or note
    if not both:
        return line
    line = f"{line:<21}  # "
    if comment and note and len(line + both) > 120:
        both = f"{comment.rstrip(',')};\n{'#':>24} {note}"
    return line + both


def _holds(text: str, tree: dict) -> bool:
    """Does the text read as these values?"""
    try:
        return YAML(typ="safe").load(text) == tree
    except YAMLError:
        return False


def _scalar(text: str) -> str:
    """The text as YAML reads it back, without quotes where it can be."""
    plain = re.fullmatch(r"[A-Za-z/][\w./+-]*", text) and YAML(typ="safe").load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)


# --- finding one ------------------------------------------------------------------------------------------------------


def load(name: str) -> Recipe:
    """The recipe, the values of each of its files checked as a stage would."""
    known = names()
    if name not in known:
        raise UserError(f"there is no recipe {name!r}: {_meant(name, known)}")
    recipe = complete(name)
    for layer, tree in zip(recipe.layers, _trees(recipe.layers)):
        check_parameters(tree, str(layer.file), _pipeline(tree))
    return recipe


def complete(name: str, root: Path = Path()) -> Recipe:
    """The recipe, put together and not checked."""
    layers = _layers(name, root)
    return Recipe(name, layers, deepcopy(_trees(layers)[-1]))


def values_of(name: str, root: Path = Path()) -> dict:
    """The tree of every value of a recipe, as `read` gives that of a parameter file."""
    return complete(name, root).tree


def flat(tree: dict) -> dict[str, Any]:
    """{name: value} of all lines, names as in `dvc exp run -S`."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        out |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return out


def differences(recipe: Recipe) -> list[tuple[str, Any, Any]]:
    """(name, present value, the recipe's) of every line that putting it in place would change."""
    return _differences(recipe, read(find(recipe.place.as_posix())))


def _differences(recipe: Recipe, present: dict) -> list[tuple[str, Any, Any]]:
    old, new = flat(present), flat(recipe.tree)
    if "dataset" in new:
        new["dataset"] = recipe.dataset(present)
    pairs = [(name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in dict.fromkeys([*new, *old])]
    return [pair for pair in pairs if pair[1] != pair[2]]


def listing() -> list[tuple[str, str, bool]]:
    """(name, title, whether its values are those in place) of every recipe."""
    present = {one.params: _present(find(one.params.as_posix()))[1] for one in PIPELINES.values()}
    out = []
    for name in names():
        try:
            recipe = complete(name)
        except UserError as error:
            out.append((name, f"cannot be used: {error}", False))
        else:
            out.append((name, recipe.title, not _differences(recipe, present[recipe.place])))
    return out


# --- putting one in place ---------------------------------------------------------------------------------------------


def put(recipe: Recipe) -> list[str]:
    """Put the recipe in place once what is there is safe; what was done and how to go back, a sentence each."""
    place = recipe.place
    present, tree = _present(place)
    dataset = recipe.dataset(tree)
    content = recipe.on(dataset).encode("utf-8")
    said = [f"It keeps your dataset, {dataset}."] if dataset != recipe.tree.get("dataset") else []
    if present == content:
        return [f"{place} is recipe {recipe.name} already.", *said]
    if present is not None:
        said.append(_keep(place, present, tree, dataset))
    _replace(place, content)
    return [f"{place} is now recipe {recipe.name}.", *said]


def _present(place: Path) -> tuple[bytes | None, dict]:
    """(the file as it is, its values): None where there is no file, {} where it cannot be read as parameters."""
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return None, {}
    try:
        return content, read(place)
    except UserError:
        return content, {}


def _keep(place: Path, present: bytes, tree: dict, dataset: str | None) -> str:
    """How to go back to the present content, which is saved beside the file unless git or a recipe has it.

    dataset  what the file will name from now on
    """
    if _committed(place, present):
        return f"Back: git checkout {place}"
    for name, _, in_place in listing():
        if in_place and _gives_back(complete(name), place, present, tree.get("dataset"), dataset):
            return f"Back: xc recipe {name}"
    saved = _save(place, present)
    return f"{place} had changes that git does not have: they are in {saved}. Back: mv {saved} {place}"


def _gives_back(recipe: Recipe, place: Path, present: bytes, own: str | None, dataset: str | None) -> bool:
    """Would the recipe write this very content, whose dataset is `own`, once the file there names `dataset`?"""
    if recipe.place != place or own not in (dataset, recipe.tree.get("dataset")):  # this file alone names its dataset
        return False
    try:
        return recipe.on(own).encode("utf-8") == present
    except UserError:
        return False


def _committed(file: Path, content: bytes) -> bool:
    """Would git give this very content back, from the index and from the last commit?"""

    def has(where: str) -> bool:
        found = subprocess.run(["git", "show", f"{where}:./{file.name}"], cwd=file.parent, capture_output=True)
        return found.returncode == 0 and found.stdout == content

    try:
        return has("") and has("HEAD")
    except OSError:  # no git here
        return False


def _save(file: Path, content: bytes) -> Path:
    """The copy beside the file; one with other content is never written over."""
    number = 1
    while True:
        copy = file.with_name(f"{file.name}.before" + (f"-{number}" if number > 1 else ""))
        try:
            with open(copy, "xb") as out:
                _write(out, content)
            return copy
        except FileExistsError:
            if copy.is_file() and copy.read_bytes() == content:
                return copy
        number += 1


def _replace(file: Path, content: bytes) -> None:
    """The file with this content, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    with open(draft, "wb") as out:
        _write(out, content)
    os.replace(draft, file)


def _write(out, content: bytes) -> None:
    out.write(content)
    out.flush()
    os.fsync(out.fileno())


def next_steps(recipe: Recipe) -> list[str]:
    """What to run now, a sentence each."""
    run, show = recipe.pipeline.command, f"dvc metrics show {recipe.pipeline.metrics}"
    if recipe.pipeline == MODULAR:
        return [f"Next: {run}, then dvc metrics diff"]
    present = _present(MODULAR.params)[1].get("dataset", "none yet")
    shared = f"Its dataset is that of {MODULAR.params}, {present}."
    if not recipe.command:
        return [shared, f"Next: {run}, then {show}"]
    wanted = re.search(r"\bdataset=(\S+)", recipe.command)
    if wanted and wanted[1] != present:
        shared = (
            f"It is for {wanted[1]}; the dataset of {MODULAR.params} is another one, {present}, until this sets it:"
        )
    return [shared, f"Next: {recipe.command}", f"Then: {show}"]
