"""When one vector for all texts is the way down, against what the hinge gives there; the program on tiny data."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from benchmarks import collapse
from stages.encoder import Params
from testing.tiny import make_params
from tests.train.test_losses import triplet_by_hand
from xcutils.core import artifacts
from xcutils.train.losses import triplet

SMALL = {"batch_size": 8, "negatives": 3, "dropout": 0.0}


@pytest.mark.parametrize("k, tau, wanted", [(10, 0.1, 0.03), (10, 0.0, 0.3), (3, 0.1, 0.1), (3, 1.0, 0.1)])
def test_where_all_texts_have_one_vector_the_hinge_is_its_margin(k, tau, wanted):
    scores, known = torch.ones(5, 40), torch.eye(5, 40, dtype=torch.bool)
    found = triplet(scores, known, torch.ones(5, 1), margin=0.3, k=k, tau=tau)
    assert found.item() == pytest.approx(wanted)


@pytest.fixture
def part(tiny_run) -> collapse.Part:
    return collapse.part_of(tiny_run / "data" / "prepare", 30)


def params(tiny_model, **changes) -> Params:
    return Params(**make_params()["encoder"] | collapse.PAPER | SMALL | {"model": str(tiny_model)} | changes)


def test_a_part_has_its_own_labels_alone_and_a_fifth_held_out(part):
    assert len(part.docs) == len(part.positives) == len(part.held_out) == 30 and part.held_out.sum() == 6
    assert sorted(set(part.positives.values.tolist())) == list(range(len(part.labels)))
    assert part.docs.lengths.max() <= collapse.TOKENS


@pytest.mark.parametrize("weighting", [0.1, 0.0])
def test_the_violation_is_the_hinge_of_the_first_batch_by_hand(part, tiny_model, tiny_run, weighting, monkeypatch):
    special = artifacts.load_json(tiny_run / "data" / "prepare" / "tokenizer", "special.json")
    p, seen = params(tiny_model, weighting=weighting), []
    works = collapse.Siamese._pairs

    def watched(self, *args):
        seen.append((works(self, *args), args))
        return seen[-1][0]

    monkeypatch.setattr(collapse.Siamese, "_pairs", watched)
    found = collapse.violation(part, p, special)
    pairs, _ = seen[0]
    scores = pairs.x @ pairs.labels.T
    positive = scores.gather(1, pairs.drawn).tolist()
    by_hand = triplet_by_hand(scores.tolist(), pairs.is_positive().tolist(), positive, p.margin, 3, weighting)
    assert found == pytest.approx(by_hand * (3 if weighting else 1), rel=1e-5) and found > 0


def test_batches_hold_no_document_that_is_held_out(part, tiny_model):
    batches = collapse.batches_of(part, params(tiny_model), np.random.default_rng(0))
    epoch = np.concatenate([next(batches) for _ in range(3)])
    assert sorted(epoch.tolist()) == np.flatnonzero(~part.held_out).tolist()


def test_the_program_writes_its_table_and_makes_nothing_twice(tiny_run, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(collapse, "WORK", tmp_path)
    args = ["--prepare", str(tiny_run / "data" / "prepare"), "--model", str(tiny_model), "--steps", "3"]
    args += ["--only", "as the papers", "--only", "softmax"]
    first = CliRunner().invoke(collapse.main, args)
    assert first.exit_code == 0, first.output
    (record,) = tmp_path.glob("*.json")
    rows, by_batch = (text.splitlines() for text in record.with_suffix(".md").read_text(encoding="utf-8").split("\n\n"))
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["as the papers", "softmax"]
    assert [row.split("|")[1].strip() for row in by_batch[2:]] == ["128", "512", "1600"]
    alike = [float(cell) for cell in by_batch[2].strip("| ").split(" | ")[3:]]
    assert alike == sorted(alike, reverse=True)  # the more negatives, the easier they are
    assert rows[0].count("cosine at") == rows[0].count("P@1 at") == 4
    assert rows[3].split("|")[2].strip() == "-"  # a softmax has no margin
    made = json.loads(record.read_text(encoding="utf-8"))
    assert all(0 <= row["P@1"] <= 100 for run in made.values() for row in run)
    monkeypatch.setattr(collapse, "train", None)
    assert CliRunner().invoke(collapse.main, args).exit_code == 0
