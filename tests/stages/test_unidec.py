"""The unified method: a step's loss against the paper's sums as loops, its batches, and what its stages write."""

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.tiny import (
    LABELS,
    NAMED,
    TEST,
    TRAIN,
    UNIDEC,
    UNIFIED,
    branch,
    dataset_rows,
    home,
    make_params,
    make_project,
    run_stage,
    run_stages,
    small_checkpoint,
    write_params,
)
from tests.model.test_heads import DIMS as SMALL
from tests.model.test_heads import bag
from tests.stages.test_stages import FITS, KEYS, assert_nothing_left, assert_one_sentence, assert_unit, load_csv
from tests.train.test_points import LABELS as LABEL_TEXTS
from unidec import train
from unidec.train import Params, PickSome, Unified, fit
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.folds import Fold
from xcutils.core.params import check
from xcutils.core.pipelines import UnifiedTop
from xcutils.core.ragged import Ragged, concatenate, from_rows
from xcutils.core.scratch import Snapshots
from xcutils.model.encoders import encode, load_encoder
from xcutils.model.heads import TwoHeads
from xcutils.rank.scoring import load_split
from xcutils.rank.served import load
from xcutils.rank.weights import Fusion
from xcutils.search.metrics import evaluate, pair_matrix, without
from xcutils.search.propensity import inverse_propensities
from xcutils.train import losses
from xcutils.train.fitting import Judge
from xcutils.train.mining import Miner
from xcutils.train.points import Points

pytestmark = pytest.mark.stage

L, DIMS = len(LABELS), 16
VALUES = make_params(UNIDEC)["train"]
LOSSES = ["decoupled-softmax", "supcon", "bce", "decoupled-softmax+bce", "supcon+bce"]
LOSSES += ["decoupled-softmax+supcon", "decoupled-softmax+supcon+bce"]
# Values that no two terms share, so that none can stand in for another.
STEP = {"share": 0.3, "tau": 0.2, "bce_tau": 0.35, "bce_weight": 0.7, "symmetric": True, "batches": "clustered"}
STEP |= {"classifier_symmetric": True}
STEP |= {"encoder_loss": "decoupled-softmax", "classifier_loss": "supcon", "dim": 0, "refresh": 2}
STEP |= {"extra": 0, "average_after": 0}  # each has a test of its own
EXCLUDED = [[0, 8], [2, 7]]  # pairs of a doc and a label that may not be predicted


# --- a model by hand: 7 docs, 9 labels, of which label 8 belongs to nobody --------------------------------------------


@pytest.fixture
def make(texts, positives) -> Callable[..., Unified]:
    """A model of the docs and, with `soft`, of two label texts, with negatives mined once; dropout only on demand."""

    def build(*, beta: int = 2, eta: int = 2, soft: bool = False, dropouts=(0.0, 0.0), todo=None, **changes) -> Unified:
        torch.manual_seed(0)
        tree = VALUES | STEP | changes
        p, top = check(Params, tree, "here"), UnifiedTop(beta=beta, eta=eta, seed=0)
        classifier = p.classifier_loss != "none"
        heads = TwoHeads(bag(), dim=p.dim or SMALL, classifier=classifier, dropouts=dropouts)
        model = Unified(heads, points_of(texts, positives, soft, todo), LABEL_TEXTS, p, top)
        with torch.no_grad():
            for tensor in model.weights().values():  # away from the start, where both heads are alike
                tensor.add_(0.3 * torch.randn(tensor.shape))
        return model

    return build


def points_of(texts: Ragged, positives: Ragged, soft: bool, todo=None) -> Points:
    none = np.zeros(0, dtype=np.int32)
    if not soft:
        todo = np.arange(len(texts)) if todo is None else np.array(todo)
        return Points(texts, positives, None, none, todo)
    own = from_rows([[0, 3], [8]], np.int32)
    weights = np.concatenate([np.ones(len(positives.values)), [0.25, 1.0, 1.0]]).astype(np.float32)
    tokens = concatenate(texts, LABEL_TEXTS.take(np.array([3, 8])))
    return Points(tokens, concatenate(positives, own), weights, np.array([3, 8]), np.arange(len(tokens)))


def excluded_of(model: Unified):
    return pair_matrix(np.array(EXCLUDED), (len(model.points.tokens), model.n_labels))


def first_epoch(model: Unified) -> Unified:
    """The model as the first step of the first epoch finds it: negatives mined."""
    if model.top.eta:
        known = model.points.positives.csr(model.n_labels) + excluded_of(model)
        model.miner = Miner(known, model.top.eta * model.p.refresh)
    PickSome(model, model.p, model.top)(0, np.random.default_rng(0))
    return model


class Watch:
    """What a model draws, which labels it encodes and which classifiers it takes, step by step."""

    def __init__(self, model: Unified, patch: pytest.MonkeyPatch):
        self.positives, self.mined, self.pools, self.rows = [], [], [], []
        self._record(patch, train, "sample_positives", self.positives, lambda args, made: made)
        self._record(patch, model.model, "both", self.pools, self._pool(model), torch.is_grad_enabled)
        self._record(patch, model.table, "rows", self.rows, lambda args, made: args[0].tolist())
        if model.miner is not None:
            self._record(patch, model.miner, "draw", self.mined, lambda args, made: made)

    @staticmethod
    def _record(patch, owner, name: str, into: list, what, when=lambda: True) -> None:
        works = getattr(owner, name)

        def watched(*args):
            made = works(*args)
            if when():
                into.append(what(args, made))
            return made

        patch.setattr(owner, name, watched)

    def _pool(self, model: Unified) -> Callable:
        """Which labels' texts stand behind those of the points, found by what the encoder reads of them."""
        read = model.model.read(LABEL_TEXTS)
        known = {tuple(read[label]): label for label in range(len(LABEL_TEXTS))}

        def labels(args, _) -> list[int]:
            texts, points = args[0], len(self.positives[-1])
            return [known[tuple(texts[row])] for row in range(points, len(texts))]

        return labels


def cosines(rows: list[list[float]], columns: list[list[float]]) -> list[list[float]]:
    def length(row):
        return math.sqrt(sum(x * x for x in row))

    return [[sum(a * b for a, b in zip(r, c)) / (length(r) * length(c)) for c in columns] for r in rows]


def products(rows: list[list[float]], columns: list[list[float]]) -> list[list[float]]:
    return [[sum(a * b for a, b in zip(r, c)) for c in columns] for r in rows]


def psl_by_hand(kind: str, scores: list[list[float]], owned: list[dict[int, float]], tau: float) -> float:
    """sum_i 1/|M_i| sum over p in M_i of -log( exp(s_ip/tau) / Z ), as a mean over the rows that have an M_i.

    scores  rows of cosines
    owned   M_i: column -> soft target, all 1 without label texts
    """
    total, counted = 0.0, 0
    for row, own in zip(scores, owned):
        counted += bool(own)
        for p, weight in own.items():
            pool = range(len(row)) if kind == "supcon" else [q for q in range(len(row)) if q == p or q not in own]
            share = math.exp(row[p] / tau) / sum(math.exp(row[q] / tau) for q in pool)
            total += weight / sum(own.values()) * -math.log(share)
    return total / max(1, counted)


def bce_by_hand(scores: list[list[float]], owned: list[dict[int, float]], p: Params, bias: float) -> float:
    """Sum (or mean) over the pool, mean over the docs, of the binary cross-entropy of sigmoid(s/tau + bias)."""
    total, tau, bias = 0.0, p.bce_tau, bias if p.bce_bias else 0.0
    for row, own in zip(scores, owned):
        for column, s in enumerate(row):
            chance, wanted = 1 / (1 + math.exp(-(s / tau + bias))), own.get(column, 0.0)
            total -= (wanted * math.log(chance) + (1 - wanted) * math.log(1 - chance)) / (len(row) if p.bce_mean else 1)
    return total / max(1, len(scores))


def head_by_hand(kind: str, scores, owned: list[dict[int, float]], p: Params, symmetric: bool, bias: float) -> float:
    """L_D or L_C: each softmax half docs -> labels, half labels -> docs, and the binary cross-entropy or that alone."""
    if kind == "bce":
        return bce_by_hand(scores, owned, p, bias)
    turned = [list(column) for column in zip(*scores)]
    owners = [{row: own[column] for row, own in enumerate(owned) if column in own} for column in range(len(turned))]
    total = 0.0
    for part in kind.split("+"):
        if part == "bce":
            total += p.bce_weight * bce_by_hand(scores, owned, p, bias)
        elif symmetric:
            total += psl_by_hand(part, scores, owned, p.tau) / 2 + psl_by_hand(part, turned, owners, p.tau) / 2
        else:
            total += psl_by_hand(part, scores, owned, p.tau)
    return total


def owned_by_hand(points: Points, docs: list[int], pool: list[int]) -> list[dict[int, float]]:
    """For each doc, place in the pool -> target of every label that is known to be its own."""
    weights = np.ones(len(points.positives.values)) if points.weights is None else points.weights
    soft, owned = Ragged(weights, points.positives.offsets), []
    for doc in docs:
        targets = dict(zip(points.positives[doc].tolist(), soft[doc].tolist()))
        owned.append({column: targets[label] for column, label in enumerate(pool) if label in targets})
    return owned


def loss_by_hand(model: Unified, docs: list[int], pool: list[int], rows: list[int] | None) -> float:
    """lambda L_D + (1 - lambda) L_C over all known positives of the pool, from the positives as they are given.

    Where there are classifiers, label texts among the points are in L_C alone.

    rows  the classifiers in L_C; L_D alone where there are none
    """
    p, points = model.p, model.points
    with torch.no_grad():
        docs_text, docs_label = model.model.both(model.model.read(points.tokens.take(np.array(docs))), p.normalise)
        labels_text, _ = model.model.both(model.model.read(LABEL_TEXTS.take(np.array(pool))))
    bias = float(model.bias["bias"].detach())
    docs_of_head = [place for place, doc in enumerate(docs) if doc < points.n_docs or model.model.label is None]
    scores = cosines([docs_text.tolist()[place] for place in docs_of_head], labels_text.tolist())
    owned = owned_by_hand(points, [docs[place] for place in docs_of_head], pool)
    total = head_by_hand(p.encoder_loss, scores, owned, p, p.symmetric, bias)
    if rows is None:
        return total
    compare = cosines if p.normalise else products
    scores, owned = compare(docs_label.tolist(), model.table.values[rows].tolist()), owned_by_hand(points, docs, rows)
    other = head_by_hand(p.classifier_loss, scores, owned, p, p.classifier_symmetric, bias)
    return p.share * total + (1 - p.share) * other


# --- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta, eta", [(1, 0), (1, 2), (2, 1), (3, 3), (99, 99)])
def test_a_pool_is_what_was_drawn_and_mined_each_label_once(make, positives, monkeypatch, beta, eta):
    model = first_epoch(make(beta=beta, eta=eta))
    watch, docs = Watch(model, monkeypatch), np.array([6, 3, 0, 2])
    for seed in range(10):
        model.loss(docs, np.random.default_rng(seed))
    for step, pool in enumerate(watch.pools):
        drawn, mined = watch.positives[step], watch.mined[step] if eta else from_rows([[]] * 4, np.int32)
        assert pool == watch.rows[step] == sorted({*drawn.values.tolist(), *mined.values.tolist()})
        for place, doc in enumerate(docs):
            own, hard, known = drawn[place].tolist(), mined[place].tolist(), positives[doc].tolist()
            assert len(set(own)) == len(own) == min(beta, len(known)) and set(own) <= set(known)
            assert len(set(hard)) == len(hard) <= eta and not set(hard) & set(known)
            assert not {(int(doc), label) for label in hard} & {tuple(pair) for pair in EXCLUDED}
    assert beta > 4 or len({tuple(pool) for pool in watch.pools}) > 1  # another draw at every step
    assert eta == 0 or any(len(row) for row in watch.mined)


@pytest.mark.parametrize("classifier_loss", [*LOSSES, "none"])
@pytest.mark.parametrize("encoder_loss", LOSSES)
def test_the_loss_of_a_step_is_the_papers_sums(make, positives, monkeypatch, encoder_loss, classifier_loss):
    ways = ((True, True, False), (False, False, False), (True, False, True), (False, True, True))
    for symmetric, other, soft in ways:
        changes = {"encoder_loss": encoder_loss, "classifier_loss": classifier_loss}
        changes |= {"symmetric": symmetric, "classifier_symmetric": other}
        model = first_epoch(make(beta=1, eta=1, soft=soft, **changes))
        watch, docs = Watch(model, monkeypatch), [6, 3, 0, 2, 5] + [7, 8] * soft
        for seed in range(3):
            found = model.loss(np.array(docs), np.random.default_rng(seed)).item()
            pool, rows, drawn = watch.pools[-1], watch.rows[-1] if watch.rows else None, watch.positives[-1]
            assert found == pytest.approx(loss_by_hand(model, docs, pool, rows), rel=2e-4)
            assert rows == (None if classifier_loss == "none" else pool)
        brought = [label for label in positives[6] if label in pool and label not in drawn[0]]
        assert brought  # positives that others brought in are among those counted above


@pytest.mark.parametrize("classifier_loss", LOSSES)
@pytest.mark.parametrize("changes", [{"normalise": False}, {"bce_bias": False}, {"bce_mean": True}])
def test_classifiers_as_the_source_has_them_are_its_sums(make, monkeypatch, classifier_loss, changes):
    """Raw dot products, binary cross-entropy without a bias, its mean over the pool."""
    for soft in (False, True):
        model = first_epoch(make(beta=1, eta=1, soft=soft, classifier_loss=classifier_loss, **changes))
        watch, docs = Watch(model, monkeypatch), [6, 3, 0, 2, 5] + [7, 8] * soft
        found = model.loss(np.array(docs), np.random.default_rng(0)).item()
        assert found == pytest.approx(loss_by_hand(model, docs, watch.pools[-1], watch.rows[-1]), rel=2e-4)


def capped_by_hand(fills: list[list[int]], cap: int, gap: int) -> list[int]:
    """The most frequent of the first labels; while more than `gap` places are free, those of the next ones."""
    pool: list[int] = []
    for place, fill in enumerate(fills):
        if place == 0 or cap - len(pool) > gap:
            counts = {label: fill.count(label) for label in sorted(set(fill) - set(pool))}
            pool += sorted(counts, key=lambda label: -counts[label])[: cap - len(pool)]
        else:
            break
    return sorted(pool)


@pytest.mark.parametrize("cap, gap", [(1, 0), (2, 0), (3, 0), (5, 0), (5, 2), (7, 1), (50, 0), (50, 49)])
def test_a_capped_pool_is_filled_in_turn(make, positives, cap, gap):
    model, lost = first_epoch(make(beta=1, eta=1, cap=cap, gap=gap)), 0
    docs = np.array([6, 3, 0, 2, 5])
    for seed in range(10):
        with pytest.MonkeyPatch.context() as patch:
            watch = Watch(model, patch)
            points, pool = model.pool(docs, np.random.default_rng(seed))
        drawn, mined = watch.positives[-1].values.tolist(), watch.mined[-1].values.tolist()
        own = {int(doc): positives[doc].tolist() for doc in docs}
        fills = [drawn, mined, [label for doc in docs for label in own[int(doc)]]]
        assert pool.tolist() == capped_by_hand(fills, cap, gap) and len(pool) <= cap
        assert points.tolist() == [doc for doc in docs if set(own[int(doc)]) & set(pool.tolist())]
        lost += len([doc for doc in docs if own[int(doc)]]) - len(points)
        found = model.loss(docs, np.random.default_rng(seed)).item()
        assert found == pytest.approx(loss_by_hand(model, points.tolist(), pool.tolist(), pool.tolist()), rel=2e-4)
    assert lost > 0 or cap > 3  # documents without a positive in the pool are left out


@pytest.mark.parametrize("extra", [1, 4, 50])
@pytest.mark.parametrize("soft", [False, True])
def test_random_labels_are_compared_with_classifiers_alone(make, monkeypatch, extra, soft):
    model, counted = first_epoch(make(beta=1, eta=1, extra=extra, soft=soft)), 0
    watch, docs = Watch(model, monkeypatch), [6, 3, 2]
    for seed in range(10):
        found = model.loss(np.array(docs), np.random.default_rng(seed)).item()
        pool, rows, mined = watch.pools[-1], watch.rows[-1], watch.mined[-1]
        assert pool == sorted({*watch.positives[-1].values.tolist(), *mined.values.tolist()})
        assert rows == sorted({*rows}) and set(pool) <= set(rows) and len(rows) <= len(pool) + extra
        assert found == pytest.approx(loss_by_hand(model, docs, pool, rows), rel=2e-4)
        counted += len([label for label in set(rows) - set(pool) if label in model.points.positives[6]])
    assert counted or extra == 1  # some of them belong to a document after all, and count as such
    assert extra < 50 or rows == list(range(len(LABEL_TEXTS)))


def test_a_label_text_has_its_own_label_in_the_pool(make, monkeypatch):
    model = first_epoch(make(beta=1, eta=0, soft=True))
    watch = Watch(model, monkeypatch)
    for seed in range(10):
        model.loss(np.array([6, 7, 8]), np.random.default_rng(seed))
    assert model.points.labels.tolist() == [3, 8]
    drawn = [positives.values.tolist() for positives in watch.positives]
    assert not all({3, 8} <= set(some) for some in drawn)  # by their targets' draws alone they would be missing
    assert watch.pools == watch.rows == [sorted({3, 8, *some}) for some in drawn]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_batch_of_label_texts_alone_trains_the_classifiers(make, monkeypatch, kind, symmetric):
    model = first_epoch(make(soft=True, encoder_loss=kind, symmetric=symmetric))
    watch = Watch(model, monkeypatch)
    found = model.loss(np.array([7, 8]), np.random.default_rng(0))
    found.backward()
    assert found.item() == pytest.approx(loss_by_hand(model, [7, 8], watch.pools[0], watch.rows[0]), rel=2e-4)
    assert all(torch.isfinite(g).all() for table in [model.table, *model.model.tables] for g in table.gradients())
    head = model.model.text.weight.grad
    assert head is None or not head.any()


def test_a_label_that_nobody_owns_adds_nothing_to_its_own_direction(make):
    for kind in ("decoupled-softmax", "supcon"):
        model = make(encoder_loss=kind)
        generator = torch.Generator().manual_seed(0)
        x, labels = (torch.nn.functional.normalize(torch.randn(n, 4, generator=generator), dim=1) for n in (3, 5))
        known = [torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2]), None]  # labels 3 and 4 are nobody's
        there = [model._loss(kind, x, labels[:n], known, False).item() for n in (3, 4, 5)]
        back = [2 * model._loss(kind, x, labels[:n], known, True).item() - one for n, one in zip((3, 4, 5), there)]
        assert back == pytest.approx([back[0]] * 3, rel=1e-5) and back[0] > 0
        assert there[0] < there[1] < there[2]  # but it is a negative of every document
        assert model._loss(kind, x, labels[3:], [torch.zeros(0, dtype=torch.int64)] * 2 + [None], True).item() == 0


def fit_alone(model: Unified, path: Path, docs: list[int], validation=()) -> None:
    """Train as the stage does, on these docs."""
    fold = Fold("choose", np.array(docs), np.array(validation, dtype=np.int64))
    judge = Judge(model.points.positives, excluded_of(model), np.ones(model.n_labels), model.p.tail)
    fit(model, fold, judge, model.p, model.top, Snapshots(path / "none"))


def test_only_the_classifiers_of_the_pools_are_touched(make, monkeypatch, tmp_path):
    model = make(beta=1, eta=1, extra=1, todo=[0, 1], epochs=2, batch_size=16, warmup=0, refresh=1)
    before, watch = model.table.values.clone(), Watch(model, monkeypatch)
    fit_alone(model, tmp_path, [0, 1])
    touched = np.unique(np.concatenate(watch.rows))
    others = np.setdiff1d(np.arange(len(LABEL_TEXTS)), touched)
    assert len(watch.rows) == 2 and 0 < len(touched) < len(LABEL_TEXTS)
    assert model.table.values[others].numpy().tobytes() == before[others].numpy().tobytes()
    for moment in (model.table.first, model.table.second):
        assert not moment[others].any() and moment[touched].any(dim=1).all()
    assert (model.table.values[touched] != before[touched]).any(dim=1).all()


def test_encoder_heads_and_classifiers_move_at_their_own_rates(make, tmp_path):
    rates = {"lr": 0.004, "head_lr": 0.02, "classifier_lr": 0.1}
    model = make(**rates, epochs=1, batch_size=16, warmup=0, weight_decay=0.0, encoder_loss="supcon+bce")
    before = {name: tensor.detach().clone() for name, tensor in model.weights().items()}
    fit_alone(model, tmp_path, list(range(7)))
    for name, tensor in model.weights().items():  # the first step of Adam is as long as its rate, wherever it goes
        rate = rates["classifier_lr" if name == "classifiers" else "lr" if "encoder." in name else "head_lr"]
        assert (tensor - before[name]).abs().max().item() == pytest.approx(rate, rel=0.01), name


def test_the_encoder_alone_has_no_classifiers(make, monkeypatch, tmp_path):
    model = make(classifier_loss="none", epochs=2, share=0.3)
    assert model.table.values.shape == (0, SMALL) and model.model.label is None
    fit_alone(model, tmp_path, list(range(7)))
    assert model.table.first is None
    assert list(model.vectors()) == ["labels"] and model.vectors()["labels"].shape == (len(LABEL_TEXTS), SMALL)


def test_classifiers_start_as_the_label_embeddings_and_their_head_as_the_other(texts, positives):
    p, top = check(Params, VALUES | STEP, "here"), UnifiedTop(beta=2, eta=2, seed=0)
    torch.manual_seed(0)
    model = Unified(TwoHeads(bag(), dim=4, classifier=True), points_of(texts, positives, False), LABEL_TEXTS, p, top)
    np.testing.assert_array_equal(model.table.numpy(), model.label_embeddings())
    assert torch.equal(model.model.label.weight, model.model.text.weight)
    assert np.abs(model.table.numpy()).sum(axis=1).min() > 0


def test_at_random_nothing_starts_as_the_encoders_space(make, texts, positives):
    """Xavier's bound is sqrt(6 / (rows + columns)); biases are zero."""
    p, top = check(Params, VALUES | STEP | {"start": "xavier"}, "here"), UnifiedTop(beta=2, eta=2, seed=0)
    model = Unified(TwoHeads(bag(), dim=4, classifier=True), points_of(texts, positives, False), LABEL_TEXTS, p, top)
    heads = [model.model.text, model.model.label]
    for tensor in [model.table.values, *(head.weight.detach() for head in heads)]:
        bound = math.sqrt(6 / sum(tensor.shape))
        assert 0.6 * bound < tensor.abs().max() <= bound
    assert not any(head.bias.any() for head in heads) and not torch.equal(heads[0].weight, heads[1].weight)
    assert make(start="xavier", classifier_loss="none").table.values.shape == (0, SMALL)


def test_with_dense_updates_every_classifier_decays(make, monkeypatch, tmp_path):
    changes = {"updates": "all", "classifier_weight_decay": 0.5, "classifier_lr": 0.1, "warmup": 0, "epochs": 1}
    changes |= {"schedule": "constant"}
    model = make(beta=1, eta=0, todo=[0], batch_size=16, **changes)
    before, watch = model.table.values.clone(), Watch(model, monkeypatch)
    fit_alone(model, tmp_path, [0])
    others = np.setdiff1d(np.arange(len(LABEL_TEXTS)), np.concatenate(watch.rows))
    assert len(others) > 3
    torch.testing.assert_close(model.table.values[others], 0.95 * before[others])


def test_dropout_of_the_classifiers_leaves_out_some_of_their_values(make, monkeypatch):
    model = first_epoch(make(label_dropout=0.5, normalise=False))
    model.loss(np.array([6, 3]), np.random.default_rng(0)).backward()
    gradient = model.table.gradients()[0]
    assert 0.2 < (gradient == 0).float().mean() < 0.8


# --- the losses that are offered --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["encoder_loss", "classifier_loss"])
def test_every_loss_of_a_temperature_is_offered_and_every_sum_of_them(name):
    allowed = next(field for field in fields(Params) if field.name == name).metadata["among"]
    single = losses.offered(["tau"])
    assert {kind for kind in allowed if "+" not in kind} - {"none"} == set(single)
    assert set(allowed) == {*LOSSES, *(["none"] if name == "classifier_loss" else [])}  # each has its sums above
    for kind in losses.LOSSES:
        tree = VALUES | {name: kind}
        if kind in single:
            assert getattr(check(Params, tree, "here"), name) == kind
            continue
        with pytest.raises(UserError, match=f"here.{name} is '{kind}'; allowed: decoupled-softmax, "):
            check(Params, tree, "here")


# --- batches ----------------------------------------------------------------------------------------------------------


def many(batches: str, count: int = 45, **changes) -> PickSome:
    """Batches of 8 of so many made-up docs; doc 3 is left out."""
    rng = np.random.default_rng(0)
    tokens = from_rows(rng.integers(4, 16, (count, 3)).tolist(), np.int32)
    positives = from_rows(rng.integers(0, 9, (count, 1)).tolist(), np.int32)
    tree = VALUES | STEP | {"batches": batches, "batch_size": 8, "refresh": 3} | changes
    p, top = check(Params, tree, "here"), UnifiedTop(beta=2, eta=2, seed=0)
    todo = np.delete(np.arange(count), 3)
    points = Points(tokens, positives, None, np.zeros(0, dtype=np.int32), todo)
    model = Unified(TwoHeads(bag(), dim=4, classifier=True), points, LABEL_TEXTS, p, top)
    return PickSome(model, p, top)


@pytest.mark.parametrize("batches", ["clustered", "random"])
def test_each_point_comes_once_per_epoch(batches):
    pick = many(batches)
    for epoch in range(4):
        found = pick(epoch, np.random.default_rng([0, epoch]))
        assert sorted(np.concatenate(found).tolist()) == pick.todo.tolist()


def test_before_the_first_clustering_batches_are_random_and_nothing_is_mined():
    pick = many("clustered", cluster_from=2, refresh=2)
    model = pick.model
    model.miner = Miner(model.points.positives.csr(model.n_labels), 4)
    for epoch, is_new in enumerate([False, False, True, False, True, False]):
        before = model.miner.near.copy()
        found = pick(epoch, np.random.default_rng([0, epoch]))
        assert (model.miner.near[pick.todo] >= 0).any() == (epoch >= 2)
        assert (pick.clusters.max() > 0) == (epoch >= 2)
        assert is_new or (model.miner.near == before).all()
        assert sorted(np.concatenate(found).tolist()) == pick.todo.tolist()


def test_a_cluster_is_a_batch_in_an_order_of_its_own_every_epoch():
    pick = many("clustered")
    first, again = (pick(0, np.random.default_rng(seed)) for seed in (1, 2))
    clusters = {tuple(pick.todo[pick.clusters == c]) for c in range(pick.clusters.max() + 1)}
    assert {tuple(sorted(batch)) for batch in first} == {tuple(sorted(batch)) for batch in again} == clusters
    assert len(first) == len(clusters) == round(44 / 8) and np.ptp([len(batch) for batch in first]) <= 1
    assert [tuple(batch) for batch in first] != [tuple(batch) for batch in again]
    near = encode(pick.model.model, pick.model.points.tokens)[:, : pick.model.model.size]
    spread = np.mean([np.linalg.norm(near[batch] - near[batch].mean(axis=0)) for batch in first])
    random = np.mean([np.linalg.norm(near[b] - near[b].mean(axis=0)) for b in np.array_split(pick.todo, len(first))])
    assert spread < random


def test_random_batches_are_full_and_others_every_epoch():
    pick = many("random")
    first, again = (pick(epoch, np.random.default_rng([0, epoch])) for epoch in (0, 1))
    assert [len(batch) for batch in first] == [8, 8, 8, 8, 8, 4]
    assert [set(batch) for batch in first] != [set(batch) for batch in again]
    assert [batch.tolist() for batch in first] == [b.tolist() for b in many("random")(0, np.random.default_rng([0, 0]))]


@pytest.mark.parametrize("mined", [True, False])
@pytest.mark.parametrize("batches", ["clustered", "random"])
def test_clusters_and_negatives_are_found_again_every_few_epochs_only(monkeypatch, batches, mined):
    pick, seen = many(batches), {"clusters": [], "mined": []}
    works = train.balanced_clusters
    if mined:
        pick.model.miner = Miner(pick.model.points.positives.csr(len(LABEL_TEXTS)), 6)
        refresh = pick.model.miner.refresh
        monkeypatch.setattr(
            pick.model.miner, "refresh", lambda *a, **k: (seen["mined"].append(epoch), refresh(*a, **k))
        )
    monkeypatch.setattr(train, "balanced_clusters", lambda *a, **k: (seen["clusters"].append(epoch), works(*a, **k))[1])
    for epoch in range(7):
        before = {name: array.copy() for name, array in pick.memory().items()}
        pick(epoch, np.random.default_rng(epoch))
        if epoch % 3:
            assert all((pick.memory()[name] == array).all() for name, array in before.items())
        with torch.no_grad():
            pick.model.model.text.weight.add_(torch.randn(pick.model.model.text.weight.shape))
    assert seen == {"clusters": [0, 3, 6] if batches == "clustered" else [], "mined": [0, 3, 6] if mined else []}


def test_negatives_are_the_nearest_wrong_labels_of_the_encoders_head(make):
    model = first_epoch(make(eta=1, refresh=4))
    size, wrong = model.model.size, excluded_of(model).toarray() + model.points.positives.csr(9).toarray() > 0
    docs, labels = (encode(model.model, t)[:, :size] for t in (model.points.tokens, LABEL_TEXTS))
    scores = cosines(docs.tolist(), labels.tolist())
    for doc in model.points.todo:
        nearest = sorted(range(9), key=lambda label: -scores[doc][label])[:4]  # eta x refresh
        found = model.miner.near[doc]
        assert sorted(found[found >= 0]) == sorted(label for label in nearest if not wrong[doc, label])


def test_training_mines_neither_positives_nor_pairs_that_may_not_be_predicted(make, positives, tmp_path):
    model = make(eta=3, refresh=3, epochs=1)
    fit_alone(model, tmp_path, list(range(7)))
    excluded = {doc: [label for one, label in EXCLUDED if one == doc] for doc in range(7)}
    for doc, near in enumerate(model.miner.near):  # eta x refresh is as many as there are labels
        assert sorted(near[near >= 0]) == [x for x in range(9) if x not in positives[doc] and x not in excluded[doc]]


# --- what the stages write --------------------------------------------------------------------------------------------


@pytest.fixture
def change(unidec_run, tiny_model, tmp_path):
    """Run what follows from changed values of unidec/params.yaml upon the finished run: (folder, stderr)."""

    def run(first: str = "unidec/train", last: str = "unidec/score", **changes) -> tuple[Path, dict[str, str]]:
        own = {f"{UNIDEC}:{name}": value for name, value in changes.items()}
        place = tmp_path / f"branch{len(list(tmp_path.iterdir()))}"
        folder, left = branch(unidec_run, place, first, **small_checkpoint(tiny_model), **own)
        return folder, run_stages(folder, left[: left.index(last) + 1])

    return run


def read(folder: Path, fit: str, name: str) -> np.ndarray:
    """An array of the train stage."""
    return np.asarray(artifacts.load_array(artifacts.check(folder / home("unidec/train")) / fit, name))


def load_metrics(folder: Path) -> dict:
    return json.loads((folder / "unidec" / "metrics.json").read_text(encoding="utf-8"))


def assert_sound(metrics: dict, rows: list[str]) -> None:
    assert sorted(metrics) == sorted([*rows, "index", "probabilities", "docs"])
    assert [name.split()[-1] for name in metrics["index"] if name.startswith("recall")] == ["labels", "docs"]
    assert all(list(metrics[row]) == KEYS for row in rows)
    figures = np.array([value for row in rows for value in metrics[row].values()])
    assert np.isfinite(figures).all() and (figures >= 0).all() and (figures <= 100).all()


ROWS = ["concatenated", "classifier", "encoder", "memory", "fused"]


@pytest.mark.parametrize("fit", FITS)
def test_vectors_have_length_one_and_concatenated_is_both(unidec_run, fit):
    labels, classifiers, both, docs = (
        read(unidec_run, fit, name) for name in ("labels", "classifiers", "concatenated", "docs")
    )
    assert_unit(labels, (L, DIMS)), assert_unit(classifiers, (L, DIMS))
    assert_unit(both, (L, 2 * DIMS)), assert_unit(docs, (TRAIN, 2 * DIMS))
    np.testing.assert_array_equal(both, np.concatenate([labels, classifiers], axis=1) / np.float32(2**0.5))
    text, label = docs[:, :DIMS].tolist(), docs[:, DIMS:].tolist()
    mean = (np.array(cosines(text, labels.tolist())) + np.array(cosines(label, classifiers.tolist()))) / 2
    np.testing.assert_allclose(docs @ both.T, mean, atol=1e-5)
    assert np.abs(labels - classifiers).max() > 1e-3


@pytest.mark.parametrize("fit", FITS)
def test_the_saved_encoder_gives_the_saved_vectors(unidec_run, fit):
    encoder = load_encoder(unidec_run / home("unidec/train") / fit)
    docs = artifacts.load_ragged(unidec_run / "data" / "prepare" / "train", "tokens")
    np.testing.assert_array_equal(read(unidec_run, fit, "docs"), encode(encoder, docs))
    labels = artifacts.load_ragged(unidec_run / "data" / "prepare" / "labels", "tokens")
    np.testing.assert_allclose(
        read(unidec_run, fit, "labels"), encode(encoder, labels)[:, :DIMS] * np.float32(2**0.5), atol=1e-6
    )


def test_the_curve_shows_every_epoch_and_the_final_fit_follows_the_choice(unidec_run):
    choose, final = (load_csv(unidec_run / home("unidec/train") / f"curve-{fit}.csv") for fit in FITS)
    assert len(choose) == VALUES["epochs"]
    for part in (choose, final):
        assert [int(row["epoch"]) for row in part] == list(range(1, len(part) + 1))
        assert all(float(row["loss"]) > 0 and row["skipped"] == "0" for row in part)
    best = max(range(len(choose)), key=lambda i: float(choose[i]["N@5"]))
    assert len(final) == best + 1 and not any("N@5" in row for row in final)
    assert {"epoch", "loss", "N@5", "P@1", "P@5"} <= set(choose[0])


def test_the_model_compares_each_head_with_its_own_vectors(unidec_run):
    folder = artifacts.check(unidec_run / home("unidec/index"))
    model, fusion = load(folder), Fusion(**artifacts.load_json(folder, "fusion.json"))
    assert model.settings.labels == {"count": L, "dim": 2 * DIMS + 1} and model.settings.views == [
        [0, DIMS],
        [DIMS, 2 * DIMS],
    ]
    labels, classifiers = (read(unidec_run, "final", name) for name in ("labels", "classifiers"))
    found = model.labels.take(np.arange(L))
    both = np.concatenate([fusion.similarity * labels, fusion.classifier * classifiers], axis=1)
    np.testing.assert_allclose(found[:, :-1], both, atol=1e-2)


def test_metrics_have_every_row_and_show_that_something_was_learnt(unidec_run):
    metrics = load_metrics(unidec_run)
    assert_sound(metrics, ROWS)
    assert metrics["fused"]["R@10"] > 3 * 100 * 5 / L and metrics["index"]["recall@100 labels"] > 99.9
    bins = load_csv(unidec_run / home("unidec/score") / "bins.csv")
    for row in ROWS:
        assert sum(float(b["P@5"]) for b in bins if b["row"] == row) == pytest.approx(metrics[row]["P@5"], abs=1e-3)


def test_rows_are_rankings_by_the_mean_cosine_and_by_each_heads(unidec_run):
    prepare, encoder = unidec_run / "data" / "prepare", load_encoder(unidec_run / home("unidec/train") / "final")
    test, queries = load_split(prepare / "test", L), encode(encoder, load_split(prepare / "test", L).tokens)
    labels, classifiers = (read(unidec_run, "final", name) for name in ("labels", "classifiers"))
    text, label = (
        np.array(cosines(queries[:, some].tolist(), vectors.tolist()))
        for some, vectors in ((slice(0, DIMS), labels), (slice(DIMS, None), classifiers))
    )
    inverse = inverse_propensities(prepare / "train", prepare / "labels")
    for row, scores in (("concatenated", (text + label) / 2), ("encoder", text), ("classifier", label)):
        ranking = without(np.argsort(-scores, axis=1, kind="stable"), test.excluded)
        assert evaluate(ranking, test.truth, inverse) == pytest.approx(load_metrics(unidec_run)[row], abs=1e-3), row
    assert len(queries) == TEST


def test_the_encoder_alone_runs_to_the_end(change):
    folder, _ = change(**{"train.classifier_loss": "none"})
    assert_sound(load_metrics(folder), ["encoder", "memory", "fused"])
    for fold in FITS:
        names = {path.stem for path in (folder / home("unidec/train") / fold).glob("*.npy")}
        assert names == {"labels", "docs"}
        assert_unit(read(folder, fold, "labels"), (L, DIMS)), assert_unit(read(folder, fold, "docs"), (TRAIN, DIMS))
    assert artifacts.load_json(folder / home("unidec/train") / "final", "encoder.json")["classifier"] is False


KINDS = {
    "bi-gru": {"train.kind": "bi-gru", "train.dropout": 0.1},
    "transformer": {"train.kind": "transformer", "train.layers": 1, "train.lr": 0.001},
    "smaller heads": {"train.dim": 5},
    "random batches, nothing mined": {"train.batches": "random", "eta": 0},
    "both ways, with cross-entropy": {
        "train.symmetric": True,
        "train.classifier_symmetric": True,
        "train.classifier_loss": "decoupled-softmax+bce",
    },
    "random labels": {"train.extra": 10},
    "averaged": {"train.average_after": 1},
    "exact search": {"index.search": "exact"},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_runs_to_the_end(change, name):
    folder, said = change(**KINDS[name], **{"train.epochs": 2})
    assert_sound(load_metrics(folder), ROWS)
    dims = KINDS[name].get("train.dim", DIMS)
    assert_unit(read(folder, "final", "labels"), (L, dims))
    assert_unit(read(folder, "final", "docs"), (TRAIN, 2 * dims))
    assert all("arning" not in text for text in said.values())


def test_the_fit_that_chooses_does_not_see_the_validation_documents(change, unidec_run, tiny_model, tmp_path):
    """Their texts and labels are others: with one epoch, which is then the kept one, the same models come out."""
    held_out = np.asarray(artifacts.load_array(unidec_run / "data" / "prepare" / "train", "is_validation"))
    rows, epochs = dataset_rows(), {"train.epochs": 1}
    for doc in np.flatnonzero(held_out):
        if doc >= NAMED:
            rows["trn"][doc] |= {"title": "round round lid", "target_ind": [int(doc) % L]}
    settings = small_checkpoint(tiny_model) | {f"{UNIDEC}:{name}": value for name, value in epochs.items()}
    other = make_project(tmp_path / "other", rows, **settings)
    run_stages(other, ["prepare", "unidec/embed", "unidec/gandalf", "unidec/train"])
    same, _ = change(last="unidec/train", **epochs)
    np.testing.assert_array_equal(artifacts.load_array(other / "data" / "prepare" / "train", "is_validation"), held_out)
    for name in ("labels", "classifiers", "concatenated"):
        np.testing.assert_array_equal(read(other, "choose", name), read(same, "choose", name))
        assert (read(other, "final", name) != read(same, "final", name)).any()
    weights = home("unidec/train") / "choose" / "encoder.safetensors"
    assert (other / weights).read_bytes() == (same / weights).read_bytes()
    docs = [read(folder, "choose", "docs") for folder in (other, same)]
    assert ((docs[0] == docs[1]).all(axis=1) >= ~held_out).all() and (docs[0] != docs[1]).any()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(change, unidec_run):
    again, _ = change("unidec/gandalf")
    for stage in UNIFIED:
        assert artifacts.fingerprint(again / home(stage)) == artifacts.fingerprint(unidec_run / home(stage)), stage
    assert load_metrics(again) == load_metrics(unidec_run)
    other, _ = change("unidec/gandalf", "unidec/train", seed=1)
    for name in ("labels", "classifiers"):
        assert (read(other, "final", name) != read(unidec_run, "final", name)).any()


def test_label_texts_as_points_change_the_model_and_no_document(change, unidec_run):
    folder, said = change("unidec/gandalf", **{"gandalf.labels": 1.0})
    assert "gandalf (final): 40 label texts" in said["unidec/gandalf"]
    for fold in FITS:
        own, plain = (base / home("unidec/gandalf") / fold for base in (folder, unidec_run))
        np.testing.assert_array_equal(artifacts.load_array(own, "docs"), artifacts.load_array(plain, "docs"))
        assert len(artifacts.load_array(own, "points")) == L and len(artifacts.load_array(plain, "points")) == 0
        assert np.abs(read(folder, fold, "classifiers") - read(unidec_run, fold, "classifiers")).max() > 1e-3
        assert_unit(read(folder, fold, "docs"), (TRAIN, 2 * DIMS))
    assert_sound(load_metrics(folder), ROWS)


def test_without_refit_the_models_that_chose_are_used(tiny_model, tmp_path):
    folder = make_project(tmp_path, **small_checkpoint(tiny_model), **{"prepare.refit": False})
    run_stages(folder, ["prepare", *UNIFIED])
    assert [path.name for path in (folder / home("unidec/train")).iterdir() if path.is_dir()] == ["choose"]
    assert_sound(load_metrics(folder), ROWS)


# --- what goes wrong --------------------------------------------------------------------------------------------------

OUT_OF_RANGE = {
    "train.share": (1.5, "at most 1"),
    "train.tau": (0, "above 0"),
    "train.bce_tau": (-1, "above 0"),
    "train.bce_weight": (-0.1, "at least 0"),
    "train.head_dropout": (1, "at most 0.95"),
    "train.classifier_dropout": (-0.1, "at least 0"),
    "train.refresh": (0, "at least 1"),
    "train.pretrained": (-0.5, "at least 0"),
    "train.dim": (-3, "at least 0"),
    "train.extra": (-1, "at least 0"),
    "train.average_after": (-1, "at least 0"),
    "train.encoder_loss": ("none", "decoupled-softmax+bce"),
    "train.classifier_loss": ("triplet", "none"),
    "train.batches": ("sorted", "clustered, random"),
    "train.symmetric": ("maybe", "true or false"),
    "train.lr": ("fast", "a number"),
    "train.K": (4, "not a parameter"),
    "gandalf.labels": (2, "at most 1"),
    "score.shortlist": (5, "at least 100"),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_values_out_of_range_are_refused_by_the_first_stage_with_file_and_name(unidec_run, tmp_path, name):
    value, allowed = OUT_OF_RANGE[name]
    folder, _ = branch(unidec_run, tmp_path, "unidec/embed", **{f"{UNIDEC}:{name}": value})
    assert_one_sentence(run_stage(folder, "unidec/embed"), f"unidec/params.yaml: {name} is", allowed)
    assert not (folder / "unidec" / "data").exists()


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"beta": 0}, ["unidec/params.yaml.beta is 0", "at least 1"]),
        ({"eta": -1}, ["unidec/params.yaml.eta is -1", "at least 0"]),
        ({"K": 12}, ["unidec/params.yaml.K is not a parameter", "beta, eta, seed"]),
        ({"encoder": {"epochs": 3}}, ["unidec/params.yaml: there is no stage 'encoder'"]),
        ({"train": None}, ["train"]),
    ],
)
def test_what_belongs_to_the_other_pipeline_is_refused(unidec_run, tmp_path, changes, named):
    folder, _ = branch(unidec_run, tmp_path, "unidec/gandalf", **{f"{UNIDEC}:{k}": v for k, v in changes.items()})
    assert_one_sentence(run_stage(folder, "unidec/gandalf"), *named)


def test_the_other_pipeline_refuses_a_section_of_this_one(tiny_model, tmp_path):
    folder = make_project(tmp_path, **small_checkpoint(tiny_model))
    write_params(folder, make_params(**small_checkpoint(tiny_model), train=VALUES))
    assert_one_sentence(run_stage(folder, "prepare"), "params.yaml: there is no stage 'train'")


def test_a_checkpoint_with_other_tokens_is_refused(unidec_run, tmp_path):
    folder, _ = branch(unidec_run, tmp_path, "unidec/train", **{f"{UNIDEC}:train.model": "all-MiniLM-L6-v2"})
    assert_one_sentence(
        run_stage(folder, "unidec/train"), "train.model is all-MiniLM-L6-v2", "prepare.tokenizer and train.model"
    )


def test_a_diverging_model_stops_with_advice_and_no_output(unidec_run, tiny_model, tmp_path):
    changes = small_checkpoint(tiny_model) | {f"{UNIDEC}:train.tau": 1e-40}
    folder, _ = branch(unidec_run, tmp_path, "unidec/train", **changes)
    assert_one_sentence(run_stage(folder, "unidec/train"), "not finite", "tau")
    assert_nothing_left(folder, "unidec/train")
