"""Every stage on tiny data, started as dvc.yaml starts it; each test looks at what the stages wrote."""

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from stages.cluster import Params as ClusterParams
from stages.cluster import head_labels, share_vectors
from stages.encoder import Params as EncoderParams
from stages.score import encoder_rankings, same_encoder
from testing.tiny import (
    DATASET,
    DVC_FILES,
    EVERY,
    LABELS,
    NAMED,
    PARAMS,
    RECIPROCAL,
    ROOT,
    SETTINGS,
    STAGES,
    TEST,
    TRAIN,
    UNIDEC,
    arguments,
    branch,
    dataset_rows,
    home,
    invoke,
    label_id,
    make_params,
    make_project,
    module,
    run_stage,
    run_stages,
    small_checkpoint,
    write_dataset,
    write_params,
)
from xcutils.core import artifacts, runtime
from xcutils.core.params import check
from xcutils.core.params import read as read_params
from xcutils.core.ragged import to_strings
from xcutils.core.rooms import code_of
from xcutils.model.encoders import encode, load_encoder
from xcutils.model.untrained import build_zero_shot
from xcutils.rank import bm25
from xcutils.rank.assembly import choosing_predictor, final_predictor
from xcutils.rank.fusion import rank
from xcutils.rank.scoring import LOST, approximation, fused_ranking, load_split, part_rankings
from xcutils.rank.served import constant, load
from xcutils.rank.weights import Fusion
from xcutils.search.metrics import evaluate, without
from xcutils.search.propensity import inverse_propensities
from xcutils.train.clustering import balanced_clusters, mean_cosine

pytestmark = pytest.mark.stage

FITS = ("choose", "final")
L, K, DIMS = len(LABELS), SETTINGS["K"], 16
CPU = torch.device("cpu")
ROWS = ["BM25", "zero-shot", "encoder-no-aux", "encoder", "classifier", "memory", "fused"]
KEYS = [f"{name}@{k}" for name in ("P", "N", "PSP", "PSN") for k in (1, 3, 5)]
KEYS += ["R@10", "R@100", *(f"C@{k}" for k in (1, 3, 5))]
SEARCHES = ["recall@100 labels", f"recall@{SETTINGS['score.neighbours']} docs", *(f"lost {name}" for name in LOST)]


@pytest.fixture(scope="module")
def data(tiny_run) -> Path:
    return tiny_run / "data"


@pytest.fixture
def change(tiny_run, tiny_model, tmp_path):
    """Run what follows from changed parameters, from stage `first` on, upon the finished run: (folder, stderr)."""

    def run(first: str, last: str = "score", **changes) -> tuple[Path, dict[str, str]]:
        folder, left = branch(tiny_run, tmp_path / "branch", first, **(small_checkpoint(tiny_model) | changes))
        return folder, run_stages(folder, left[: left.index(last) + 1])

    return run


def load_metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def load_csv(file: Path) -> list[dict]:
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def assert_sound(metrics: dict) -> None:
    """All rows and keys, every figure a percentage."""
    assert list(metrics) == [*ROWS, "index", "probabilities", "docs"]
    assert list(metrics["index"]) == SEARCHES
    assert all(list(metrics[row]) == KEYS for row in ROWS)
    figures = np.array([value for row in ROWS for value in metrics[row].values()])
    assert np.isfinite(figures).all() and (figures >= 0).all() and (figures <= 100).all()


def assert_unit(vectors: np.ndarray, shape: tuple[int, int]) -> None:
    assert vectors.shape == shape and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def assert_one_sentence(result, *named: str) -> None:
    """Exit code 1, and nothing but one sentence that names the thing (after the estimate, where it got so far)."""
    assert result.exit_code == 1 and result.stdout == ""
    said = (": about ", "labels: auto is")  # of every run
    lines = [line for line in result.stderr.splitlines() if not any(words in line for words in said)]
    assert len(lines) == 1 and lines[0].startswith("error: ") and lines[0].endswith(".")
    assert "Traceback" not in result.stderr
    for thing in named:
        assert thing in result.stderr


class Memory(NamedTuple):
    """The parameters of the memory."""

    neighbours: int
    tau: float


def memory_of(folder: Path) -> Memory:
    saved = artifacts.load_json(folder / "data" / "index", "settings.json")
    return Memory(saved["neighbours"], saved["tau"])


# --- what each stage wrote --------------------------------------------------------------------------------------------


def test_prepare_keeps_every_text_id_and_positive(data):
    rows = dataset_rows()
    for part, file in (("train", "trn"), ("test", "tst")):
        folder = artifacts.check(data / "prepare" / part)
        assert to_strings(artifacts.load_ragged(folder, "ids")) == [row["uid"] for row in rows[file]]
        assert to_strings(artifacts.load_ragged(folder, "texts")) == [row["title"] for row in rows[file]]
        positives = artifacts.load_ragged(folder, "positives")
        assert [positives[i].tolist() for i in range(len(positives))] == [sorted(r["target_ind"]) for r in rows[file]]
    labels = artifacts.check(data / "prepare" / "labels")
    assert to_strings(artifacts.load_ragged(labels, "texts")) == LABELS
    frequency = artifacts.load_array(labels, "frequency").tolist()
    assert frequency == [sum(label in row["target_ind"] for row in rows["trn"]) for label in range(L)]


def test_prepare_writes_tokens_the_saved_tokenizer_gives(data):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "prepare" / "tokenizer" / "tokenizer.json"))
    tokens = artifacts.load_ragged(data / "prepare" / "labels", "tokens")
    assert [tokens[i].tolist() for i in range(L)] == [tokenizer.encode(t, add_special_tokens=False).ids for t in LABELS]


def test_prepare_finds_self_and_reciprocal_pairs(data):
    train = artifacts.load_array(data / "prepare" / "train", "filter").tolist()
    assert train == [[i, i] for i in range(NAMED)]
    test = artifacts.load_array(data / "prepare" / "test", "filter").tolist()
    # test doc i is label NAMED + i, which training doc i, itself label i, has
    assert test == [pair for i in range(RECIPROCAL) for pair in ([i, i], [i, NAMED + i])]


def test_prepare_counts_what_the_papers_tables_show(data):
    stats = artifacts.load_json(data / "prepare", "stats.json")
    rows = dataset_rows()
    positives = sum(len(row["target_ind"]) for row in rows["trn"])
    assert (stats["train_docs"], stats["test_docs"], stats["labels"]) == (TRAIN, TEST, L)
    assert stats["labels_per_doc"] == pytest.approx(positives / TRAIN)
    assert stats["docs_per_label"] == pytest.approx(positives / L)
    assert (stats["train_filter_pairs"], stats["test_filter_pairs"]) == (NAMED, 2 * RECIPROCAL)


def test_embeddings_are_of_length_one(data):
    folder = artifacts.check(data / "embed")
    assert_unit(artifacts.load_array(folder, "labels"), (L, DIMS))
    assert sorted(path.name for path in folder.iterdir()) == ["embed.json", "labels.npy", "manifest.json"]


def test_head_labels_have_a_vector_of_their_own_and_the_rest_share_evenly(data):
    label_to_aux = artifacts.load_array(artifacts.check(data / "cluster"), "label_to_aux")
    facts = artifacts.load_json(data / "cluster", "cluster.json")
    frequency = artifacts.load_array(data / "prepare" / "labels", "frequency")
    sizes = np.bincount(label_to_aux)
    assert len(sizes) == facts["aux"] == K and sizes.min() > 0 and sizes.max() == facts["largest"]
    head = np.flatnonzero(label_to_aux < facts["head"])
    assert 0 < facts["head"] <= K // 2 and len(head) == facts["head"]
    assert frequency[head].min() >= SETTINGS["cluster.head"]
    assert frequency[head].min() >= np.delete(frequency, head).max() or facts["head"] < K // 2
    shared = sizes[facts["head"] :]
    assert shared.max() - shared.min() <= 1 and shared.min() > 1


@pytest.mark.parametrize("fit", FITS)
def test_the_encoder_leaves_k_vectors_that_training_has_moved(data, fit):
    folder = artifacts.check(data / "encoder") / fit
    aux = artifacts.load_array(folder, "aux")
    assert aux.shape == (K, DIMS) and np.isfinite(aux).all() and (np.linalg.norm(aux, axis=1) > 0).all()
    given = artifacts.load_array(data / "cluster", "label_to_aux")
    np.testing.assert_array_equal(artifacts.load_array(folder, "label_to_aux"), given)
    vectors = load_encoder(folder).vectors.values
    assert len(vectors) > SETTINGS["encoder.buckets"] and (vectors[-SETTINGS["encoder.buckets"] :] != 0).any()


def augmented_by_hand(folder: Path, tokens, weight: float = 1.0) -> np.ndarray:
    """n(n(E(z)) + weight a), a label at a time."""
    encoder, aux = load_encoder(folder), artifacts.load_array(folder, "aux")
    label_to_aux, out = artifacts.load_array(folder, "label_to_aux"), []
    for label in range(len(tokens)):
        z = encode(encoder, tokens.take(np.array([label])), normalise=False)[0].astype(np.float64)
        summed = z / np.sqrt((z * z).sum()) + weight * aux[label_to_aux[label]]
        out.append(summed / np.sqrt((summed * summed).sum()))
    return np.array(out)


@pytest.mark.parametrize("fit", FITS)
def test_augmented_labels_are_embedding_plus_vector_normalised(data, fit):
    folder = artifacts.check(data / "augment") / fit
    tokens = artifacts.load_ragged(data / "prepare" / "labels", "tokens")
    labels, plain = artifacts.load_array(folder, "labels"), artifacts.load_array(folder, "plain")
    assert_unit(labels, (L, DIMS)), assert_unit(plain, (L, DIMS))
    np.testing.assert_allclose(labels, augmented_by_hand(data / "encoder" / fit, tokens), atol=1e-5)
    encoder = load_encoder(data / "encoder" / fit)
    np.testing.assert_allclose(plain, encode(encoder, tokens), atol=1e-5)
    docs = artifacts.load_ragged(data / "prepare" / "train", "tokens")
    np.testing.assert_allclose(artifacts.load_array(folder, "docs"), encode(encoder, docs), atol=1e-5)
    assert np.abs(labels - plain).max() > 1e-3


@pytest.mark.parametrize("fit", FITS)
def test_classifiers_start_from_the_augmented_labels_and_move(data, fit):
    folder = artifacts.check(data / "classifier") / fit
    classifiers = artifacts.load_array(folder, "classifiers")
    assert_unit(classifiers, (L, DIMS)), assert_unit(artifacts.load_array(folder, "docs"), (TRAIN, DIMS))
    started = artifacts.load_array(data / "augment" / fit, "labels")
    cosine = (classifiers * started).sum(axis=1)
    assert cosine.min() > 0.5 and cosine.max() < 1 - 1e-6
    docs = artifacts.load_ragged(data / "prepare" / "train", "tokens")
    np.testing.assert_allclose(artifacts.load_array(folder, "docs"), encode(load_encoder(folder), docs), atol=1e-5)


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_the_curve_shows_every_epoch_and_the_final_fit_follows_the_choice(data, stage):
    choose, final = (load_csv(data / stage / f"curve-{fit}.csv") for fit in FITS)
    assert len(choose) == SETTINGS[f"{stage}.epochs"]
    for part in (choose, final):
        assert [int(row["epoch"]) for row in part] == list(range(1, len(part) + 1))
        assert all(float(row["loss"]) > 0 and row["skipped"] == "0" for row in part)
    assert all(0 <= float(row[name]) <= 100 for row in choose for name in ("N@5", "P@1", "P@5"))
    assert not any("N@5" in row for row in final)
    best = max(range(len(choose)), key=lambda i: float(choose[i]["N@5"]))
    assert len(final) == best + 1


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_training_stops_when_validation_falls_and_the_best_epoch_is_kept(change, monkeypatch, stage):
    figures = iter([40.0, 60.0, 50.0, 45.0, 70.0])  # the last one comes too late for a patience of two
    others = {"PSN@5": 0.0, "P@1": 0.0, "P@5": 0.0}
    monkeypatch.setattr("xcutils.train.fitting.evaluate", lambda *_: {"N@5": next(figures), **others})
    folder, _ = change(stage, stage, **{f"{stage}.epochs": 5, f"{stage}.patience": 2, f"{stage}.refit_epochs": 0})
    choose, final = (load_csv(folder / "data" / stage / f"curve-{fit}.csv") for fit in FITS)
    assert [(row["epoch"], row["N@5"]) for row in choose] == [
        ("1", "40.0"),
        ("2", "60.0"),
        ("3", "50.0"),
        ("4", "45.0"),
    ]
    assert [row["epoch"] for row in final] == ["1", "2"]


def test_the_model_holds_all_that_prediction_needs(data, tmp_path):
    folder = artifacts.check(data / "index")
    settings = artifacts.load_json(folder, "settings.json")
    assert settings["labels"] == {"count": L, "dim": DIMS + 1} and settings["docs"] == {"count": TRAIN, "dim": DIMS}
    shutil.copytree(folder, tmp_path / "index")
    tokens = artifacts.load_ragged(data / "prepare" / "test", "tokens")
    here, elsewhere = (load(place).predict(tokens, 5) for place in (folder, tmp_path / "index"))
    np.testing.assert_array_equal(here[0], elsewhere[0])
    np.testing.assert_array_equal(here[1], elsewhere[1])


def test_a_label_is_one_vector_in_which_its_parts_are_summed(data):
    folder, model = data / "index", load(data / "index")
    fusion = Fusion(**artifacts.load_json(folder, "fusion.json"))
    labels = artifacts.load_array(data / "augment" / "final", "labels")
    classifiers = artifacts.load_array(data / "classifier" / "final", "classifiers")
    inverse = inverse_propensities(data / "prepare" / "train", data / "prepare" / "labels")
    found = model.labels.take(np.arange(L))
    np.testing.assert_allclose(found[:, :-1], fusion.classifier * classifiers + fusion.similarity * labels, atol=1e-2)
    np.testing.assert_allclose(found[:, -1] * constant(DIMS), fusion.propensity * np.log(inverse), atol=1e-2)
    docs = artifacts.load_array(data / "classifier" / "final", "docs")
    np.testing.assert_allclose(model.docs.take(np.arange(TRAIN)), docs, atol=5e-3)


# --- what was measured ------------------------------------------------------------------------------------------------


def test_metrics_have_every_row_and_show_that_something_was_learnt(tiny_run):
    metrics = load_metrics(tiny_run)
    assert_sound(metrics)
    chance = 100 * 5 / L  # recall of five random labels
    assert metrics["fused"]["R@10"] > 3 * chance and metrics["classifier"]["P@1"] > metrics["zero-shot"]["P@1"]
    recalls = [value for name, value in metrics["index"].items() if name.startswith("recall")]
    assert min(recalls) > 99.9  # so few vectors are searched as a whole
    assert all(abs(value) < 0.5 for name, value in metrics["index"].items() if name.startswith("lost"))
    assert metrics["docs"] == {"fused": TEST, "other rows": TEST}


def test_fused_is_never_below_a_part_of_it_on_validation(tiny_run, data):
    fusion = Fusion(**artifacts.load_json(data / "index", "fusion.json"))
    tail = make_params()["score"]["tail"]
    train = data / "prepare" / "train"
    inverse = inverse_propensities(train, data / "prepare" / "labels")
    split = load_split(train, L, np.flatnonzero(artifacts.load_array(train, "is_validation")))
    searched = [data / "augment", data / "classifier"]
    predictor = choosing_predictor(train, searched, memory_of(tiny_run), inverse, CPU)
    shortlist = predictor.shortlist(predictor.embed(split.tokens), make_params()["score"]["shortlist"])
    kept = split.excluded.toarray()[shortlist.rows, shortlist.labels] == 0

    def worth(weights: Fusion) -> float:
        scores = weights.scores(shortlist.parts)[kept]
        ranking, _ = rank(shortlist.rows[kept], shortlist.labels[kept], scores, shortlist.count, 5)
        figures = evaluate(ranking, split.truth, inverse)
        return (1 - tail) * figures["N@5"] + tail * figures["PSN@5"]

    parts = [Fusion(), Fusion(classifier=0.0, similarity=1.0), Fusion(classifier=0.0, memory=1.0)]
    assert worth(fusion) >= max(worth(part) for part in parts) - 1e-9


def test_documents_that_a_frozen_encoder_has_seen_are_not_encoded_again(data):
    assert not same_encoder(data / "encoder", data / "classifier", "final")  # M4 trains it along
    assert same_encoder(data / "encoder", data / "encoder", "final")


@pytest.mark.parametrize("make", [final_predictor, choosing_predictor])
def test_encoder_and_exact_search_are_on_the_device(tiny_run, data, make):
    prepare, device = data / "prepare", torch.device("cpu", 0)
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    stages, memory = [data / "augment", data / "classifier"], memory_of(tiny_run)
    predictor = make(prepare / "train", stages, memory, inverse, device)
    assert {searcher.device for searcher in predictor.searchers.values()} == {device}
    moved = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xcutils.model.encoders.move", lambda encoder, place: moved.append(place) or encoder)
        make(prepare / "train", stages, memory, inverse, device)
    assert moved == [device]


def test_excluded_pairs_never_appear_though_they_would_be_found(tiny_run, data):
    prepare, test = data / "prepare", load_split(data / "prepare" / "test", L)
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    predictor = final_predictor(
        prepare / "train", [data / "augment", data / "classifier"], memory_of(tiny_run), inverse, CPU
    )
    searched, trained = encoder_rankings(test, prepare, data / "embed", data / "encoder", data / "augment", CPU)
    searched["BM25"] = bm25.search(test.tokens, artifacts.load_ragged(prepare / "labels", "tokens"), L)[0]
    searched = {name: without(ranking, test.excluded) for name, ranking in searched.items()}
    assert trained.shape == (len(test.tokens), predictor.encoder.dim)
    rankings = searched | part_rankings(predictor, test, predictor.embed(test.tokens))
    rankings.pop("similarity")  # no row of its own: M1's encoder searched exactly is
    model = load(data / "index")
    rankings["fused"] = fused_ranking(model, test)[0]
    assert sorted(rankings) == sorted(ROWS)
    unfiltered, _ = model.predict(test.tokens, L)
    docs, labels = test.excluded.nonzero()
    assert len(docs) == 2 * RECIPROCAL
    assert all(label in unfiltered[doc] for doc, label in zip(docs, labels))
    assert any(label in unfiltered[doc, :5] for doc, label in zip(docs, labels))
    metrics = load_metrics(tiny_run)
    for name, ranking in rankings.items():
        assert not any(label in ranking[doc] for doc, label in zip(docs, labels)), name
        found = [row[row >= 0].tolist() for row in ranking]
        assert all(len(set(row)) == len(row) for row in found), name
        assert evaluate(ranking, test.truth, inverse) == pytest.approx(metrics[name], abs=1e-4), name


def test_what_approximate_search_loses_is_measured(data):
    test = load_split(data / "prepare" / "test", L)
    inverse = inverse_propensities(data / "prepare" / "train", data / "prepare" / "labels")
    model = load(data / "index")
    whole = approximation(model, test, fused_ranking(model, test)[0], inverse, TEST)
    model.labels.search = lambda queries, k, threads=1: (
        np.zeros((len(queries), k), np.int64),
        np.ones((len(queries), k)),
    )
    worse = approximation(model, test, fused_ranking(model, test)[0], inverse, TEST)
    assert whole["recall@100 labels"] > 99.9 and worse["recall@100 labels"] < 10
    assert worse["lost N@5"] > 5 and abs(whole["lost N@5"]) < 0.5


def test_single_phases_are_measured_on_a_sample(change):
    folder, _ = change("score", **{"score.sample": 7})
    metrics = load_metrics(folder)
    assert metrics["docs"] == {"fused": TEST, "other rows": 7}
    test = load_split(folder / "data" / "prepare" / "test", L)
    drawn = test.sample(7)
    assert len(drawn.tokens) == 7 and drawn.truth.shape == (7, L)
    assert metrics["classifier"]["P@5"] == pytest.approx(
        round(metrics["classifier"]["P@5"] * 35 / 100) * 100 / 35, abs=1e-3
    )


def test_filtering_moves_the_rest_up():
    from scipy import sparse

    excluded = sparse.csr_matrix(([1.0, 1.0, 1.0], ([0, 0, 2], [1, 3, 0])), (3, 5))
    ranking = np.array([[3, 0, 1, 2], [1, 3, 0, 2], [0, 4, -1, -1]])
    assert without(ranking, excluded).tolist() == [[0, 2, -1, -1], [1, 3, 0, 2], [4, -1, -1, -1]]


def test_tables_add_up_to_the_metrics(tiny_run, data):
    metrics, bins = load_metrics(tiny_run), load_csv(data / "score" / "bins.csv")
    assert [row["bin"] for row in bins] == ["head", "torso", "tail"] * len(ROWS)
    for name in ROWS:
        parts = [float(row["P@5"]) for row in bins if row["row"] == name]
        assert sum(parts) == pytest.approx(metrics[name]["P@5"], abs=1e-3)
    labels = load_csv(data / "score" / "labels.csv")
    assert [row["id"] for row in labels] == [label_id(label) for label in range(L)]
    right = sum(int(row["right@5"]) for row in labels)
    assert 100 * right / (5 * TEST) == pytest.approx(metrics["fused"]["P@5"], abs=1e-3)
    assert sum(int(row["test_docs"]) for row in labels) == sum(len(r["target_ind"]) for r in dataset_rows()["tst"])


@pytest.mark.parametrize("folder", DVC_FILES)
def test_every_plot_finds_its_columns(tiny_run, unidec_run, folder):
    run = (unidec_run if folder else tiny_run) / folder
    for plot in DVC_FILES[folder]["plots"]:
        for name, facts in plot.items():
            for file, wanted in facts["y"].items():
                columns = load_csv(run / file)[0]
                assert {facts["x"], *([wanted] if isinstance(wanted, str) else wanted)} <= set(columns), name


def test_a_second_run_says_first_what_each_stage_will_take_and_gives_the_same_bytes(tiny_run, tiny_model, tmp_path):
    said = run_stages(make_project(tmp_path, **small_checkpoint(tiny_model)))
    for stage in list(STAGES)[1:]:  # `prepare` knows no sizes before it has read the data
        assert re.fullmatch(rf"{stage}: about 0\.\d\d GB and \d+ s \(.+ \d\.\d\d GB, .+\)", said[stage].splitlines()[0])
    for file in [Path("metrics.json"), *(path.relative_to(tiny_run) for path in tiny_run.rglob("manifest.json"))]:
        assert (tmp_path / file).read_bytes() == (tiny_run / file).read_bytes(), file


def test_another_seed_gives_another_model_and_other_metrics(tiny_run, change):
    folder, _ = change("cluster", seed=1)
    assert load_metrics(folder) != load_metrics(tiny_run)
    weights = "data/encoder/final/encoder.safetensors"
    assert (folder / weights).read_bytes() != (tiny_run / weights).read_bytes()


def test_the_default_checkpoint_finds_labels_before_any_training(tmp_path):
    make_project(tmp_path)
    said = run_stages(tmp_path, ["prepare", "unidec/embed"])["unidec/embed"]
    assert said.startswith("embed: about ") and said.count("\n") == 1  # no bar where there is no terminal
    folder = tmp_path / "data"
    docs, labels = (artifacts.load_array(tmp_path / home("unidec/embed"), name) for name in ("docs", "labels"))
    assert_unit(docs, (TRAIN, 384)), assert_unit(labels, (L, 384))
    truth = artifacts.load_ragged(folder / "prepare" / "train", "positives").csr(L)
    figures = evaluate(np.argsort(-docs @ labels.T, axis=1), truth, np.ones(L))
    assert figures["R@10"] > 60  # 25 by chance


# --- options ----------------------------------------------------------------------------------------------------------

ENCODERS = {
    "bi-gru": {"encoder.kind": "bi-gru", "encoder.epochs": 1, "encoder.dropout": 0.1},
    "transformer, one layer": {"encoder.kind": "transformer", "encoder.layers": 1, "encoder.epochs": 1},
    "transformer, two layers, cls": {
        "encoder.kind": "transformer",
        "encoder.layers": 2,
        "encoder.pooling": "cls",
        "encoder.epochs": 1,
        "encoder.dropout": 0.1,
        "encoder.lr": 0.001,
    },
    "tokens alone": {"encoder.ngrams": 1},
    "triplet": {"encoder.loss": "triplet"},
    "triplet, negatives alike": {"encoder.loss": "triplet", "encoder.weighting": 0, "encoder.negatives": 3},
    "raw embeddings": {"encoder.normalise_first": False},
    "one positive": {"encoder.positives": 1},
    "to the end": {"encoder.keep": "last", "encoder.schedule": "cosine", "encoder.validate_every": 2},
    "two encoders": {"encoder.shared": False, "encoder.aux_start": "xavier"},
    "stops early": {"encoder.epochs": 4, "encoder.patience": 1},
}
CLASSIFIERS = {
    "batch": {"classifier.labels": "batch"},
    "frozen": {"classifier.encoder_lr": 0},
    "batch, frozen, triplet": {"classifier.labels": "batch", "classifier.encoder_lr": 0, "classifier.loss": "triplet"},
    "triplet": {"classifier.loss": "triplet"},
    "clustered batches": {"classifier.cluster_from": 1, "classifier.cluster_first": 4, "classifier.dropout": 0},
}


@pytest.mark.parametrize("name", ENCODERS)
def test_every_kind_of_encoder_and_loss_runs_to_the_end(change, name):
    folder, _ = change("encoder", **ENCODERS[name])
    assert_sound(load_metrics(folder))
    kind = ENCODERS[name].get("encoder.kind", "bag-of-embeddings")
    saved = artifacts.load_json(folder / "data" / "encoder" / "final", "encoder.json")
    assert saved["kind"] == kind
    if kind == "transformer":
        assert saved["model"]["num_hidden_layers"] == ENCODERS[name]["encoder.layers"]
    dims = 2 * SETTINGS["encoder.hidden"] if kind == "bi-gru" else DIMS
    assert_unit(artifacts.load_array(folder / "data" / "augment" / "final", "labels"), (L, dims))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_kind_of_classifier_runs_to_the_end(tiny_run, change, name):
    folder, _ = change("classifier", **CLASSIFIERS[name])
    assert_sound(load_metrics(folder))
    weights = "classifier/final/encoder.safetensors"
    before = (tiny_run / "data" / "encoder" / "final" / "encoder.safetensors").read_bytes()
    frozen = CLASSIFIERS[name].get("classifier.encoder_lr") == 0
    assert ((folder / "data" / weights).read_bytes() == before) == frozen
    same = artifacts.load_array(folder / "data" / "classifier" / "final", "docs")
    assert np.array_equal(same, artifacts.load_array(tiny_run / "data" / "augment" / "final", "docs")) == frozen


def test_the_raw_embedding_may_be_augmented_instead(change):
    folder, _ = change("encoder", "augment", **{"encoder.normalise_first": False})
    tokens = artifacts.load_ragged(folder / "data" / "prepare" / "labels", "tokens")
    encoder = folder / "data" / "encoder" / "final"
    label_to_aux = artifacts.load_array(encoder, "label_to_aux")
    summed = encode(load_encoder(encoder), tokens, normalise=False) + artifacts.load_array(encoder, "aux")[label_to_aux]
    expected = summed / np.linalg.norm(summed, axis=1, keepdims=True)
    np.testing.assert_allclose(
        artifacts.load_array(folder / "data" / "augment" / "final", "labels"), expected, atol=1e-5
    )


def test_two_encoders_by_the_dot_product_are_augmented_and_searched_as_trained(change):
    """The labels' own encoder, their length, of one on average; the documents' encoder goes on to the classifiers."""
    given = {"encoder.shared": False, "encoder.normalise": False, "encoder.tau": 1.0, "encoder.lr": 0.1}
    folder, _ = change("encoder", **given)
    assert_sound(load_metrics(folder))
    tokens = artifacts.load_ragged(folder / "data" / "prepare" / "labels", "tokens")
    encoder = folder / "data" / "encoder" / "final"
    names = ("labels-encoder", "encoder")
    raw, other = (encode(load_encoder(encoder, name=name), tokens, normalise=False) for name in names)
    assert np.abs(raw - other).max() > 0.01
    aux, label_to_aux = (artifacts.load_array(encoder, name) for name in ("aux", "label_to_aux"))
    summed = raw / np.linalg.norm(raw, axis=1, keepdims=True) + aux[label_to_aux]
    for name, wanted in (("labels", summed), ("plain", raw)):
        found = artifacts.load_array(folder / "data" / "augment" / "final", name)
        np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1).mean(), atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_auxiliary_vectors_may_be_weighted(change, weight):
    folder, _ = change("augment", "augment", **{"augment.aux_weight": weight})
    tokens = artifacts.load_ragged(folder / "data" / "prepare" / "labels", "tokens")
    expected = augmented_by_hand(folder / "data" / "encoder" / "final", tokens, weight)
    np.testing.assert_allclose(
        artifacts.load_array(folder / "data" / "augment" / "final", "labels"), expected, atol=1e-5
    )


def test_without_auxiliary_vectors_both_encoder_rows_are_the_same(change):
    folder, said = change("cluster", K=0)
    assert (artifacts.load_array(folder / "data" / "cluster", "label_to_aux") == -1).all()
    for fit in FITS:
        assert artifacts.load_array(folder / "data" / "encoder" / fit, "aux").shape == (0, DIMS)
        augment = folder / "data" / "augment" / fit
        np.testing.assert_array_equal(artifacts.load_array(augment, "labels"), artifacts.load_array(augment, "plain"))
    metrics = load_metrics(folder)
    assert_sound(metrics)
    assert metrics["encoder"] == metrics["encoder-no-aux"]
    assert "each label" not in said["cluster"]


@pytest.mark.parametrize("k", [L, L + 10])
def test_with_as_many_vectors_as_labels_each_has_its_own_and_the_user_is_told(change, k):
    folder, said = change("cluster", "encoder", K=k)
    assert f"K = {k} >= {L} labels: each label has an auxiliary vector of its own." in said["cluster"].splitlines()
    assert artifacts.load_array(folder / "data" / "cluster", "label_to_aux").tolist() == list(range(L))
    assert artifacts.load_array(folder / "data" / "encoder" / "final", "aux").shape == (L, DIMS)


@pytest.mark.parametrize("algorithm", ["balanced", "k-means"])
@pytest.mark.parametrize("space", ["labels", "centroids", "pretrained"])
@pytest.mark.parametrize("head", [0, 6])
def test_every_way_to_cluster_gives_exactly_k(change, algorithm, space, head):
    settings = {"cluster.algorithm": algorithm, "cluster.space": space, "cluster.head": head}
    folder, _ = change("cluster", "cluster", **settings)
    label_to_aux = artifacts.load_array(folder / "data" / "cluster", "label_to_aux")
    facts = artifacts.load_json(folder / "data" / "cluster", "cluster.json")
    assert sorted(set(label_to_aux.tolist())) == list(range(K))
    assert (facts["head"] == 0) == (head == 0)
    shared = np.bincount(label_to_aux)[facts["head"] :]
    assert algorithm == "k-means" or shared.max() - shared.min() <= 1


def texts_by_hand(folder: Path, is_fitted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(vectors of the fitted documents, of the labels) by the encoder that the stage `encoder` would start from."""
    prepare = folder / "data" / "prepare"
    tokens, labels = (artifacts.load_ragged(prepare / name, "tokens") for name in ("train", "labels"))
    docs = tokens.take(np.flatnonzero(is_fitted))
    architecture = check(EncoderParams, read_params(folder / PARAMS)["encoder"], "here")
    torch.manual_seed(0)
    encoder = architecture.build([docs, labels], artifacts.load_json(prepare / "tokenizer", "special.json"))
    encoder.eval()
    with torch.no_grad():
        return tuple(F.normalize(encoder(part).float(), dim=1).numpy() for part in (docs, labels))


@pytest.mark.parametrize("kind", ["bag-of-embeddings", "transformer"])
@pytest.mark.parametrize("space", ["labels", "centroids"])
def test_labels_are_clustered_as_the_encoder_sees_them_before_it_is_trained(change, kind, space):
    folder, _ = change("cluster", "cluster", **{"encoder.kind": kind, "cluster.head": 0, "cluster.space": space})
    prepare = folder / "data" / "prepare" / "train"
    is_fitted = ~np.asarray(artifacts.load_array(prepare, "is_validation"))
    docs, vectors = texts_by_hand(folder, is_fitted)
    positives = artifacts.load_ragged(prepare, "positives").take(np.flatnonzero(is_fitted))
    for label in range(L) if space == "centroids" else ():
        own = [docs[i] for i in range(len(docs)) if label in positives[i]]
        vectors[label] = np.mean(own, axis=0) if own else vectors[label]
    found = artifacts.load_array(folder / "data" / "cluster", "label_to_aux")
    facts = artifacts.load_json(folder / "data" / "cluster", "cluster.json")
    if kind == "bag-of-embeddings":  # a transformer's last digits depend on the texts beside it
        np.testing.assert_array_equal(found, balanced_clusters(vectors, K, seed=0))
    assert facts["mean_cosine"] == pytest.approx(mean_cosine(vectors, found), abs=1e-3)


OTHER_THAN_EMBEDDED = {"layers": {"encoder.layers": 1}, "pooling": {"encoder.pooling": "cls"}, "same": {}}


@pytest.mark.parametrize("other", OTHER_THAN_EMBEDDED)
def test_a_transformer_that_embed_has_run_does_not_encode_the_labels_again(change, tiny_run, monkeypatch, other):
    monkeypatch.setattr("stages.cluster.encode", raise_power_cut)
    settings = {"encoder.kind": "transformer", "cluster.head": 0, **OTHER_THAN_EMBEDDED[other]}
    if other != "same":
        with pytest.raises(RuntimeError, match="the power went"):
            change("cluster", "cluster", **settings)
        return
    folder, _ = change("cluster", "cluster", **settings)
    vectors = np.asarray(artifacts.load_array(tiny_run / "data" / "embed", "labels"))
    found = artifacts.load_array(folder / "data" / "cluster", "label_to_aux")
    np.testing.assert_array_equal(found, balanced_clusters(vectors, K, seed=0))


@pytest.mark.parametrize("kind", ["bag-of-embeddings", "bi-gru", "transformer"])
def test_the_encoder_before_training_may_embed(change, tiny_run, kind):
    """Its vectors are those that labels are clustered by, and the row zero-shot is of it."""
    folder, _ = change("embed", **{"embed.model": "untrained", "encoder.kind": kind, "encoder.lr": 0.0001})
    data = folder / "data"
    vectors = np.asarray(artifacts.load_array(artifacts.check(data / "embed"), "labels"))
    assert_unit(vectors, (L, vectors.shape[1]))
    wanted = read_params(folder / "params.yaml")
    expected = head_and_clusters(vectors, artifacts.load_array(data / "prepare" / "labels", "frequency"), wanted)
    np.testing.assert_array_equal(artifacts.load_array(data / "cluster", "label_to_aux"), expected)
    special = artifacts.load_json(data / "prepare" / "tokenizer", "special.json")
    facts = artifacts.load_json(data / "embed", "embed.json")
    assert facts["untrained"]["kind"] == kind
    encoder = build_zero_shot(facts, data / "prepare" / "train", data / "prepare" / "labels", special)
    labels = artifacts.load_ragged(data / "prepare" / "labels", "tokens")
    np.testing.assert_allclose(encode(encoder, labels), vectors, atol=1e-5)
    test, inverse = (
        load_split(data / "prepare" / "test", L),
        inverse_propensities(data / "prepare" / "train", data / "prepare" / "labels"),
    )
    ranking = without(np.argsort(-(encode(encoder, test.tokens) @ vectors.T), axis=1, kind="stable"), test.excluded)
    assert evaluate(ranking, test.truth, inverse) == pytest.approx(load_metrics(folder)["zero-shot"], abs=2)


def head_and_clusters(vectors: np.ndarray, frequency: np.ndarray, params: dict) -> np.ndarray:
    """What `cluster` makes of these vectors."""
    p = module("cluster").Params(**params["cluster"])
    return module("cluster").share_vectors(vectors, np.asarray(frequency), params["K"], p, params["seed"])


def test_only_prepared_texts_are_embedded(tiny_run):
    result = invoke(tiny_run, module("embed").main, ["data/prepare/test", "data/prepare/tokenizer", "elsewhere"])
    assert_one_sentence(result, "data/prepare/test cannot be embedded", "train or labels")


@pytest.mark.parametrize("k", [1, 2, 7, 39])
def test_any_k_is_kept_to(k):
    vectors = np.random.default_rng(0).standard_normal((L, 5)).astype(np.float32)
    frequency = np.arange(L)
    p = ClusterParams(algorithm="balanced", space="labels", head=30)
    label_to_aux = share_vectors(vectors, frequency, k, p, seed=0)
    assert sorted(set(label_to_aux.tolist())) == list(range(k))
    head = head_labels(frequency, 30, k // 2)
    assert head.tolist() == list(range(L))[::-1][: min(10, k // 2)]
    sizes = np.bincount(label_to_aux)
    assert (sizes[: len(head)] == 1).all() and np.ptp(sizes[len(head) :]) <= 1


def test_labels_can_be_clustered_anew_while_training(tiny_run, change):
    folder, _ = change("encoder", **{"encoder.recluster": 1, "encoder.epochs": 3})
    assert_sound(load_metrics(folder))
    given = artifacts.load_array(tiny_run / "data" / "cluster", "label_to_aux")
    sizes = np.bincount(given)
    alone = sizes[given] == 1
    for fit in FITS:
        found = artifacts.load_array(folder / "data" / "encoder" / fit, "label_to_aux")
        assert sorted(set(found.tolist())) == list(range(K))
        np.testing.assert_array_equal(found[alone], given[alone])  # head labels keep their own
        assert sorted(np.bincount(found)) == sorted(sizes)
    assert (found != given).any()


def test_exact_search_ranks_as_the_index_does(tiny_run, change):
    folder, _ = change("index", **{"index.search": "exact"})
    files = {path.name for path in (folder / "data" / "index").iterdir()}
    assert {"labels.exact", "docs.exact"} <= files and not any(name.endswith(".hnsw") for name in files)
    found, wanted = load_metrics(folder), load_metrics(tiny_run)
    assert all(found[row] == pytest.approx(wanted[row], abs=1e-3) for row in ROWS)


def test_without_refit_the_models_that_chose_are_used(change):
    folder, _ = change("prepare", **{"prepare.refit": False})
    for stage in ("encoder", "augment", "classifier"):
        assert [path.name for path in (folder / "data" / stage).iterdir() if path.is_dir()] == ["choose"]
    assert not (folder / "data" / "classifier" / "curve-final.csv").exists()
    assert_sound(load_metrics(folder))


GOING_ON = {
    "prepare.refit": "continue",
    "encoder.epochs": 4,
    "encoder.patience": 0,
    "encoder.lr": 0.001,
    "encoder.refit_epochs": 1,
    "encoder.refit_lr": 1e-9,
    "classifier.epochs": 4,
    "classifier.patience": 0,
    "classifier.lr": 0.001,
    "classifier.encoder_lr": 0.001,
    "classifier.refit_epochs": 1,
    "classifier.refit_lr": 1e-9,
}


@pytest.mark.parametrize("normalise", [True, False])
def test_the_final_fit_goes_on_from_what_the_first_one_has_learnt(change, normalise):
    """At a rate of almost 0 it ends where it starts."""
    folder, said = change("prepare", "classifier", **GOING_ON, **{"classifier.normalise": normalise})
    assert "encoder: the final fit goes on from the first one for 1" in said["encoder"]
    assert "classifier: the final fit goes on from the first one for 1" in said["classifier"]
    data = folder / "data"
    (encoder, m4), (final, final_m4) = (
        [artifacts.load_tensors(data / stage / fit, "encoder.safetensors") for stage in ("encoder", "classifier")]
        for fit in FITS
    )
    for name, weights in encoder.items():
        torch.testing.assert_close(final[name], weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(final_m4[name], final[name] + m4[name] - weights, atol=1e-6, rtol=0)
        assert not torch.equal(m4[name], weights)
    old, new = ({"labels": artifacts.load_array(data / "augment" / fit, "labels")} for fit in FITS)
    for part, fit in ((old, "choose"), (new, "final")):
        length = artifacts.load_json(data / "classifier" / fit, "classifiers.json")["length"]
        part["rows"] = length * artifacts.load_array(data / "classifier" / fit, "classifiers")
    wanted = new["labels"] + old["rows"] - old["labels"]
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) if normalise else wanted
    np.testing.assert_allclose(new["rows"], wanted, atol=1e-5)
    curve = load_csv(data / "encoder" / "curve-final.csv")
    assert len(curve) == 1


# --- which unfinished work is a stage's own ---------------------------------------------------------------------------

RESUMED = ["embed", "encoder", "augment", "classifier", "index", "unidec/train"]
ROOMS = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("xcutils/*/__init__.py"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the project's code, recipes and pages, to be edited."""
    folder = tmp_path_factory.mktemp("tree").resolve()
    for top in ("stages", "unidec", "xcutils", "longtail", "recipes", "docs"):
        for file in (path for kind in ("py", "yaml", "md") for path in (ROOT / top).rglob(f"*.{kind}")):
            place = folder / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    return folder


@contextmanager
def edited(file: Path) -> Iterator[None]:
    """The file with one more line, for a while."""
    text = file.read_text(encoding="utf-8")
    file.write_text(text + "# another line\n", encoding="utf-8")
    yield
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def work(tree, tmp_path, monkeypatch) -> Callable[[str], str]:
    """The name of the folder of a stage's unfinished work, by the code in `tree`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(runtime, "code_of", cache(lambda file: code_of(file, tree)))

    @cache
    def params(stage: str):
        folder, _, section = stage.rpartition("/")
        return check(module(stage).Params, make_params(UNIDEC if folder else PARAMS)[section], "here")

    def name_of(stage: str) -> str:
        file = tree / Path(module(stage).__file__).relative_to(ROOT)
        with runtime.resumable(file, params(stage), [], seed=0) as scratch:
            return scratch.folder.name

    return name_of


@pytest.mark.parametrize("stage", RESUMED)
def test_unfinished_work_is_of_the_stages_file_and_the_rooms_it_reaches(tree, work, stage):
    own, before = f"{module(stage).__name__.replace('.', '/')}.py", work(stage)
    reached = {own, "stages/__init__.py", *(room for room in ROOMS if room in EVERY[stage]["deps"])}
    assert {"xcutils/core", "xcutils/data"} & reached == {"xcutils/core"}  # no stage but prepare reads a dataset
    others = {f"{module(other).__name__.replace('.', '/')}.py" for other in EVERY}
    for place in sorted({*ROOMS, *others, "stages/__init__.py", "longtail", "recipes", "docs", "unidec/params.yaml"}):
        for file in [tree / place] if (tree / place).is_file() else sorted((tree / place).iterdir())[-2:]:
            if file.is_file():
                with edited(file):
                    assert (work(stage) != before) == (place in reached), file
    assert work(stage) == before


@pytest.mark.parametrize(
    "file, goes_on", [("xcutils/model/bag.py", False), ("xcutils/train/losses.py", True), ("longtail/cli.py", True)]
)
def test_an_interrupted_stage_goes_on_unless_its_own_code_was_edited(
    tiny_run, tiny_model, tmp_path, monkeypatch, tree, file, goes_on
):
    monkeypatch.setattr(runtime, "code_of", lambda stage: code_of(tree / stage.relative_to(ROOT), tree))
    folder, _ = branch(tiny_run, tmp_path / "branch", "embed", **small_checkpoint(tiny_model))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the power went"):
        patch.setattr("stages.embed.artifacts.save_array", raise_power_cut)
        run_stage(folder, "embed")
    assert_nothing_left(folder, "embed")
    with edited(tree / file):
        said = run_stages(folder, ["embed"])["embed"]
    assert (f"embed: labels: goes on after {L} of {L} rows" in said) == goes_on
    made, wanted = (artifacts.load_array(base / "data" / "embed", "labels") for base in (folder, tiny_run))
    np.testing.assert_array_equal(made, wanted)


def raise_power_cut(*_) -> None:
    raise RuntimeError("the power went")


# --- what goes wrong --------------------------------------------------------------------------------------------------

WRITTEN = {home(stage) for stage in EVERY}
READS = [(stage, dep) for stage in EVERY for dep in EVERY[stage]["deps"] if {Path(dep), *Path(dep).parents} & WRITTEN]


@pytest.mark.parametrize("stage, dep", READS)
def test_an_unfinished_input_is_refused_and_no_output_is_left(tiny_run, unidec_run, tiny_model, tmp_path, stage, dep):
    base = tiny_run if stage in STAGES else unidec_run
    folder, _ = branch(base, tmp_path / "branch", stage, **small_checkpoint(tiny_model))
    linked = next(place for place in WRITTEN if Path(dep).is_relative_to(place))
    (folder / linked).unlink()  # the link that stands for the input's stage becomes a copy that can be damaged
    shutil.copytree(base / linked, folder / linked)
    (folder / dep / "manifest.json").unlink()
    result = run_stage(folder, stage)
    last = result.stderr.splitlines()[-1]  # what was said of earlier work may stand above it
    assert result.exit_code == 1 and "Traceback" not in result.stderr
    assert last.startswith(f"error: {dep} is not a finished artifact")
    assert last.endswith("run `dvc repro` to make it again." if stage in STAGES else f"{artifacts.remedy(dep)}.")
    assert_nothing_left(folder, stage)


def assert_nothing_left(folder: Path, stage: str) -> None:
    """Neither the stage's folder nor a draft of it, nor metrics."""
    place = folder / home(stage)
    assert not place.parent.exists() or not [path for path in place.parent.iterdir() if place.name in path.name]
    assert place.name != "score" or not (place.parent.parent / "metrics.json").exists()


@pytest.mark.parametrize(
    "stage, owner, name",
    [
        ("embed", "stages.embed", "encode_sets"),
        ("augment", "stages.augment", "encode_sets"),
        ("index", "xcutils.search.graphs", "grow"),
    ],
)
def test_a_stage_that_fails_half_way_leaves_no_output(tiny_run, tiny_model, tmp_path, monkeypatch, stage, owner, name):
    code = importlib.import_module(owner)
    works, calls = getattr(code, name), []

    def fails_later(*args, **kwargs):
        calls.append(args)
        made = works(*args, **kwargs)
        if len(calls) > (stage != "embed"):  # embed has one call for all its texts
            raise RuntimeError("the power went")
        return made

    monkeypatch.setattr(code, name, fails_later)
    folder, _ = branch(tiny_run, tmp_path / "branch", stage, **small_checkpoint(tiny_model))
    with pytest.raises(RuntimeError, match="the power went"):
        run_stage(folder, stage)
    assert_nothing_left(folder, stage)


def test_a_collapsed_encoder_stops_with_advice_and_no_output(tiny_run, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("stages.encoder.COLLAPSED", -1.0)
    folder, _ = branch(tiny_run, tmp_path / "branch", "encoder", **small_checkpoint(tiny_model))
    assert_one_sentence(run_stage(folder, "encoder"), "the encoder has collapsed", "lower encoder.lr")
    assert_nothing_left(folder, "encoder")


def test_a_diverging_classifier_stops_with_advice_and_no_output(tiny_run, tiny_model, tmp_path):
    changes = small_checkpoint(tiny_model) | {"classifier.tau": 1e-40, "classifier.epochs": 3}
    folder, _ = branch(tiny_run, tmp_path / "branch", "classifier", **changes)
    assert_one_sentence(run_stage(folder, "classifier"), "not finite", "tau")
    assert_nothing_left(folder, "classifier")


WRONG_PARAMS = {
    "unknown parameter": ({"encoder.epoch": 3}, ["params.yaml: encoder.epoch is not a parameter", "epochs"]),
    "mistyped section": ({"encodr": {"epochs": 3}}, ["params.yaml: there is no stage 'encodr'"]),
    "unknown top value": ({"k": 5}, ["params.yaml.k is not a parameter", "K, dataset, seed"]),
    "K below 0": ({"K": -1}, ["params.yaml.K is -1", "at least 0"]),
    "K no number": ({"K": "many"}, ["params.yaml.K is 'many'", "whole number"]),
    "no such kind": ({"encoder.kind": "lstm"}, ["encoder.kind is 'lstm'", "bi-gru"]),
    "out of range": ({"prepare.validation": 0.9}, ["prepare.validation is 0.9", "at most 0.5"]),
    "section gone": ({"classifier": None}, ["classifier"]),
}


@pytest.mark.parametrize("name", WRONG_PARAMS)
def test_wrong_parameters_are_refused_by_the_first_stage(tiny_model, tmp_path, name):
    changes, named = WRONG_PARAMS[name]
    make_project(tmp_path, **small_checkpoint(tiny_model), **changes)
    assert_one_sentence(run_stage(tmp_path, "prepare"), *named)
    assert not (tmp_path / "data" / "prepare").exists()


def spoil_label_id(rows):
    for row in rows["trn"][3:7]:
        row["target_ind"] = [1, L]


def spoil_text(rows):
    for row in rows["tst"][2:4]:
        row["title"] = "  "


def spoil_labels(rows):
    rows["lbl"].clear()


def spoil_test(rows):
    for row in rows["tst"]:
        row["target_ind"] = []


WRONG_DATA = {
    "label id out of range": (
        spoil_label_id,
        ["trn.json.gz: 4 of 60", "line 4", f"label id {L} is out of", "target_ind"],
    ),
    "document without text": (spoil_text, ["tst.json.gz: 2 of 20 rows cannot be used", "line 3", "has no text"]),
    "no labels": (spoil_labels, ["lbl.json.gz"]),
    "no test document": (spoil_test, ["tst.json.gz: 20 of 20 rows cannot be used", "has no label"]),
}


@pytest.mark.parametrize("name", WRONG_DATA)
def test_wrong_data_is_refused_with_its_line(tiny_model, tmp_path, name):
    spoil, named = WRONG_DATA[name]
    make_project(tmp_path, **small_checkpoint(tiny_model))
    rows = dataset_rows()
    spoil(rows)
    write_dataset(tmp_path / DATASET, rows)
    assert_one_sentence(run_stage(tmp_path, "prepare"), *named)
    assert not (tmp_path / "data" / "prepare").exists()


@pytest.mark.parametrize("file", ["trn.json.gz", "tst.json.gz", "lbl.json.gz"])
def test_a_missing_file_is_named(tiny_model, tmp_path, file):
    make_project(tmp_path, **small_checkpoint(tiny_model))
    (tmp_path / DATASET / file).unlink()
    assert_one_sentence(run_stage(tmp_path, "prepare"), f"{DATASET}/{file} is missing")
    shutil.rmtree(tmp_path / DATASET)
    assert_one_sentence(run_stage(tmp_path, "prepare"), f"no dataset {DATASET}")


def test_without_parameters_the_user_is_told_where_to_run(tmp_path):
    write_dataset(tmp_path / DATASET)
    assert_one_sentence(run_stage(tmp_path, "prepare"), "params.yaml is missing", "dvc.yaml")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    make_project(tmp_path, **{"prepare.tokenizer": "./nowhere"})
    assert_one_sentence(run_stage(tmp_path, "prepare"), "./nowhere")


@pytest.mark.parametrize("stage, name", [("embed", "embed.model"), ("encoder", "encoder.model")])
def test_a_checkpoint_with_other_tokens_is_refused(tiny_run, tiny_model, tmp_path, stage, name):
    changes = small_checkpoint(tiny_model) | {name: "all-MiniLM-L6-v2"}
    folder, _ = branch(tiny_run, tmp_path / "branch", stage, **changes)
    assert_one_sentence(run_stage(folder, stage), name, "all-MiniLM-L6-v2")
    assert_nothing_left(folder, stage)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"embed.model": "all-MiniLM-L6-v2"}, ["embed.model", "all-MiniLM-L6-v2", "vocabulary"]),
        ({"encoder.model": "all-MiniLM-L6-v2"}, ["encoder.model", "all-MiniLM-L6-v2", "vocabulary"]),
        ({"prepare.max_tokens": 33}, ["takes at most 32 tokens", "prepare.max_tokens"]),
        ({"encoder.kind": "transformer", "encoder.layers": 99}, ["has 6 layers, not 99"]),
        ({"encoder.cluster_first": 300}, ["encoder", "cluster_last is 256", "cluster_first 300"]),
        ({"classifier.cluster_last": 3}, ["classifier", "cluster_last is 3", "cluster_first 32"]),
        ({"score.tau": "1e-4x"}, ["score.tau", "1e-4x", "must be a number"]),
    ],
)
def test_the_first_stage_refuses_what_a_later_one_could_not_use(tiny_model, tmp_path, changes, named):
    folder = make_project(tmp_path, **(small_checkpoint(tiny_model) | changes))
    assert_one_sentence(run_stage(folder, "prepare"), *named)
    assert_nothing_left(folder, "prepare")


def test_the_first_stage_refuses_a_file_without_a_later_stages_section(tiny_model, tmp_path):
    folder = make_project(tmp_path, **small_checkpoint(tiny_model))
    tree = make_params(**small_checkpoint(tiny_model))
    del tree["index"]
    write_params(folder, tree)
    assert_one_sentence(run_stage(folder, "prepare"), "index")
    assert_nothing_left(folder, "prepare")


def test_a_process_ends_with_one_sentence_and_code_1(tmp_path):
    make_project(tmp_path, K=-1)
    env = os.environ | {"XC_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stages.prepare", *arguments("prepare")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: params.yaml.K is -1; it must be at least 0.\n"
