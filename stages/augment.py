"""M3: freeze the encoder; labels become n(E(z) + a) and the auxiliary vectors are dropped [DEXA section 4].

reads   encoder {choose,final}/, prepare/train tokens, prepare/labels tokens
writes  {choose,final}/: docs (N, D), labels (L, D) augmented, plain (L, D) without auxiliary vectors; unit float32
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.folds import fit_names
from xcutils.core.params import load_params, value
from xcutils.core.ragged import Ragged
from xcutils.core.scratch import Scratch
from xcutils.model.encoders import encode_sets, move
from xcutils.model.stored import load_encoder
from xcutils.search.neighbours import unit

CHUNK = 1 << 16  # labels whose vectors are made at once


@dataclass(frozen=True)
class Params:
    aux_weight: float = value(low=0)  # 1 adds the auxiliary vectors as the papers do; 0 leaves them out


def augment(raw: np.ndarray, aux: np.ndarray, label_to_aux: np.ndarray, *, normalise_first: bool) -> np.ndarray:
    """(L, D): n(E(z) + a), or E(z) normalised when there are no auxiliary vectors.

    raw  (L, D) E(z), not normalised
    """
    out = np.empty(raw.shape, dtype=np.float32)
    for start in range(0, len(raw), CHUNK):
        some = slice(start, start + CHUNK)
        own = unit(raw[some]) if normalise_first or len(aux) == 0 else raw[some]
        out[some] = own if len(aux) == 0 else unit(own + aux[label_to_aux[some]])
    return out


def embed_fit(
    fit: Path, tokens: dict[str, Ragged], aux_weight: float, scratch: Scratch
) -> Iterator[tuple[str, np.ndarray]]:
    """Name and vectors of one fit's documents, plain labels and augmented labels, one after another."""
    model = move(load_encoder(fit), runtime.device())

    def embed(name: str, normalise: bool) -> np.ndarray:
        rows = f"{fit.name}-{name}"
        watch = partial(console.progress, name=f"augment {rows}", unit="chunk")
        return encode_sets(model, {rows: tokens[name]}, normalise=normalise, watch=watch, into=scratch.rows)[rows]

    yield "docs", embed("docs", normalise=True)
    raw, aux = embed("labels", normalise=False), aux_weight * artifacts.load_array(fit, "aux")
    yield "plain", augment(raw, aux[:0], artifacts.load_array(fit, "label_to_aux"), normalise_first=True)
    first = artifacts.load_json(fit, "aux.json")["normalise_first"]
    yield "labels", augment(raw, aux, artifacts.load_array(fit, "label_to_aux"), normalise_first=first)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, encoder: Path, out: Path) -> None:
    p = load_params(Params, "augment")
    runtime.start()
    inputs = [train, labels, encoder]
    artifacts.check_together(*inputs)
    estimates.announce("augment", estimates.prepared(train, labels))
    tokens = {"docs": artifacts.load_ragged(train, "tokens"), "labels": artifacts.load_ragged(labels, "tokens")}
    with (
        runtime.resumable("augment", p, inputs) as scratch,
        artifacts.writing(out, name="augment", params=asdict(p), inputs=inputs) as folder,
    ):
        for fit in sorted(encoder / name for name in fit_names(artifacts.load_json(train, "meta.json")["refit"])):
            (folder / fit.name).mkdir()
            for name, vectors in embed_fit(fit, tokens, p.aux_weight, scratch):
                artifacts.save_array(folder / fit.name, name, vectors)
                del vectors  # before the next are made


if __name__ == "__main__":
    main()
