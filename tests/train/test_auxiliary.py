"""Auxiliary vectors: added as the paper's formula says, shared anew by hand."""

import numpy as np
import torch

from xcutils.train.auxiliary import Auxiliary

CPU = torch.device("cpu")


def make(label_to_aux, dim=3, normalise_first=False, seed=0) -> Auxiliary:
    aux = Auxiliary(np.array(label_to_aux, dtype=np.int32), dim, lr=0.1, normalise_first=normalise_first, device=CPU)
    aux.table.values = torch.from_numpy(np.random.default_rng(seed).normal(size=aux.table.values.shape)).float()
    return aux


def test_starts_at_zero_so_that_training_starts_as_ngame():
    aux = Auxiliary(np.array([0, 1, 1], dtype=np.int32), 4, lr=0.1, normalise_first=False, device=CPU)
    z = torch.randn(3, 4)
    assert len(aux) == 2
    assert torch.equal(aux.add(z, np.arange(3)), z)


def test_at_random_they_start_within_xaviers_bound():
    label_to_aux = np.arange(40, dtype=np.int32)
    torch.manual_seed(0)
    aux = Auxiliary(label_to_aux, 20, lr=0.1, normalise_first=False, device=CPU, start="xavier")
    bound = (6 / (40 + 20)) ** 0.5
    assert 0.95 * bound < aux.table.values.abs().max() <= bound
    assert abs(float(aux.table.values.mean())) < 0.1 * bound
    assert len(Auxiliary(label_to_aux * 0 - 1, 20, lr=0.1, normalise_first=False, device=CPU, start="xavier")) == 0


def test_k_zero_adds_nothing():
    aux = make([-1, -1, -1])
    z = torch.randn(3, 3)
    assert len(aux) == 0
    assert aux.add(z, np.arange(3)) is z


def test_adds_each_labels_own_vector_raw_and_normalised():
    label_to_aux = [2, 0, 1, 0, 2]
    z, labels = torch.randn(4, 3), np.array([4, 1, 3, 2])
    for normalise_first in (False, True):
        aux = make(label_to_aux, normalise_first=normalise_first)
        got = aux.add(z, labels)
        for row, label in enumerate(labels):
            start = z[row] / z[row].norm() if normalise_first else z[row]
            torch.testing.assert_close(got[row], start + aux.table.values[label_to_aux[label]])


def test_only_the_vectors_of_the_batch_move():
    aux = make([0, 1, 2, 2])
    before = aux.table.values.clone()
    aux.add(torch.randn(2, 3), np.array([0, 3])).pow(2).sum().backward()
    aux.table.step()
    assert torch.equal(aux.table.values[1], before[1])
    assert not torch.equal(aux.table.values[0], before[0])
    assert not torch.equal(aux.table.values[2], before[2])


def test_recluster_keeps_head_labels_and_starts_new_vectors_at_their_members_mean():
    rng = np.random.default_rng(1)
    label_to_aux = np.array([0, 1, 2, 2, 3, 3, 2, 3], dtype=np.int32)  # labels 0 and 1 have their own
    aux = make(label_to_aux)
    old = aux.table.values.clone()
    aux.table.first, aux.table.second = torch.ones_like(old), torch.ones_like(old)
    embeddings = rng.normal(size=(8, 3)).astype(np.float32)
    aux.recluster(embeddings, seed=5)
    assert list(aux.label_to_aux[:2]) == [0, 1]
    assert torch.equal(aux.table.values[:2], old[:2])
    assert sorted(np.bincount(aux.label_to_aux)[2:]) == [3, 3]
    for slot in (2, 3):
        members = np.flatnonzero(aux.label_to_aux == slot)
        by_hand = torch.stack([old[label_to_aux[m]] for m in members]).mean(dim=0)
        torch.testing.assert_close(aux.table.values[slot], by_hand)
        assert not aux.table.first[slot].any() and not aux.table.second[slot].any()
    assert aux.table.first[:2].all()


def test_recluster_without_shared_vectors_changes_nothing():
    aux = make([0, 1, 2])
    before = aux.table.values.clone()
    aux.recluster(np.eye(3, dtype=np.float32), seed=0)
    assert list(aux.label_to_aux) == [0, 1, 2]
    assert torch.equal(aux.table.values, before)
