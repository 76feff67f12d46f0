from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import parameters
from xcutils.core.errors import UserError
from xcutils.core.params import Parameters, check, check_all, read, value, with_changes
from xcutils.core.pipelines import PIPELINES, Top

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Demo:
    count: int = value(low=1, high=100_000)
    lr: float = value(above=0)
    share: float = value(low=0, high=1)
    kind: Literal["one", "two"]
    flag: bool
    name: str
    sizes: list[int] = value(low=2)
    limit: int | None = value(low=0)
    method: str = value(among=["fast", "slow"])

    def __post_init__(self):
        if self.kind == "two" and self.count == 1:
            raise ValueError("kind two needs a count above 1.")


@dataclass(frozen=True)
class Other:
    head: int = value(low=0)


GOOD = {
    "count": 3,
    "lr": 0.01,
    "share": 0.5,
    "kind": "one",
    "flag": True,
    "name": "x",
    "sizes": [2, 4],
    "limit": None,
    "method": "fast",
}
TOP = "K: 8\ndataset: data/raw/tiny\nseed: 0\n"
DEMO = "demo: {count: 3, lr: 0.01, share: 0.5, kind: one, flag: true, name: x, sizes: [2, 4], limit: 7, method: slow}\n"


OTHER = "other: {head: 3}\n"


def write(folder: Path, text: str) -> Path:
    file = folder / "params.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def assert_refused(changes: dict, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        check(Demo, {**GOOD, **changes}, "params.yaml: demo")
    for part in ("params.yaml: demo", *parts):
        assert part in str(caught.value)


# --- one section ------------------------------------------------------------------------------------------------------


def test_good_values_come_through():
    assert asdict(check(Demo, GOOD, "here")) == GOOD


@pytest.mark.parametrize(
    ("changes", "name", "made"),
    [
        ({"lr": "1e-4"}, "lr", 1e-4),  # YAML 1.1 readers give text
        ({"lr": 1}, "lr", 1.0),
        ({"count": 65536.0}, "count", 65536),
        ({"count": "12"}, "count", 12),
        ({"count": 1e4}, "count", 10_000),
        ({"limit": 4.0}, "limit", 4),
        ({"sizes": [2.0, "8"]}, "sizes", [2, 8]),
        ({"sizes": []}, "sizes", []),
        ({"share": 0}, "share", 0.0),
        ({"share": 1}, "share", 1.0),
    ],
)
def test_values_become_the_type_that_is_asked_for(changes, name, made):
    found = getattr(check(Demo, {**GOOD, **changes}, "here"), name)
    assert found == made and type(found) is type(made)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"cuont": 3}, ["demo.cuont", "count, flag, kind"]),
        ({"count": 2.5}, ["demo.count", "2.5", "whole number"]),
        ({"count": "many"}, ["demo.count", "'many'", "whole number"]),
        ({"count": True}, ["demo.count", "True", "whole number"]),
        ({"count": None}, ["demo.count", "None"]),
        ({"count": [3]}, ["demo.count", "[3]"]),
        ({"count": {"a": 1}}, ["demo.count", "{'a': 1}"]),
        ({"count": float("inf")}, ["demo.count", "inf", "whole number"]),
        ({"count": float("nan")}, ["demo.count", "nan", "whole number"]),
        ({"count": 0}, ["demo.count", "0", "at least 1"]),
        ({"count": 100_001}, ["demo.count", "100001", "at most 100000"]),
        ({"lr": "fast"}, ["demo.lr", "'fast'", "a number"]),
        ({"lr": float("nan")}, ["demo.lr", "nan", "a number"]),
        ({"lr": "nan"}, ["demo.lr", "nan", "a number"]),
        ({"lr": float("inf")}, ["demo.lr", "inf", "a number"]),
        ({"lr": False}, ["demo.lr", "False", "a number"]),
        ({"lr": 0}, ["demo.lr", "0", "above 0"]),
        ({"lr": -1e-3}, ["demo.lr", "-0.001", "above 0"]),
        ({"share": -0.1}, ["demo.share", "-0.1", "at least 0"]),
        ({"share": 1.1}, ["demo.share", "1.1", "at most 1"]),
        ({"kind": "three"}, ["demo.kind", "'three'", "one, two"]),
        ({"kind": None}, ["demo.kind", "None", "one, two"]),
        ({"flag": 1}, ["demo.flag", "1", "true or false"]),
        ({"flag": "yes"}, ["demo.flag", "'yes'", "true or false"]),
        ({"name": 3}, ["demo.name", "3", "text"]),
        ({"name": ""}, ["demo.name", "''", "text"]),
        ({"sizes": 4}, ["demo.sizes", "4", "list"]),
        ({"sizes": [4, "x"]}, ["demo.sizes", "'x'", "whole number"]),
        ({"sizes": [4, 1]}, ["demo.sizes", "1", "at least 2"]),
        ({"limit": -1}, ["demo.limit", "-1", "at least 0"]),
        ({"method": "fats"}, ["demo.method", "'fats'", "fast, slow"]),
        ({"kind": "two", "count": 1}, ["kind two needs a count above 1"]),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_value(changes, parts):
    assert_refused(changes, *parts)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_key_is_named(name):
    with pytest.raises(UserError, match=f"here.{name} is missing"):
        check(Demo, {key: v for key, v in GOOD.items() if key != name}, "here")


@pytest.mark.parametrize("given", [None, 3, "text", [1]])
def test_a_section_must_be_a_section(given):
    with pytest.raises(UserError, match="demo must be a section"):
        check(Demo, given, "params.yaml: demo")


@settings(derandomize=True, deadline=None)
@given(st.sampled_from(sorted(GOOD)), st.none() | st.booleans() | st.floats() | st.text() | st.lists(st.integers()))
def test_whatever_is_given_comes_through_in_range_or_is_refused(name, given):
    try:
        made = check(Demo, {**GOOD, name: given}, "here")
    except UserError as error:
        assert f"here.{name}" in str(error)
    else:
        assert 1 <= made.count <= 100_000 and 0 < made.lr < float("inf") and 0 <= made.share <= 1
        assert made.kind in ("one", "two") and made.method in ("fast", "slow")
        assert isinstance(made.flag, bool) and made.name
        assert all(size >= 2 for size in made.sizes) and (made.limit is None or made.limit >= 0)


# --- files ------------------------------------------------------------------------------------------------------------

KINDS = {"demo": Demo, "other": Other}


def load(file: Path) -> Parameters:
    return check_all(read(file), str(file), Top, KINDS)


def test_a_file_gives_its_sections_and_its_top(tmp_path):
    found = load(write(tmp_path, TOP + DEMO + OTHER))
    demo = Demo(**{**GOOD, "limit": 7, "method": "slow"})
    assert found.section("demo", Demo) == demo and found.section("other", Other) == Other(3)
    assert found.top == Top(K=8, dataset="data/raw/tiny", seed=0)
    assert found.values == {"K": 8, "dataset": "data/raw/tiny", "seed": 0, "demo": asdict(demo), "other": {"head": 3}}


def test_a_section_can_be_had_as_another_class_of_the_same_fields(tmp_path):
    """A stage that runs as a program is a module of its own, with a Params of its own."""

    @dataclass(frozen=True)
    class Twin:
        head: int

    assert load(write(tmp_path, TOP + DEMO + OTHER)).section("other", Twin) == Twin(3)


def test_small_numbers_are_numbers_however_they_are_written(tmp_path):
    for written in ("1e-4", "1.0e-4", "0.0001", "'1e-4'"):
        file = write(tmp_path, TOP + OTHER + DEMO.replace("lr: 0.01", f"lr: {written}"))
        assert load(file).sections["demo"].lr == 1e-4


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("K: 8", "K: -1", ["K is -1", "at least 0"]),
        ("K: 8", "K: many", ["K is 'many'", "whole number"]),
        ("K: 8\n", "", ["K is missing"]),
        ("seed: 0", "seed: 1.5", ["seed is 1.5"]),
        ("seed: 0", "seed: 0\nsede: 1", ["sede is not a parameter", "K, dataset, seed"]),
        ("dataset: data/raw/tiny", "dataset:", ["dataset is None", "text"]),
        ("demo:", "nonsense: {a: 1}\ndemo:", ["no stage 'nonsense'"]),
        ("head: 3", "head: -3", ["other.head is -3"]),
        ("{head: 3}", "{}", ["other.head is missing"]),
        ("other:", "otter:", ["no stage 'otter'"]),
        (OTHER, "", ["other must be a section"]),
        ("lr: 0.01", "lr: .nan", ["demo.lr is nan"]),
        ("seed: 0", "seed: [0", ["not valid YAML"]),
        ("seed: 0", "seed: 0\nseed: 1", ["not valid YAML", "seed"]),
        (TOP + DEMO + OTHER, "- a\n- b\n", ["must hold sections"]),
        (TOP + DEMO + OTHER, "", ["must hold sections"]),
    ],
)
def test_a_wrong_file_is_refused_whoever_asks(tmp_path, old, new, parts):
    text = TOP + DEMO + OTHER
    assert old in text
    file = write(tmp_path, text.replace(old, new))
    with pytest.raises(UserError) as caught:
        load(file)
    for part in (str(file), *parts):
        assert part in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="params.yaml is missing"):
        read(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"K: \xff\xfe")
    with pytest.raises(UserError, match="not valid YAML"):
        read(tmp_path / "params.yaml")


def test_changes_are_set_as_dvc_sets_them():
    tree = {"K": 8, "other": {"head": 3}}
    assert with_changes(tree, ["K=65536", "other.head=5", "new.a=x"], "f") == {
        "K": 65536,
        "other": {"head": 5},
        "new": {"a": "x"},
    }
    assert tree == {"K": 8, "other": {"head": 3}}
    for change, said in {"K": "not a change", "a.b.c=1": "not a change", "K.x=1": "no section", "K=[": "YAML"}.items():
        with pytest.raises(UserError, match=said):
            with_changes(tree, [change], "f")


# --- the repository's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", PIPELINES)
def test_the_repositorys_files_fit_every_stage(folder):
    pipeline = PIPELINES[folder]
    found = parameters(ROOT / pipeline.params)
    assert list(found.sections) == list(pipeline.stages) and isinstance(found.top, pipeline.top)
    assert found.values == read(ROOT / pipeline.params)
