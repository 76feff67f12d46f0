import math

import numpy as np
import pytest
import torch
from torch import nn

from xcutils.core.errors import UserError
from xcutils.core.scratch import Snapshots
from xcutils.model.rows import RowTable
from xcutils.train.training import BAD_STEPS, SCHEDULES, Optimisers, Plan, factor, mean_cosine, put_finite, train


class Recorder:
    """Stands in for Optimisers and notes the schedule."""

    lr = 0.5

    def __init__(self):
        self.scales = []

    def clear(self):
        pass

    def gradients(self):
        return []

    def step(self, scale):
        self.scales.append(scale)


def zero_loss(docs, rng):
    return torch.zeros((), requires_grad=True) * 1


def three_batches(epoch, rng):
    return [np.arange(2)] * 3


# --- schedule ---------------------------------------------------------------------------------------------------------


def test_the_schedule_by_hand():
    assert [factor(step, 7, 3) for step in range(9)] == [1 / 3, 2 / 3, 1, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0]
    assert [factor(step, 4, 0) for step in range(5)] == [1, 3 / 4, 2 / 4, 1 / 4, 0]
    assert [factor(step, 2, 4) for step in range(4)] == [1 / 4, 2 / 4, 3 / 4, 1]  # training shorter than its warm-up


def factor_by_hand(step: int, total: int, warmup: int, schedule: str) -> float:
    """Up by equal parts, then down along a straight line or half a wave, or not at all."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    way = min(1.0, (step - warmup) / (total - warmup))
    return 1 - way if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * way))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_by_hand(schedule):
    for total, warmup in ((9, 3), (8, 0)):
        found = [factor(step, total, warmup, schedule) for step in range(11)]
        assert found == pytest.approx([factor_by_hand(step, total, warmup, schedule) for step in range(11)], abs=1e-12)
    recorder = Recorder()
    train(Plan(epochs=2, warmup=2, seed=0, schedule=schedule), [recorder], three_batches, zero_loss)
    assert recorder.scales == [factor(step, 6, 2, schedule) for step in range(6)]


def test_each_step_gets_its_factor():
    recorder = Recorder()
    train(Plan(epochs=2, warmup=2, seed=0), [recorder], three_batches, zero_loss)
    assert recorder.scales == [1 / 2, 1, 1, 3 / 4, 2 / 4, 1 / 4]


def test_a_shorter_training_may_follow_a_longer_schedule():
    recorder = Recorder()
    train(Plan(epochs=2, warmup=2, seed=0, decay=4), [recorder], three_batches, zero_loss)
    assert recorder.scales == [factor(step, 12, 2) for step in range(6)]


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "kept"),
    [
        ([1, 3, 2, 3, 5, 4], 0, 6, 5),  # never stops; an equal score is no gain
        ([1, 3, 2, 3, 5, 4], 2, 4, 2),  # stops before the 5 is seen
        ([1, 3, 2, 4, 3, 3], 2, 6, 4),
        ([0, 0, 0, 0, 0, 0], 1, 2, 1),
        ([6, 5, 4, 3, 2, 1], 3, 4, 1),
    ],
)
def test_early_stopping_leaves_the_weights_of_the_best_epoch(scores, patience, epochs, kept):
    seen, weight = [], torch.zeros(1)

    def validate(epoch):
        seen.append(epoch + 1)
        weight.fill_(epoch + 1)
        return {"N@5": float(scores[epoch]), "P@1": -float(epoch)}  # the first figure decides

    plan = Plan(epochs=6, warmup=0, seed=0, patience=patience)
    weights = {"weight": weight}
    outcome = train(plan, [Recorder()], three_batches, zero_loss, weights=lambda: weights, validate=validate)
    assert outcome.epochs == float(weight) == kept
    assert [row["epoch"] for row in outcome.curve] == seen == list(range(1, epochs + 1))
    assert [row["N@5"] for row in outcome.curve] == scores[:epochs]


@pytest.mark.parametrize(
    ("every", "patience", "watched", "kept"),
    [(1, 0, [1, 2, 3, 4, 5], 2), (2, 0, [2, 4, 5], 2), (3, 0, [3, 5], 5), (9, 0, [5], 5), (2, 1, [2, 4], 2)],
)
@pytest.mark.parametrize("keep", ["best", "last"])
def test_validation_every_few_epochs_and_which_epoch_is_kept(every, patience, watched, kept, keep):
    scores, seen, weight = [1, 9, 3, 4, 5], [], torch.zeros(1)

    def batches(epoch, rng):
        weight.fill_(epoch + 1)
        return [np.arange(2)]

    def validate(epoch):
        seen.append(epoch + 1)
        return {"goal": float(scores[epoch])}

    plan = Plan(epochs=5, warmup=0, seed=0, patience=patience, validate_every=every, keep=keep)
    outcome = train(plan, [Recorder()], batches, zero_loss, weights=lambda: {"weight": weight}, validate=validate)
    last = len(outcome.curve)
    assert seen == watched and last == (watched[-1] if patience else 5)
    assert outcome.epochs == float(weight) == (kept if keep == "best" else last)
    assert [row["epoch"] for row in outcome.curve if "goal" in row] == watched


def test_without_validation_the_last_epoch_is_kept():
    outcome = train(Plan(3, 0, 0), [Recorder()], three_batches, zero_loss)
    assert outcome.epochs == 3
    assert outcome.curve == [{"epoch": e, "loss": 0.0, "skipped": 0} for e in (1, 2, 3)]


def test_the_curve_holds_the_mean_loss_and_batches_are_watched():
    table, names = RowTable(torch.zeros(1, 1), lr=0.0), []

    def watch(batches, name):
        names.append((name, len(batches)))
        return batches

    def loss(docs, rng):
        return table.rows(None).sum() + float(docs[0])

    def batches(epoch, rng):
        return [np.array([d]) for d in ([1, 2, 6], [4, 4, 4])[epoch]]

    outcome = train(Plan(2, 0, 0), [Optimisers(None, 0.0, tables=[table])], batches, loss, watch=watch)
    assert [row["loss"] for row in outcome.curve] == [3.0, 4.0]
    assert names == [("epoch 1/2", 3), ("epoch 2/2", 3)]


# --- guard ------------------------------------------------------------------------------------------------------------


class Trouble:
    """A layer and a table to train; some steps have a loss, or only a gradient, that is not finite."""

    def __init__(self, bad: dict[int, str]):
        torch.manual_seed(0)
        self.bad, self.at, self.history = bad, 0, []
        self.layer, self.table = nn.Linear(2, 1), RowTable(torch.ones(4, 2), lr=0.1)
        self.optimisers = [Optimisers(self.layer, 0.1, tables=[self.table], weight_decay=0.1)]

    def weights(self) -> list[torch.Tensor]:
        return [t.detach().clone() for t in (*self.layer.parameters(), self.table.values)]

    def loss(self, docs, rng):
        self.history.append(self.weights())
        loss = self.layer(self.table.rows(torch.from_numpy(docs))).pow(2).sum()
        kind = self.bad.get(self.at, "")
        self.at += 1
        if kind == "gradient":  # the root's slope at zero is infinite, its value is not
            weight = self.layer.weight
            return loss + (weight - weight.detach()).sqrt().sum()
        if kind == "table gradient":
            rows = self.table.rows(torch.tensor([3]))
            return loss + (rows - rows.detach()).sqrt().sum()
        return loss * float(kind or 1)

    def run(self, steps: int):
        return train(Plan(1, 0, 0), self.optimisers, lambda epoch, rng: [np.array([0, 2])] * steps, self.loss)


@pytest.mark.parametrize("kind", ["nan", "inf", "gradient", "table gradient"])
def test_a_step_that_is_not_finite_changes_no_weight(kind):
    trouble = Trouble({1: kind, 4: kind})
    outcome = trouble.run(6)
    history = [*trouble.history, trouble.weights()]
    for step in range(6):
        same = [torch.equal(old, new) for old, new in zip(history[step], history[step + 1])]
        assert all(same) if step in (1, 4) else not any(same)
    assert outcome.curve[0]["skipped"] == 2 and math.isfinite(outcome.curve[0]["loss"])
    assert trouble.table.steps == 4
    assert all(torch.isfinite(tensor).all() for tensor in trouble.weights())


def test_training_stops_after_several_bad_steps_in_a_row():
    trouble = Trouble({step: "nan" for step in range(2, 100)})
    with pytest.raises(UserError, match=f"not finite in {BAD_STEPS} steps in a row.*learning rate") as caught:
        trouble.run(50)
    assert trouble.at == 2 + BAD_STEPS
    assert "tau" in str(caught.value)


def test_a_good_step_starts_the_count_again():
    bad = {step: "nan" for step in range(40) if step % BAD_STEPS != BAD_STEPS - 1}
    outcome = Trouble(bad).run(40)
    assert outcome.curve[0]["skipped"] == len(bad) > BAD_STEPS


# --- randomness -------------------------------------------------------------------------------------------------------


def drawn_numbers(seed: int, extra: int, epochs: int = 3) -> list[tuple]:
    """What each epoch draws, when the loss draws `extra` more numbers in every step of the first epoch."""
    numbers = []

    def batches(epoch, rng):
        numbers.append((*rng.random(2), *torch.rand(2).tolist()))
        return [np.array([epoch])] * 2

    def loss(docs, rng):
        if docs[0] == 0:
            rng.random(extra), torch.rand(extra)
        return zero_loss(docs, rng)

    train(Plan(epochs, 0, seed), [Recorder()], batches, loss)
    return numbers


def test_an_epochs_random_numbers_depend_on_seed_and_epoch_alone():
    numbers = drawn_numbers(seed=1, extra=0)
    assert drawn_numbers(seed=1, extra=7) == numbers
    assert drawn_numbers(seed=1, extra=0, epochs=2) == numbers[:2]
    others = numbers + drawn_numbers(seed=2, extra=0)
    assert all(len({row[column] for row in others}) == 6 for column in range(4))


# --- optimisers -------------------------------------------------------------------------------------------------------


def adamw_by_hand(values, gradients, lrs, decay, beta1=0.9, beta2=0.999, eps=1e-6):
    """Decoupled weight decay, then Adam with bias correction, number by number."""
    values, first, second = list(values), [0.0] * len(values), [0.0] * len(values)
    for step, (gradient, lr) in enumerate(zip(gradients, lrs), 1):
        for i, g in enumerate(gradient):
            values[i] -= lr * decay * values[i]
            first[i] = beta1 * first[i] + (1 - beta1) * g
            second[i] = beta2 * second[i] + (1 - beta2) * g * g
            corrected = first[i] / (1 - beta1**step), second[i] / (1 - beta2**step)
            values[i] -= lr * corrected[0] / (math.sqrt(corrected[1]) + eps)
    return values


def test_optimisers_are_adamw_with_decay_on_matrices_alone():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)).double()
    frozen = module[2].bias.requires_grad_(False)
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    gradients, scales = {name: [] for name in start}, [0.5, 1.0, 0.75, 0.5, 0.25]
    optimisers = Optimisers(module, 0.1, weight_decay=0.2)
    for scale in scales:
        optimisers.clear()
        module(torch.randn(5, 3, dtype=torch.float64)).pow(2).sum().backward()
        assert len(optimisers.gradients()) == 5
        for name, p in module.named_parameters():
            gradients[name].append(p.grad.flatten().tolist() if p.requires_grad else [])
        optimisers.step(scale)
    for name, p in module.named_parameters():
        if p is frozen:
            assert torch.equal(p, start[name])
            continue
        decay = 0.2 if name in ("0.weight", "2.weight") else 0.0
        expected = adamw_by_hand(start[name].flatten().tolist(), gradients[name], [0.1 * s for s in scales], decay)
        np.testing.assert_allclose(p.detach().numpy().ravel(), expected, rtol=1e-10)


def test_tables_step_on_the_same_schedule_at_their_own_rate():
    table, twin = (RowTable(torch.ones(3, 2, dtype=torch.float64), lr=0.3) for _ in range(2))
    optimisers = Optimisers(None, 99.0, tables=[table])
    for scale in (0.5, 1.0, 0.25):
        optimisers.clear()
        table.rows(torch.tensor([0, 2])).pow(2).sum().backward()
        assert [g.shape for g in optimisers.gradients()] == [(2, 2)]
        optimisers.step(scale)
        twin.rows(torch.tensor([0, 2])).pow(2).sum().backward()
        twin.step(scale)
    assert torch.equal(table.values, twin.values) and not torch.equal(table.values[0], table.values[1])


def test_clear_forgets_dense_and_table_gradients():
    layer, table = nn.Linear(2, 2), RowTable(torch.ones(3, 2), lr=0.3)
    optimisers = Optimisers(layer, 0.1, tables=[table])
    layer(table.rows(None)).sum().backward()
    assert len(optimisers.gradients()) == 3
    optimisers.clear()
    assert optimisers.gradients() == []


# --- interrupted and resumed ------------------------------------------------------------------------------------------


class PowerCut(Exception):
    pass


class Small:
    """A table, a dense layer with dropout and a bank that batches depend on: everything that training may change."""

    def __init__(self):
        torch.manual_seed(1)
        self.table = RowTable(torch.randn(6, 4), lr=0.1)
        self.dense = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
        self.bank = np.zeros(6)
        self.optimisers = [Optimisers(self.dense, 0.05, tables=[self.table], weight_decay=0.1)]
        self.steps_left = None  # before the power is cut

    def batches(self, epoch, rng):
        order = rng.permutation(6) if epoch == 0 else np.argsort(self.bank, kind="stable")
        return [order[:2], order[2:4], order[4:]]

    def loss(self, docs, rng):
        if self.steps_left == 0:
            raise PowerCut
        self.steps_left = None if self.steps_left is None else self.steps_left - 1
        rows = self.table.rows(torch.from_numpy(np.sort(docs)))
        self.bank[docs] = rng.random(len(docs)) + rows.detach().sum(dim=1).numpy()
        return self.dense(rows).square().sum() + float(rng.random())

    def weights(self):
        return {"table": self.table.values, **self.dense.state_dict()}

    def validate(self, epoch):
        return {"score": [0.1, 0.7, 0.2, 0.6][epoch], "bank": float(self.bank.sum())}

    def train(self, snapshots=None, validate=True, average_after=0):
        outcome = train(
            Plan(4, 1, seed=3, average_after=average_after),
            self.optimisers,
            self.batches,
            self.loss,
            weights=self.weights,
            memory=lambda: {"bank": self.bank},
            validate=self.validate if validate else None,
            snapshots=snapshots,
        )
        moments = self.optimisers[0].state()
        everything = {**self.weights(), **moments, "bank": torch.from_numpy(self.bank), "rng": torch.get_rng_state()}
        return outcome, {name: tensor.clone() for name, tensor in everything.items()}


@pytest.mark.parametrize("average_after", [0, 1])
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("cuts", [[1], [0], [2, 1], [5, 4], [11], [3, 3, 3], [1] * 11])
def test_training_that_was_interrupted_ends_as_if_it_had_not_been(cuts, validate, average_after, tmp_path):
    outcome, state = Small().train(None, validate, average_after)
    for steps in cuts:
        model = Small()
        model.steps_left = steps
        with pytest.raises(PowerCut):
            model.train(Snapshots(tmp_path / "s", pause=0), validate, average_after)
    said = []
    again, state_again = Small().train(Snapshots(tmp_path / "s", said.append, pause=0), validate, average_after)
    assert again == outcome
    assert state_again.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(state_again[name], tensor), name
    done = sum(cuts)
    assert said == (
        [f"goes on from step {(done - 1) % 3 + 1} of epoch {(done - 1) // 3 + 1}, where it was interrupted"]
        * bool(done)
    )


def test_training_goes_on_from_the_snapshot_before_a_damaged_one(tmp_path):
    outcome, state = Small().train()
    model = Small()
    model.steps_left = 7
    with pytest.raises(PowerCut):
        model.train(Snapshots(tmp_path, pause=0))
    newest = max(tmp_path.glob("[0-9]*")) / "state.npz"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    said = []
    again, state_again = Small().train(Snapshots(tmp_path, said.append, pause=0))
    assert again == outcome and all(torch.equal(state_again[name], tensor) for name, tensor in state.items())
    assert "snapshot passed over" in said[0] and "state.npz is damaged" in said[0]
    assert said[1] == "goes on from step 3 of epoch 2, where it was interrupted"


def test_weights_beyond_use_are_never_put_in_a_snapshot(tmp_path):
    model = Small()
    loss = model.loss

    def diverging(docs, rng):
        if model.steps_left == 3:
            model.table.values[0, 0] = torch.nan  # an update that went wrong, not yet seen in a loss
        return loss(docs, rng)

    model.loss, model.steps_left = diverging, 6
    with pytest.raises(
        UserError, match="weights are not finite.* step 1 of epoch 2 .*last good snapshot is .*00000003"
    ):
        model.train(Snapshots(tmp_path, pause=0))
    arrays, facts = Snapshots(tmp_path).load()
    assert facts["progress"]["place"] == 3 and all(np.isfinite(arrays[name]).all() for name in arrays)


def test_a_bank_keeps_its_row_when_a_step_has_gone_wrong():
    bank = np.zeros((4, 2))
    put_finite(bank, np.array([3, 1, 0]), torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [5.0, torch.inf]]))
    assert bank.tolist() == [[0, 0], [0, 0], [0, 0], [1, 2]]


def test_stopping_names_step_learning_rate_and_the_last_good_snapshot(tmp_path):
    model = Small()
    model.loss = lambda docs, rng: torch.tensor(torch.nan, requires_grad=True) * 1
    with pytest.raises(
        UserError, match=r"5 steps in a row, up to step 2 of epoch 2 \(learning rate 0.0\d+; there is no"
    ):
        model.train(Snapshots(tmp_path, pause=0))
    assert not list(tmp_path.glob("*"))


def test_training_learns_a_line():
    layer = nn.Linear(1, 1)
    x = torch.linspace(-1, 1, 20).unsqueeze(1)

    def loss(docs, rng):
        return (layer(x[docs]) - (3 * x[docs] - 1)).pow(2).mean()

    def batches(epoch, rng):
        return np.array_split(rng.permutation(20), 4)

    outcome = train(Plan(100, 10, 0), [Optimisers(layer, 0.1)], batches, loss)
    assert outcome.curve[-1]["loss"] < 1e-4 < outcome.curve[0]["loss"]
    assert layer.weight.item() == pytest.approx(3, abs=0.02) and layer.bias.item() == pytest.approx(-1, abs=0.02)


def test_mean_cosine_of_random_pairs():
    assert mean_cosine(np.tile([0.6, 0.8], (50, 1))) == pytest.approx(1)
    assert mean_cosine(np.ones((1, 2))) == 0.0  # there is no pair
    vectors = np.random.default_rng(0).standard_normal((40, 5)) + 1
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    all_pairs = [vectors[i] @ vectors[j] for i in range(40) for j in range(40) if i != j]
    assert mean_cosine(vectors, pairs=200_000) == pytest.approx(np.mean(all_pairs), abs=0.01)
    assert mean_cosine(vectors, seed=3) == mean_cosine(vectors, seed=3)


# --- averaged weights -------------------------------------------------------------------------------------------------


class Walking:
    """A weight that a step moves by a known amount; what validation sees of it."""

    def __init__(self, scores: list[float]):
        self.table, self.scores = RowTable(torch.zeros(1, 1, dtype=torch.float64), lr=0.0), scores
        self.whole, self.seen, self.ends, self.at = torch.zeros(1, dtype=torch.int64), [], [], 0.0

    def loss(self, docs, rng):
        self.at = float(self.table.values) + docs[0]
        self.table.values.fill_(self.at)
        self.whole += 1
        return (self.table.rows(torch.tensor([0])) * 0).sum()

    def validate(self, epoch):
        self.seen.append((float(self.table.values), int(self.whole)))
        return {"score": self.scores[epoch]}

    def run(self, average_after: int, validate: bool = True):
        plan = Plan(4, 0, 0, average_after=average_after)
        weights = {"value": self.table.values, "whole": self.whole}
        batches = {epoch: [np.array([10**epoch])] for epoch in range(4)}
        optimisers = [Optimisers(None, 0.0, tables=[self.table])]
        found = self.validate if validate else None
        return train(plan, optimisers, lambda e, _: batches[e], self.loss, weights=lambda: weights, validate=found)


def test_validation_sees_the_mean_of_the_epochs_ends_and_training_goes_on_without_it():
    walking = Walking([1.0, 2.0, 4.0, 3.0])
    outcome = walking.run(average_after=1)  # the weight is 1, 11, 111, 1111 at the epochs' ends
    assert walking.seen == [(1.0, 1), (11.0, 2), (61.0, 3), (pytest.approx(411.0), 4)]
    assert walking.at == 1111.0
    assert outcome.epochs == 3 and float(walking.table.values) == 61.0 and int(walking.whole) == 3


def test_without_validation_the_mean_is_what_is_left():
    walking = Walking([])
    walking.run(average_after=2, validate=False)
    assert float(walking.table.values) == pytest.approx((111 + 1111) / 2)
    plain = Walking([])
    plain.run(average_after=0, validate=False)
    assert float(plain.table.values) == 1111.0
