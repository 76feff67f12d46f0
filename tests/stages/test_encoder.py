"""A step of the encoder's training against the papers' sums as loops: from token vectors to the loss and back."""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from stages import encoder as stage
from stages.encoder import OPTIONS, Epochs, Params, Siamese, fit
from testing.tiny import make_params
from tests.train.test_losses import by_hand, contrastive_by_hand, differences, pairwise_by_hand, triplet_by_hand
from tests.train.test_points import LABELS
from xcutils.core.errors import UserError
from xcutils.core.folds import Fold
from xcutils.core.params import check
from xcutils.core.ragged import Ragged, from_rows
from xcutils.core.scratch import Snapshots
from xcutils.model.bag import BagOfEmbeddings
from xcutils.search.metrics import pair_matrix
from xcutils.train import losses
from xcutils.train.fitting import Judge
from xcutils.train.mining import Miner

WORDS, DIMS, L = 16, 4, len(LABELS)
VALUES = make_params()["encoder"]
SOFTMAX = ["decoupled-softmax", "supcon", "infonce"]
LOSSES = [*SOFTMAX, "pairwise", "contrastive", "triplet"]
SUMS = {"decoupled-softmax": "decoupled_softmax", "supcon": "supcon", "infonce": "supcon"}
# Values that no two terms share; rates of 1, so that a step of gradient descent is as long as the gradient.
STEP = {"tau": 0.4, "margin": 0.6, "negatives": 3, "weighting": 0.25, "contrast": 0.7, "slope": 1.7, "positives": 2}
STEP |= {"mined": 2, "mined_from": 4, "chunk": 4, "normalise_first": True, "lr": 1.0, "aux_lr": 1.0, "epochs": 1}
DOCS = [6, 3, 0, 2, 1, 5]  # doc 3 has no positive, doc 1 no words; docs 6 and 2 have more positives than are drawn
EXCLUDED = [[0, 8], [2, 7]]  # pairs of a doc and a label that may not be predicted
SHARED = np.array([0, 1, 1, 2, 2, 0, 3, 3, 1], dtype=np.int32)
AUX = {"no aux": (SHARED * 0 - 1, True), "normalised first": (SHARED, True), "raw": (SHARED, False)}


# --- a model by hand: 7 docs, 9 labels, of which label 8 belongs to nobody --------------------------------------------


@pytest.fixture
def make(texts, positives) -> Callable[..., Siamese]:
    """A model whose auxiliary vectors have moved, with negatives mined; its tables learn by gradient descent."""

    def build(aux: str = "normalised first", **changes) -> Siamese:
        label_to_aux, normalise_first = AUX[aux]
        tree = VALUES | STEP | {"normalise_first": normalise_first} | changes
        generator = torch.Generator().manual_seed(0)
        vectors, weights = (torch.randn(WORDS, width, generator=generator) for width in (DIMS, 1))
        encoder = BagOfEmbeddings(vectors, 0.5 + weights.abs(), vocabulary=WORDS, ngrams=1)
        model = Siamese(encoder, texts, LABELS, positives, label_to_aux, check(Params, tree, "here"))
        values = model.aux.table.values
        values.copy_(0.5 * torch.randn(values.shape, generator=generator))
        for table in (*encoder.tables, model.aux.table):
            table.momentum = 0.0
        if model.p.mined:
            model.miner = Miner(positives.csr(L) + excluded(len(texts)), model.p.mined_from)
        Epochs(model, np.arange(len(texts)), model.p, 0)(0, np.random.default_rng(0))
        return model

    return build


def excluded(docs: int):
    return pair_matrix(np.array(EXCLUDED), (docs, L))


class Watch:
    """What a model draws and mines, step by step: lists of labels, one for each document."""

    def __init__(self, model: Siamese, patch: pytest.MonkeyPatch):
        self.drawn, self.mined = [], []
        patch.setattr(stage, "sample_positives", self._recorded(stage.sample_positives, self.drawn))
        if model.miner is not None:
            patch.setattr(model.miner, "draw", self._recorded(model.miner.draw, self.mined))

    @staticmethod
    def _recorded(works: Callable[..., Ragged], into: list) -> Callable[..., Ragged]:
        def watched(*args):
            made = works(*args)
            into.append([made[row].tolist() for row in range(len(made))])
            return made

        return watched

    def last(self) -> tuple[list[list[int]], list[list[int]]]:
        return self.drawn[-1], self.mined[-1] if self.mined else [[] for _ in self.drawn[-1]]


def unit_by_hand(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row)) or 1.0  # a text without words stays at zero
    return [x / length for x in row]


def bag_by_hand(text: np.ndarray, vectors: list[list[float]], weights: list[list[float]]) -> list[float]:
    words = text.tolist()
    return [sum(weights[word][0] * vectors[word][d] for word in words) for d in range(DIMS)]


def label_by_hand(z: list[float], a: list[float] | None, normalise_first: bool) -> list[float]:
    """n(E(z)) + a [DEXA], E(z) + a as its code has it, or E(z) [NGAME], before it is normalised."""
    if a is None:
        return z
    return [x + y for x, y in zip(unit_by_hand(z) if normalise_first else z, a)]


def pool_by_hand(model: Siamese, drawn: list[list[int]], mined: list[list[int]]) -> list[int]:
    every = [label for row in [*drawn, *mined] for label in row]
    return list(range(L)) if model.p.labels == "all" else sorted(set(every))


def loss_by_hand(model: Siamese, docs: list[int], drawn, mined, vectors=None, aux=None) -> float:
    """The batch's loss from the texts and the positives as they are given.

    drawn, mined  labels of each document that the step drew from its positives and its nearest wrong labels
    vectors, aux  of the words and of the clusters of labels, where they are not the model's
    """
    p, weights = model.p, model.encoder.weights.values.tolist()
    vectors = model.encoder.vectors.values.tolist() if vectors is None else vectors
    aux = model.aux.table.values.tolist() if aux is None else aux
    pool, labels = pool_by_hand(model, drawn, mined), []
    for label in pool:
        own = aux[model.aux.label_to_aux[label]] if len(aux) else None
        labels.append(label_by_hand(bag_by_hand(LABELS[label], vectors, weights), own, p.normalise_first))
    x = [bag_by_hand(model.texts[doc], vectors, weights) for doc in docs]
    if p.normalise:
        x, labels = [unit_by_hand(row) for row in x], [unit_by_hand(row) for row in labels]
    known = [[label in row for label in pool] for row in (model.positives[doc].tolist() for doc in docs)]
    if p.loss in SUMS:
        taken = [[label in row for label in pool] for row in drawn] if p.loss == "infonce" else known
        pairs = [(b, c) for b, row in enumerate(taken) for c, is_own in enumerate(row) if is_own]
        return by_hand(SUMS[p.loss], x, labels, [b for b, _ in pairs], [c for _, c in pairs], None, p.tau)
    scores = [[sum(a * b for a, b in zip(doc, label)) for label in labels] for doc in x]
    score = [dict(zip(pool, row)) for row in scores]
    positive = [
        ([own[label] for label in row] + [math.inf] * p.positives)[: p.positives] for own, row in zip(score, drawn)
    ]
    if p.loss == "pairwise":
        return pairwise_by_hand(positive, [[own[label] for label in row] for own, row in zip(score, mined)], p.tau)
    if p.loss == "contrastive":
        return contrastive_by_hand(scores, known, positive, p.contrast, p.slope, p.negatives)
    return triplet_by_hand(scores, known, positive, p.margin, p.negatives, p.weighting)


def assert_the_step_is_by_hand(model: Siamese, watch: Watch) -> None:
    """The loss, and how far a step of gradient descent at a rate of 1 moves the vectors of words and clusters."""
    found = model.loss(np.array(DOCS), np.random.default_rng(0))
    drawn, mined = watch.last()
    before = [table.values.double() for table in (model.encoder.vectors, model.aux.table)]
    assert found.item() == pytest.approx(loss_by_hand(model, DOCS, drawn, mined), rel=1e-5)
    wanted = [
        differences(lambda moved: loss_by_hand(model, DOCS, drawn, mined, vectors=moved), before[0]),
        differences(lambda moved: loss_by_hand(model, DOCS, drawn, mined, aux=moved), before[1]),
    ]
    found.backward()
    for table, was, gradient in zip((model.encoder.vectors, model.aux.table), before, wanted):
        table.step()
        torch.testing.assert_close(was - table.values.double(), gradient, rtol=1e-3, atol=2e-6)
    assert all(len(gradient) == 0 or gradient.abs().max() > 0.001 for gradient in wanted)


# --- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aux", AUX)
@pytest.mark.parametrize(
    "loss, mined", [*((loss, 2) for loss in LOSSES), *((loss, 0) for loss in LOSSES if loss != "pairwise")]
)
def test_a_step_on_the_labels_of_the_batch_is_the_papers_sums(make, monkeypatch, loss, mined, aux):
    model = make(aux, loss=loss, labels="batch", mined=mined)
    assert_the_step_is_by_hand(model, Watch(model, monkeypatch))


@pytest.mark.parametrize("aux", AUX)
@pytest.mark.parametrize("loss", SOFTMAX)
def test_a_step_on_all_labels_is_the_papers_sums(make, monkeypatch, loss, aux):
    model = make(aux, loss=loss, labels="all", mined=0)
    assert_the_step_is_by_hand(model, Watch(model, monkeypatch))


@pytest.mark.parametrize("changes", [{"weighting": 0.0}, {"positives": 9, "negatives": 50}, {"positives": 1}])
@pytest.mark.parametrize("loss", ["infonce", "pairwise", "contrastive", "triplet"])
def test_a_step_with_more_or_fewer_positives_and_negatives_is_the_papers_sums(make, monkeypatch, loss, changes):
    model = make(loss=loss, labels="batch", **changes)
    assert_the_step_is_by_hand(model, Watch(model, monkeypatch))


@pytest.mark.parametrize("aux", AUX)
@pytest.mark.parametrize("loss, labels", [("infonce", "batch"), ("triplet", "batch"), ("decoupled-softmax", "all")])
def test_a_step_by_the_dot_product_is_the_papers_sums(make, monkeypatch, loss, labels, aux):
    model = make(aux, loss=loss, labels=labels, mined=0, normalise=False)
    assert_the_step_is_by_hand(model, Watch(model, monkeypatch))


@pytest.mark.parametrize("aux", AUX)
def test_by_the_dot_product_labels_are_searched_by_their_length_too(make, aux):
    model = make(aux, normalise=False)
    vectors, weights = (table.values.tolist() for table in model.encoder.tables)
    shared = model.aux.table.values.tolist()
    wanted = []
    for label in range(L):
        own = shared[SHARED[label]] if len(shared) else None
        wanted.append(label_by_hand(bag_by_hand(LABELS[label], vectors, weights), own, model.p.normalise_first))
    lengths = [math.sqrt(sum(x * x for x in row)) for row in wanted]
    found = model.label_embeddings()
    assert found == pytest.approx(np.array(wanted) / np.mean(lengths), abs=1e-5)
    assert np.linalg.norm(found, axis=1).mean() == pytest.approx(1) and np.linalg.norm(found, axis=1).std() > 0.1
    model.loss(np.array(DOCS), np.random.default_rng(0))
    assert np.linalg.norm(model.bank[DOCS], axis=1)[[0, 1, 2, 3, 5]] == pytest.approx(1)  # clusters are by cosine


@pytest.mark.parametrize("labels", ["batch", "all"])
def test_two_encoders_are_each_moved_by_their_own_side(make, labels):
    """Two that start alike have the gradients of one, in two parts [DPR]."""
    one, two = (make(labels=labels, loss="decoupled-softmax", mined=0, shared=shared) for shared in (True, False))
    losses_of = [model.loss(np.array(DOCS), np.random.default_rng(0)) for model in (one, two)]
    assert losses_of[0].item() == pytest.approx(losses_of[1].item())
    moves = []
    for model, loss in zip((one, two), losses_of):
        loss.backward()
        for encoder in dict.fromkeys((model.encoder, model.label_encoder)):
            table = encoder.tables[0]
            table.momentum, before = 0.0, table.values.clone()
            table.step()
            moves.append(table.values - before)
    both, docs, own = moves
    torch.testing.assert_close(docs + own, both, rtol=1e-4, atol=1e-6)
    assert docs.abs().max() > 0.01 and own.abs().max() > 0.01
    assert set(two.weights()) - set(one.weights()) == {f"labels.{name}" for name in one.encoder.state()}


def test_texts_are_read_once_documents_first_and_then_labels(make, texts, monkeypatch):
    """A step takes them as they were read: n-grams are hashed no second time."""
    reads = []
    works = BagOfEmbeddings.read
    monkeypatch.setattr(
        BagOfEmbeddings, "read", lambda self, tokens: (reads.append(len(tokens)), works(self, tokens))[1]
    )
    model = make(labels="batch")
    given = [texts[row].tolist() for row in range(7)] + [LABELS[row].tolist() for row in range(L)]
    assert [model.texts[row].tolist() for row in range(len(model.texts))] == given
    model.loss(np.array(DOCS), np.random.default_rng(0)).backward()
    model.doc_embeddings(np.arange(7)), model.label_embeddings()
    assert reads == [7 + L]


def test_a_step_draws_several_positives_and_mines_wrong_labels(make, positives, monkeypatch):
    """Several of some docs and fewer of others; labels that others bring in belong to a doc after all."""
    model = make(labels="batch")
    watch, brought = Watch(model, monkeypatch), 0
    for seed in range(5):
        model.loss(np.array(DOCS), np.random.default_rng(seed))
        drawn, mined = watch.last()
        pool = pool_by_hand(model, drawn, mined)
        for doc, own, hard in zip(DOCS, drawn, mined):
            known = positives[doc].tolist()
            assert len(set(own)) == len(own) == min(2, len(known)) and set(own) <= set(known)
            assert len(set(hard)) == len(hard) <= 2 and not set(hard) & set(known)
            assert not {(doc, label) for label in hard} & {tuple(pair) for pair in EXCLUDED}
            brought += len(set(known) & set(pool) - set(own))
        assert {len(row) for row in mined} >= {1, 2}
    assert brought and len({str(drawn) for drawn in watch.drawn}) > 1


def test_the_bank_holds_the_batchs_documents_at_length_one(make):
    model = make()
    model.bank[:] = 7.0
    model.loss(np.array(DOCS), np.random.default_rng(0))
    vectors, weights = (table.values.tolist() for table in model.encoder.tables)
    for doc in DOCS:
        wanted = unit_by_hand(bag_by_hand(model.texts[doc], vectors, weights))
        assert model.bank[doc].tolist() == pytest.approx(wanted, abs=1e-5)
    assert (model.bank[4] == 7.0).all()


# --- known positives --------------------------------------------------------------------------------------------------


def pushes(model: Siamese, docs: list[int], drawn: list[list[int]], mined: list[list[int]]) -> dict[tuple, float]:
    """(doc, label) -> the gradient of its score, over a pool of all labels; above 0, the two are pushed apart."""
    scores = torch.empty(len(docs), L).uniform_(-1, 1, generator=torch.Generator().manual_seed(1)).requires_grad_()
    given = from_rows(drawn, np.int32), from_rows(mined, np.int32)
    pairs = model._pairs(scores, torch.eye(L), np.array(docs), np.arange(L), *given)
    losses.LOSSES[model.p.loss](pairs, model.p).backward()
    return {(doc, label): scores.grad[b, label].item() for b, doc in enumerate(docs) for label in range(L)}


@pytest.mark.parametrize("loss", LOSSES)
def test_no_known_positive_is_a_negative_but_where_the_method_has_it_so(make, positives, loss):
    docs, drawn = [6, 0, 2, 4], [[3, 6], [0], [5, 1], [7, 4]]
    mined = [[0, 1], [2, 8], [3], [5, 0]]
    found = pushes(make(loss=loss, negatives=50, margin=2.0, weighting=0.0), docs, drawn, mined)
    known = {doc: positives[doc].tolist() for doc in docs}
    others = [(doc, label) for doc, own in zip(docs, drawn) for label in known[doc] if label not in own]
    assert len(others) == 3 + 1 + 2 + 1
    assert all(found[doc, label] > 0 for doc, row in zip(docs, mined) for label in row)
    if loss == "infonce":  # what was not drawn counts as wrong [DPR]
        assert all(found[pair] > 0 for pair in others)
    elif loss == "supcon":  # they share the denominator, so that one may lose to another but not to the rest
        assert all(sum(found[doc, label] for label in known[doc]) < 0 for doc in docs)
    elif loss == "decoupled-softmax":  # all that are known are drawn near, whoever brought them in
        assert all(found[doc, label] < 0 for doc in docs for label in known[doc])
    else:
        assert all(found[pair] == 0 for pair in others)
        assert all(found[doc, label] < 0 for doc, own in zip(docs, drawn) for label in own)


def test_training_mines_neither_positives_nor_pairs_that_may_not_be_predicted(make, positives, tmp_path: Path):
    model = make(mined=3, mined_from=L, loss="pairwise")
    model.miner = None
    fold = Fold("choose", np.arange(7), np.zeros(0, dtype=np.int64))
    judge = Judge(positives, excluded(7), np.ones(L), model.p.tail)
    fit(model, fold, judge, model.p, 0, Snapshots(tmp_path / "none"))
    for doc, near in enumerate(model.miner.near):  # it looks at as many as there are labels
        barred = {*positives[doc].tolist(), *(label for one, label in EXCLUDED if one == doc)}
        assert sorted(near[near >= 0]) == [label for label in range(L) if label not in barred]


# --- the losses that are offered --------------------------------------------------------------------------------------


def params(**changes) -> Params:
    return check(Params, VALUES | {"mined": 2, "labels": "batch"} | changes, "here")


def test_every_loss_is_offered_that_this_stage_has_the_parameters_for():
    assert set(OPTIONS) <= {field.name for field in fields(Params)}
    allowed = next(field for field in fields(Params) if field.name == "loss").metadata["among"]
    assert allowed == losses.offered(OPTIONS, draws=True, logistic=False)
    assert set(allowed) == set(LOSSES) == set(losses.LOSSES) - {"bce"}  # each has its sums above
    assert [params(loss=loss).loss for loss in allowed] == allowed
    with pytest.raises(UserError, match=f"here.loss is 'hinge'; allowed: {', '.join(allowed)}"):
        params(loss="hinge")


@pytest.mark.parametrize("loss", LOSSES)
def test_on_all_labels_the_loss_is_a_softmax(loss):
    if loss in SOFTMAX:
        assert params(loss=loss, labels="all").labels == "all"
        return
    with pytest.raises(UserError, match=f"labels is all, for which loss can be a softmax alone, not {loss}"):
        params(loss=loss, labels="all")


def test_a_loss_of_mined_negatives_needs_some():
    with pytest.raises(UserError, match="loss is pairwise, which compares with mined negatives alone"):
        params(loss="pairwise", mined=0)
    assert params(loss="triplet", mined=0).mined == 0
