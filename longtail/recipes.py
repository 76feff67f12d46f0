"""Recipes: the complete parameters of a method, to be put in place of params.yaml or unidec/params.yaml."""

import difflib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from xcutils.core.errors import UserError
from xcutils.core.params import is_unified, load_all, read

FOLDER = Path("recipes")
MODULAR, UNIFIED = Path("params.yaml"), Path("unidec/params.yaml")
ANY = "data/raw/hpo"  # a recipe of the default dataset goes with any other
ABSENT = "-"  # shown where a file lacks a line


@dataclass(frozen=True)
class Recipe:
    """A parameter file of recipes/, as text and as values."""

    name: str
    text: str
    tree: dict

    @property
    def title(self) -> str:
        """The first line of the comment at its head."""
        first = self.text.partition("\n")[0]
        return first.removeprefix("#").strip() if first.startswith("#") else ""

    @property
    def place(self) -> Path:
        """The file it can be put in place of."""
        return UNIFIED if is_unified(self.tree) else MODULAR

    @property
    def command(self) -> str:
        """The command at its head that runs it on its dataset; empty where there is none."""
        found = re.match(r"(?:#.*\n)*?# *(dvc exp run .*)", self.text)
        return found[1].strip() if found else ""

    def dataset(self, present: dict) -> str | None:
        """What it will run on beside the values `present`: its own dataset, or the present one if its own is ANY."""
        own, other = self.tree.get("dataset"), present.get("dataset")
        return other if own == ANY and isinstance(other, str) and other else own

    def on(self, dataset: str | None) -> str:
        """Its text with this dataset."""
        if dataset == self.tree.get("dataset"):
            return self.text
        line = f"dataset: {_scalar(dataset)}"
        text = re.sub(r"^dataset: \S+ *", lambda _: f"{line:<21}  ", self.text, count=1, flags=re.MULTILINE)
        if YAML(typ="safe").load(text) != self.tree | {"dataset": dataset}:
            raise UserError(f"the dataset {dataset!r} cannot be put into recipe {self.name}: give it a plainer path.")
        return text


def _scalar(text: str) -> str:
    """The text as YAML reads it back, without quotes where it can be."""
    plain = re.fullmatch(r"[A-Za-z/][\w./+-]*", text) and YAML(typ="safe").load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)


def names() -> list[str]:
    """Every recipe, those for the size of a published dataset last."""
    found = sorted(file.stem for file in FOLDER.glob("*.yaml"))
    if not found:
        raise UserError(f"there are no recipes in {FOLDER}/ here: run from the folder that holds dvc.yaml.")
    return sorted(found, key=lambda name: bool(re.search(r"-[\d.]+[km]$", name)))


def load(name: str) -> Recipe:
    """The recipe, its values checked as a stage would."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(f"there is no recipe {name!r}: {meant}`xc recipe` lists them all.")
    load_all(file=FOLDER / f"{name}.yaml")
    return _read(name)


def _read(name: str) -> Recipe:
    file = FOLDER / f"{name}.yaml"
    tree = read(file)
    return Recipe(name, file.read_text(encoding="utf-8"), tree)


def flat(tree: dict) -> dict[str, Any]:
    """{name: value} of all lines, names as in `dvc exp run -S`."""
    out = {}
    for name, value in tree.items():
        out |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return out


def differences(recipe: Recipe) -> list[tuple[str, Any, Any]]:
    """(name, present value, the recipe's) of every line that putting it in place would change."""
    present = read(recipe.place)
    old, new = flat(present), flat(recipe.tree)
    if "dataset" in new:
        new["dataset"] = recipe.dataset(present)
    pairs = [(name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in dict.fromkeys([*new, *old])]
    return [pair for pair in pairs if pair[1] != pair[2]]


def listing() -> list[tuple[str, str, bool]]:
    """(name, title, whether its values are those in place) of every recipe."""
    out = []
    for name in names():
        try:
            recipe = _read(name)
        except UserError as error:
            out.append((name, f"cannot be used: {error}", False))
            continue
        out.append((name, recipe.title, _is_in_place(recipe)))
    return out


def _is_in_place(recipe: Recipe) -> bool:
    try:
        return not differences(recipe)
    except UserError:  # the present file is missing or cannot be read
        return False


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
    own = tree.get("dataset")
    for name, _, in_place in listing():
        if not in_place:
            continue
        other = _read(name)
        known = own in (dataset, other.tree.get("dataset"))  # otherwise this file alone names the dataset
        if other.place == place and known and other.on(own).encode("utf-8") == present:
            return f"Back: xc recipe {name}"
    saved = _save(place, present)
    return f"{place} had changes that git does not have: they are in {saved}. Back: mv {saved} {place}"


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
    if recipe.place == MODULAR:
        return ["Next: dvc repro, then dvc metrics diff"]
    present = _present(MODULAR)[1].get("dataset", "none yet")
    shared, show = f"Its dataset is that of {MODULAR}, {present}.", "dvc metrics show unidec/metrics.json"
    if not recipe.command:
        return [shared, f"Next: dvc repro unidec/dvc.yaml, then {show}"]
    wanted = re.search(r"\bdataset=(\S+)", recipe.command)
    if wanted and wanted[1] != present:
        shared = f"It is for {wanted[1]}; the dataset of {MODULAR} is another one, {present}, until this sets it:"
    return [shared, f"Next: {recipe.command}", f"Then: {show}"]
