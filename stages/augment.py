"""M3: freeze the encoder; labels become n(E(z) + a) and the auxiliary vectors are dropped [DEXA section 4].

reads   encoder {choose,final}/, prepare/train tokens, prepare/labels tokens
writes  {choose,final}/: docs (N, D), labels (L, D) augmented, plain (L, D) without auxiliary vectors; unit float32, but
        labels of length one on average where the encoder was trained by the dot product
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.core.folds import fit_names
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.core.rules import follow
from xcutils.core.scratch import Scratch
from xcutils.core.vectors import mean_length, unit
from xcutils.model import encoders
from xcutils.model.encoders import encode_sets, load_encoder, network

AUGMENTED = 1 << 16  # labels whose vectors are made at once


@dataclass(frozen=True, kw_only=True)
class Params:
    aux_weight: float = value(low=0)


def augment(
    raw: np.ndarray, aux: np.ndarray, label_to_aux: np.ndarray, *, normalise_first: bool, normalise: bool = True
) -> np.ndarray:
    """(L, D): n(E(z) + a), or E(z) normalised when there are no auxiliary vectors.

    raw        (L, D) E(z), not normalised
    normalise  False: length matters, and the vectors are of length one on average alone
    """
    out = np.empty(raw.shape, dtype=np.float32)
    for start in range(0, len(raw), AUGMENTED):
        some = slice(start, start + AUGMENTED)
        z = raw[some]
        if len(aux):
            z = (unit(z) if normalise_first else z) + aux[label_to_aux[some]]
        out[some] = unit(z) if normalise else z
    return out if normalise else out / np.float32(mean_length(out))


def embed_fit(
    folder: Path, tokens: dict[str, Ragged], aux_weight: float, scratch: Scratch
) -> Iterator[tuple[str, np.ndarray]]:
    """(name, vectors) of one fit's documents, plain labels and augmented labels, one after another."""
    facts = artifacts.load_json(folder, "aux.json")
    model = load_encoder(folder, runtime.device())

    def embed(name: str, normalise: bool) -> np.ndarray:
        rows = f"{folder.name}-{name}"
        watch = partial(console.progress, name=f"augment {rows}", unit="chunk")
        return encode_sets(model, {rows: tokens[name]}, normalise=normalise, watch=watch, into=scratch.rows)[rows]

    yield "docs", embed("docs", normalise=True)
    if not facts["shared"]:
        model = load_encoder(folder, runtime.device(), "labels-encoder")
    raw = embed("labels", normalise=False)
    label_to_aux, normalise = artifacts.load_array(folder, "label_to_aux"), facts["normalise"]
    aux = aux_weight * artifacts.load_array(folder, "aux")
    yield "plain", augment(raw, aux[:0], label_to_aux, normalise_first=True, normalise=normalise)
    first = facts["normalise_first"]
    yield "labels", augment(raw, aux, label_to_aux, normalise_first=first, normalise=normalise)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """One fit's label embeddings, raw, plain and augmented, and the auxiliary vectors that are added."""
    net = network(params["encoder"], "encoder")
    k = min(params["K"], s.labels)
    chunk = encoders.TEXTS
    vectors = FLOAT * s.labels * net.dim
    kept = [
        Part("interpreter", INTERPRETER + net.imports),
        Part("tokens", INT * (s.doc_tokens + s.label_tokens) + LONG * (s.docs + s.labels), mapped=True),
        Part("encoder", (2 if params["encoder"]["shared"] else 3) * net.weights),
    ]
    moments = [
        [
            Part("document vectors", FLOAT * s.docs * net.dim, net.fewer),
            Part("passes", net.forward(s.docs, s.doc_tokens, host.threads, chunk), "lower XC_THREADS"),
        ],
        [
            Part("label vectors", vectors, net.fewer),
            Part("passes", net.forward(s.labels, s.label_tokens, host.threads, chunk)),
        ],
        [
            Part("label vectors, three times", 3 * vectors, net.fewer),
            Part("auxiliary vectors", 2 * FLOAT * k * net.dim),
        ],
    ]
    texts, tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    flops, moved = net.work(min(texts, chunk), tokens * min(1, chunk / texts), train=False)
    written = FLOAT * (s.docs + 2 * s.labels) * net.dim
    once = max(1, texts / chunk) * (flops / host.speed + moved / BANDWIDTH) + 3 * written / BANDWIDTH
    seconds = 3 + s.fits * once
    return Estimate("augment", costs.fullest(kept, moments), seconds, s.fits * written, on_device=True)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, encoder: Path, out: Path) -> None:
    settings = parameters()
    runtime.start()
    inputs = [train, labels, encoder]
    artifacts.check_together(*inputs)
    sizes = costs.sizes_of(train, labels)
    settings = follow(settings, sizes, "augment")
    costs.announce(cost, sizes, settings.values)
    p = settings.section("augment", Params)
    tokens = {"docs": artifacts.load_ragged(train, "tokens"), "labels": artifacts.load_ragged(labels, "tokens")}
    with (
        runtime.resumable(Path(__file__), p, inputs) as scratch,
        artifacts.writing(out, name="augment", params=asdict(p), inputs=inputs) as folder,
    ):
        for fit in sorted(encoder / name for name in fit_names(artifacts.load_json(train, "meta.json")["refit"])):
            (folder / fit.name).mkdir()
            for name, vectors in embed_fit(fit, tokens, p.aux_weight, scratch):
                artifacts.save_array(folder / fit.name, name, vectors)
                del vectors  # free them before the next ones are made


if __name__ == "__main__":
    run(main)
