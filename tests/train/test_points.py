"""What a fit trains on: the documents it may see, and label texts behind all documents."""

from pathlib import Path

import numpy as np
import pytest

from xcutils.core import artifacts
from xcutils.core.ragged import Ragged, from_rows
from xcutils.train.points import load_points

LABELS = from_rows([[4], [5, 6], [7], [8, 9, 10], [11], [12], [13], [14], [15]], np.int32)


@pytest.fixture
def folders(texts, positives, tmp_path) -> dict[str, Path]:
    """Documents and labels as `prepare` writes them, and an empty folder for the points."""
    made = {name: tmp_path / name for name in ("train", "labels", "gandalf")}
    for folder in made.values():
        folder.mkdir()
    for folder, name, rows in (("train", "tokens", texts), ("train", "positives", positives)):
        artifacts.save_ragged(made[folder], name, rows)
    artifacts.save_ragged(made["labels"], "tokens", LABELS)
    return made


def write(folder: Path, docs: list[int], targets: dict[int, dict[int, float]]) -> None:
    """docs to train on; label -> its soft targets, for each label text that is a point."""
    artifacts.save_array(folder, "docs", np.array(docs, dtype=np.int32))
    artifacts.save_array(folder, "points", np.array(list(targets), dtype=np.int32))
    artifacts.save_ragged(folder, "targets", from_rows([list(row) for row in targets.values()], np.int32))
    weights = [weight for row in targets.values() for weight in row.values()]
    artifacts.save_array(folder, "weights", np.array(weights, dtype=np.float32))


def as_lists(rows: Ragged) -> list[list]:
    return [rows[i].tolist() for i in range(len(rows))]


def test_without_label_texts_the_points_are_the_documents(folders, texts, positives):
    write(folders["gandalf"], [0, 2, 5], {})
    points = load_points(**folders)
    assert as_lists(points.tokens) == as_lists(texts) and as_lists(points.positives) == as_lists(positives)
    assert points.weights is None and len(points.labels) == 0 and points.n_docs == len(texts)
    assert points.todo.tolist() == [0, 2, 5]


def test_label_texts_stand_behind_all_documents_with_their_soft_targets(folders, texts, positives):
    write(folders["gandalf"], [0, 2, 5], {3: {3: 1.0, 0: 0.25}, 8: {8: 1.0}})
    points = load_points(**folders)
    assert as_lists(points.tokens) == [*as_lists(texts), [8, 9, 10], [15]]
    assert as_lists(points.positives) == [*as_lists(positives), [3, 0], [8]]
    assert points.weights.dtype == np.float32
    assert points.weights.tolist() == [1.0] * len(positives.values) + [1.0, 0.25, 1.0]
    assert points.labels.tolist() == [3, 8] and points.n_docs == len(texts)
    assert points.todo.tolist() == [0, 2, 5, len(texts), len(texts) + 1]


def test_each_weight_belongs_to_its_target(folders):
    write(folders["gandalf"], [1], {2: {5: 0.5, 2: 0.75}, 7: {7: 0.125}})
    points = load_points(**folders)
    soft = Ragged(points.weights, points.positives.offsets)
    pairs = [dict(zip(points.positives[i].tolist(), soft[i].tolist())) for i in points.todo[1:]]
    assert pairs == [{5: 0.5, 2: 0.75}, {7: 0.125}]
