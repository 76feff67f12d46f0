"""A step of the classifiers' training against the papers' sums as loops, and the values they start from."""

import math
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch

from stages.classifier import OPTIONS, PRODUCTS, OneVsAll, Params, reason
from testing.tiny import make_params
from tests.stages.test_encoder import bag_by_hand, unit_by_hand
from tests.train.test_losses import by_hand, differences, triplet_by_hand
from tests.train.test_points import LABELS as LABEL_TEXTS
from xcutils.core.errors import UserError
from xcutils.core.params import check
from xcutils.core.ragged import Ragged, concatenate, from_rows
from xcutils.model.bag import BagOfEmbeddings
from xcutils.train import losses
from xcutils.train.points import Points

WORDS, DIMS, L = 16, 4, len(LABEL_TEXTS)
VALUES = make_params()["classifier"]
LOSSES = ["decoupled-softmax", "supcon", "triplet", "bce"]
# Values that no two terms share; a rate of 1, so that a step of gradient descent is as long as the gradient.
STEP = {"tau": 0.7, "margin": 0.6, "positives": 2, "negatives": 3, "weighting": 0.25, "dropout": 0.0, "lr": 1.0}
STEP |= {
    "labels": "all",
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "encoder_lr": 0.0,
    "start": "labels",
}
TEXTS = {3: {0: 0.25, 3: 1.0, 5: 0.6, 7: 0.4}, 8: {1: 0.3, 8: 1.0}, 4: {4: 0.9}}  # label texts and their soft targets
DOCS = [6, 3, 0, 2, 5]  # doc 3 has no positive; docs 6 and 2 have more than are trained on
BATCHES = {False: DOCS, True: [*DOCS, 7, 8, 9]}  # without label texts and with


# --- a model by hand: 7 docs, 3 label texts, 9 labels -----------------------------------------------------------------


@pytest.fixture
def make(texts, positives) -> Callable[..., OneVsAll]:
    """A model of the docs and, with `soft`, of label texts, in double precision where the encoder is frozen."""

    def build(*, soft: bool = False, **changes) -> OneVsAll:
        p = check(Params, VALUES | STEP | changes, "here")
        generator, dtype = torch.Generator().manual_seed(0), torch.float32 if p.encoder_lr else torch.float64
        vectors, weights = (0.5 * torch.randn(WORDS, width, generator=generator) for width in (DIMS, 1))
        encoder = BagOfEmbeddings(vectors, 0.5 + weights.abs(), vocabulary=WORDS, ngrams=1)
        points = points_of(texts, positives, soft, dtype)
        docs, labels = (0.8 * torch.randn(n, DIMS, generator=generator, dtype=dtype) for n in (len(points.tokens), L))
        return OneVsAll(encoder, points, docs.numpy(), labels.numpy(), p)

    return build


def points_of(texts: Ragged, positives: Ragged, soft: bool, dtype: torch.dtype) -> Points:
    if not soft:
        return Points(texts, positives, None, np.zeros(0, dtype=np.int32), np.arange(len(texts)))
    targets = from_rows([list(row) for row in TEXTS.values()], np.int32)
    given = [weight for row in TEXTS.values() for weight in row.values()]
    weights = torch.tensor([1.0] * len(positives.values) + given, dtype=dtype).numpy()
    tokens = concatenate(texts, LABEL_TEXTS.take(np.array(list(TEXTS))))
    return Points(tokens, concatenate(positives, targets), weights, np.array(list(TEXTS)), np.arange(len(tokens)))


def targets_by_hand(positives: Ragged, point: int) -> dict[int, float]:
    """Label -> target of a doc, or of a label text behind the docs."""
    docs = 7
    return dict.fromkeys(positives[point].tolist(), 1.0) if point < docs else list(TEXTS.values())[point - docs]


def pool_by_hand(model: OneVsAll, points: list[int]) -> list[int]:
    """Every label, or those that are a target of any of the points."""
    if model.p.labels == "all":
        return list(range(L))
    return sorted({label for point in points for label in targets_by_hand(model.positives, point)})


def loss_by_hand(model: OneVsAll, points: list[int], x: list[list[float]], rows: list[list[float]]) -> float:
    """The batch's loss.

    x     embeddings of the points
    rows  all classifiers
    """
    p, pool = model.p, pool_by_hand(model, points)
    labels = [rows[label] for label in pool]
    if p.normalise:
        x, labels = ([unit_by_hand(row) for row in side] for side in (x, labels))
    targets = [targets_by_hand(model.positives, point) for point in points]
    if p.loss != "triplet":
        pairs = [(b, c, own[label]) for b, own in enumerate(targets) for c, label in enumerate(pool) if label in own]
        return by_hand(p.loss.replace("-", "_"), x, labels, *([pair[i] for pair in pairs] for i in range(3)), p.tau)
    scores = [[sum(a * b for a, b in zip(doc, label)) for label in labels] for doc in x]
    count, positive, weights = min(p.positives, len(pool)), [], []
    for row, own in zip(scores, targets):
        hardest = sorted((s, own[label]) for s, label in zip(row, pool) if label in own) + [(math.inf, 0.0)] * count
        positive.append([s for s, _ in hardest[:count]])
        weights.append([weight for _, weight in hardest[:count]])
    known = [[label in own for label in pool] for own in targets]
    return triplet_by_hand(scores, known, positive, p.margin, p.negatives, p.weighting, weights)


# --- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("labels", ["all", "batch"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_papers_sums(make, loss, labels, normalise, soft):
    """The loss, and how far a step of gradient descent at a rate of 1 moves the classifiers."""
    model, points = make(loss=loss, labels=labels, normalise=normalise, soft=soft), BATCHES[soft]
    x, before = model.docs[points].tolist(), model.table.values.clone()
    found = model.loss(np.array(points), np.random.default_rng(0))
    assert found.item() == pytest.approx(loss_by_hand(model, points, x, before.tolist()), rel=1e-9)
    found.backward()
    model.table.step()
    wanted = differences(lambda rows: loss_by_hand(model, points, x, rows), before)
    torch.testing.assert_close(before - model.table.values, wanted, rtol=1e-5, atol=1e-7)
    assert wanted.abs().max() > 0.01


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_pool_that_has_drawn_every_label_gives_the_loss_over_all(make, loss, soft):
    every, pool = (make(loss=loss, labels=labels, soft=soft, random=1000) for labels in ("all", "pool"))
    wanted, found = (model.loss(np.array(BATCHES[soft]), np.random.default_rng(0)).item() for model in (every, pool))
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("random", [1, 3])
def test_a_pool_has_the_labels_of_the_batch_and_some_drawn_at_random(make, positives, random, seed):
    model, points = make(labels="pool", random=random), [1, 0]
    own = {label for point in points for label in positives[point].tolist()}
    drawn = set(np.random.default_rng(seed).integers(0, L, random).tolist())
    found = model.pool(np.array(points), np.random.default_rng(seed))
    assert found.tolist() == sorted(own | drawn) and model.p.labels == "pool"


@pytest.mark.parametrize(
    "changes, docs, labels, decided",
    [
        ({"labels": "auto"}, PRODUCTS // 1000, 1000, "all"),
        ({"labels": "auto"}, PRODUCTS // 1000 + 1, 1000, "pool"),
        ({"labels": "batch"}, 10, 10, "batch"),
        ({"labels": "all"}, PRODUCTS, 1000, "all"),
    ],
)
def test_auto_scores_every_label_up_to_some_size_and_then_a_pool_in_clustered_batches(changes, docs, labels, decided):
    p = check(Params, VALUES | {"cluster_from": 7} | changes, "here")
    found = p.decided(docs, labels)
    assert found.labels == decided and found.cluster_from == (0 if decided == "pool" else 7)
    assert (found is p) == (p.labels != "auto")
    told = reason(found, docs, labels)
    assert f"{docs:,} documents x {labels:,} labels" in told and told.endswith(f"auto is {decided}).")


@pytest.mark.parametrize("changes", [{"positives": 1}, {"positives": 20, "negatives": 50}, {"weighting": 0.0}])
@pytest.mark.parametrize("labels", ["all", "batch"])
@pytest.mark.parametrize("seed", range(3))
def test_the_hardest_positives_of_a_label_text_have_their_own_targets(make, labels, changes, seed):
    model, points = make(loss="triplet", labels=labels, soft=True, margin=2.0, **changes), [7, 8, 6]
    model.table.values.copy_(torch.randn(L, DIMS, generator=torch.Generator().manual_seed(seed)))
    rows, x = model.table.values.tolist(), model.docs[points].tolist()
    found = model.loss(np.array(points), np.random.default_rng(0)).item()
    assert found == pytest.approx(loss_by_hand(model, points, x, rows), rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "points, pool", [([1, 0], [0, 1, 3]), ([3, 5], [5]), ([7, 1], [0, 1, 3, 5, 7]), ([6, 8], [1, 2, 3, 4, 5, 6, 8])]
)
def test_the_pool_of_a_batch_is_the_union_of_its_positives(make, monkeypatch, loss, points, pool):
    model, taken = make(loss=loss, labels="batch", soft=True), []
    works, before = model.table.rows, model.table.values.clone()
    monkeypatch.setattr(model.table, "rows", lambda ids: (taken.append(ids.tolist()), works(ids))[1])
    assert pool_by_hand(model, points) == pool
    model.loss(np.array(points), np.random.default_rng(0)).backward()
    model.table.step()
    assert taken == [pool]
    moved = (model.table.values != before).any(dim=1).nonzero().flatten().tolist()
    assert set(moved) <= set(pool) and (moved or len(pool) == 1)  # one label alone has no negative


@pytest.mark.parametrize("formed", [1, 4, 50])
def test_the_cross_entropys_value_is_formed_on_some_labels_and_its_gradient_on_all(make, monkeypatch, formed):
    monkeypatch.setattr(losses, "FORMED", formed)
    model, points = make(loss="bce", labels="all", soft=True), BATCHES[True]
    x, before = model.docs[points].tolist(), model.table.values.clone()
    found = model.loss(np.array(points), np.random.default_rng(0))
    seen, total = min(formed, L), 0.0
    for point, doc in zip(points, x):
        own = targets_by_hand(model.positives, point)
        for label in range(seen):
            cosine = sum(a * b for a, b in zip(unit_by_hand(doc), unit_by_hand(before[label].tolist())))
            chance, wanted = 1 / (1 + math.exp(-cosine / model.p.tau)), own.get(label, 0.0)
            total -= wanted * math.log(chance) + (1 - wanted) * math.log(1 - chance)
    assert found.item() == pytest.approx(total / len(points) * L / seen)
    found.backward()
    model.table.step()
    wanted = differences(lambda rows: loss_by_hand(model, points, x, rows), before)
    torch.testing.assert_close(before - model.table.values, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_an_encoder_that_is_trained_along_gives_the_embeddings_and_moves(make, loss, normalise):
    model, points = make(loss=loss, labels="all", normalise=normalise, soft=True, encoder_lr=1.0), BATCHES[True]
    words, weights = model.encoder.vectors, model.encoder.weights.values.tolist()
    words.momentum, model.docs[:], before = 0.0, 7.0, words.values.double()
    rows = model.table.values.tolist()

    def embed(vectors) -> list[list[float]]:
        return [bag_by_hand(model.points.tokens[point], vectors, weights) for point in points]

    found = model.loss(np.array(points), np.random.default_rng(0))
    assert found.item() == pytest.approx(loss_by_hand(model, points, embed(before.tolist()), rows), rel=1e-5)
    for point, raw in zip(points, embed(before.tolist())):
        assert model.docs[point].tolist() == pytest.approx(unit_by_hand(raw), abs=1e-5)
    assert (model.docs[[1, 4]] == 7.0).all()  # not in the batch
    found.backward()
    words.step()
    wanted = differences(lambda vectors: loss_by_hand(model, points, embed(vectors), rows), before)
    torch.testing.assert_close(before - words.values.double(), wanted, rtol=1e-3, atol=2e-5)


def test_a_frozen_encoder_gets_no_gradient_and_the_embeddings_stay(make):
    model = make(labels="all")
    docs = model.docs.copy()
    model.loss(np.array(DOCS), np.random.default_rng(0)).backward()
    assert all(not table.gradients() for table in model.encoder.tables) and (model.docs == docs).all()


# --- first values -----------------------------------------------------------------------------------------------------


def started(start: str, texts: Ragged, positives: Ragged, labels: np.ndarray) -> np.ndarray:
    torch.manual_seed(0)
    p = check(Params, VALUES | STEP | {"start": start}, "here")
    encoder = BagOfEmbeddings(torch.randn(WORDS, 16), torch.rand(WORDS, 1), vocabulary=WORDS, ngrams=1)
    points = points_of(texts, positives, False, torch.float32)
    return OneVsAll(encoder, points, np.zeros((7, 16), np.float32), labels, p).table.numpy()


def test_classifiers_start_small_and_random(texts, positives):
    labels = 5 + np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
    found = started("random", texts, positives, labels)
    assert found.shape == labels.shape and found.dtype == np.float32
    assert found.std() == pytest.approx(0.02, rel=0.05) and abs(found.mean()) < 0.001
    assert found.std(axis=1).min() > 0.008 and len(np.unique(found, axis=0)) == len(found)


def test_classifiers_start_as_the_label_embeddings_which_they_leave_alone(texts, positives):
    labels = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float32)
    found = started("labels", texts, positives, labels)
    np.testing.assert_array_equal(found, labels)
    assert not np.shares_memory(found, labels)


# --- the losses that are offered --------------------------------------------------------------------------------------


def test_every_loss_is_offered_that_draws_and_mines_nothing_and_that_this_stage_has_the_parameters_for():
    assert set(OPTIONS) <= {field.name for field in fields(Params)}
    allowed = next(field for field in fields(Params) if field.name == "loss").metadata["among"]
    assert allowed == losses.offered(OPTIONS) and set(allowed) == set(LOSSES)  # each has its sums above
    for loss in losses.LOSSES:
        tree = VALUES | {"loss": loss}
        if loss in allowed:
            assert check(Params, tree, "here").loss == loss
            continue
        with pytest.raises(UserError, match=f"here.loss is '{loss}'; allowed: {', '.join(allowed)}"):
            check(Params, tree, "here")
