"""params.yaml as checked, frozen dataclasses: no unknown key, no wrong type, no value out of range."""

import importlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from xcutils.errors import UserError

P = TypeVar("P")
ROOT = Path(__file__).parent.parent


def value(*, low: float | None = None, high: float | None = None, above: float | None = None) -> Any:
    """A dataclass field with the range its value must lie in (low <= value <= high, value > above)."""
    return field(metadata={"low": low, "high": high, "above": above})


@dataclass(frozen=True)
class Top:
    """The values that stand above the sections."""

    K: int = value(low=0)  # auxiliary vectors, head labels' own included; 0 = none (NGAME)
    dataset: str
    seed: int = value(low=0, high=2**31 - 1)


@dataclass(frozen=True)
class UnifiedTop:
    """The values that stand above the sections of unidec/params.yaml."""

    beta: int = value(low=1)  # positives drawn per document and visit
    eta: int = value(low=0)  # mined negatives drawn per document and visit
    seed: int = value(low=0, high=2**31 - 1)


UNIFIED = {"gandalf": "stages.gandalf", "train": "unidec.train", "index": "stages.index", "score": "unidec.score"}


def is_unified(tree: dict) -> bool:
    """Are these the parameters of the unified method, by their sections?"""
    return "train" in tree


def pipeline(file: Path, tree: dict) -> tuple[type, dict[str, str]]:
    """(what stands above the sections, section -> module of its stage), by the folder; in recipes/ by the tree."""
    folder = Path(file).parent.name
    if folder == "unidec" or (folder == "recipes" and is_unified(tree)):
        return UnifiedTop, UNIFIED
    names = sorted(path.stem for path in (ROOT / "stages").glob("*.py") if path.stem != "__init__")
    return Top, {name: f"stages.{name}" for name in names}


def load_params(kind: type[P], section: str, file: Path = Path("params.yaml")) -> P:
    """The named section as `kind`, after the whole file has been checked."""
    tree = read(file)
    own = check(kind, tree.get(section), f"{file}: {section}")
    check_file(tree, file, skip=section)
    return own


def load_all(changes: Sequence[str] = (), file: Path = Path("params.yaml")) -> dict[str, Any]:
    """Every checked value, sections as dicts inside; `changes` are set first, `name=value` as for `dvc exp run -S`."""
    tree = read(file)
    for change in changes:
        name, equals, text = change.partition("=")
        *section, key = name.strip().split(".")
        if not equals or len(section) > 1 or not key:
            raise UserError(f"-S {change} is not a change: write it like -S K=65536 or -S encoder.epochs=5.")
        part = tree.setdefault(section[0], {}) if section else tree
        if not isinstance(part, dict):
            raise UserError(f"-S {change}: {section[0]} is no section of {file}.")
        part[key] = _yaml(text, f"-S {change}")
    check_file(tree, file)
    top, modules = pipeline(file, tree)
    values = asdict(check(top, {name: v for name, v in tree.items() if not isinstance(v, dict)}, str(file)))
    kinds = {name: importlib.import_module(module).Params for name, module in modules.items()}
    return values | {name: asdict(check(k, tree.get(name), f"{file}: {name}")) for name, k in kinds.items()}


def load_section(section: str, file: Path = Path("params.yaml")) -> Any:
    """The named section as its own stage's Params, for a command that does what the stage will do."""
    return load_params(importlib.import_module(pipeline(file, read(file))[1][section]).Params, section, file)


def load_top(file: Path = Path("params.yaml")) -> Any:
    """What stands above the sections: K, dataset and seed, or beta, eta and seed."""
    tree = read(file)
    return check(pipeline(file, tree)[0], {name: v for name, v in tree.items() if not isinstance(v, dict)}, str(file))


def check_file(tree: dict, file: Path, skip: str = "") -> None:
    """Refuse the file if a section is unknown or any stage's parameters are wrong, whichever stage asks."""
    top, modules = pipeline(file, tree)
    check(top, {name: v for name, v in tree.items() if not isinstance(v, dict)}, str(file))
    for section in tree:
        if not isinstance(tree[section], dict) or section == skip:
            continue
        if section not in modules:
            raise UserError(f"{file}: there is no stage '{section}': remove this section or correct its name.")
        check(importlib.import_module(modules[section]).Params, tree[section], f"{file}: {section}")


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
    made = {}
    for f in fields(kind):
        if f.name not in given:
            raise UserError(f"{where}.{f.name} is missing: every value that changes a result stands in the file.")
        made[f.name] = _convert(given[f.name], hints[f.name], f"{where}.{f.name}")
        _check_range(made[f.name], f.metadata, f"{where}.{f.name}")
    try:
        return kind(**made)
    except ValueError as error:  # a dataclass's own __post_init__: values that contradict each other
        raise UserError(f"{where}: {error}") from None


def _convert(given: Any, hint: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        if given not in args:
            raise UserError(f"{where} is {given!r}; allowed: {', '.join(str(a) for a in args)}.")
        return given
    if origin in (Union, UnionType):
        return None if given is None else _convert(given, next(a for a in args if a is not type(None)), where)
    if origin is list:
        if not isinstance(given, list):
            raise UserError(f"{where} is {given!r}; it must be a list like [1, 2].")
        return [_convert(item, args[0], where) for item in given]
    return _scalar(given, hint, where)


def _scalar(given: Any, hint: type, where: str) -> Any:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    try:
        if hint is bool or isinstance(given, bool):
            made = given if hint is bool and isinstance(given, bool) else None
        elif hint is str:
            made = given if isinstance(given, str) and given else None
        else:
            number = float(given)  # YAML readers differ on 1e-4: some give text
            made = hint(number) if hint is float or number == int(number) else None
    except (TypeError, ValueError, OverflowError):
        made = None
    if made is None or (hint is float and not math.isfinite(made)):
        raise UserError(f"{where} is {given!r}; it must be {names[hint]}.")
    return made


def _check_range(given: Any, limits: Any, where: str) -> None:
    for item in given if isinstance(given, list) else [given]:
        if item is None or isinstance(item, str):
            continue
        if limits.get("low") is not None and item < limits["low"]:
            raise UserError(f"{where} is {item}; it must be at least {limits['low']}.")
        if limits.get("high") is not None and item > limits["high"]:
            raise UserError(f"{where} is {item}; it must be at most {limits['high']}.")
        if limits.get("above") is not None and item <= limits["above"]:
            raise UserError(f"{where} is {item}; it must be above {limits['above']}.")
