"""Document and label embeddings from the pretrained encoder, before any training: what zero-shot search uses.

reads   prepare/train tokens, prepare/labels tokens, prepare/tokenizer special.json
writes  docs (N, D) float32, labels (L, D) float32, unit length; embed.json {checkpoint, pooling, sha256}
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click

from stages import parameters
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.encoders import encode_sets, move
from xcutils.model.tokens import check_vocabulary
from xcutils.model.transformer import TransformerNetwork, build_transformer, transformer_network

TEXTS = 1024  # texts encoded at once, and kept if the stage is interrupted


@dataclass(frozen=True, kw_only=True)
class Params:
    model: str
    pooling: Literal["mean", "cls"]


def network(params: dict) -> TransformerNetwork:
    """The cost of the pretrained encoder."""
    return transformer_network(params["embed"]["model"], 0, "embed.model")


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """All embeddings of documents and labels in memory, written at the end."""
    net = network(params)
    texts, tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
    vectors = FLOAT * texts * net.dim
    parts = [
        Part("interpreter", INTERPRETER + net.imports),
        Part("tokens", INT * tokens + LONG * texts, mapped=True),
        Part("encoder", net.weights, mapped=True),
        Part("activations", net.forward(texts, tokens, host.threads, TEXTS), "lower XC_THREADS"),
        Part("vectors", vectors, net.fewer),
    ]
    flops, _ = net.work(texts, tokens, train=False)
    return Estimate("embed", parts, 6 + flops / host.speed + vectors / BANDWIDTH, vectors, on_device=True)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, tokenizer: Path, out: Path) -> None:
    settings = parameters()
    p = settings.section("embed", Params)
    device = runtime.start()
    inputs = [train, labels, tokenizer]
    artifacts.check_together(*inputs)
    special = artifacts.load_json(tokenizer, "special.json")
    check_vocabulary(tokenizer, p.model, "embed.model")
    costs.announce(cost, costs.sizes_of(train, labels), settings.values)
    encoder = move(build_transformer(p.model, special, pooling=p.pooling, layers=0, dropout=0.0), device)
    sha256 = checkpoint_hash(p.model)
    sources = {"docs": train, "labels": labels}
    sets = {name: artifacts.load_ragged(source, "tokens") for name, source in sources.items()}
    watch = partial(console.progress, name="embed", unit="chunk")
    with (
        runtime.resumable(Path(__file__), p, inputs, checkpoint=sha256) as scratch,
        artifacts.writing(out, name="embed", params=asdict(p), inputs=inputs) as folder,
    ):
        for name, vectors in encode_sets(encoder, sets, chunk=TEXTS, watch=watch, into=scratch.rows).items():
            artifacts.save_array(folder, name, vectors)
        facts = {"checkpoint": p.model, "pooling": p.pooling, "sha256": sha256}
        artifacts.save_json(folder, "embed.json", facts)


if __name__ == "__main__":
    main()
