"""M3: freeze the encoder; labels become n(E(z) + a) and the auxiliary vectors are dropped [DEXA section 4].

reads   encoder {choose,final}/, prepare/train tokens, prepare/labels tokens
writes  {choose,final}/: docs (N, D), labels (L, D) augmented, plain (L, D) without auxiliary vectors; unit float32
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from xcutils import artifacts, estimates, runtime
from xcutils.encoders import encode, move
from xcutils.models import load_encoder
from xcutils.neighbours import unit
from xcutils.params import load_params, value
from xcutils.ragged import Ragged


@dataclass(frozen=True)
class Params:
    aux_weight: float = value(low=0)  # 1 adds the auxiliary vectors as the papers do; 0 leaves them out


def augment(raw: np.ndarray, aux: np.ndarray, label_to_aux: np.ndarray, *, normalise_first: bool) -> np.ndarray:
    """(L, D): n(E(z) + a), or E(z) normalised when there are no auxiliary vectors.

    raw  (L, D) E(z), not normalised
    """
    if len(aux) == 0:
        return unit(raw)
    return unit((unit(raw) if normalise_first else raw) + aux[label_to_aux])


def write_fold(folder: Path, fit: Path, docs: Ragged, labels: Ragged, weight: float, device) -> None:
    """The embeddings by one fit's encoder; what they take is free again before the next fit's are made.

    weight  of the auxiliary vectors
    """
    folder.mkdir()
    model = move(load_encoder(fit), device)
    watch = partial(runtime.progress, name=f"augment ({fit.name})", unit="chunk")
    artifacts.save_array(folder, "docs", encode(model, docs, watch=watch))
    raw = encode(model, labels, normalise=False, watch=watch)
    artifacts.save_array(folder, "plain", unit(raw))
    aux = weight * artifacts.load_array(fit, "aux")
    first = artifacts.load_json(fit, "aux.json")["normalise_first"]
    augmented = augment(raw, aux, artifacts.load_array(fit, "label_to_aux"), normalise_first=first)
    artifacts.save_array(folder, "labels", augmented)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("encoder", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(train: Path, labels: Path, encoder: Path, out: Path) -> None:
    p = load_params(Params, "augment")
    device = runtime.start()
    estimates.announce("augment", estimates.prepared(train, labels))
    doc_tokens = artifacts.load_ragged(artifacts.check(train), "tokens")
    label_tokens = artifacts.load_ragged(artifacts.check(labels), "tokens")
    artifacts.check(encoder)
    with artifacts.writing(out) as folder:
        for fit in sorted(path for path in encoder.iterdir() if path.is_dir()):
            write_fold(folder / fit.name, fit, doc_tokens, label_tokens, p.aux_weight, device)


if __name__ == "__main__":
    main()
