"""Texts per second of a transformer, trained and applied, beside sentence-transformers (Linux).

python -m benchmarks.transformers_speed --trainer-python .venv-trainer/bin/python [--steps 3] [--rounds 3] [--batch 512]

MiniLM-L6 on the prepared titles of the default dataset (`dvc repro prepare`), 32 tokens at most. Training: the same
pairs of a document and one of its labels in the same order, `batch` of each in a step, in-batch softmax over cosines,
AdamW, no dropout. Inference: the texts of all labels. Every measurement has a process of its own, and the ways take
turns in each round, so that all meet a busy moment of the machine; the figures are medians of the rounds, and the
first step of a process is left out. Longtail's tokens are those of the stage prepare; sentence-transformers makes them
as it goes, and its time includes that. Prints markdown.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.apart import ROOT, peak_gb, printed
from xcutils.core.processor import multiplies_bfloat16

PREPARED = ROOT / "data" / "prepare"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
RATE, SCALE = 2e-5, 20.0  # learning rate; what cosines are multiplied by before the softmax
AVX2, WIDE, HALF = (
    {"XC_PORTABLE": portable, "XC_PRECISION": precision}
    for portable, precision in (("1", "float32"), ("0", "float32"), ("0", "bfloat16"))
)
WAYS = {  # our own: (padded or packed, settings)
    "Longtail, padded, float32, AVX2": ("padded", AVX2),
    "Longtail, packed, float32, AVX2 (the default)": ("packed", AVX2),
    "Longtail, packed, float32, all units": ("packed", WIDE),
    "Longtail, packed, bfloat16, all units": ("packed", HALF),
}
THEIRS = {
    "sentence-transformers, float32, all units": "float32",
    "sentence-transformers, bfloat16, all units": "bfloat16",
}


def make_encoder(layout: str):
    """MiniLM-L6 as an encoder without dropout, padded or packed."""
    from xcutils.core import artifacts
    from xcutils.model.transformer import build_transformer

    special = artifacts.load_json(PREPARED / "tokenizer", "special.json")
    encoder = build_transformer(MODEL, special, pooling="mean", layers=0, dropout=0.0)
    if layout == "padded":
        encoder.packed = None
    return encoder


def draw(folder: str, pairs: str) -> None:
    """Write pairs.npz, documents and one positive of each, and texts.json, their texts and those of all labels."""
    import numpy as np

    from xcutils.core import artifacts
    from xcutils.core.ragged import to_strings

    rng = np.random.default_rng(0)
    positives = artifacts.load_ragged(PREPARED / "train", "positives")
    docs = rng.choice(np.flatnonzero(positives.lengths), int(pairs), replace=int(pairs) > len(positives))
    labels = np.array([rng.choice(positives[doc]) for doc in docs])
    np.savez(Path(folder, "pairs.npz"), docs=docs, labels=labels)
    texts, names = (to_strings(artifacts.load_ragged(PREPARED / part, "texts")) for part in ("train", "labels"))
    facts = {"docs": [texts[doc] for doc in docs], "labels": [names[label] for label in labels], "all_labels": names}
    Path(folder, "texts.json").write_text(json.dumps(facts), encoding="utf-8")
    print(json.dumps({"pairs": len(docs)}))


def train_pairs(layout: str, folder: str, batch: str) -> None:
    """Train on the drawn pairs through the one training loop; print seconds, CPU seconds and texts as JSON."""
    import numpy as np
    import torch
    from torch.nn import functional as F

    from xcutils.core import artifacts, runtime
    from xcutils.core.ragged import concatenate
    from xcutils.train.training import Optimisers, Plan, train

    device = runtime.start(0)
    pairs = np.load(Path(folder, "pairs.npz"))
    sets = [artifacts.load_ragged(PREPARED / part, "tokens") for part in ("train", "labels")]
    encoder, size = make_encoder(layout).to(device), int(batch)

    def loss(rows: np.ndarray, _) -> torch.Tensor:
        docs, labels = (tokens.take(pairs[name][rows]) for tokens, name in zip(sets, ("docs", "labels"), strict=True))
        vectors = F.normalize(encoder(concatenate(docs, labels)), dim=1)
        scores = SCALE * vectors[: len(rows)] @ vectors[len(rows) :].T
        return F.cross_entropy(scores, torch.arange(len(rows), device=device))

    steps = np.arange(len(pairs["docs"])).reshape(-1, size)
    clock = Clock()
    optimisers = [Optimisers(encoder, RATE)]
    train(Plan(epochs=1, warmup=0, seed=0, device=device), optimisers, lambda *_: list(steps), loss, watch=clock.watch)
    clock.print_rate(2 * size)


class Clock:
    """Wall and CPU time of every step but the first."""

    def __init__(self):
        self.times: list[tuple[float, float]] = []

    def watch(self, todo, _):
        for rows in todo:
            yield rows
            self.times.append((time.perf_counter(), time.process_time()))

    def print_rate(self, texts: int) -> None:
        """Print the seconds and CPU seconds of all steps but the first, and how many texts they were."""
        (begin, cpu_begin), (end, cpu_end) = self.times[0], self.times[-1]
        done = texts * (len(self.times) - 1)
        print(json.dumps({"seconds": end - begin, "cpu": cpu_end - cpu_begin, "texts": done, "peak": peak_gb()}))


def embed_labels(layout: str, out: str) -> None:
    """Encode all labels as the stage embed does; print the time, and what zero-shot search gives with test documents.

    out  where the vectors of the labels are written; nothing is measured with the documents where it is empty
    """
    import numpy as np

    from stages.embed import TEXTS
    from xcutils.core import artifacts, runtime
    from xcutils.model.encoders import encode

    runtime.start(0)
    encoder = make_encoder(layout)
    tokens = artifacts.load_ragged(PREPARED / "labels", "tokens")
    encode(encoder, tokens.take(np.arange(min(256, len(tokens)))))
    begin, cpu_begin = time.perf_counter(), time.process_time()
    vectors = encode(encoder, tokens, chunk=TEXTS)
    found = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu_begin, "texts": len(tokens)}
    if out:
        np.save(out, vectors)
        found["metrics"] = zero_shot(encoder, vectors)
    print(json.dumps(found | {"peak": peak_gb()}))


def zero_shot(encoder, vectors) -> dict[str, float]:
    """The metrics of ranking the labels by their cosine with the test documents."""
    from xcutils.model.encoders import encode
    from xcutils.rank.scoring import load_split, search_width
    from xcutils.search.exact import exact
    from xcutils.search.metrics import evaluate, without
    from xcutils.search.propensity import inverse_propensities

    split = load_split(PREPARED / "test", len(vectors))
    ranking = exact(encode(encoder, split.tokens), vectors, search_width(split.excluded))[0]
    return evaluate(
        without(ranking, split.excluded), split.truth, inverse_propensities(PREPARED / "train", PREPARED / "labels")
    )


def multiply(rows: str, columns: str, dim: str) -> None:
    """Multiply two matrices by torch, for a while; print the best time as JSON."""
    import torch

    from xcutils.core import runtime

    runtime.start(0)
    left, right = torch.randn(int(rows), int(dim)), torch.randn(int(columns), int(dim))
    best, stop = float("inf"), time.perf_counter() + 3
    while time.perf_counter() < stop:
        begin = time.perf_counter()
        left @ right.T
        best = min(best, time.perf_counter() - begin)
    print(json.dumps({"seconds": best}))


def default_steps(steps: str) -> None:
    """Train that many steps of the default encoder on its own data; print the seconds of all but the first as JSON."""
    import numpy as np
    import torch

    from stages import encoder as stage
    from stages import parameters
    from xcutils.core import artifacts, costs, runtime
    from xcutils.core.rules import follow
    from xcutils.train.training import Optimisers, Plan, train

    device = runtime.start(0)
    values = follow(parameters(ROOT / "params.yaml"), costs.sizes_of(PREPARED / "train", PREPARED / "labels"))
    p = values.section("encoder", stage.Params)
    docs, labels = (artifacts.load_ragged(PREPARED / part, "tokens") for part in ("train", "labels"))
    positives = artifacts.load_ragged(PREPARED / "train", "positives")
    torch.manual_seed(0)
    encoder = p.build([docs, labels], artifacts.load_json(PREPARED / "tokenizer", "special.json"))
    aux = (np.arange(len(labels)) % values.top.K).astype(np.int32)
    model, clock = stage.Siamese(encoder, docs, labels, positives, aux, p), Clock()
    size = min(p.batch_size, len(docs))
    batches = [np.arange(start, start + size) % len(docs) for start in range(0, (1 + int(steps)) * size, size)]
    optimisers = [Optimisers(encoder, p.lr, tables=[*encoder.tables, model.aux.table])]
    train(
        Plan(epochs=1, warmup=1, seed=0, device=device), optimisers, lambda *_: batches, model.loss, watch=clock.watch
    )
    clock.print_rate(size)


def run(function: str, *args, **settings: str) -> dict:
    """What a function of this file prints in a process of its own; `stages` decides which instructions are used."""
    code = f"import sys, stages; from benchmarks.transformers_speed import {function}; {function}(*sys.argv[1:])"
    return printed(function, [sys.executable, "-c", code, *map(str, args)], **settings)


def theirs(python: Path, work: str, folder: Path, batch: int, precision: str) -> dict:
    """What sentence-transformers takes for training or inference, in its own environment."""
    script = ROOT / "benchmarks" / "transformers_trainer.py"
    command = [str(python), str(script), work, str(folder), str(batch), precision]
    return printed("sentence-transformers", command, TOKENIZERS_PARALLELISM="false")


def table(results: dict[str, list[dict]]) -> None:
    """Print a row for each way: medians over its rounds, the first row's speed being 1."""
    click.echo("| | texts/s | times | texts per CPU second | peak GB |\n|---|--:|--:|--:|--:|")
    first = None
    for name, rounds in results.items():
        speed, by_cpu = (statistics.median(r["texts"] / r[clock] for r in rounds) for clock in ("seconds", "cpu"))
        first = first or speed
        peak = max(r["peak"] for r in rounds)
        click.echo(f"| {name} | {speed:.0f} | {speed / first:.2f} | {by_cpu:.0f} | {peak:.1f} |")


def print_instructions(rounds: int) -> None:
    """Print what keeping to AVX2 costs beside transformers."""
    click.echo("\n### Beside transformers\n\n| | AVX2 | all units |\n|---|--:|--:|")
    rows = {
        "a product of 1024 x 384 and 384 x 8192, ms": ("multiply", (1024, 8192, 384)),
        "a step of the default encoder, ms": ("default_steps", (20,)),
    }
    for name, (function, args) in rows.items():
        found: list[list[float]] = [[], []]
        for _ in range(rounds):
            for times, settings in zip(found, (AVX2, WIDE), strict=True):
                times.append(1000 * run(function, *args, **settings)["seconds"] / (args[0] if len(args) == 1 else 1))
        click.echo(f"| {name} | {' | '.join(f'{statistics.median(times):.1f}' for times in found)} |")


def print_distances(folder: Path, embedded: dict[str, dict]) -> None:
    """Print how far the vectors and the zero-shot metrics of each way are from those of the default."""
    import numpy as np

    names = ("P@1", "P@5", "PSP@5", "N@5", "R@100")
    click.echo(f"\n### What it changes\n\n| | least cosine | mean cosine | {' | '.join(names)} |")
    click.echo("|---|--:|--:|" + "--:|" * len(names))
    base = None
    for place, (name, found) in enumerate(embedded.items()):
        vectors = np.load(folder / f"{place}.npy")
        base = vectors if base is None else base
        cosines = (vectors * base).sum(axis=1)
        metrics = " | ".join(f"{found['metrics'][metric]:.2f}" for metric in names)
        click.echo(f"| {name} | {cosines.min():.5f} | {cosines.mean():.5f} | {metrics} |")


@click.command()
@click.option("--trainer-python", type=click.Path(path_type=Path), help="The Python that has sentence-transformers.")
@click.option("--batch", default=512, show_default=True, help="Documents in a step, and as many labels.")
@click.option("--steps", default=3, show_default=True, help="Steps of a process that count.")
@click.option("--rounds", default=3, show_default=True, help="Processes of each way.")
def main(trainer_python: Path | None, batch: int, steps: int, rounds: int) -> None:
    """Print the tables of training, inference, other work, and what the choices change."""
    has_unit = multiplies_bfloat16()
    others = {name: what for name, what in THEIRS.items() if trainer_python and (has_unit or what == "float32")}
    ours = {name: way for name, way in WAYS.items() if has_unit or way[1] != HALF}
    os.environ.setdefault("XC_THREADS", str(len(os.sched_getaffinity(0))))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run("draw", folder, batch * (steps + 1))
        for work, title in (("train", "Training"), ("embed", "Inference")):
            results: dict[str, list[dict]] = {name: [] for name in [*others, *ours]}
            for _ in range(rounds):
                for name, precision in others.items():
                    results[name].append(theirs(trainer_python, work, folder, batch, precision))  # type: ignore[arg-type]
                for name, (layout, settings) in ours.items():
                    args = ("train_pairs", layout, folder, batch) if work == "train" else ("embed_labels", layout, "")
                    results[name].append(run(*args, **settings))
            click.echo(f"\n### {title}\n")
            table(results)
        print_instructions(rounds)
        ours = {name: way for name, way in ours.items() if way[0] == "packed"}
        places = enumerate(ours.items())
        print_distances(folder, {n: run("embed_labels", w[0], folder / f"{i}.npy", **w[1]) for i, (n, w) in places})


if __name__ == "__main__":
    main()
