"""docs/study.md: its tables, notes and sentences, of made-up records and of the records of this repository."""

import itertools
import re
from dataclasses import replace

import pytest

from study import page, records
from study.code import SAME_RESULTS, read_groups
from study.directions import DIRECTIONS, Claim, Direction
from study.experiments import ROOT
from study.findings import NOTES, RESULTS
from study.page import FIGURES, document, read_notes, recipes
from study.verdicts import SEEDS, name_of
from tests.study.made_up import FILES, ROW_NAMES, SETTINGS, encoder_rows, record_of
from xcutils.core.errors import UserError


def test_document_says_what_has_not_been_run():
    text = document({}, 0, FILES, {})
    for name, direction in DIRECTIONS.items():
        assert f"| {name}. {direction.statement} | {len(direction.claims)} not run yet |" in text
    assert text.count("## D") == len(DIRECTIONS)
    assert "| dexa-gandalf | not run yet |" in text and "older code" not in text


def test_document_has_figures_explanations_and_whole_tables():
    values = dict.fromkeys(FIGURES, 50.0) | {"C@1": 1.0, "R@10": 2.0}
    names = [name_of(name, seed) for name in SETTINGS for seed in SEEDS] + list(recipes(FILES))
    records = {name: record_of(dict.fromkeys(ROW_NAMES, values)) for name in names}
    records[names[0]] = replace(records[names[0]], seconds=61.4)
    records["study-tokens-K4096-s0"] = record_of(dict.fromkeys(ROW_NAMES, values | {"P@1": 53.0}))
    text = document(records, 1, FILES, {"D1": "Because of this.\n", "D2": None})
    assert "not run yet" not in text
    row = "| `tokens-K4096 - tokens-K0` | encoder P@1 | > 0 | +7.27; +10.72 | +1.00 ± 1.73 (+0.00 to +3.00) |"
    assert f"{row} 51.00 - 50.00 | 3 | no difference |\n" in text
    section = text[text.index("## D1.") : text.index("## D2.")]
    assert section.endswith("|\n\nBecause of this.\n\n")
    assert f"1 of {len(names) + 1} recorded experiments ran with older code" in text
    assert "| dexa-gandalf | fused | 50.00 |" in text and "| unidec | concatenated | 50.00 |" in text
    assert re.search(r"\| tokens-K0 \| params.yaml \| .*`encoder.loss=triplet`.* \| 61 \|", text)
    tables = [list(lines) for bar, lines in itertools.groupby(text.splitlines(), lambda s: s[:1] == "|") if bar]
    assert all(len({line.count("|") for line in lines}) == 1 for lines in tables)


def test_a_direction_is_summed_up(monkeypatch):
    pairs = [Claim("encoder P@1", formula, ">", "+1.0") for formula in ("b - a", "b - a", "a - b")]
    monkeypatch.setattr(page, "DIRECTIONS", {"D1": Direction("One.", "", "", pairs)})
    assert page.summary(encoder_rows(a=[1.0], b=[2.0]), {})[2] == "| D1. One. | 2 agrees, 1 does not agree |"


def test_notes_are_of_directions(tmp_path):
    file = tmp_path / "notes.yaml"
    file.write_text("D1: |\n  One.\nD2:\n")
    assert read_notes(file) == {"D1": "One.\n", "D2": None}
    file.write_text("D99: no\n")
    with pytest.raises(UserError, match="D99 is not a direction"):
        read_notes(file)
    assert set(read_notes(NOTES)) == set(DIRECTIONS)


def test_a_sign_that_does_not_agree_is_explained():
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    notes = read_notes(NOTES)
    verdicts = dict(re.findall(r"^\| (D\d+)\. .* \| ([^|]+) \|$", text, re.MULTILINE))
    assert set(verdicts) == set(DIRECTIONS)
    for name, found in verdicts.items():
        if "does not agree" in found:
            assert notes[name] and notes[name].strip() in text, f"{name} wants a note in study/notes.yaml"


def test_the_page_in_docs_is_what_the_program_writes_of_the_records(files):
    """As of the code that same-results.yaml names: what an edit has changed since then, `--no-run` will say."""
    written = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    known = {digest for group in read_groups(SAME_RESULTS).values() for digest in group}
    every = records.read(RESULTS)
    current = {name: record for name, record in every.items() if record.code in known}
    assert 0 < len(current) <= len(every)
    assert document(current, len(every) - len(current), files, read_notes(NOTES)) == written
