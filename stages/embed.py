"""Document and label embeddings from the pretrained encoder, before any training: what zero-shot search uses.

reads   prepare/train tokens, prepare/labels tokens, prepare/tokenizer special.json
writes  docs (N, D) float32, labels (L, D) float32, unit length; embed.json {checkpoint, pooling, layers, sha256}
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click

from longtail import estimates
from xcutils.core import artifacts, console, runtime
from xcutils.core.params import load_params, value
from xcutils.model.checkpoints import fingerprint
from xcutils.model.encoders import build_transformer, encode_sets, move
from xcutils.model.tokens import check_vocabulary


@dataclass(frozen=True)
class Params:
    model: str  # Hugging Face name or folder
    pooling: Literal["mean", "cls"]
    layers: int = value(low=0)  # layers kept; 0 = all


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, tokenizer: Path, out: Path) -> None:
    p = load_params(Params, "embed")
    device = runtime.start()
    inputs = [train, labels, tokenizer]
    artifacts.check_together(*inputs)
    special = artifacts.load_json(tokenizer, "special.json")
    check_vocabulary(tokenizer, p.model, "embed.model")
    estimates.announce("embed", estimates.prepared(train, labels))
    encoder = build_transformer(p.model, special, pooling=p.pooling, layers=p.layers, dropout=0.0)
    encoder = move(encoder, device)
    own = fingerprint(p.model)
    sources = {"docs": train, "labels": labels}
    sets = {name: artifacts.load_ragged(source, "tokens") for name, source in sources.items()}
    watch = partial(console.progress, name="embed", unit="chunk")
    with (
        runtime.resumable("embed", p, inputs, checkpoint=own) as scratch,
        artifacts.writing(out, name="embed", params=asdict(p), inputs=inputs) as folder,
    ):
        for name, vectors in encode_sets(encoder, sets, chunk=1024, watch=watch, into=scratch.rows).items():
            artifacts.save_array(folder, name, vectors)
        facts = {"checkpoint": p.model, "pooling": p.pooling, "layers": p.layers, "sha256": own}
        artifacts.save_json(folder, "embed.json", facts)


if __name__ == "__main__":
    main()
