"""The one training loop: schedule, guards, validation, early stopping, snapshots and curves for every method."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, starts
from xcutils.core.scratch import Snapshots
from xcutils.model.rows import RowTable

# What is left of the steps after the warm-up, from 1 to 0 -> the factor of the learning rates.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: (1 - math.cos(math.pi * left)) / 2,
    "constant": lambda left: 1.0,
}
KEEP = ("best", "last")  # which epoch's weights training leaves
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
        groups = self.dense.param_groups if self.dense else []
        dense = [p.grad for group in groups for p in group["params"] if p.grad is not None]
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

    def state(self) -> dict[str, Tensor]:
        """The moments and step counts, as they are now."""
        dense = self.dense.state_dict()["state"] if self.dense else {}
        moments = {f"dense.{i}.{name}": tensor for i, part in dense.items() for name, tensor in part.items()}
        return moments | {f"table.{i}.{k}": v for i, table in enumerate(self.tables) for k, v in table.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        dense: dict[int, dict[str, Tensor]] = {}
        tables: list[dict[str, Tensor]] = [{} for _ in self.tables]
        for name, tensor in state.items():
            kind, place, key = name.split(".", 2)
            (dense.setdefault(int(place), {}) if kind == "dense" else tables[int(place)])[key] = tensor
        if self.dense:
            self.dense.load_state_dict({**self.dense.state_dict(), "state": dense})
        for table, part in zip(self.tables, tables, strict=True):
            table.restore(part)


@dataclass
class Plan:
    """How long and how to train; it does not change while training."""

    epochs: int
    warmup: int  # steps
    seed: int
    schedule: str = "linear"  # of SCHEDULES
    decay: int = 0  # epochs over which the learning rate decays; 0 = `epochs`
    rate: float = 1.0  # of the learning rates
    patience: int = 0  # validations without a gain before training stops; 0 = never
    validate_every: int = 1  # epochs between two validations; the last epoch always has one
    keep: str = "best"  # of KEEP
    average_after: int = 0  # epochs after which the weights at each epoch's end are averaged and kept; 0 = never
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass
class Outcome:
    """How training went: the epochs behind the kept weights, and one row per epoch."""

    epochs: int
    curve: list[dict]


@dataclass
class Progress:
    """How far training is; with the tensors and generators it is all that another process needs to continue."""

    epoch: int = 0
    place: int = 0  # steps done in this epoch
    losses: list[float] = field(default_factory=list)  # of these steps
    skipped: int = 0  # steps whose loss or gradient was not finite
    in_a_row: int = 0  # how many of the last steps were skipped without a good one between
    curve: list[dict] = field(default_factory=list)
    best: float = -np.inf  # the highest score of a validation
    since: int = 0  # validations without a gain
    kept: int = 0  # epochs behind the kept weights
    averaged: int = 0  # epochs in the mean of the weights


def factor(step: int, total: int, warmup: int, schedule: str = "linear") -> float:
    """The factor of the learning rates at a step: linear warm-up, then the schedule's."""
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule](max(0.0, (total - step) / max(1, total - warmup)))


def train(
    plan: Plan,
    optimisers: list[Optimisers],
    batches: Callable[[int, np.random.Generator], list[np.ndarray]],
    loss_of: Callable[[np.ndarray, np.random.Generator], Tensor],
    *,
    weights: Callable[[], dict[str, Tensor]] = dict,
    memory: Callable[[], dict[str, np.ndarray]] = dict,
    validate: Callable[[int], dict[str, float]] | None = None,
    watch: Callable[[Iterable, str], Iterable] = lambda items, name: items,
    snapshots: Snapshots | None = None,
) -> Outcome:
    """Train; the weights end as they were after the epoch that was best by validation, or after the last one.

    The last one's are kept without validation and where the plan says so.

    batches    (epoch, generator) -> the epoch's batches of document ids
    loss_of    (docs, generator)  -> the batch's loss
    weights    ()                 -> the live tensors that make up the model
    memory     ()                 -> the other live arrays that training changes and depends on
    validate   (epoch)            -> figures; the first one decides which epoch is best
    snapshots  where the state is saved now and then; training is resumed from the newest one
    """
    run = _Run(plan, optimisers, weights, memory, snapshots)
    run.resume()
    at = run.progress
    while at.epoch < plan.epochs and not (plan.patience and at.since >= plan.patience):
        todo = run.begin_epoch(batches)
        total = (plan.decay or plan.epochs) * len(todo)
        for docs in watch(todo[at.place :], f"epoch {at.epoch + 1}/{plan.epochs}"):
            scale = plan.rate * factor(at.epoch * len(todo) + at.place, total, plan.warmup, plan.schedule)
            run.step(docs, loss_of, scale)
        run.end_epoch(validate)
    if validate is None or plan.keep == "last":
        run.put(run.mean)
        return Outcome(at.epoch, at.curve)
    run.put(run.best)
    return Outcome(at.kept, at.curve)


class _Run:
    """One training run: its progress, its generators, the best weights so far, and snapshots of all of them."""

    def __init__(self, plan: Plan, optimisers: list[Optimisers], weights, memory, snapshots: Snapshots | None):
        self.plan = plan
        self.optimisers = optimisers
        self.weights = weights
        self.memory = lambda: {name: torch.from_numpy(array) for name, array in memory().items()}  # not a copy
        self.snapshots = snapshots
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self.mean: dict[str, Tensor] = {}  # of the weights at the ends of epochs; empty before average_after
        self.rng = np.random.default_rng()
        self.todo: list[np.ndarray] = []
        self.size = 0  # bytes of a snapshot

    def begin_epoch(self, batches) -> list[np.ndarray]:
        """All batches of the epoch; in a resumed epoch, the same ones as before the interruption."""
        at, plan = self.progress, self.plan
        if not at.place:
            self.rng = np.random.default_rng([plan.seed, at.epoch])  # an epoch depends on nothing drawn before it
            torch.manual_seed(plan.seed * 100_003 + at.epoch)
            self.todo = batches(at.epoch, self.rng)
        return self.todo

    def step(self, docs: np.ndarray, loss_of, scale: float) -> None:
        """One batch: forward, backward, update."""
        for part in self.optimisers:
            part.clear()
        loss = loss_of(docs, self.rng)
        finite = bool(torch.isfinite(loss))
        if finite:
            loss.backward()
            finite = all(bool(torch.isfinite(g.sum())) for part in self.optimisers for g in part.gradients())
        if finite:
            for part in self.optimisers:
                part.step(scale)
        self._count(float(loss.detach()) if finite else float("nan"), scale)
        if finite and self.snapshots is not None and self.snapshots.due(self._size()):
            self.snapshot()

    def _count(self, loss: float, scale: float) -> None:
        at = self.progress
        at.place += 1
        at.losses.append(loss)
        at.in_a_row = 0 if np.isfinite(loss) else at.in_a_row + 1
        at.skipped += not np.isfinite(loss)
        if at.in_a_row >= BAD_STEPS:
            raise self._diverged("the loss or its gradient was", f" in {at.in_a_row} steps in a row", scale)

    def _diverged(self, what: str, how_long: str, scale: float) -> UserError:
        at = self.progress
        newest = None if self.snapshots is None else self.snapshots.newest
        rates = ", ".join(f"{part.lr * scale:.3g}" for part in self.optimisers)
        kept = "there is no snapshot yet" if newest is None else f"the last good snapshot is {newest}"
        return UserError(
            f"{what} not finite{how_long}, up to step {at.place} of epoch {at.epoch + 1} (learning rate {rates}; "
            f"{kept}): lower the learning rate or raise the temperature `tau`."
        )

    def end_epoch(self, validate) -> None:
        """Add the curve's next row, and keep a copy of the weights if they are the best so far."""
        at = self.progress
        good = [loss for loss in at.losses if np.isfinite(loss)]
        row = {"epoch": at.epoch + 1, "loss": float(np.mean(good)) if good else float("inf"), "skipped": at.skipped}
        self._average()
        with self._averaged():
            figures = validate(at.epoch) if validate is not None and self._is_watched() else {}
            if figures:
                self._judge(next(iter(figures.values())))
        at.curve.append({**row, **figures})
        at.epoch += 1
        at.place = 0
        at.losses = []

    def _is_watched(self) -> bool:
        """Does this epoch end with a validation?"""
        done = self.progress.epoch + 1
        return done % self.plan.validate_every == 0 or done == self.plan.epochs

    def _judge(self, score: float) -> None:
        """Note whether the present weights are the best so far, of which a copy is kept if it may be wanted."""
        at = self.progress
        at.since += 1
        if score > at.best:
            at.best = float(score)
            at.since = 0
            at.kept = at.epoch + 1
            if self.plan.keep == "best":
                self._keep()

    def put(self, values: dict[str, Tensor]) -> None:
        """Set the weights to these values, where there are any."""
        for name, tensor in self.weights().items() if values else ():
            tensor.detach().copy_(values[name])

    def _keep(self) -> None:
        """The best weights are the present ones."""
        if not self.best:
            self.best = self._copy()
            return
        for name, tensor in self.weights().items():
            self.best[name].copy_(tensor.detach())

    def _copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.weights().items()}

    def _average(self) -> None:
        """Add the present weights to the mean, if this epoch counts; of whole numbers the last values are kept."""
        at, after = self.progress, self.plan.average_after
        if not after or at.epoch < after:
            return
        at.averaged += 1
        if not self.mean:
            self.mean = self._copy()
            return
        for name, tensor in self.weights().items():
            share = 1 / at.averaged if tensor.is_floating_point() else 1.0
            self.mean[name].lerp_(tensor.detach(), share) if share < 1 else self.mean[name].copy_(tensor.detach())

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Inside the block the weights are the mean, where there is one; afterwards they are as before."""
        before = self._copy() if self.mean else {}
        self.put(self.mean)
        yield
        self.put(before)

    def _size(self) -> int:
        """About how many bytes a snapshot has; it grows only when best weights, mean or moments are first made."""
        if not self.size or self.progress.place == 1:
            self.size = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())
        return self.size

    def _tensors(self) -> dict[str, Tensor]:
        parts = {"weights": self.weights(), "memory": self.memory(), "best": self.best, "mean": self.mean}
        parts |= {f"optimiser{i}": part.state() for i, part in enumerate(self.optimisers)}
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def snapshot(self) -> None:
        """Save all that training depends on; weights that are not finite are refused."""
        assert self.snapshots is not None
        if not all(bool(torch.isfinite(t).all()) for t in self.weights().values() if t.is_floating_point()):
            raise self._diverged("the weights are", "", 1.0)
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors().items()}
        offsets = starts(np.array([len(batch) for batch in self.todo]))
        arrays |= {"todo/values": np.concatenate(self.todo), "todo/offsets": offsets}
        arrays["torch"] = torch.get_rng_state().numpy()
        if self.plan.device.type == "cuda":
            arrays["cuda"] = torch.cuda.get_rng_state(self.plan.device).numpy()
        self.snapshots.save(arrays, {"progress": asdict(self.progress), "generator": self.rng.bit_generator.state})

    def resume(self) -> None:
        """Load the newest whole snapshot, if there is one."""
        state = None if self.snapshots is None else self.snapshots.load()
        if state is None or self.snapshots is None:
            return
        arrays, facts = state
        parts: dict[str, dict[str, Tensor]] = {}
        for key in arrays:
            if "/" in key and not key.startswith("todo/"):
                part, name = key.split("/", 1)
                parts.setdefault(part, {})[name] = torch.from_numpy(arrays[key])
        for live, part in ((self.weights(), "weights"), (self.memory(), "memory")):
            for name, tensor in live.items():
                tensor.detach().copy_(parts[part].pop(name))
        for i, optimiser in enumerate(self.optimisers):
            optimiser.restore(parts.get(f"optimiser{i}", {}))
        self.best, self.mean = (
            {name: tensor.to(self.plan.device) for name, tensor in parts.get(part, {}).items()}
            for part in ("best", "mean")
        )
        self.progress = Progress(**facts["progress"])
        rows = Ragged(arrays["todo/values"], arrays["todo/offsets"])
        self.todo = [rows[i] for i in range(len(rows))]
        self.rng.bit_generator.state = facts["generator"]
        torch.set_rng_state(torch.from_numpy(arrays["torch"]))
        if "cuda" in arrays:
            torch.cuda.set_rng_state(torch.from_numpy(arrays["cuda"]), self.plan.device)
        at = self.progress
        self.snapshots.say(f"goes on from step {at.place} of epoch {at.epoch + 1}, where it was interrupted")


def put_finite(bank: np.ndarray, rows: np.ndarray, embeddings: Tensor) -> None:
    """Write the embeddings into these rows of the bank, except those that are not finite."""
    vectors = embeddings.detach().cpu().numpy()
    is_finite = np.isfinite(vectors).all(axis=1)
    bank[rows[is_finite]] = vectors[is_finite]


def mean_cosine(embeddings: np.ndarray, seed: int = 0, pairs: int = 2000) -> float:
    """Mean cosine of random pairs of different texts: near 1 means that the encoder has collapsed."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, len(embeddings), (2, pairs))
    apart = first != second
    return float((embeddings[first[apart]] * embeddings[second[apart]]).sum(axis=1).mean()) if apart.any() else 0.0
