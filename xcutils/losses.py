"""Losses over a matrix of document-label scores. Reference versions as plain loops stand in tests/test_losses.py.

scores       (B, P) float  cosine of document b and label p of the batch's pool
is_positive  (B, P) bool   every known positive, so that none is ever used as a negative
"""

import torch
from torch import Tensor
from torch.nn import functional as F


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
    weights   (B, S) float  their soft targets, which multiply the hinge [Gandalf]; all 1 without
    tau       temperature of the softmax that weights a document's violators; 0 weights them alike
    returns   ()     float  mean over documents, positives and negatives
    """
    k = min(k, scores.shape[1])
    negative = scores.masked_fill(is_positive, -torch.inf).topk(k, dim=1).values  # (B, k)
    violation = (negative.unsqueeze(1) - positive.unsqueeze(2) + margin).clamp(min=0)  # (B, S, k)
    soft = 1 if weights is None else weights.unsqueeze(2)
    if tau == 0:
        return (violation * soft).mean()
    # Softmax over the violators alone: of the three forms in use this is DEXA's. Weights of S and of S - p agree.
    logits = (violation / tau).masked_fill(violation == 0, torch.finfo(scores.dtype).min)
    return (violation * logits.softmax(dim=2) * soft).mean()


def hardest_positives(scores: Tensor, is_positive: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(scores, columns), (B, count): the lowest-scoring known positives, +inf where there are fewer [NGAME M4]."""
    count = min(count, scores.shape[1])
    return scores.masked_fill(~is_positive, torch.inf).topk(count, dim=1, largest=False)


def decoupled_softmax(
    x: Tensor, labels: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, tau: float
) -> Tensor:
    """Cross-entropy of each positive against the negatives alone, the other positives left out [UniDEC, DEXML].

    -log( exp(s_p/tau) / (exp(s_p/tau) + sum over negatives n of exp(s_n/tau)) ),  s = x . labels
    x              (B, D) float  unit document embeddings
    labels         (P, D) float  unit label vectors
    rows, columns  (M,) int64    the known positives
    weights        (M,) float    their soft targets [Gandalf]; all alike without
    returns        ()     float  mean over a document's positives, then over the documents that have one in the pool
    """
    return _DecoupledSoftmax.apply(x, labels, rows, columns, _shares(rows, weights, len(x), x.dtype), tau)


def supcon(
    x: Tensor, labels: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, tau: float
) -> Tensor:
    """Cross-entropy of each positive against the whole pool, the other positives included [SupCon, UniDEC].

    -log( exp(s_p/tau) / sum over labels l of exp(s_l/tau) ); arguments and mean as for decoupled_softmax
    """
    return _SupCon.apply(x, labels, rows, columns, _shares(rows, weights, len(x), x.dtype), tau)


def bce(
    x: Tensor, labels: Tensor, rows: Tensor, columns: Tensor, weights: Tensor | None = None, *, tau: float = 1.0
) -> Tensor:
    """Binary cross-entropy of every pair, logit s/tau, target 1 (or the soft target) at the positives [UniDEC, Renee].

    returns  ()  float  sum over the labels, mean over the documents; arguments as for decoupled_softmax
    """
    targets = torch.ones(len(rows), dtype=x.dtype, device=x.device) if weights is None else weights.to(x.dtype)
    return _BinaryCrossEntropy.apply(x, labels, rows, columns, targets, tau)


def _shares(rows: Tensor, weights: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
    """(M,) float: what each positive counts in the mean over a document's positives and over documents."""
    if weights is None:
        own = torch.bincount(rows, minlength=count)
        return 1 / (own[rows] * (own > 0).sum().clamp(min=1)).to(dtype)
    weights = weights.to(dtype)
    own = torch.zeros(count, dtype=dtype, device=rows.device).index_add_(0, rows, weights)
    return weights / (own[rows] * (own > 0).sum().clamp(min=1))


class _DecoupledSoftmax(torch.autograd.Function):
    """One (B, P) matrix serves as scores, softmax and gradient in turn: P may be all labels."""

    @staticmethod
    def forward(ctx, x, labels, rows, columns, shares, tau):
        scores = (x @ labels.T).div_(tau)
        positive = scores[rows, columns]
        scores[rows, columns] = -torch.inf
        rest = _softmax(scores)  # over each row's negatives
        ctx.save_for_backward(x, labels, rows, columns, scores, torch.sigmoid(rest[rows] - positive) * shares)
        ctx.tau = tau
        return (F.softplus(rest[rows] - positive) * shares).sum()

    @staticmethod
    def backward(ctx, gradient):
        x, labels, rows, columns, scores, pull = ctx.saved_tensors
        push = torch.zeros(len(x), dtype=scores.dtype, device=scores.device).index_add_(0, rows, pull)
        scores.mul_(push.unsqueeze(1))  # the buffer is this step's own: the loss is differentiated once
        scores[rows, columns] = -pull
        scores.mul_(gradient / ctx.tau)
        return scores @ labels, scores.T @ x, None, None, None, None


class _SupCon(torch.autograd.Function):
    """As _DecoupledSoftmax, with the positives in the denominator."""

    @staticmethod
    def forward(ctx, x, labels, rows, columns, shares, tau):
        scores = (x @ labels.T).div_(tau)
        positive = scores[rows, columns]
        everything = _softmax(scores)
        ctx.save_for_backward(x, labels, rows, columns, scores, shares)
        ctx.tau = tau
        return ((everything[rows] - positive) * shares).sum()

    @staticmethod
    def backward(ctx, gradient):
        x, labels, rows, columns, scores, shares = ctx.saved_tensors
        push = torch.zeros(len(x), dtype=scores.dtype, device=scores.device).index_add_(0, rows, shares)
        scores.mul_(push.unsqueeze(1))
        scores[rows, columns] -= shares
        scores.mul_(gradient / ctx.tau)
        return scores @ labels, scores.T @ x, None, None, None, None


class _BinaryCrossEntropy(torch.autograd.Function):
    """The same with a sigmoid: the (B, P) matrix holds scores, then their gradient."""

    @staticmethod
    def forward(ctx, x, labels, rows, columns, targets, tau):
        scores = (x @ labels.T).div_(tau)
        total = F.softplus(scores).sum() - (scores[rows, columns] * targets).sum()
        scores.sigmoid_()
        scores[rows, columns] -= targets
        ctx.save_for_backward(x, labels, scores)
        ctx.tau = tau
        return total / len(x)

    @staticmethod
    def backward(ctx, gradient):
        x, labels, scores = ctx.saved_tensors
        scores.mul_(gradient / (ctx.tau * len(x)))
        return scores @ labels, scores.T @ x, None, None, None, None


def _softmax(scores: Tensor) -> Tensor:
    """(B,) log of each row's sum of exp; the scores become their softmax, in place. Entries of -inf count nothing."""
    peak = scores.amax(dim=1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    total = scores.sub_(peak).exp_().sum(dim=1, keepdim=True)
    scores.div_(total.clamp(min=torch.finfo(scores.dtype).tiny))
    return (peak + total.log()).squeeze(1)
