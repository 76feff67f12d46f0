"""params.yaml as checked, frozen dataclasses: no unknown key, no wrong type, no value out of range."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from xcutils.core.errors import UserError

P = TypeVar("P")
AUTO = "auto"  # a value that a rule decides (rules.py)


def value(
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    among: Iterable[str] | None = None,
) -> Any:
    """A dataclass field with the range its value must lie in (low <= value <= high, value > above), or its choices."""
    return field(metadata={"low": low, "high": high, "above": above, "among": None if among is None else [*among]})


@dataclass(frozen=True)
class Parameters:
    """A parameter file, parsed once and checked whole.

    top       the values above the sections, checked
    sections  section -> its values, checked
    """

    top: Any
    sections: dict[str, Any]

    def section(self, name: str, kind: type[P]) -> P:
        """The named section as `kind`."""
        section = self.sections[name]
        # The stage that runs is the module __main__: its `kind` is not the class that the import of the stage made.
        return section if isinstance(section, kind) else kind(**asdict(section))

    @property
    def values(self) -> dict[str, Any]:
        """Every value, sections as dicts inside."""
        return asdict(self.top) | {name: asdict(section) for name, section in self.sections.items()}


def check_all(tree: dict, where: str, top: type, kinds: dict[str, type]) -> Parameters:
    """The whole tree, checked: nothing unknown, nothing missing, no value that its stage could not use.

    top    what stands above the sections
    kinds  section -> the dataclass of its values
    """
    top_values: Any = check(top, {name: v for name, v in tree.items() if not isinstance(v, dict)}, where)
    for section in tree:
        if isinstance(tree[section], dict) and section not in kinds:
            raise UserError(f"{where}: there is no stage '{section}': remove this section or correct its name.")
    sections: dict[str, Any] = {name: check(kind, tree.get(name), f"{where}: {name}") for name, kind in kinds.items()}
    return Parameters(top_values, sections)


def with_changes(tree: dict, changes: Sequence[str], where: str) -> dict:
    """The tree with `changes` set, each `name=value` as for `dvc exp run -S`."""
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        *section, key = name.strip().split(".")
        if not equals or len(section) > 1 or not key:
            raise UserError(f"-S {change} is not a change: write it like -S K=65536 or -S encoder.epochs=5.")
        part = tree.setdefault(section[0], {}) if section else tree
        if not isinstance(part, dict):
            raise UserError(f"-S {change}: {section[0]} is no section of {where}.")
        part[key] = _yaml(text, f"-S {change}")
    return tree


def read(file: Path) -> dict:
    """The file's tree, read as DVC reads it (YAML 1.2)."""
    try:
        tree = _yaml(Path(file).read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        raise UserError(f"{file} is missing: run from the folder that holds dvc.yaml.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{file} must hold sections of `name: value` lines.")
    return tree


def _yaml(text: str, where: str) -> Any:
    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


def check(kind: type[P], given: Any, where: str) -> P:
    """`given` as `kind`: every field present, of its type and in its range; nothing else."""
    if not isinstance(given, dict):
        raise UserError(f"{where} must be a section of `name: value` lines, not {given!r}.")
    assert is_dataclass(kind)
    names = [f.name for f in fields(kind)]
    for name in given:
        if name not in names:
            raise UserError(f"{where}.{name} is not a parameter; known here: {', '.join(sorted(names))}.")
    hints = get_type_hints(kind)
    values = {}
    for f in fields(kind):
        if f.name not in given:
            raise UserError(f"{where}.{f.name} is missing: every value that changes a result stands in the file.")
        values[f.name] = _convert(given[f.name], hints[f.name], f"{where}.{f.name}")
        _check_range(values[f.name], f.metadata, f"{where}.{f.name}")
    try:
        return kind(**values)
    except ValueError as error:  # a dataclass's own __post_init__: values that contradict each other
        raise UserError(f"{where}: {error}") from None


def _convert(given: Any, hint: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if given not in args:
            raise UserError(f"{where} is {given!r}; allowed: {', '.join(str(a) for a in args)}.")
        return given
    if origin in (Union, UnionType):
        others = [a for a in args if a is not type(None) and get_origin(a) is not Literal]
        if given is None and type(None) in args or given == AUTO and Literal["auto"] in args:
            return given
        try:
            return _convert(given, others[0], where)
        except UserError as error:
            hint = f", or {AUTO}." if Literal["auto"] in args else "."
            raise UserError(str(error).removesuffix(".") + hint) from None
    if origin is list:
        if not isinstance(given, list):
            raise UserError(f"{where} is {given!r}; it must be a list like [1, 2].")
        return [_convert(item, args[0], where) for item in given]
    return _scalar(given, hint, where)


def _scalar(given: Any, hint: type, where: str) -> Any:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    converted: Any  # None where `given` cannot be a `hint`
    try:
        if hint is bool or isinstance(given, bool):
            converted = given if hint is bool and isinstance(given, bool) else None
        elif hint is str:
            converted = given if isinstance(given, str) and given else None
        else:
            number = float(given)  # YAML readers differ on 1e-4: some give text
            converted = hint(number) if hint is float or number == int(number) else None
    except (TypeError, ValueError, OverflowError):
        converted = None
    if converted is None or (hint is float and not math.isfinite(converted)):
        raise UserError(f"{where} is {given!r}; it must be {names[hint]}.")
    return converted


def _check_range(given: Any, limits: Any, where: str) -> None:
    if limits.get("among") is not None and given not in limits["among"]:
        raise UserError(f"{where} is {given!r}; allowed: {', '.join(limits['among'])}.")
    for item in given if isinstance(given, list) else [given]:
        if item is None or isinstance(item, str):
            continue
        if limits.get("low") is not None and item < limits["low"]:
            raise UserError(f"{where} is {item}; it must be at least {limits['low']}.")
        if limits.get("high") is not None and item > limits["high"]:
            raise UserError(f"{where} is {item}; it must be at most {limits['high']}.")
        if limits.get("above") is not None and item <= limits["above"]:
            raise UserError(f"{where} is {item}; it must be above {limits['above']}.")
