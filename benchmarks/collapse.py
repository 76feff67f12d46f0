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
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from xcutils.train.losses import LOSSES, Pairs
from xcutils.train.training import Optimisers, factor, mean_cosine

WORK = ROOT / ".scratch" / "collapse"
DOCS = 2000
HELD_OUT = 0.2
TOKENS = 14  # of a text, besides the two special ones
PARTS = 3  # so often during training the figures are taken
SEED = 0
SIZES = (128, 512, 1600)  # of batches whose first violation is shown, for so many negatives:
COUNTS = (10, 100, 500, 1600)
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
    "weights alike": {"weighting": 0.0},
    "negatives 100": {"negatives": 100},
    "negatives 100, weights alike": {"negatives": 100, "weighting": 0.0},
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


def untrained(part: Part, p: Params, special: dict) -> Siamese:
    """The model as every variant starts."""
    torch.manual_seed(SEED)
    alone = np.full(len(part.labels), -1, dtype=np.int32)
    return Siamese(p.build([part.docs, part.labels], special), part.docs, part.labels, part.positives, alone, p)


def batches_of(part: Part, p: Params, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Random batches of the documents that are not held out, epoch after epoch."""
    training = np.flatnonzero(~part.held_out)
    size = min(p.batch_size, len(training))
    while True:
        order = rng.permutation(training)
        yield from [order[i : i + size] for i in range(0, len(order) - size + 1, size)][::-1]


def violation(part: Part, p: Params, special: dict) -> float:
    """How far the negatives are above the positives less the margin, as the loss weighs them, before the first step.

    Where all texts have one vector it is the margin: what is larger than that becomes smaller on the way there.
    """
    return hinge(first_pairs(part, p, special), p)


def first_pairs(part: Part, p: Params, special: dict) -> Pairs:
    """The first batch as the loss finds it."""
    rng = np.random.default_rng(SEED)
    model = untrained(part, p, special)
    with torch.no_grad():
        return model.pairs(next(batches_of(part, p, rng)), rng)


def hinge(pairs: Pairs, p: Params) -> float:
    """The mean over documents of the hinge of their hardest negatives, weighed as the loss weighs them."""
    loss = float(LOSSES["triplet"](pairs, p))
    return loss * min(p.negatives, len(pairs.labels)) if p.weighting else loss


def by_batch(part: Part, p: Params, special: dict) -> str:
    """The violation before the first step by the size of the batch and the number of negatives: a table."""
    ways = [(10, p.weighting), *((count, 0.0) for count in COUNTS)]
    named = [f"{count} weighted {weight}" if weight else f"{count} alike" for count, weight in ways]
    lines = ["| batch | labels in it | " + " | ".join(named) + " |", "|--:|--:|" + "--:|" * len(ways)]
    for size in SIZES:
        pairs = first_pairs(part, replace(p, batch_size=size), special)
        found = [hinge(pairs, replace(p, negatives=count, weighting=weight)) for count, weight in ways]
        cells = [str(size), str(len(pairs.labels)), *(f"{value:.2f}" for value in found)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def train(part: Part, p: Params, special: dict, steps: int, watched: list[int]) -> list[dict]:
    """The figures, and the mean loss since the last ones, after each of the `watched` steps."""
    model = untrained(part, p, special)
    optimiser = Optimisers(model.encoder, p.lr, tables=model.encoder.tables, weight_decay=p.weight_decay)
    rng = np.random.default_rng(SEED)
    batches = batches_of(part, p, rng)
    losses: list[float] = []
    found = [{"step": 0, "loss": None, **figures(model, part)}]
    for step in range(steps):
        optimiser.clear()
        loss = model.loss(next(batches), rng)
        loss.backward()
        optimiser.step(factor(step, max(steps, 2 * p.warmup), p.warmup))
        losses.append(float(loss.detach()))
        if step + 1 in watched:
            found.append({"step": step + 1, "loss": float(np.mean(losses)), **figures(model, part)})
            losses = []
    return found


def table(found: dict[str, list[dict]], violations: dict[str, float | None]) -> str:
    """A line for each variant: the violation at the start, mean cosine of documents and P@1 step by step."""
    steps = [row["step"] for row in next(iter(found.values()))]
    head = ["violation at 0", *(f"cosine at {step}" for step in steps), *(f"P@1 at {step}" for step in steps)]
    lines = ["| variant | " + " | ".join(head) + " |", "|---|" + "--:|" * len(head)]
    for name, rows in found.items():
        first = "-" if violations[name] is None else f"{violations[name]:.2f}"
        cells = [first, *(f"{row['docs']:.2f}" for row in rows), *(f"{row['P@1']:.1f}" for row in rows)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
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
    watched = [*range(max(1, steps // PARTS), steps + 1, max(1, steps // PARTS))]
    given = parameters(ROOT / "params.yaml").values["encoder"]
    record = WORK / f"{name}.json"
    WORK.mkdir(parents=True, exist_ok=True)
    known = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    found, violations = {}, {}
    for variant in only or VARIANTS:
        p = Params(**given | PAPER | {"model": model} | VARIANTS[variant])
        key = json.dumps([model, steps, PAPER | VARIANTS[variant]])
        if key not in known:
            start = time.perf_counter()
            known[key] = train(part, p, special, steps, watched)
            record.write_text(json.dumps(known), encoding="utf-8")
            console.say(f"{variant}: {time.perf_counter() - start:.0f} s")
        found[variant] = known[key]
        violations[variant] = violation(part, p, special) if p.loss == "triplet" else None
    paper = Params(**given | PAPER | {"model": model})
    text = table(found, violations) + "\n\n" + by_batch(part, paper, special)
    (WORK / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
