"""The benchmarks of speed and memory, on data so small that they only show whether they still run."""

import json

import numpy as np
import pytest

from benchmarks import all_labels, classifier_step, clustering, correlations, transformers_speed


@pytest.fixture
def printed(capsys):
    """A function that gives what was printed last as JSON."""
    return lambda: json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("method", all_labels.METHODS)
def test_steps_over_all_labels_are_measured(method, printed):
    all_labels.measure(method, "200", "16", "8", "2")
    found = printed()
    assert 0 < found["before"] <= found["peak"] and found["seconds"] > 0


def test_steps_of_classifiers_are_measured(printed):
    classifier_step.measure("300", "8", "16", "4", "32", "3")
    found = printed()
    assert len(found["seconds"]) == len(found["cpu"]) == 3 and found["first"] > 0
    row = classifier_step.summary(300, 16, 32, [found])
    assert list(row) == list(classifier_step.COLUMNS)


def test_batches_have_distinct_positives_from_a_pool_of_the_size_asked_for():
    batches = classifier_step.draw_batches(n_labels=100, batch=16, positives=4, pool=32, steps=3)
    assert batches.shape == (3, 16, 4)
    for batch in batches:
        assert len(np.unique(batch)) == 32 and all(len(set(row)) == 4 for row in batch.tolist())


@pytest.mark.parametrize("targets", correlations.KINDS)
def test_label_correlations_are_measured(targets, tmp_path, printed):
    positives = correlations.generate(n_docs=200, n_labels=100, per_doc=5)
    rows = [positives[row].tolist() for row in range(len(positives))]
    assert all(row == sorted(set(row)) for row in rows) and max(max(row) for row in rows) < 100
    np.save(tmp_path / "values.npy", positives.values)
    np.save(tmp_path / "offsets.npy", positives.offsets)
    correlations.measure(str(tmp_path), "100", targets)
    assert printed()["targets"] >= 100


def test_vectors_to_cluster_have_length_1(tmp_path):
    clustering.write_vectors(tmp_path / "vectors.npy", n=500, dim=8, seed=0)
    lengths = np.linalg.norm(np.load(tmp_path / "vectors.npy"), axis=1)
    assert lengths.shape == (500,) and np.allclose(lengths, 1, atol=1e-5)


@pytest.fixture
def prepared(tiny_run, tiny_model, monkeypatch):
    """The benchmark of transformers on the tiny dataset and checkpoint."""
    monkeypatch.setattr(transformers_speed, "PREPARED", tiny_run / "data" / "prepare")
    monkeypatch.setattr(transformers_speed, "MODEL", str(tiny_model))


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_training_and_inference_of_a_transformer_are_measured(prepared, layout, tmp_path, printed):
    transformers_speed.draw(str(tmp_path), "12")
    assert printed()["pairs"] == 12
    texts = json.loads((tmp_path / "texts.json").read_text())
    assert len(texts["docs"]) == len(texts["labels"]) == 12 and set(texts["labels"]) <= set(texts["all_labels"])
    transformers_speed.train_pairs(layout, str(tmp_path), "4")
    found = printed()
    assert found["texts"] == 2 * 4 * 2 and found["seconds"] > 0  # of three steps, the first does not count
    transformers_speed.embed_labels(layout, str(tmp_path / "0.npy"))
    found = printed()
    assert found["texts"] == len(texts["all_labels"]) == len(np.load(tmp_path / "0.npy"))
    assert 0 <= found["metrics"]["P@1"] <= 100


def test_pairs_are_documents_and_their_own_labels(prepared, tmp_path):
    from xcutils.core import artifacts

    transformers_speed.draw(str(tmp_path), "12")
    pairs = np.load(tmp_path / "pairs.npz")
    positives = artifacts.load_ragged(transformers_speed.PREPARED / "train", "positives")
    assert all(label in positives[doc] for doc, label in zip(pairs["docs"], pairs["labels"], strict=True))


def test_steps_of_the_default_encoder_are_measured(prepared, printed):
    transformers_speed.default_steps("2")
    assert printed()["seconds"] > 0


def test_the_rows_of_transformers_are_medians_beside_the_first(capsys):
    def rounds(*seconds: float) -> list[dict]:
        return [{"texts": 100, "seconds": s, "cpu": 2 * s, "peak": s} for s in seconds]

    transformers_speed.table({"one": rounds(1, 2, 4), "two": rounds(1, 1, 9)})
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| one | 50 | 1.00 | 25 | 4.0 |",
        "| two | 100 | 2.00 | 50 | 9.0 |",
    ]
