import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from xcutils.model.rows import RowTable

ROWS, DIMS = 40, 3


def values(seed: int = 0, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, DIMS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(step: int, count: int) -> torch.Tensor:
    """`count` different rows."""
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(step))[:count]


def bowl(rows: torch.Tensor, step: int) -> torch.Tensor:
    """A loss whose gradient differs by row and step."""
    return ((rows - step) ** 2).sum() / (1 + step)


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made, those that share memory with `known` left out."""

    def __init__(self, *known: torch.Tensor):
        super().__init__()
        self.known, self.size = {tensor.untyped_storage().data_ptr() for tensor in known}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.size = max(self.size, tensor.numel())
        return made


def test_steps_like_sparse_adam_over_many_steps():
    table, theirs = RowTable(values(), lr=0.05), torch.nn.Parameter(values())
    adam = torch.optim.SparseAdam([theirs], lr=0.05)
    for step in range(60):
        ids, scale = draw(step, 5), 1 - step / 60
        bowl(table.rows(ids), step).backward()
        table.step(scale)
        adam.param_groups[0]["lr"] = 0.05 * scale
        adam.zero_grad()
        bowl(F.embedding(ids, theirs, sparse=True), step).backward()
        adam.step()
        torch.testing.assert_close(table.values, theirs.data, rtol=1e-12, atol=1e-12)
    assert table.steps == 60


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_dense_updates_are_those_of_adamw(decay):
    """Every row coasts on its momentum and decays, whether a step has read it or not."""
    table = RowTable(values(), lr=0.05, weight_decay=decay, every=True, eps=1e-20)
    theirs = torch.nn.Parameter(values())
    adam = torch.optim.AdamW([theirs], lr=0.05, weight_decay=decay, eps=1e-20)
    for step in range(40):
        ids = draw(step, 5)
        bowl(table.rows(ids), step).backward()
        table.step()
        adam.zero_grad()
        bowl(F.embedding(ids, theirs), step).backward()
        adam.step()
        torch.testing.assert_close(table.values, theirs.data, rtol=1e-9, atol=1e-9)


def test_weight_decay_shrinks_the_rows_of_the_step_alone():
    table, plain = (RowTable(values(), lr=0.05, weight_decay=decay) for decay in (0.3, 0.0))
    ids = draw(0, 5)
    for one in (table, plain):
        bowl(one.rows(ids), 1).backward()
        one.step(0.5)
    others = [row for row in range(ROWS) if row not in ids.tolist()]
    assert torch.equal(table.values[others], plain.values[others])
    torch.testing.assert_close(table.values[ids], plain.values[ids] - 0.025 * 0.3 * values()[ids])


def test_uses_that_overlap_in_a_step_are_one_gradient_per_row():
    table, theirs = RowTable(values(), lr=0.05), torch.nn.Parameter(values())
    adam = torch.optim.SparseAdam([theirs], lr=0.05)
    for step in range(20):
        first, second = draw(step, 15), draw(step + 100, 30)
        assert len(set(first.tolist()) & set(second.tolist())) > 0
        (bowl(table.rows(first), step) + bowl(table.rows(second), 3)).backward()
        table.step()
        adam.zero_grad()
        both = [F.embedding(ids, theirs, sparse=True) for ids in (first, second)]
        (bowl(both[0], step) + bowl(both[1], 3)).backward()
        adam.step()
        torch.testing.assert_close(table.values, theirs.data, rtol=1e-12, atol=1e-12)
    assert table.steps == 20


@pytest.mark.parametrize("ids", [None, torch.arange(ROWS)])
@pytest.mark.parametrize("part", [None, torch.tensor([3, 1, 20])])
def test_steps_like_adam_where_every_row_is_used(ids, part):
    table, theirs = RowTable(values(), lr=0.05, eps=1e-15), torch.nn.Parameter(values())
    adam = torch.optim.Adam([theirs], lr=0.05, eps=1e-15)  # the two add eps in different places
    for step in range(30):
        loss = bowl(table.rows(ids), step)
        (loss if part is None else loss + bowl(table.rows(part), 2)).backward()
        table.step()
        adam.zero_grad()
        (bowl(theirs, step) if part is None else bowl(theirs, step) + bowl(theirs[part], 2)).backward()
        adam.step()
        torch.testing.assert_close(table.values, theirs.data, rtol=1e-10, atol=1e-10)


def test_rows_outside_the_batch_stay_as_they_are_bit_for_bit():
    table = RowTable(values(), lr=0.5)
    bowl(table.rows(None), 1).backward()
    table.step()
    for step in range(5):
        before = [tensor.clone() for tensor in (table.values, table.first, table.second)]
        ids = draw(step, 4)
        outside = torch.ones(ROWS, dtype=torch.bool).index_fill_(0, ids, False)
        bowl(table.rows(ids), step).backward()
        table.step()
        for old, new in zip(before, (table.values, table.first, table.second)):
            assert torch.equal(old[outside], new[outside])
            assert (old[~outside] != new[~outside]).all()


def test_a_step_costs_the_rows_it_uses():
    rows, places = 10_000, []
    table = RowTable(values(rows=rows), lr=0.1)
    assert table.first is None and table.second is None  # a finished model needs no moments
    for step in range(3):
        known = [t for t in (table.values, table.first, table.second) if t is not None]
        uses = draw(step, 6), draw(step + 9, 7)
        with Largest(*known) as made:
            for ids in uses:
                bowl(table.rows(ids), step).backward()
            assert [gradient.shape for gradient in table.gradients()] == [(6, DIMS), (7, DIMS)]
            table.step()
        assert made.size == rows * DIMS if step == 0 else made.size <= 13 * DIMS
        places.append([t.data_ptr() for t in (table.values, table.first, table.second)])
    assert places[0] == places[1] == places[2]  # changed in place


def test_rows_are_copies_that_wait_for_the_step():
    table = RowTable(values(), lr=0.1)
    picked = table.rows(torch.tensor([2, 7]))
    assert torch.equal(picked, values()[[2, 7]]) and picked.requires_grad
    bowl(picked, 1).backward()
    assert torch.equal(table.values, values())
    table.step()
    assert not torch.equal(table.values, values())
    assert torch.equal(picked, values()[[2, 7]])


def test_what_is_cleared_unused_or_read_without_gradient_changes_nothing():
    table = RowTable(values(), lr=0.1)
    bowl(table.rows(torch.tensor([1])), 1).backward()
    table.clear()
    with torch.no_grad():
        assert not table.rows(torch.tensor([1])).requires_grad
    table.rows(torch.tensor([2]))  # no loss depends on it
    assert table.gradients() == []
    table.step()
    assert torch.equal(table.values, values()) and table.steps == 0 and table.first is None


def test_a_step_forgets_its_gradients():
    table = RowTable(values(), lr=0.1)
    bowl(table.rows(torch.tensor([1])), 1).backward()
    table.step()
    after = table.values.clone()
    table.step()
    assert torch.equal(table.values, after) and table.gradients() == [] and table.steps == 1


def test_numpy_shows_the_values():
    table = RowTable(values(), lr=0.1)
    assert (table.numpy() == values().numpy()).all()


@pytest.mark.parametrize("whole", [False, True])
def test_with_momentum_it_steps_like_sgd(whole):
    """All rows at once are torch's SGD; of some rows, those of a table that has these alone."""
    rows = torch.arange(ROWS) if whole else draw(0, 7)
    table = RowTable(values(), lr=0.05, momentum=0.9, weight_decay=0.01)
    theirs = torch.nn.Parameter(values()[rows])
    sgd = torch.optim.SGD([theirs], lr=0.05, momentum=0.9, weight_decay=0.01)
    for step in range(30):
        scale = 1 - step / 30
        bowl(table.rows(None if whole else rows), step).backward()
        table.step(scale)
        sgd.param_groups[0]["lr"] = 0.05 * scale
        sgd.zero_grad()
        bowl(theirs, step).backward()
        sgd.step()
    torch.testing.assert_close(table.values[rows], theirs.data, rtol=1e-10, atol=1e-10)
    others = torch.ones(ROWS, dtype=torch.bool).index_fill(0, rows, False)
    assert torch.equal(table.values[others], values()[others])


def test_momentum_is_saved_and_restored():
    tables = [RowTable(values(), lr=0.1, momentum=0.9) for _ in range(2)]
    for step in range(3):
        bowl(tables[0].rows(draw(step, 5)), step).backward()
        tables[0].step()
    tables[1].values.copy_(tables[0].values)
    tables[1].restore({name: tensor.clone() for name, tensor in tables[0].state().items()})
    for table in tables:
        bowl(table.rows(draw(9, 5)), 9).backward()
        table.step()
    assert torch.equal(tables[0].values, tables[1].values)


def test_gradients_that_are_merged_early_make_the_same_step():
    early, late = RowTable(values(), lr=0.05), RowTable(values(), lr=0.05)
    for step in range(5):
        for table in (early, late):
            waiting = table.rows(draw(step, 4))  # its gradient comes last
            for part in range(3):
                bowl(table.rows(draw(10 * step + part, 6)), part).backward()
                if table is early:
                    table.merge()
                    assert len(table.gradients()) == 1
            bowl(waiting, 7).backward()
            table.step()
    torch.testing.assert_close(early.values, late.values, rtol=1e-12, atol=1e-12)
