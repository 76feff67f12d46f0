"""Losses of documents against labels, and the table of them that every trainer chooses from.

A new loss is a function of `Pairs` and of scalars named like parameters, and a row of LOSSES. The same losses as plain
loops, to compare with, are in tests/train/test_losses.py.

Losses of `scores` are for the labels of a batch:
scores       (B, P) float  cosine of document b and label p of the batch's pool
is_positive  (B, P) bool   every known positive, so that none is ever used as a negative

Losses of `x` and `labels` form the scores themselves, a chunk of labels at a time, so that P may be all labels:
x              (B, D) float  document embeddings
labels         (P, D) float  label vectors
rows, columns  (M,) int64    the known positives, each once
weights        (M,) float    their soft targets [Gandalf]; None: all 1
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from xcutils.core.costs import FLOAT, FRAGMENTATION

SCORES = 1 << 24  # scores in memory at once
FORMED = 1024  # labels from which the value of the binary cross-entropy, shown in the curve, is computed


@dataclass(frozen=True)
class Pairs:
    """The documents and labels of a batch, and which of them belong together: all that a loss looks at.

    x              (B, D) float  document embeddings
    labels         (P, D) float  label vectors
    rows, columns  (M,) int64    the known positives, each once
    weights        (M,) float    their soft targets [Gandalf]; None where all are 1
    drawn          (B, S) int64  columns of the positives drawn for each document, -1 where fewer; None: none drawn
    mined          (B, H) int64  columns of the negatives mined for each document, likewise
    """

    x: Tensor
    labels: Tensor
    rows: Tensor
    columns: Tensor
    weights: Tensor | None = None
    drawn: Tensor | None = None
    mined: Tensor | None = None

    def transposed(self) -> "Pairs":
        """The labels in the place of the documents."""
        return Pairs(self.labels, self.x, self.columns, self.rows, self.weights)

    def is_positive(self) -> Tensor:
        """(B, P) bool"""
        mask = torch.zeros((len(self.x), len(self.labels)), dtype=torch.bool, device=self.x.device)
        mask[self.rows, self.columns] = True
        return mask


@dataclass(frozen=True)
class Loss:
    """A row of the table.

    function   (Pairs, **options) -> () float
    options    the parameters it takes; a trainer that lacks one of them does not offer the loss
    positives  which ones it raises: all known ones, the drawn ones, or either (the drawn ones where there are any)
    negatives  which ones it lowers: all others of the pool, the hardest of them, or the mined ones
    logistic   whether it looks at each pair by itself, so that its scores need their own bias and temperature
    """

    function: Callable[..., Tensor]
    options: tuple[str, ...]
    positives: Literal["known", "drawn", "either"] = "known"
    negatives: Literal["all", "hardest", "mined"] = "all"
    logistic: bool = False

    def __call__(self, pairs: Pairs, p: Any, **others: float) -> Tensor:
        """The loss with the options that the parameters `p` have, but for those that `others` gives."""
        return self.function(pairs, **{name: others.get(name, getattr(p, name)) for name in self.options})

    def step_bytes(self, docs: float, pool: float) -> float:
        """Bytes of a step's scores: of one chunk, or five times those of all where the hardest ones are looked for."""
        if self.negatives == "all":
            return FRAGMENTATION * FLOAT * min(docs * pool, max(SCORES, docs))
        return FRAGMENTATION * 5 * FLOAT * docs * pool


def offered(options: Iterable[str], *, draws: bool = False, logistic: bool = True) -> list[str]:
    """The losses that a trainer with these parameters can offer.

    draws     it draws some positives for each visit, and can mine negatives
    logistic  it can train on each pair by itself
    """
    return [
        name
        for name, loss in LOSSES.items()
        if set(loss.options) <= set(options)
        and (draws or (loss.positives != "drawn" and loss.negatives != "mined"))
        and (logistic or not loss.logistic)
    ]


def triplet(
    scores: Tensor,
    is_positive: Tensor,
    positive: Tensor,
    weights: Tensor | None = None,
    *,
    margin: float,
    k: int,
    tau: float,
) -> Tensor:
    """Hinge between each given positive and the document's k hardest negatives [DEXA Eq. 5, Eq. 6].

    positive  (B, S) float  scores of the positives that are trained on; +inf where there are fewer than S
    weights   (B, S) float  their soft targets, which multiply the hinge [Gandalf]; None: all 1
    tau       temperature of the softmax that weights a document's violators; 0 weights them alike
    returns   ()     float  mean over documents, positives and negatives
    """
    negative = _hardest_negatives(scores, is_positive, k)  # (B, k)
    violation = (negative.unsqueeze(1) - positive.unsqueeze(2) + margin).clamp(min=0)  # (B, S, k)
    soft = 1 if weights is None else weights.unsqueeze(2)
    if tau == 0:
        return (violation * soft).mean()
    # Softmax over the violators alone: of the three forms in use this is DEXA's. Violations and scores of the negatives
    # give the same weights: a positive shifts all of them alike.
    logits = (violation / tau).masked_fill(violation == 0, torch.finfo(scores.dtype).min)
    return (violation * logits.softmax(dim=2) * soft).mean()


def hardest_positives(scores: Tensor, is_positive: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(scores, columns), (B, count): the lowest-scoring known positives, +inf where there are fewer [NGAME M4]."""
    count = min(count, scores.shape[1])
    return scores.masked_fill(~is_positive, torch.inf).topk(count, dim=1, largest=False)


def _hardest_negatives(scores: Tensor, is_positive: Tensor, k: int) -> Tensor:
    """(B, k): the highest-scoring labels that are no known positives, -inf where there are fewer."""
    return scores.masked_fill(is_positive, -torch.inf).topk(min(k, scores.shape[1]), dim=1).values


def contrastive(
    scores: Tensor, is_positive: Tensor, positive: Tensor, *, contrast: float, slope: float, k: int
) -> Tensor:
    """-ln P of the given positives and -ln (1 - P) of the k hardest negatives, P = c exp(d (s - 1)) [SiameseXML].

    positive  (B, S) float  scores of the positives that are trained on; +inf where there are fewer than S
    contrast  c, in (0, 1);  slope  d
    returns   ()     float  mean over the given positives plus mean over the negatives
    """
    is_given = torch.isfinite(positive)
    pull = slope * (1 - positive[is_given]) - torch.log(torch.tensor(contrast, dtype=scores.dtype))
    negative = _hardest_negatives(scores, is_positive, k)
    push = -torch.log1p(-contrast * torch.exp(slope * (negative[torch.isfinite(negative)] - 1)))
    return sum(part.mean() for part in (pull, push) if len(part)) + 0.0 * scores.sum()


def pairwise(positive: Tensor, negative: Tensor, *, tau: float) -> Tensor:
    """-ln softmax of each given positive against each mined negative of its document, pair by pair [ANCE].

    positive  (B, S) float  scores; +inf where there are fewer
    negative  (B, M) float  scores; -inf where there are fewer
    returns   ()     float  mean over the pairs
    """
    margin = (negative.unsqueeze(1) - positive.unsqueeze(2)) / tau  # (B, S, M)
    is_pair = torch.isfinite(margin)
    return F.softplus(margin[is_pair]).sum() / is_pair.sum().clamp(min=1)


def decoupled_softmax(
    x: Tensor, labels: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, tau: float
) -> Tensor:
    """Cross-entropy of each positive against the negatives alone, the other positives left out [UniDEC, DEXML].

    -log( exp(s_p/tau) / (exp(s_p/tau) + sum over negatives n of exp(s_n/tau)) ),  s = x . labels
    returns  ()  float  mean over a document's positives, then over the documents that have one in the pool
    """
    return _Softmax.apply(x, labels, rows, columns, _shares(rows, weights, len(x), x.dtype), tau, True)


def supcon(
    x: Tensor, labels: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, tau: float
) -> Tensor:
    """Cross-entropy of each positive against the whole pool, the other positives included [SupCon, UniDEC].

    -log( exp(s_p/tau) / sum over labels l of exp(s_l/tau) ); mean as for decoupled_softmax. Given one positive per
    document it is InfoNCE.
    """
    return _Softmax.apply(x, labels, rows, columns, _shares(rows, weights, len(x), x.dtype), tau, False)


def bce(
    x: Tensor,
    labels: Tensor,
    rows: Tensor,
    columns: Tensor,
    weights: Tensor | None = None,
    *,
    tau: float = 1.0,
    formed: int | None = None,
) -> Tensor:
    """Binary cross-entropy of every pair, logit s/tau, target 1 (or the soft target) at the positives [UniDEC, Renee].

    formed   labels from which the value is computed, as if the others were like them; None: all. The gradient is always
             of all labels and does not need the value [Renee's loss shortcut]
    returns  ()  float  sum over the labels, mean over the documents
    """
    targets = torch.ones(len(rows), dtype=x.dtype, device=x.device) if weights is None else weights.to(x.dtype)
    return _BinaryCrossEntropy.apply(x, labels, rows, columns, targets, tau, formed or len(labels))


def _shares(rows: Tensor, weights: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
    """(M,) float: the weight of each positive in the mean over a document's positives, then over documents."""
    if weights is None:
        per_doc = torch.bincount(rows, minlength=count)
        return 1 / (per_doc[rows] * (per_doc > 0).sum().clamp(min=1)).to(dtype)
    weights = weights.to(dtype)
    per_doc = torch.zeros(count, dtype=dtype, device=rows.device).index_add_(0, rows, weights)
    return weights / (per_doc[rows] * (per_doc > 0).sum().clamp(min=1))


class _Chunk:
    """Some of the labels, and the known positives among them.

    some           slice      the chunk's labels
    inside         (M,) bool  or slice: which of all positives are in the chunk
    rows, columns  (m,) int64 these positives, columns counted from the chunk's first label
    """

    def __init__(self, some: slice, inside, rows: Tensor, columns: Tensor):
        self.some = some
        self.inside = inside
        self.rows = rows[inside]
        self.columns = columns[inside] - some.start

    def scores(self, x: Tensor, labels: Tensor, tau: float) -> Tensor:
        """(B, labels of the chunk) s / tau."""
        return (x / tau) @ labels[self.some].T


def _chunks(count: int, labels: int, rows: Tensor, columns: Tensor) -> Iterator[_Chunk]:
    """The labels in chunks, each so small that its scores with `count` documents fit into memory."""
    size = max(1, SCORES // max(1, count))
    for start in range(0, labels, size):
        some = slice(start, min(start + size, labels))
        whole = size >= labels
        yield _Chunk(some, slice(None) if whole else (columns >= some.start) & (columns < some.stop), rows, columns)


class _Softmax(torch.autograd.Function):
    """One matrix is first scores, then their softmax, then the gradient; backward forms it again for several chunks."""

    @staticmethod
    def forward(ctx, x, labels, rows, columns, shares, tau, decoupled):
        positive = torch.empty_like(shares)
        kept: Tensor | None = None
        rest = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)
        for chunk in _chunks(len(x), len(labels), rows, columns):
            kept = chunk.scores(x, labels, tau)
            positive[chunk.inside] = kept[chunk.rows, chunk.columns]
            if decoupled:
                kept[chunk.rows, chunk.columns] = -torch.inf
            rest = torch.logaddexp(rest, _softmax(kept))
        if kept is not None and kept.shape[1] < len(labels):
            kept = None  # it is only the last of several chunks
        gap = rest[rows] - positive
        pull = torch.sigmoid(gap) * shares if decoupled else shares
        ctx.save_for_backward(x, labels, rows, columns, kept, rest, pull)
        ctx.tau, ctx.decoupled = tau, decoupled
        return ((F.softplus(gap) if decoupled else gap) * shares).sum()

    @staticmethod
    def backward(ctx, gradient):
        x, labels, rows, columns, kept, rest, pull = ctx.saved_tensors
        pull = pull * (gradient / ctx.tau)
        push = torch.zeros(len(x), dtype=x.dtype, device=x.device).index_add_(0, rows, pull).unsqueeze(1)
        out = _Gradients(ctx, x, labels)
        for chunk in _chunks(len(x), len(labels), rows, columns):
            scores = kept  # overwritten below, which is safe: the loss is differentiated once
            if scores is None:
                scores = chunk.scores(x, labels, ctx.tau)
                if ctx.decoupled:
                    scores[chunk.rows, chunk.columns] = -torch.inf
                scores.sub_(rest.clamp(min=torch.finfo(rest.dtype).min).unsqueeze(1)).exp_()
            scores.mul_(push)
            scores[chunk.rows, chunk.columns] -= pull[chunk.inside]
            out.add(scores, chunk)
        return out.x, out.labels, None, None, None, None, None


class _BinaryCrossEntropy(torch.autograd.Function):
    """The gradient depends on the scores alone: the forward pass computes it, chunk by chunk."""

    @staticmethod
    def forward(ctx, x, labels, rows, columns, targets, tau, formed):
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        out = _Gradients(ctx, x, labels)
        for chunk in _chunks(len(x), len(labels), rows, columns):
            scores = chunk.scores(x, labels, tau)
            if chunk.some.start < formed:
                seen = chunk.columns < formed - chunk.some.start
                positive = scores[chunk.rows[seen], chunk.columns[seen]] * targets[chunk.inside][seen]
                total += F.softplus(scores[:, : formed - chunk.some.start]).sum() - positive.sum()
            scores.sigmoid_()
            scores[chunk.rows, chunk.columns] -= targets[chunk.inside]
            out.add(scores, chunk)
        ctx.save_for_backward(out.x, out.labels)
        ctx.scale = 1 / (tau * max(1, len(x)))
        return total * (len(labels) / max(1, min(formed, len(labels)))) / max(1, len(x))

    @staticmethod
    def backward(ctx, gradient):
        gradients = [None if part is None else part * (gradient * ctx.scale) for part in ctx.saved_tensors]
        return *gradients, None, None, None, None, None


class _Gradients:
    """Gradients of documents and labels, added up from the gradients of their scores."""

    def __init__(self, ctx, x: Tensor, labels: Tensor):
        self.by_doc, self.by_label = x, labels
        self.x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        self.labels = torch.empty_like(labels) if ctx.needs_input_grad[1] else None

    def add(self, scores: Tensor, chunk: _Chunk) -> None:
        """scores  (B, labels of the chunk): the gradient of the chunk's scores"""
        if self.x is not None:
            self.x.addmm_(scores, self.by_label[chunk.some])
        if self.labels is not None:
            torch.mm(scores.T, self.by_doc, out=self.labels[chunk.some])


def _softmax(scores: Tensor) -> Tensor:
    """(B,) log of each row's sum of exp; the scores become their softmax, in place. Entries of -inf count nothing."""
    peak = scores.amax(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    total = scores.sub_(peak).exp_().sum(dim=1, keepdim=True)
    scores.div_(total.clamp(min=torch.finfo(scores.dtype).tiny))
    return (peak + total.log()).squeeze(1)


# --- the table --------------------------------------------------------------------------------------------------------


def _decoupled_softmax(pairs: Pairs, *, tau: float) -> Tensor:
    return decoupled_softmax(pairs.x, pairs.labels, pairs.rows, pairs.columns, pairs.weights, tau=tau)


def _supcon(pairs: Pairs, *, tau: float) -> Tensor:
    return supcon(pairs.x, pairs.labels, pairs.rows, pairs.columns, pairs.weights, tau=tau)


def _infonce(pairs: Pairs, *, tau: float) -> Tensor:
    """SupCon of the drawn positives alone: a document's other positives count as negatives [DPR]."""
    drawn = _given(pairs.drawn)
    rows, place = torch.nonzero(drawn >= 0, as_tuple=True)
    return supcon(pairs.x, pairs.labels, rows, drawn[rows, place], tau=tau)


def _bce(pairs: Pairs, *, tau: float) -> Tensor:
    return bce(pairs.x, pairs.labels, pairs.rows, pairs.columns, pairs.weights, tau=tau, formed=FORMED)


def _pairwise(pairs: Pairs, *, tau: float) -> Tensor:
    scores = pairs.x @ pairs.labels.T
    return pairwise(_at(scores, pairs.drawn, torch.inf), _at(scores, pairs.mined, -torch.inf), tau=tau)


def _contrastive(pairs: Pairs, *, contrast: float, slope: float, negatives: int) -> Tensor:
    scores = pairs.x @ pairs.labels.T
    return contrastive(
        scores, pairs.is_positive(), _at(scores, pairs.drawn, torch.inf), contrast=contrast, slope=slope, k=negatives
    )


def _triplet(pairs: Pairs, *, margin: float, positives: int, negatives: int, weighting: float) -> Tensor:
    """Triplet loss of the drawn positives or, where none are drawn, of each document's hardest `positives`."""
    scores = pairs.x @ pairs.labels.T
    is_positive = pairs.is_positive()
    soft = None
    if pairs.drawn is not None:
        positive = _at(scores, pairs.drawn, torch.inf)
    else:
        positive, places = hardest_positives(scores, is_positive, positives)
        if pairs.weights is not None:
            targets = torch.zeros_like(scores)
            targets[pairs.rows, pairs.columns] = pairs.weights
            soft = targets.gather(1, places)
    return triplet(scores, is_positive, positive, soft, margin=margin, k=negatives, tau=weighting)


def _at(scores: Tensor, columns: Tensor | None, missing: float) -> Tensor:
    """(B, S): the scores at these columns, `missing` where a column is -1."""
    columns = _given(columns)
    return scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, missing)


def _given(columns: Tensor | None) -> Tensor:
    """The columns, after checking that there are any: a loss of drawn positives or mined negatives needs them."""
    if columns is None:
        raise ValueError("this loss needs positives drawn, or negatives mined, for each document of the batch")
    return columns


LOSSES = {
    "decoupled-softmax": Loss(_decoupled_softmax, ("tau",)),
    "supcon": Loss(_supcon, ("tau",)),
    "infonce": Loss(_infonce, ("tau",), positives="drawn"),
    "pairwise": Loss(_pairwise, ("tau",), positives="drawn", negatives="mined"),
    "contrastive": Loss(_contrastive, ("contrast", "slope", "negatives"), positives="drawn", negatives="hardest"),
    "triplet": Loss(
        _triplet, ("margin", "positives", "negatives", "weighting"), positives="either", negatives="hardest"
    ),
    "bce": Loss(_bce, ("tau",), logistic=True),
}
