"""Embeddings of texts before any training, by the encoder that will be trained or by a pretrained transformer.

reads   prepare/train tokens or prepare/labels tokens, or both; prepare/tokenizer special.json
writes  of train docs (N, D) float32, of labels labels (L, D) float32, unit length;
        embed.json {checkpoint, pooling, sha256} or {untrained: the parameters of the encoder}
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import click
import numpy as np

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged
from xcutils.core.rules import follow
from xcutils.model.checkpoints import checkpoint_hash
from xcutils.model.costs import Network
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import Architecture, encode_sets, move
from xcutils.model.encoders import network as network_of
from xcutils.model.tokens import check_vocabulary
from xcutils.model.transformer import build_transformer, transformer_network
from xcutils.model.untrained import UNTRAINED, build_untrained, facts_of

TEXTS = 1024  # texts encoded at once, and kept if the stage is interrupted
VECTORS = {"train": "docs", "labels": "labels"}  # folder of prepared texts -> the name of their vectors


@dataclass(frozen=True, kw_only=True)
class Params:
    model: str
    pooling: Literal["mean", "cls"]


def network(params: dict) -> Network:
    """The cost of the encoder."""
    if params["embed"]["model"] == UNTRAINED and "encoder" in params:
        return network_of(params["encoder"], "encoder")
    return transformer_network(params["embed"]["model"], 0, "embed.model")


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """All embeddings in memory, written at the end: of labels and, for the unified method, of documents too."""
    net = network(params)
    both = "train" in params  # only its pipeline has this section
    texts, tokens = s.labels + both * s.docs, s.label_tokens + both * s.doc_tokens
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


def load_texts(folders: tuple[Path, ...]) -> dict[str, Ragged]:
    """Name of the vectors -> token ids of the texts in each folder."""
    for folder in folders:
        if folder.name not in VECTORS:
            raise UserError(
                f"{folder} cannot be embedded: name the folder {' or '.join(VECTORS)} that `prepare` wrote."
            )
    return {VECTORS[folder.name]: artifacts.load_ragged(folder, "tokens") for folder in folders}


def sizes(texts: dict[str, Ragged]) -> Sizes:
    """The numbers that the stage's cost depends on."""
    none = Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))
    docs, labels = texts.get("docs", none), texts.get("labels", none)
    return Sizes(len(docs), len(labels), doc_tokens=len(docs.values), label_tokens=len(labels.values))


@click.command()
@click.argument("sets", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--train", type=click.Path(exists=True, path_type=Path), help="Documents whose words an encoder counts.")
@console.params_file
@console.command
def main(sets: tuple[Path, ...], tokenizer: Path, out: Path, train: Path | None, file: Path) -> None:
    """Embed the prepared texts of the folders SETS, `train` or `labels` or both."""
    settings = parameters(file)
    p = settings.section("embed", Params)
    runtime.start()
    inputs = [*sets, tokenizer, *([train] if train else [])]
    artifacts.check_together(*inputs)
    special = artifacts.load_json(tokenizer, "special.json")
    texts = load_texts(sets)
    settings = follow(settings, costs.sizes_of(train, sets[-1]) if train else sizes(texts), "embed")
    costs.announce(cost, sizes(texts), settings.values)
    if p.model == UNTRAINED and train:
        first = settings.section("encoder", Architecture)
        check_vocabulary(tokenizer, first.model, "encoder.model")
        encoder: Encoder = build_untrained(first, train, sets[-1], special)
        facts, sha256 = facts_of(first), checkpoint_hash(first.model)
    else:
        check_vocabulary(tokenizer, p.model, "embed.model")
        encoder = move(build_transformer(p.model, special, pooling=p.pooling, layers=0, dropout=0.0), runtime.device())
        sha256 = checkpoint_hash(p.model)
        facts = {"checkpoint": p.model, "pooling": p.pooling, "sha256": sha256}
    watch = partial(console.progress, name="embed", unit="chunk")
    with (
        runtime.resumable(Path(__file__), p, inputs, weights=sha256, encoder=facts) as scratch,
        artifacts.writing(out, name="embed", params=asdict(p), inputs=inputs) as folder,
    ):
        for name, vectors in encode_sets(encoder, texts, chunk=TEXTS, watch=watch, into=scratch.rows).items():
            artifacts.save_array(folder, name, vectors)
        artifacts.save_json(folder, "embed.json", facts)


if __name__ == "__main__":
    run(main)
