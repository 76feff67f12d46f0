"""Parts of a dataset that rules are tried on, and the table of what values give."""

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import rules
from xcutils.core.ragged import from_rows
from xcutils.data.corpora import Corpus, Dataset, no_pairs

ROWS = [[0, 1, 2], [1, 3], [4], [0, 2, 3, 4], [5]] * 40


@pytest.fixture
def data() -> Dataset:
    ids = [f"d{row}" for row in range(len(ROWS))]
    train = Corpus(ids, ["word " * (1 + row % 7) for row in range(len(ROWS))], from_rows(ROWS, np.int32))
    test = Corpus(["t0", "t1"], ["a", "b"], from_rows([[0, 5], [4]], np.int32))
    labels = [f"l{label}" for label in range(6)]
    pairs = np.array([[0, 2], [3, 4], [199, 5]])
    return Dataset("Titles", train, test, labels, [f"text {label}" for label in labels], pairs, no_pairs())


def test_a_tenth_of_the_documents_is_drawn_by_their_ids(data):
    small = rules.part_of(data, "tenth")
    assert 8 <= len(small.train.ids) <= 34 and set(small.train.ids) < set(data.train.ids)
    assert rules.part_of(data, "tenth").train.ids == small.train.ids


def test_the_longer_half_is_kept_with_its_pairs(data):
    long = rules.part_of(data, "long")
    lengths = {id: len(text) for id, text in zip(data.train.ids, data.train.texts)}
    kept = [lengths[id] for id in long.train.ids]
    assert min(kept) > np.median(list(lengths.values())) and len(kept) == sum(n > 20 for n in lengths.values())
    named = [(long.train.ids[doc], long.label_ids[label]) for doc, label in long.train_filter]
    before = {(data.train.ids[doc], data.label_ids[label]) for doc, label in data.train_filter}
    assert named == sorted(pair for pair in before if pair[0] in long.train.ids)


def test_a_document_keeps_two_of_its_labels_and_unused_labels_go(data):
    least = rules.part_of(data, "few")
    own = {id: {data.label_ids[label] for label in data.train.positives[row]} for row, id in enumerate(data.train.ids)}
    for row, id in enumerate(least.train.ids):
        kept = {least.label_ids[label] for label in least.train.positives[row]}
        assert kept <= own[id] and len(kept) == min(2, len(own[id]))
    assert len({tuple(least.train.positives[row]) for row in range(0, 200, 5)}) == 3  # each drawn by itself
    texts = dict(zip(data.label_ids, data.label_texts))
    assert least.label_texts == [texts[id] for id in least.label_ids]


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Runs that are made up: folder name -> figures of both rows; what was asked for."""
    asked = []

    def figures(folder, changes):
        asked.append((folder.relative_to(tmp_path).as_posix(), changes))
        value = float(folder.name.rpartition("=")[2])
        return {row: {column: value for column in rules.COLUMNS} for row in rules.ROWS}

    monkeypatch.setattr(rules, "WORK", tmp_path)
    monkeypatch.setattr(rules, "figures", figures)
    return asked


def test_every_value_has_a_line_and_a_run_of_its_own(made, tmp_path):
    done = CliRunner().invoke(rules.main, ["score.neighbours=5,7", "-S", "K=3"])
    lines = done.output.strip().splitlines()[-4:]
    assert lines[2] == "| default | whole | 5 |" + " 5.00 |" * 10 and lines[3].startswith("| default | whole | 7 |")
    folders, changes = zip(*made)
    assert folders == ("default/whole/K=3-score.neighbours=5", "default/whole/K=3-score.neighbours=7")
    assert changes[0] == ["K=3", "score.neighbours=5", "prepare.refit=false"]
    assert (tmp_path / "rules.md").read_text().splitlines() == lines


def test_a_change_without_values_and_one_that_is_impossible_are_refused(made):
    for change, message in (("encoder.lr", "names no values"), ("encoder.epochs=many", "encoder.epochs is 'many'")):
        done = CliRunner().invoke(rules.main, [change])
        assert done.exit_code == 1 and message in done.output and not made


def test_a_part_is_written_once(data, tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "load_dataset", lambda path: data)
    folder = tmp_path / "Titles" / "long"
    titles = rules.titles_of(tmp_path / "Titles", "long", folder)
    first = (titles / "trn.json.gz").stat().st_mtime_ns
    assert rules.titles_of(tmp_path / "Titles", "long", folder) == titles
    assert (titles / "trn.json.gz").stat().st_mtime_ns == first
    assert rules.titles_of(tmp_path, "whole", folder) == tmp_path
