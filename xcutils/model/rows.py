"""A table of vectors of which a step reads and updates only a few rows: classifiers, auxiliary and token vectors."""

import numpy as np
import torch
from torch import Tensor

UPDATED = 512 * 384  # values updated at once: few enough that they, their moments and gradient stay in the cache


class RowTable:
    """Rows with their own optimiser; a step costs the rows it reads, however long the table is.

    The update is torch.optim.SparseAdam's: moments of rows outside the batch do not change, and the bias correction
    counts the table's steps. With a momentum it is torch.optim.SGD's, with its weight decay, on the rows of the batch.
    A weight decay without a momentum is AdamW's: it shrinks the rows by a share of themselves.
    every  a step updates all rows, those it did not read by momentum and decay alone, as a dense optimiser would
    """

    betas = (0.9, 0.999)

    def __init__(
        self,
        values: Tensor,
        lr: float,
        *,
        eps: float = 1e-8,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        every: bool = False,
    ):
        self.values = values
        self.lr = lr
        self.eps = eps
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.every = every
        self.steps = 0
        self.first: Tensor | None = None  # the moments are made at the first step: a finished model needs none
        self.second: Tensor | None = None
        self._used: list[tuple[Tensor | None, Tensor]] = []  # ids and copies of rows that were read
        self._merged: list[tuple[Tensor | None, Tensor]] = []  # ids and summed gradient of earlier copies, at most one

    def rows(self, ids: Tensor | None) -> Tensor:
        """(U, D) copy of the rows `ids` (distinct; None = all of them) whose gradient the next step will apply."""
        picked = self.values.clone() if ids is None else self.values.index_select(0, ids)
        if torch.is_grad_enabled():
            picked.requires_grad_()
            self._used.append((ids, picked))
        return picked

    def gradients(self) -> list[Tensor]:
        """The gradients that wait for a step."""
        return [gradient for _, gradient in self._waiting()]

    def clear(self) -> None:
        self._used, self._merged = [], []

    def merge(self) -> None:
        """Add up the gradients that wait for a step, so that a step of many parts holds one at a time."""
        waiting = self._waiting()
        if waiting:
            self._merged = [waiting[0] if len(waiting) == 1 else self._sum(waiting)]
            self._used = [(ids, picked) for ids, picked in self._used if picked.grad is None]  # no gradient yet

    def _waiting(self) -> list[tuple[Tensor | None, Tensor]]:
        return self._merged + [(ids, picked.grad) for ids, picked in self._used if picked.grad is not None]

    def step(self, scale: float = 1.0) -> None:
        """Apply and forget the collected gradients; `scale` multiplies the learning rate (the schedule)."""
        self.merge()
        if not self._merged:
            return
        self.steps += 1
        ids, gradient = self._merged[0]
        if self.every and ids is not None:
            gradient = torch.zeros_like(self.values).index_copy_(0, ids, gradient)
            ids = None
        update = self._adam if self.momentum is None else self._sgd
        update(ids, gradient, self.lr * scale)
        self.clear()

    def _sum(self, used: list[tuple[Tensor | None, Tensor]]) -> tuple[Tensor | None, Tensor]:
        """One gradient per row when a step used the table more than once."""
        if any(ids is None for ids, _ in used):
            total = torch.zeros_like(self.values)
            for ids, gradient in used:
                total.add_(gradient) if ids is None else total.index_add_(0, ids, gradient)
            return None, total
        ids, place = torch.cat([ids for ids, _ in used if ids is not None]).unique(return_inverse=True)
        total = torch.zeros((len(ids), *self.values.shape[1:]), dtype=self.values.dtype, device=self.values.device)
        return ids, total.index_add_(0, place, torch.cat([gradient for _, gradient in used]))

    def _moments(self, second: bool) -> tuple[Tensor, Tensor]:
        """The moments, made at the first step."""
        if self.first is None or self.second is None:
            self.first = torch.zeros_like(self.values)
            self.second = torch.zeros_like(self.values) if second else self.values.new_zeros(0)
        return self.first, self.second

    def _adam(self, ids: Tensor | None, gradient: Tensor, lr: float) -> None:
        tables = [self.values, *self._moments(second=True)]
        if ids is None:
            self._fused_adam(tables, gradient, lr)
            return
        count = max(1, UPDATED // max(1, self.values[:1].numel()))
        for start in range(0, len(ids), count):
            some = ids[start : start + count]
            rows = [table.index_select(0, some) for table in tables]
            self._fused_adam(rows, gradient[start : start + count], lr)
            for table, changed in zip(tables, rows):
                table.index_copy_(0, some, changed)

    def _fused_adam(self, tables: list[Tensor], gradient: Tensor, lr: float) -> None:
        """The update, in place and in one pass; torch.optim.Adam has eps elsewhere than SparseAdam: hence its scale."""
        values, first, second = tables
        if self.weight_decay:
            values.mul_(1 - lr * self.weight_decay)
        beta1, beta2 = self.betas
        torch._fused_adam_(
            [values],
            [gradient],
            [first],
            [second],
            [],
            [torch.tensor(float(self.steps), device=values.device)],
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=self.eps / (1 - beta2**self.steps) ** 0.5,
            amsgrad=False,
            maximize=False,
        )

    def _sgd(self, ids: Tensor | None, gradient: Tensor, lr: float) -> None:
        rows = self.values if ids is None else self.values.index_select(0, ids)
        gradient = gradient.add(rows, alpha=self.weight_decay) if self.weight_decay else gradient
        all_first, _ = self._moments(second=False)
        first = all_first if ids is None else all_first.index_select(0, ids)
        first.mul_(self.momentum or 0.0).add_(gradient)
        if ids is None:
            self.values.add_(first, alpha=-lr)
            return
        all_first.index_copy_(0, ids, first)
        self.values.index_add_(0, ids, first, alpha=-lr)

    def state(self) -> dict[str, Tensor]:
        """The moments and the step count, as they are now; nothing before the first step."""
        if self.first is None or self.second is None:
            return {}
        return {"first": self.first, "second": self.second, "steps": torch.tensor(self.steps)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        if state:
            self.first, self.second = (state[name].to(self.values.device) for name in ("first", "second"))
            self.steps = int(state["steps"])

    def numpy(self) -> np.ndarray:
        return self.values.detach().cpu().numpy()
