"""Labels that are left out and added: which, what is left of the documents, and the figures by hand."""

import shutil

import numpy as np
import pytest
from scipy import sparse

import longtail
from benchmarks import new_labels
from benchmarks.new_labels import Data, figures, rankings, timed

pytestmark = pytest.mark.stage


@pytest.fixture
def data(tiny_run) -> Data:
    return Data(tiny_run / "data")


def test_labels_that_are_left_out_have_test_documents_and_examples(data):
    held = data.held(5)
    assert len(held) == 5 and (np.diff(held) > 0).all() and (data.held(5) == held).all()
    assert np.isin(held, data.positives["test"].values).all() and (data.frequency[held] >= new_labels.LEAST).all()
    for label, texts in zip(held, data.examples(held, 3)):
        assert 1 < len(texts) <= 3
        rows = [data.docs["train"].index(text) for text in texts]
        assert all(label in data.positives["train"][row] for row in rows)


def test_documents_keep_their_other_labels(data):
    held = data.held(5)
    texts, ids = data.without("train", held)
    gone = {data.ids[label] for label in held}
    assert len(texts) == len(ids) and all(row and not gone & set(row) for row in ids)
    pairs = sum(len(data.positives["train"][row]) for row in range(len(data.docs["train"])))
    assert sum(map(len, ids)) == pairs - int(data.frequency[held].sum())


def test_figures_are_as_by_hand():
    truth = sparse.csr_matrix(np.array([[1, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0]], dtype=np.float32))
    held = np.array([1, 2, 3])
    every = np.array([[1, 0, 5, 4, 2, 3, -1, -1, -1, -1], [0, 1, 4, 3, 5, -1, -1, -1, -1, -1]])
    alone = np.array([[2, 3, 1, -1, -1, -1, -1, -1, -1, -1], [1, 3, -1, -1, -1, -1, -1, -1, -1, -1]])
    found = figures([every, alone], truth, held)
    assert found == pytest.approx([100 * (2 / 2 + 0 / 1) / 2, 100 * 3 / 10, 100 * (2 / 2 + 0) / 2, 100 * 2 / 10])


def test_rankings_name_the_labels_of_the_default_run(data, tiny_bundle):
    model = longtail.load(tiny_bundle)
    held = np.array([3, 9])
    every, alone = rankings(model, ["small red box", "flat blue jar"], data, held)
    assert every.shape == alone.shape == (2, 10)
    assert [data.ids[label] for label in every[0]] == [label.id for label in model.predict("small red box")]
    assert set(alone[1].tolist()) == {3, 9, -1}


def test_changes_are_timed(tiny_bundle, tmp_path):
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    file = tmp_path / "bundle"
    model = longtail.load(file)
    model.rename_labels({label.id: label.text for label in model.labels})  # any change; it is taken away first
    ids = [label.id for label in model.labels]
    taken = timed(file, 8, ids)
    assert len(taken) == 8 and all(figure >= 0 for figure in taken.values())
    assert len(longtail.load(file).labels) == 40 + 4 - 2
