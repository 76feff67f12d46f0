import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from xcutils.train import losses
from xcutils.train.losses import hardest_positives, triplet


def decoupled_softmax(scores: torch.Tensor, is_positive: torch.Tensor, tau: float) -> torch.Tensor:
    """The loss of given scores: documents as rows of scores, labels as unit vectors."""
    labels = torch.eye(scores.shape[1], dtype=scores.dtype)
    return losses.decoupled_softmax(scores, labels, *is_positive.nonzero(as_tuple=True), tau=tau)


def decoupled_softmax_plain(x, labels, rows, columns, tau) -> torch.Tensor:
    """The same by autograd, every matrix kept."""
    scores = x @ labels.T / tau
    is_positive = torch.zeros(scores.shape, dtype=torch.bool)
    is_positive[rows, columns] = True
    rest = scores.masked_fill(is_positive, -torch.inf).logsumexp(dim=1)
    each = torch.nn.functional.softplus(rest[rows] - scores[rows, columns])
    count = is_positive.sum(dim=1)
    return (each / count[rows]).sum() / (count > 0).sum()


def triplet_by_hand(scores, is_positive, positive, margin, k, tau, weights=None) -> float:
    """The papers' sums as loops over lists; `positive` holds the scores trained on, inf where there are fewer.

    weights  soft targets, laid out as `positive`; all 1 without
    """
    total, k = 0.0, min(k, len(scores[0]))
    weights = weights or [[1.0] * len(wanted) for wanted in positive]
    for row, known, wanted, soft in zip(scores, is_positive, positive, weights):
        hardest = sorted((s for s, is_known in zip(row, known) if not is_known), reverse=True)[:k]
        for p, weight in zip(wanted, soft):
            active = [s for s in hardest if s - p + margin > 0]
            if tau == 0:
                total += weight * sum(s - p + margin for s in active)
                continue
            norm = sum(math.exp(s / tau) for s in active)
            total += weight * sum(math.exp(s / tau) / norm * (s - p + margin) for s in active)
    return total / (len(scores) * len(positive[0]) * k)


def hardest_by_hand(scores, is_positive, count) -> list[list[float]]:
    lowest = [sorted(s for s, is_known in zip(row, known) if is_known) for row, known in zip(scores, is_positive)]
    return [(row + [math.inf] * count)[:count] for row in lowest]


def decoupled_softmax_by_hand(scores, is_positive, tau) -> float:
    """-log of exp(p) / (exp(p) + sum of exp(negatives)): mean over a doc's positives, then over docs that have one."""
    docs = []
    for row, known in zip(scores, is_positive):
        rest = sum(math.exp(s / tau) for s, is_known in zip(row, known) if not is_known)
        each = [math.exp(s / tau) for s, is_known in zip(row, known) if is_known]
        if each:
            docs.append(sum(-math.log(e / (e + rest)) for e in each) / len(each))
    return sum(docs) / max(1, len(docs))


def differences(loss, scores: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """The gradient of a loss of nested lists by central differences."""
    gradient = torch.zeros_like(scores)
    for place in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        moved = [scores.clone(), scores.clone()]
        moved[0][tuple(place)] += step
        moved[1][tuple(place)] -= step
        gradient[tuple(place)] = (loss(moved[0].tolist()) - loss(moved[1].tolist())) / (2 * step)
    return gradient


def instance(seed: int, docs: int = 6, labels: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines (float64) and positives; doc 0 has no positive, doc 1 no negative, doc 2 one negative."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(docs, labels, generator=generator, dtype=torch.float64) - 1
    is_positive = torch.rand(docs, labels, generator=generator) < 0.4
    is_positive[0], is_positive[1], is_positive[2] = False, True, True
    is_positive[2, 5] = False
    return scores, is_positive


def sampled_columns(is_positive: torch.Tensor, count: int, seed: int) -> list[list[int]]:
    """Up to `count` random positives of each doc, as columns."""
    generator = torch.Generator().manual_seed(seed)
    owned = [row.nonzero().flatten().tolist() for row in is_positive]
    return [[row[i] for i in torch.randperm(len(row), generator=generator)[:count].tolist()] for row in owned]


def gathered(scores: torch.Tensor, columns: list[list[int]], count: int) -> torch.Tensor:
    """(B, count) scores at the columns, +inf where there are fewer: what the encoder stage passes on."""
    padded = torch.tensor([(row + [-1] * count)[:count] for row in columns])
    return scores.gather(1, padded.clamp(min=0)).masked_fill(padded < 0, torch.inf)


def assert_same_gradient(loss, by_hand, scores: torch.Tensor) -> None:
    leaf = scores.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert value.item() == pytest.approx(by_hand(scores.tolist()), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(leaf.grad, differences(by_hand, scores), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("margin", "k", "tau"), [(0.3, 3, 0.1), (0.3, 3, 0.0), (0.0, 1, 1.0), (2.0, 50, 0.5)])
def test_triplet_with_sampled_positives_is_the_loops(seed, margin, k, tau):
    scores, is_positive = instance(seed)
    columns = sampled_columns(is_positive, 2, seed)
    known = is_positive.tolist()

    def by_hand(rows):
        wanted = [([row[c] for c in chosen] + [math.inf] * 2)[:2] for row, chosen in zip(rows, columns)]
        return triplet_by_hand(rows, known, wanted, margin, k, tau)

    def loss(s):
        return triplet(s, is_positive, gathered(s, columns, 2), margin=margin, k=k, tau=tau)

    assert_same_gradient(loss, by_hand, scores)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_triplet_with_hardest_positives_is_the_loops(seed, tau):
    scores, is_positive = instance(seed)
    known = is_positive.tolist()

    def by_hand(rows):
        return triplet_by_hand(rows, known, hardest_by_hand(rows, known, 3), 0.2, 5, tau)

    def loss(s):
        return triplet(s, is_positive, hardest_positives(s, is_positive, 3)[0], margin=0.2, k=5, tau=tau)

    assert_same_gradient(loss, by_hand, scores)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("margin", "k", "tau"), [(0.3, 3, 0.1), (0.3, 3, 0.0), (1.0, 50, 0.5), (2.0, 2, 0.0)])
def test_triplet_with_soft_targets_is_the_loops(seed, margin, k, tau):
    """In the scores and in the soft targets; doc 0 has no positive, doc 2 fewer than there is room for."""
    scores, is_positive = instance(seed)
    columns, known = sampled_columns(is_positive, 3, seed), is_positive.tolist()
    columns[2] = columns[2][:2]
    generator = torch.Generator().manual_seed(seed)
    weights = 0.1 + 0.9 * torch.rand(len(scores), 3, generator=generator, dtype=torch.float64)

    def by_hand(rows, soft):
        wanted = [([row[c] for c in chosen] + [math.inf] * 3)[:3] for row, chosen in zip(rows, columns)]
        return triplet_by_hand(rows, known, wanted, margin, k, tau, soft)

    def loss(s, w):
        return triplet(s, is_positive, gathered(s, columns, 3), w, margin=margin, k=k, tau=tau)

    assert_same_gradient(lambda s: loss(s, weights), lambda rows: by_hand(rows, weights.tolist()), scores)
    assert_same_gradient(lambda w: loss(scores, w), lambda soft: by_hand(scores.tolist(), soft), weights)
    assert loss(scores, torch.ones_like(weights)).item() == loss(scores, None).item() != loss(scores, weights).item()
    missing = torch.tensor([[place >= len(row) for place in range(3)] for row in columns])
    assert missing[0].all() and missing[2].tolist() == [False, False, True]
    assert loss(scores, weights).item() == loss(scores, weights.masked_fill(missing, 99.0)).item()


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_hardest_positives_are_the_lowest_scores(count):
    scores, is_positive = instance(1)
    found, _ = hardest_positives(scores, is_positive, count)
    assert found.tolist() == hardest_by_hand(scores.tolist(), is_positive.tolist(), min(count, 8))
    assert torch.isinf(found[0]).all()  # the doc without positives


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_decoupled_softmax_is_the_loops(seed, tau):
    scores, is_positive = instance(seed)
    known = is_positive.tolist()
    assert_same_gradient(
        lambda s: decoupled_softmax(s, is_positive, tau=tau),
        lambda rows: decoupled_softmax_by_hand(rows, known, tau),
        scores / 2,
    )


def test_decoupled_softmax_leaves_the_other_positives_out():
    scores = torch.tensor([[0.1, 0.9, -0.3, 0.2]], dtype=torch.float64)
    is_positive = torch.tensor([[True, True, False, False]])
    alone = [decoupled_softmax(scores[:, [p, 2, 3]], is_positive[:, [p, 2, 3]], tau=0.5) for p in (0, 1)]
    assert decoupled_softmax(scores, is_positive, tau=0.5).item() == pytest.approx(sum(alone).item() / 2)


def test_a_known_positive_is_never_a_negative():
    scores, is_positive = instance(3)
    columns = sampled_columns(is_positive, 1, 0)
    leaf = scores.clone().requires_grad_()
    before = triplet(leaf, is_positive, gathered(leaf, columns, 1), margin=0.3, k=8, tau=0.1)
    before.backward()
    others = is_positive.clone()
    for row, chosen in enumerate(columns):
        others[row, chosen] = False
    assert others.any() and (leaf.grad[others] == 0).all() and (leaf.grad[~is_positive] != 0).any()
    raised = scores.masked_fill(others, 1.0)  # would be the hardest negatives of all
    after = triplet(raised, is_positive, gathered(raised, columns, 1), margin=0.3, k=8, tau=0.1)
    assert after.item() == before.item()


def every_loss(scores: torch.Tensor, is_positive: torch.Tensor) -> dict[str, torch.Tensor]:
    first = gathered(scores, sampled_columns(is_positive, 2, 0), 2)
    hardest, _ = hardest_positives(scores, is_positive, 3)
    return {
        "sampled": triplet(scores, is_positive, first, margin=0.3, k=5, tau=0.1),
        "sampled, alike": triplet(scores, is_positive, first, margin=0.3, k=5, tau=0.0),
        "hardest": triplet(scores, is_positive, hardest, margin=0.3, k=5, tau=1.0),
        "softmax": decoupled_softmax(scores, is_positive, tau=0.01),
    }


@pytest.mark.parametrize("mask", [torch.zeros(4, 6), torch.ones(4, 6), torch.eye(4, 6), 1 - torch.eye(4, 6)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_ever_infinite(mask, scale, dtype):
    is_positive = mask.bool()
    generator = torch.Generator().manual_seed(0)
    start = scale * (2 * torch.rand(4, 6, generator=generator, dtype=dtype) - 1)
    for name in every_loss(start, is_positive):
        scores = start.clone().requires_grad_()
        loss = every_loss(scores, is_positive)[name]
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(scores.grad).all(), name
        if is_positive.all() or not is_positive.any():  # nothing to compare: no loss and no push
            assert loss.item() == 0 and (scores.grad == 0).all(), name


@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_decoupled_softmax_in_one_matrix_has_the_gradients_of_the_plain_form(tau):
    torch.manual_seed(3)
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    rows, columns = (torch.rand(7, 9) < 0.3).nonzero(as_tuple=True)
    fast = losses.decoupled_softmax(x, labels, rows, columns, tau=tau)
    plain = decoupled_softmax_plain(x, labels, rows, columns, tau)
    torch.testing.assert_close(fast, plain)
    for got, wanted in zip(torch.autograd.grad(3 * fast, (x, labels)), torch.autograd.grad(3 * plain, (x, labels))):
        torch.testing.assert_close(got, wanted)


# --- soft targets, SupCon and binary cross-entropy --------------------------------------------------------------------


def pairs(seed: int, docs: int = 6, labels: int = 8) -> dict:
    """Vectors (float64), positives and their soft targets; doc 0 has no positive, doc 1 no negative."""
    generator = torch.Generator().manual_seed(seed)
    _, is_positive = instance(seed, docs, labels)
    x, z = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (docs, labels))
    rows, columns = is_positive.nonzero(as_tuple=True)
    weights = 0.1 + 0.9 * torch.rand(len(rows), generator=generator, dtype=torch.float64)
    return {"x": x, "labels": z, "rows": rows, "columns": columns, "weights": weights}


def by_hand(kind: str, x, labels, rows, columns, weights, tau: float) -> float:
    """The sums as printed, one pair at a time; `weights` may be None."""
    scores = [[sum(a * b for a, b in zip(doc, label)) / tau for label in labels] for doc in x]
    target = {(r, c): w for r, c, w in zip(rows, columns, weights or [1.0] * len(rows))}
    total, counted = 0.0, 0
    for b, row in enumerate(scores):
        if kind == "bce":
            for p, s in enumerate(row):
                wanted, share = target.get((b, p), 0.0), 1 / (1 + math.exp(-s))
                total -= wanted * math.log(share) + (1 - wanted) * math.log(1 - share)
            continue
        own = [p for p in range(len(row)) if (b, p) in target]
        counted += bool(own)
        for p in own:
            pool = range(len(row)) if kind == "supcon" else [q for q in range(len(row)) if q == p or q not in own]
            loss = -math.log(math.exp(row[p]) / sum(math.exp(row[q]) for q in pool))
            total += target[b, p] / sum(target[b, q] for q in own) * loss
    return total / (len(x) if kind == "bce" else max(1, counted))


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_losses_over_pairs_and_their_gradients_are_the_printed_sums(kind, soft, seed):
    given, tau = pairs(seed), 0.7
    weights = given.pop("weights") if soft else None
    plain = [t.tolist() for t in (given["rows"], given["columns"])]
    listed = None if weights is None else weights.tolist()
    x, labels = given["x"].requires_grad_(), given["labels"].requires_grad_()
    loss = getattr(losses, kind)(x, labels, given["rows"], given["columns"], weights, tau=tau)
    assert loss.item() == pytest.approx(by_hand(kind, x.tolist(), labels.tolist(), *plain, listed, tau), rel=1e-9)
    loss.backward()
    own = differences(lambda moved: by_hand(kind, moved, labels.tolist(), *plain, listed, tau), x.detach())
    theirs = differences(lambda moved: by_hand(kind, x.tolist(), moved, *plain, listed, tau), labels.detach())
    torch.testing.assert_close(x.grad, own, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(labels.grad, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon"])
def test_equal_soft_targets_are_none(kind):
    given = pairs(0)
    given["weights"] = torch.full_like(given["weights"], 0.3)
    soft = getattr(losses, kind)(**given, tau=0.5)
    assert soft.item() == pytest.approx(getattr(losses, kind)(**{**given, "weights": None}, tau=0.5).item())


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
def test_without_positives_the_losses_are_finite(kind):
    none = torch.zeros(0, dtype=torch.int64)
    x, labels = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    loss = getattr(losses, kind)(x, labels, none, none, tau=0.1)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(x.grad).all()
    assert kind == "bce" or loss.item() == 0


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_without_documents_or_labels_there_is_no_loss(kind, sizes):
    none = torch.zeros(0, dtype=torch.int64)
    x, labels = (torch.randn(size, 4, requires_grad=True) for size in sizes)
    loss = getattr(losses, kind)(x, labels, none, none, tau=0.1)
    loss.backward()
    assert loss.item() == 0 and not x.grad.any() and not labels.grad.any()


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
@pytest.mark.parametrize("size", [1, 7, 20, 47])
def test_chunks_of_labels_change_nothing(kind, size, monkeypatch):
    """One label at a time, some, and all but one; 6 documents against 8 labels are 48 scores."""
    found = []
    for most in (1 << 24, size):
        monkeypatch.setattr(losses, "SCORES", most)
        given = pairs(1)
        x, labels = given.pop("x").requires_grad_(), given.pop("labels").requires_grad_()
        loss = getattr(losses, kind)(x, labels, **given, tau=0.3)
        found.append([loss.detach(), *torch.autograd.grad(2 * loss, (x, labels))])
    for whole, parts in zip(*found):
        torch.testing.assert_close(whole, parts)


class Largest(TorchDispatchMode):
    """Remembers the most elements that a tensor has had which an operation returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.most = max([self.most, *(part.numel() for part in tree_leaves(out) if isinstance(part, torch.Tensor))])
        return out


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
def test_scores_of_all_labels_are_never_in_memory_at_once(kind, monkeypatch):
    monkeypatch.setattr(losses, "SCORES", 3000)
    docs, n_labels, dim = 50, 1000, 4
    x, labels = torch.randn(docs, dim, requires_grad=True), torch.randn(n_labels, dim, requires_grad=True)
    rows = torch.arange(docs).repeat_interleave(2)
    columns = torch.stack([torch.arange(docs), torch.arange(docs) + 500], dim=1).flatten()
    with Largest() as seen:
        getattr(losses, kind)(x, labels, rows, columns, tau=0.3).backward()
    assert seen.most == max(3000, n_labels * dim) < docs * n_labels


@pytest.mark.parametrize("kind", ["decoupled_softmax", "supcon", "bce"])
def test_what_needs_no_gradient_gets_none(kind):
    given = pairs(2)
    labels = given.pop("labels").requires_grad_()
    getattr(losses, kind)(given.pop("x"), labels, **given, tau=0.3).backward()
    assert torch.isfinite(labels.grad).all() and labels.grad.abs().sum() > 0


@pytest.mark.parametrize("most", [1 << 24, 13])
def test_bce_on_some_labels_has_the_gradient_of_all(monkeypatch, most):
    monkeypatch.setattr(losses, "SCORES", most)
    whole, some = [], []
    for formed, out in ((None, whole), (3, some)):
        given = pairs(1)
        x, labels = given.pop("x").requires_grad_(), given.pop("labels").requires_grad_()
        loss = losses.bce(x, labels, **given, tau=0.5, formed=formed)
        out += [loss.item(), *torch.autograd.grad(loss, (x, labels))]
    torch.testing.assert_close(whole[1:], some[1:])
    given = pairs(1)
    inside = given["columns"] < 3
    kept = {name: given[name][inside] for name in ("rows", "columns", "weights")}
    first = losses.bce(given["x"], given["labels"][:3], **kept, tau=0.5).item()
    assert some[0] == pytest.approx(first * 8 / 3)


def contrastive_by_hand(scores, is_positive, positive, c, d, k) -> float:
    pull = [-math.log(c * math.exp(d * (s - 1))) for row in positive for s in row if math.isfinite(s)]
    push = []
    for b, row in enumerate(scores):
        hardest = sorted((s for s, known in zip(row, is_positive[b]) if not known), reverse=True)[:k]
        push += [-math.log(1 - c * math.exp(d * (s - 1))) for s in hardest]
    return sum(pull) / max(1, len(pull)) + sum(push) / max(1, len(push))


@pytest.mark.parametrize("seed", range(3))
def test_contrastive_is_the_loops(seed):
    scores, is_positive = instance(seed)
    scores = scores.tanh()
    columns = sampled_columns(is_positive, 2, seed)

    def by_hand(rows):
        positive = gathered(torch.tensor(rows, dtype=torch.float64), columns, 2).tolist()
        return contrastive_by_hand(rows, is_positive.tolist(), positive, 0.9, 1.5, 3)

    def loss(s):
        return losses.contrastive(s, is_positive, gathered(s, columns, 2), contrast=0.9, slope=1.5, k=3)

    assert_same_gradient(loss, by_hand, scores)


def pairwise_by_hand(positive, negative, tau) -> float:
    terms = [
        -math.log(math.exp(p / tau) / (math.exp(p / tau) + math.exp(n / tau)))
        for good, bad in zip(positive, negative)
        for p in good
        for n in bad
        if math.isfinite(p) and math.isfinite(n)
    ]
    return sum(terms) / max(1, len(terms))


def test_pairwise_is_the_loops_and_leaves_out_what_is_not_there():
    positive = torch.tensor([[0.3, 0.1], [0.5, math.inf], [math.inf, math.inf]], dtype=torch.float64)
    negative = torch.tensor([[0.2, -math.inf], [0.4, 0.6], [0.1, 0.2]], dtype=torch.float64)
    wanted = pairwise_by_hand(positive.tolist(), negative.tolist(), 0.2)
    assert losses.pairwise(positive, negative, tau=0.2).item() == pytest.approx(wanted)
    nothing = torch.full((2, 1), -math.inf, dtype=torch.float64)
    assert losses.pairwise(positive[:2], nothing, tau=0.2).item() == 0


def test_pairwise_gradients_are_finite_where_something_is_not_there():
    scores = torch.tensor([[0.3, 0.1, 0.2], [0.5, 0.4, 0.6]], dtype=torch.float64, requires_grad=True)
    positive = scores[:, :1].masked_fill(torch.tensor([[False], [True]]), math.inf)
    negative = scores[:, 1:].masked_fill(torch.tensor([[False, True], [False, False]]), -math.inf)
    losses.pairwise(positive, negative, tau=0.1).backward()
    assert torch.isfinite(scores.grad).all() and scores.grad[1].abs().sum() == 0 and scores.grad[0, 0] < 0
