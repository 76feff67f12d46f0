"""README and docs/: links, commands, parameters, code and figures that they name are there, and are as they say."""

import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from longtail.cli import COMMANDS, main
from longtail.recipes import flat
from stages import classifier, encoder
from testing.tiny import EVERY, ROOT, invoke
from xcutils.core.params import read
from xcutils.core.pipelines import MODULAR, PIPELINES
from xcutils.core.rooms import imports

README = "README.md"
PAGES = [README, "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{file.name}" for file in sorted(ROOT.glob("docs/*.md")))]
PACKAGES = ("xcutils", "stages", "unidec", "longtail", "testing", "study", "benchmarks", "tests")


# --- what a page holds ------------------------------------------------------------------------------------------------


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str = "") -> list[str]:
    """The fenced blocks of the page that are marked as `kind`."""
    return [body for mark, body in FENCE.findall(text(page)) if mark == kind]


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text(page))


def spans(page: str) -> list[str]:
    """What stands in backticks, each on one line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def commands(page: str) -> list[str]:
    """Single commands: the lines of fenced blocks up to two spaces and a comment, and what stands in backticks."""
    lines = [line.strip() for block in blocks(page) for line in block.splitlines()]
    pieces = [piece for line in [*lines, *spans(page)] for piece in line.partition("  ")[0].split("&&")]
    return [piece.strip().removeprefix("$ ") for piece in pieces]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the Markdown tables."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def section(page: str, title: str) -> str:
    """What stands under the heading, up to the next one of its level or above."""
    level, _, rest = re.split(rf"^(#+) ({re.escape(title)})\n", text(page), maxsplit=1, flags=re.MULTILINE)[1:]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{found[name]}" if found[name] else name)
    return names


def links(page: str) -> list[str]:
    """The relative links and pictures of the page."""
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not re.match(r"\w+:", to)]


def test_anchors_are_made_as_github_makes_them(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.app.test_docs.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# One, two: `three.yaml`\n## Same\n### Same\n```\n# no heading\n```\n[a](b.md#c)\n")
    assert anchors("a.md") == {"one-two-threeyaml", "same", "same-1"}
    assert links("a.md") == ["b.md#c"]


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.resolve().relative_to(ROOT).as_posix()), link


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(text(README).splitlines()) <= 250
    linked = {link.partition("#")[0] for link in links(README)}
    assert linked >= {page for page in PAGES if page != README} | {"LICENSE", "CITATION.cff"}


# --- what can be called -----------------------------------------------------------------------------------------------


def words_after(program: str, page: str) -> list[list[str]]:
    """The words that follow the program in each command that calls it."""
    called = [command.removeprefix(f"{program} ") for command in commands(page) if command.startswith(f"{program} ")]
    return [[word for word in rest.split() if not word.startswith("-")] for rest in called]


def test_commands_are_found_in_blocks_and_in_backticks(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.app.test_docs.ROOT", tmp_path)
    (tmp_path / "a.md").write_text(
        "Do `make env && xc\ntable`, make sure of it.\n```\n$ make JOBS=8 test  # not make none\nxc predict -k 3\n```\n"
    )
    assert words_after("make", "a.md") == [["JOBS=8", "test"], ["env"]]
    assert words_after("xc", "a.md") == [["predict", "3"], ["table"]]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for words in words_after("make", page):
        assert {word for word in words if "=" not in word} <= targets, words
    for words in words_after("xc", page):
        assert not words or words[0] in COMMANDS, words
    for module in re.findall(r"python -m ([\w.]+)", text(page)):
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("page", PAGES)
def test_every_parameter_that_is_set_exists(page):
    for file, name in re.findall(r"-S '?(?:([\w/]+\.yaml):)?([\w.]+)=", text(page)):
        assert name == "NAME" or name in flat(read(ROOT / (file or "params.yaml"))), (file, name)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])  # which names what is gone
def test_every_parameter_that_is_named_exists(page):
    known = {name for pipeline in PIPELINES.values() for name in flat(read(ROOT / pipeline.params))}
    sections = {name.partition(".")[0] for name in known if "." in name}
    for name in re.findall(r"`(\w+\.\w+)(?:[=:][^`]*)?`", prose(page)):
        is_file = name.endswith((".py", ".csv", ".json", ".yaml", ".npy"))
        assert is_file or name.partition(".")[0] not in sections or name in known, name


def test_the_variables_of_the_machine_are_those_the_code_reads():
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "xcutils").rglob("*.py"))
    documented = {row[0].strip("`") for row in rows(section("docs/parameters.md", "The machine"))[1:]}
    assert documented == set(re.findall(r"\"(XC_[A-Z]+)\"", code))


@pytest.mark.parametrize("stage", [encoder, classifier])
def test_the_losses_of_a_stage_are_those_it_offers(stage):
    name = f"`{stage.__name__.rpartition('.')[2]}.loss`"
    row = next(row for row in rows(section("docs/parameters.md", "The values to know")) if row[0] == name)
    offered = next(field.metadata["among"] for field in fields(stage.Params) if field.name == "loss")
    assert set(re.findall(r"`([^`]+)`", row[1])) == set(offered)


@pytest.mark.parametrize("page", PAGES)
def test_code_that_is_named_is_there(page):
    """`name`, `name` in `path.py`"""
    named = " ".join(prose(page).split())
    for group, file in re.findall(r"((?:`\w+`, )*`\w+`) in `([\w/]+\.py)`", named):
        code = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", group):
            assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b.* = ", code, flags=re.MULTILINE), (name, file)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page):
    folders = "|".join((*PACKAGES, "docs", "recipes"))
    for file in re.findall(rf"`((?:{folders})/[\w./-]+\.(?:py|yaml|md|json))`", prose(page)):
        assert (ROOT / file).exists() or "NAME" in file or Path(file).name == "metrics.json", file


# --- the plan of the code ---------------------------------------------------------------------------------------------


def part_of(file: Path) -> str:
    """The room or package that the file is in; empty for what is above the rooms."""
    top, *rest = file.relative_to(ROOT).parts
    return top if top != "xcutils" else rest[0] if len(rest) > 1 else ""


def imported() -> set[tuple[str, str]]:
    """(part, another part that it imports) of all code."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    pairs = {(part_of(file), part_of(other)) for file in files for other in imports(file)}
    return {(one, other) for one, other in pairs if one and other and one != other}


def reached(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs that are connected along arrows."""
    found = set(arrows)
    while more := {(a, d) for a, b in found for c, d in arrows if b == c} - found:
        found |= more
    return found


def test_the_drawing_of_the_rooms_is_what_the_code_imports():
    (drawing,) = blocks("docs/architecture.md", "mermaid")
    arrows = set(re.findall(r"^ +(\w+) --> (\w+)$", drawing, flags=re.MULTILINE))
    found = imported()
    assert arrows <= found
    assert found <= reached(arrows)
    assert set(re.findall(r"^ +(\w+)\[", drawing, flags=re.MULTILINE)) == {part for pair in found for part in pair}


def test_what_runs_again_is_what_dvc_yaml_lists():
    table = rows(section("docs/architecture.md", "What runs again"))
    told = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", row[1])) for row in table if "xcutils/" in row[0]}
    every = {room for stage in EVERY.values() for room in stage["deps"] if room.startswith("xcutils/")}
    assert set(told) == every
    for room in every:
        listed = {name for name, stage in EVERY.items() if room in stage["deps"]}
        assert told[room] == (set() if listed == set(EVERY) else listed), room


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(pipeline: str) -> dict[str, dict[str, float]]:
    """{row: {metric: percent}} of a pipeline's metrics.json."""
    return json.loads((ROOT / PIPELINES[pipeline].metrics).read_text(encoding="utf-8"))


def printed(*command: str) -> list[str]:
    result = invoke(ROOT, main, command)
    assert result.exit_code == 0
    return result.output.splitlines()


def test_the_readme_shows_what_a_run_prints():
    block = next(block for block in blocks(README) if "P@1" in block)
    table = printed("table")
    assert len(table) == len(MODULAR.rows) + 6
    assert block.startswith("\n".join(table) + "\n")
    assert block.endswith("\n".join(printed("next")) + "\n")
    examples = re.search(r"^EXAMPLES := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert all(f"\n{example}\n  0." in block for example in re.findall(r'"([^"]+)"', examples[1]))


def test_the_unified_table_is_what_is_printed():
    table = printed("table", "--unidec")
    assert "\n".join(table) + "\n" in blocks("docs/results.md")


def as_records(page: str, title: str, first: str) -> list[dict[str, str]]:
    """The rows of the table of this section whose first heading is `first`."""
    table = rows(section(page, title))
    heads = next(row for row in table if row[0] == first)
    return [dict(zip(heads, row)) for row in table[table.index(heads) + 1 :] if len(row) == len(heads)]


def assert_measured(record: dict[str, str], expected: dict[str, float]) -> None:
    shown = {name: figure for name, figure in record.items() if "@" in name}
    assert shown and shown == {name: f"{expected[name]:.2f}" for name in shown}


OURS = {"Longtail, classifiers alone": "classifier", "Longtail": "fused"}


@pytest.mark.parametrize(("page", "title"), [(README, "How it compares"), ("docs/results.md", "Against other tools")])
def test_our_rows_beside_other_tools_are_measured(page, title):
    records = {record["method"]: record for record in as_records(page, title, "method")}
    for name, row in OURS.items():
        assert_measured(records[name], figures("")[row])


def test_the_readme_and_the_results_have_the_same_figures_of_other_tools():
    there = {record["method"]: record for record in as_records("docs/results.md", "Against other tools", "method")}
    short = as_records(README, "How it compares", "method")
    assert len(short) == 7
    for record in short:
        assert record.items() <= there[record["method"]].items()


def test_gandalfs_rows_without_label_texts_are_measured():
    records = [r for r in as_records("docs/results.md", "Gandalf", "row") if r["label texts"] == "without"]
    assert [record["row"] for record in records] == ["classifier", "fused"]
    for record in records:
        assert_measured(record, figures("")[record["row"]])


def test_the_pipelines_are_compared_as_measured():
    rows_of = {"encoder": ("encoder", "encoder"), "trained vectors per label": ("classifier", "concatenated")}
    rows_of["everything"] = ("fused", "fused")
    records = as_records("docs/results.md", "The unified pipeline", "")
    assert [record[""] for record in records] == [*rows_of]
    for record in records:
        modular, unified = rows_of[record[""]]
        for name in (name for name in record if "@" in name):
            assert record[name] == f"{figures('unidec')[unified][name] - figures('')[modular][name]:+.2f}", name


@pytest.mark.parametrize("page", PAGES)
def test_measured_tables_are_marked_with_the_command_that_makes_them(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    marks = re.findall(r"<!-- (?:(END) )?(TABLE|FIGURE)(?:: make ([\w-]+))?[^>]*-->", text(page))
    for (end, kind, target), (closing, same, none) in zip(marks[::2], marks[1::2], strict=True):
        assert not end and target in targets
        assert closing == "END" and kind == same and not none
