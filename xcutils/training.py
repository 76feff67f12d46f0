"""The one training loop: schedule, guards, validation, early stopping and curves for every method."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from xcutils.errors import UserError
from xcutils.tables import RowTable

BAD_STEPS = 5  # steps in a row whose loss or gradient is not finite, after which training stops


class Optimisers:
    """AdamW on a module's dense parameters and row-wise Adam on its tables, on one schedule."""

    def __init__(
        self, module: nn.Module | None, lr: float, *, tables: Iterable[RowTable] = (), weight_decay: float = 0
    ):
        self.tables = list(tables)
        dense = [p for p in module.parameters() if p.requires_grad] if module is not None else []
        groups = [
            {"params": [p for p in dense if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in dense if p.ndim <= 1], "weight_decay": 0.0},  # biases and layer norms
        ]
        groups = [g for g in groups if g["params"]]
        self.dense = torch.optim.AdamW(groups, lr=lr, eps=1e-6) if groups else None
        self.lr = lr

    def gradients(self) -> list[Tensor]:
        dense = (
            [p.grad for g in self.dense.param_groups for p in g["params"] if p.grad is not None] if self.dense else []
        )
        return dense + [gradient for table in self.tables for gradient in table.gradients()]

    def step(self, scale: float) -> None:
        if self.dense:
            for group in self.dense.param_groups:
                group["lr"] = self.lr * scale
            self.dense.step()
        for table in self.tables:
            table.step(scale)

    def clear(self) -> None:
        if self.dense:
            self.dense.zero_grad(set_to_none=True)
        for table in self.tables:
            table.clear()


@dataclass
class Plan:
    """How long and how to train; what stands still while training."""

    epochs: int
    warmup: int  # steps
    seed: int
    schedule: int = 0  # epochs the learning rate decays over, when they are not `epochs`
    patience: int = 0  # validations without a gain before training stops; 0 = never
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass
class Outcome:
    """What training left: the kept epoch and one row per epoch."""

    epochs: int  # epochs behind the kept weights
    curve: list[dict]


def linear(step: int, total: int, warmup: int) -> float:
    """The schedule's factor: linear warm-up, then linear decay to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def train(
    plan: Plan,
    optimisers: list[Optimisers],
    batches: Callable[[int, np.random.Generator], list[np.ndarray]],
    loss_of: Callable[[np.ndarray, np.random.Generator], Tensor],
    *,
    weights: Callable[[], dict[str, Tensor]] = dict,
    validate: Callable[[int], dict[str, float]] | None = None,
    watch: Callable[[Iterable, str], Iterable] = lambda items, name: items,
) -> Outcome:
    """Train; the weights are left as they were after the epoch that was best by validation (the last without one).

    batches   (epoch, generator) -> the epoch's batches of document ids
    loss_of   (docs, generator)  -> the batch's loss
    weights   ()                 -> the live tensors that make up the model
    validate  (epoch)            -> figures; the first one decides
    """
    curve, best, since, kept, guard = [], -np.inf, 0, 0, Guard()
    saved: dict[str, Tensor] = {}
    for epoch in range(plan.epochs):
        rng = np.random.default_rng([plan.seed, epoch])  # an epoch depends on nothing that was drawn before it
        torch.manual_seed(plan.seed * 100_003 + epoch)
        todo = batches(epoch, rng)
        losses = []
        for place, docs in enumerate(watch(todo, f"epoch {epoch + 1}/{plan.epochs}")):
            total = (plan.schedule or plan.epochs) * len(todo)
            scale = linear(epoch * len(todo) + place, total, plan.warmup)
            losses.append(_step(docs, rng, loss_of, optimisers, scale, plan.device, guard))
        good = [loss for loss in losses if np.isfinite(loss)]
        row = {"epoch": epoch + 1, "loss": float(np.mean(good)) if good else float("inf"), "skipped": guard.skipped}
        if validate is None:
            curve.append(row)
            continue
        figures = validate(epoch)
        curve.append({**row, **figures})
        score = next(iter(figures.values()))
        if score > best:
            best, since, kept = score, 0, epoch + 1
            saved = {}  # the last best goes before the new one is copied
            saved = {name: tensor.detach().clone() for name, tensor in weights().items()}
        else:
            since += 1
            if plan.patience and since >= plan.patience:
                break
    if validate is None:
        return Outcome(plan.epochs, curve)
    for name, tensor in weights().items() if kept else ():
        tensor.detach().copy_(saved[name])
    return Outcome(kept, curve)


class Guard:
    """Counts steps that were skipped because their loss or gradient was not finite; stops after several in a row."""

    def __init__(self):
        self.skipped = self.row = 0

    def good(self) -> None:
        self.row = 0

    def bad(self, lr: float) -> None:
        self.skipped += 1
        self.row += 1
        if self.row >= BAD_STEPS:
            raise UserError(
                f"the loss or its gradient was not finite in {self.row} steps in a row (learning rate {lr:.3g}): "
                "lower the learning rate or raise the temperature `tau`."
            )


def _step(docs, rng, loss_of, optimisers, scale, device, guard) -> float:
    """One batch: forward, backward, update; the loss."""
    for part in optimisers:
        part.clear()
    loss = loss_of(docs, rng)
    finite = bool(torch.isfinite(loss))
    if finite:
        loss.backward()
        finite = all(bool(torch.isfinite(g.sum())) for part in optimisers for g in part.gradients())
    if not finite:
        guard.bad(optimisers[0].lr * scale)
        return float("nan")
    guard.good()
    for part in optimisers:
        part.step(scale)
    return float(loss.detach())


def mean_cosine(embeddings: np.ndarray, seed: int = 0, pairs: int = 2000) -> float:
    """Mean cosine of random pairs of different texts: near 1 means that the encoder has collapsed."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, len(embeddings), (2, pairs))
    apart = first != second
    return float((embeddings[first[apart]] * embeddings[second[apart]]).sum(axis=1).mean()) if apart.any() else 0.0
