"""The label texts that the classifier trains on: what the stage writes, and that nothing else follows from it."""

from collections import Counter

import numpy as np
import pytest

from stages.gandalf import Params, points
from testing.tiny import LABELS, branch, run_stages, small_checkpoint
from tests.train.test_correlations import LABELS as SMALL
from tests.train.test_correlations import co_occurrence_by_hand
from xcutils.core import artifacts
from xcutils.core.ragged import from_rows

pytestmark = pytest.mark.stage

OFF = {"labels": 0.0, "order": "uniform", "targets": "co-occurrence", "delta": 0.1, "own": 0.0}
OFF |= {"docs": True, "same_size": False, "walk": 50, "reset": 0.5, "top": 5}
DOCS = [{0, 1}, {1, 2}, {2, 3, 4}, {0, 4}, {4, 5}, {6}, {0, 1, 6}, set()]


def made(*, seed: int = 0, **changes) -> dict[str, np.ndarray]:
    positives = from_rows([sorted(labels) for labels in DOCS], np.int32)
    return points(np.array([0, 1, 2, 3, 4, 6]), positives, SMALL, Params(**(OFF | changes)), seed=seed)


def dense(found: dict[str, np.ndarray]) -> np.ndarray:
    """(points, labels): the targets as a matrix."""
    matrix = np.zeros((len(found["points"]), SMALL))
    rows = np.repeat(np.arange(len(matrix)), np.diff(found["targets.offsets"]))
    matrix[rows, found["targets.values"]] = found["weights"]
    return matrix


def test_without_points_there_are_the_documents_alone():
    found = made()
    assert found["docs"].tolist() == [0, 1, 2, 3, 4, 6]
    assert len(found["points"]) == len(found["weights"]) == 0 and found["targets.offsets"].tolist() == [0]


def test_every_label_is_a_point_with_the_targets_of_the_fits_documents():
    found = made(labels=1.0)
    assert found["points"].tolist() == list(range(SMALL))
    fit = [DOCS[row] for row in (0, 1, 2, 3, 4, 6)]
    np.testing.assert_allclose(dense(found), co_occurrence_by_hand(fit, 0.1), rtol=1e-6)


def test_one_hot_targets_are_the_labels_themselves():
    np.testing.assert_array_equal(dense(made(labels=1.0, targets="self")), np.eye(SMALL))


@pytest.mark.parametrize("targets", ["co-occurrence", "glas", "random-walk", "self"])
def test_targets_are_between_zero_and_one_and_hold_the_label(targets):
    found = made(labels=1.0, targets=targets)
    assert ((found["weights"] > 0) & (found["weights"] <= 1)).all()
    assert (dense(found).diagonal() > 0.7).all()


def test_a_share_of_the_labels_keeps_their_rows():
    whole, some = made(labels=1.0), made(labels=0.5, order="tail")
    np.testing.assert_array_equal(dense(some), dense(whole)[some["points"]])
    assert len(some["points"]) == round(0.5 * SMALL)


def test_a_sample_is_as_large_as_the_documents_are_many():
    whole = dense(made(labels=1.0))
    seen = Counter()
    for seed in range(1300):
        found = made(labels=1.0, same_size=True, seed=seed)
        assert len(found["docs"]) + len(found["points"]) == 6 and (np.diff(found["docs"]) > 0).all()
        np.testing.assert_array_equal(dense(found), whole[found["points"]])
        seen.update([*(("doc", doc) for doc in found["docs"]), *(("label", label) for label in found["points"])])
    assert set(seen) == {*(("doc", doc) for doc in (0, 1, 2, 3, 4, 6)), *(("label", label) for label in range(SMALL))}
    mean = 1300 * 6 / len(seen)  # each document and each label is drawn as often as any other
    deviation = (mean * (1 - 6 / len(seen))) ** 0.5
    assert max(abs(count - mean) for count in seen.values()) < 4 * deviation


@pytest.mark.parametrize("targets", ["co-occurrence", "glas", "random-walk", "self"])
def test_the_own_label_has_its_share_of_the_targets(targets):
    plain, own = (dense(made(labels=1.0, targets=targets, own=share)) for share in (0.0, 0.6))
    shares = own.diagonal() / own.sum(axis=1)
    assert (shares > 0.6 - 1e-6).all() and (own.diagonal() == plain.diagonal()).all()
    assert ((own > 0) == (plain > 0)).all()


def test_label_texts_alone():
    alone, both = made(labels=1.0, docs=False), made(labels=1.0)
    assert len(alone["docs"]) == 0
    np.testing.assert_array_equal(dense(alone), dense(both))


@pytest.mark.parametrize(
    "changes, said", [({}, "nothing to train on"), ({"labels": 1.0, "same_size": True}, "a sample")]
)
def test_label_texts_alone_need_label_texts_and_no_sample(changes, said):
    with pytest.raises(ValueError, match=said):
        made(docs=False, **changes)


@pytest.fixture
def change(tiny_run, tiny_model, tmp_path):
    """Run stages with other parameters upon the finished run."""

    def run(first: str, stages: list[str], **changes):
        folder, _ = branch(
            tiny_run,
            tmp_path / f"branch{len(list(tmp_path.iterdir()))}",
            first,
            **small_checkpoint(tiny_model),
            **changes,
        )
        return folder, run_stages(folder, stages)

    return run


def read(folder, name: str) -> np.ndarray:
    return np.asarray(artifacts.load_array(folder, name))


def test_values_that_are_not_used_change_nothing(change, tiny_run):
    folder, said = change("gandalf", ["gandalf"], **{"gandalf.delta": 0.5, "gandalf.targets": "glas"})
    assert artifacts.fingerprint(folder / "data/gandalf") == artifacts.fingerprint(tiny_run / "data/gandalf")
    assert said["gandalf"].startswith("gandalf: about ") and said["gandalf"].count("\n") == 1


def test_a_classifier_of_label_texts_alone(change, tiny_run):
    """D9: Z without D. The documents are still embedded, for the memory, and validated on."""
    folder, said = change("gandalf", ["gandalf"], **{"gandalf.labels": 1.0, "gandalf.docs": False})
    assert "40 label texts" in said["gandalf"] and "0 documents" in said["gandalf"]
    for stage in ("cluster", "encoder", "augment"):
        (folder / "data" / stage).symlink_to(tiny_run / "data" / stage)
    run_stages(folder, ["classifier"])
    one, other = (read(place / "data/classifier/final", "classifiers") for place in (folder, tiny_run))
    assert one.shape == other.shape and np.abs(one - other).max() > 1e-3
    assert len(read(folder / "data/classifier/final", "docs")) == len(read(tiny_run / "data/classifier/final", "docs"))


def test_the_fit_that_chooses_sees_no_validation_document(change, tiny_run):
    folder, said = change("gandalf", ["gandalf"], **{"gandalf.labels": 1.0})
    assert "gandalf (choose): 40 label texts" in said["gandalf"]
    held_out = np.flatnonzero(read(tiny_run / "data/prepare/train", "is_validation"))
    choose, final = folder / "data/gandalf/choose", folder / "data/gandalf/final"
    assert not np.isin(read(choose, "docs"), held_out).any() and np.isin(held_out, read(final, "docs")).all()
    assert len(read(choose, "weights")) < len(read(final, "weights"))


@pytest.mark.parametrize("loss, labels", [("decoupled-softmax", "all"), ("triplet", "all"), ("triplet", "batch")])
def test_the_classifier_learns_from_label_texts(change, tiny_run, loss, labels):
    changes = {"classifier.loss": loss, "classifier.labels": labels}
    with_texts, _ = change("gandalf", ["gandalf"], **changes, **{"gandalf.labels": 1.0})
    for stage in ("cluster", "encoder", "augment"):
        (with_texts / "data" / stage).symlink_to(tiny_run / "data" / stage)
    run_stages(with_texts, ["classifier"])
    without, _ = change("classifier", ["classifier"], **changes)
    one, other = (read(folder / "data/classifier/final", "classifiers") for folder in (with_texts, without))
    assert one.shape == other.shape == (len(LABELS), 16) and np.abs(one - other).max() > 1e-3
    assert len(read(with_texts / "data/classifier/final", "docs")) == len(
        read(without / "data/classifier/final", "docs")
    )
