"""When the papers' hinge gives every text the same vector: mean cosine and P@1 of a transformer by step (Linux).

python -m benchmarks.collapse [--prepare data/prepare] [--model NAME or FOLDER] [--steps 24] [--only NAME ...]

reads   data/prepare, which `dvc repro prepare` wrote: DOCS training documents of it, drawn at random but always the
        same, with the labels that they have; a fifth of them is held out
writes  .scratch/collapse/DATASET.md, what is printed; a variant that is finished is not made again

All variants start from the same weights and, where their batches are of one size, meet the same documents in the same
order. The first one is M1 as the papers have it, but for fewer documents in a batch, fewer steps and a shorter warm-up;
each other one changes what its name says. Random batches, no auxiliary vectors.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch

from benchmarks.apart import ROOT
from stages import parameters
from stages.encoder import Params, Siamese
from xcutils.core import artifacts, console
from xcutils.core.ragged import Ragged
from xcutils.model.tokens import check_vocabulary
from xcutils.search.exact import exact
from xcutils.train.training import Optimisers, factor, mean_cosine

WORK = ROOT / ".scratch" / "collapse"
DOCS = 2000
HELD_OUT = 0.2
TOKENS = 14  # of a text, besides the two special ones
SEED = 0
DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"

# [DEXA] section 4 and its code: hinge with ten hard negatives, one positive. Batches of 128 and steps to fit two cores.
PAPER = {
    "kind": "transformer",
    "layers": 0,
    "dropout": 0.1,
    "loss": "triplet",
    "labels": "batch",
    "margin": 0.3,
    "negatives": 10,
    "weighting": 0.1,
    "positives": 1,
    "mined": 0,
    "batch_size": 128,
    "lr": 1e-4,
    "warmup": 5,
    "weight_decay": 0.01,
}
# Name -> what it changes.
VARIANTS: dict[str, dict] = {
    "as the papers": {},
    "warm-up 48": {"warmup": 48},
    "rate 2e-5": {"lr": 2e-5},
    "no dropout": {"dropout": 0.0},
    "batch 64": {"batch_size": 64},
    "weights alike": {"weighting": 0.0},
    "negatives 100": {"negatives": 100},
    "negatives 100, weights alike": {"negatives": 100, "weighting": 0.0},
    "margin 0.1": {"margin": 0.1},
    "softmax": {"loss": "decoupled-softmax", "tau": 0.05},
}


@dataclass(frozen=True)
class Part:
    """Some training documents with their labels.

    docs, labels  token ids
    positives     the labels of each document
    held_out      (n,) bool
    """

    docs: Ragged
    labels: Ragged
    positives: Ragged
    held_out: np.ndarray


def part_of(prepare: Path, count: int = DOCS) -> Part:
    """`count` training documents of a prepared dataset, cut to TOKENS tokens, and the labels that they have."""
    train, labels = prepare / "train", prepare / "labels"
    rng = np.random.default_rng(SEED)
    every = artifacts.load_ragged(train, "positives")
    rows = rng.permutation(np.flatnonzero(every.lengths > 0))[:count]
    positives = every.take(rows)
    used, columns = np.unique(positives.values, return_inverse=True)
    return Part(
        artifacts.load_ragged(train, "tokens").take(rows).cut(TOKENS),
        artifacts.load_ragged(labels, "tokens").take(used).cut(TOKENS),
        Ragged(columns.astype(np.int32), positives.offsets),
        np.arange(len(rows)) >= round(len(rows) * (1 - HELD_OUT)),
    )


def figures(model: Siamese, part: Part) -> dict[str, float]:
    """Mean cosine of random pairs of documents and of labels, and P@1 of the held-out documents."""
    docs, labels = model.doc_embeddings(np.flatnonzero(part.held_out)), model.label_embeddings()
    best = exact(docs, labels, 1)[0][:, 0]
    truth = part.positives.take(np.flatnonzero(part.held_out)).csr(len(labels))
    right = np.asarray(truth[np.arange(len(best)), best]).ravel()
    return {"docs": mean_cosine(docs), "labels": mean_cosine(labels), "P@1": 100 * float(right.mean())}


def train(part: Part, p: Params, special: dict, steps: int, watched: list[int]) -> list[dict]:
    """The figures and the mean loss since the last ones, after each of the `watched` steps."""
    torch.manual_seed(SEED)
    alone = np.full(len(part.labels), -1, dtype=np.int32)
    encoder = p.build([part.docs, part.labels], special)
    model = Siamese(encoder, part.docs, part.labels, part.positives, alone, p)
    optimiser = Optimisers(encoder, p.lr, tables=encoder.tables, weight_decay=p.weight_decay)
    rng = np.random.default_rng(SEED)
    training = np.flatnonzero(~part.held_out)
    batches: list[np.ndarray] = []
    losses: list[float] = []
    found = []
    for step in range(steps + 1):
        if step in watched:
            found.append({"step": step, "loss": float(np.mean(losses)) if losses else None, **figures(model, part)})
            losses = []
        if step == steps:
            break
        if not batches:
            order = rng.permutation(training)
            batches = [order[i : i + p.batch_size] for i in range(0, len(order) - p.batch_size + 1, p.batch_size)]
        optimiser.clear()
        loss = model.loss(batches.pop(), rng)
        loss.backward()
        optimiser.step(factor(step, max(steps, 2 * p.warmup), p.warmup))
        losses.append(float(loss.detach()))
    return found


def table(found: dict[str, list[dict]], watched: list[int]) -> str:
    """A line for each variant: mean cosine of documents and P@1 at each watched step."""
    head = [f"cosine at {step}" for step in watched] + [f"P@1 at {step}" for step in watched] + ["last loss"]
    lines = ["| variant | " + " | ".join(head) + " |", "|---|" + "--:|" * len(head)]
    for name, rows in found.items():
        cells = [f"{row['docs']:.2f}" for row in rows] + [f"{row['P@1']:.1f}" for row in rows]
        lines.append(f"| {name} | " + " | ".join([*cells, f"{rows[-1]['loss']:.4f}"]) + " |")
    return "\n".join(lines)


@click.command()
@click.option("--prepare", type=click.Path(exists=True, path_type=Path), default=ROOT / "data" / "prepare")
@click.option("--model", default=DEFAULT, show_default=True, help="The transformer, by name or folder.")
@click.option("--steps", default=24, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(VARIANTS)))
@console.command
def main(prepare: Path, model: str, steps: int, only: tuple[str, ...]) -> None:
    part = part_of(prepare)
    special = artifacts.load_json(prepare / "tokenizer", "special.json")
    check_vocabulary(prepare / "tokenizer", model, "--model")
    name = artifacts.load_json(prepare, "stats.json")["dataset"]
    watched = [0, *range(max(1, steps // 3), steps + 1, max(1, steps // 3))]
    given = parameters(ROOT / "params.yaml").values["encoder"]
    record = WORK / f"{name}.json"
    WORK.mkdir(parents=True, exist_ok=True)
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    found = {}
    for variant in only or VARIANTS:
        p = Params(**given | PAPER | {"model": model} | VARIANTS[variant])
        key = json.dumps([model, steps, PAPER | VARIANTS[variant]])
        if key not in known:
            start = time.perf_counter()
            known[key] = train(part, p, special, steps, watched)
            record.write_text(json.dumps(known), encoding="utf-8")
            console.say(f"{variant}: {time.perf_counter() - start:.0f} s")
        found[variant] = known[key]
    text = table(found, watched)
    (WORK / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
