"""Which auxiliary vector each label shares [DEXA section 4]: head labels have their own, the rest share by cluster.

reads   prepare/train tokens, positives; prepare/labels tokens, frequency (L,); prepare/tokenizer;
        embed labels (L, D), embed.json
writes  label_to_aux (L,) int32 (-1 everywhere when K = 0), cluster.json {aux, head, largest, mean_cosine}
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import click
import numpy as np

from stages import parameters, run
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, Estimate, Host, Part, Sizes
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.core.rules import follow
from xcutils.core.vectors import unit
from xcutils.model import encoders
from xcutils.model.encoders import KINDS, Architecture, encode, network
from xcutils.model.transformer import Transformer
from xcutils.model.untrained import UNTRAINED, build_untrained
from xcutils.train.clustering import (
    balanced_clusters,
    balanced_cost,
    balanced_seconds,
    kmeans_clusters,
    kmeans_seconds,
    mean_cosine,
)


@dataclass(frozen=True, kw_only=True)
class Params:
    algorithm: Literal["balanced", "k-means"]
    space: Literal["labels", "centroids", "pretrained"]
    head: int = value(low=0)


def head_labels(frequency: np.ndarray, least: int, most: int) -> np.ndarray:
    """The labels with at least `least` training documents, most frequent first, at most `most` of them."""
    order = np.argsort(-frequency, kind="stable")
    count = int((frequency >= least).sum()) if least > 0 else 0
    return order[: min(count, most)]


def share_vectors(vectors: np.ndarray, frequency: np.ndarray, k: int, p: Params, seed: int) -> np.ndarray:
    """(L,) int32: the auxiliary vector of each label, min(k, L) different ones in all; -1 when k is 0.

    vectors    (L, D) float32  what is clustered
    frequency  (L,) int        training documents of each label
    """
    n_labels = len(vectors)
    if k == 0:
        return np.full(n_labels, -1, dtype=np.int32)
    if k >= n_labels:
        return np.arange(n_labels, dtype=np.int32)
    head = head_labels(frequency, p.head, k // 2)
    label_to_aux = np.empty(n_labels, dtype=np.int32)
    label_to_aux[head] = np.arange(len(head), dtype=np.int32)
    rest = np.setdiff1d(np.arange(n_labels), head)
    divide = balanced_clusters if p.algorithm == "balanced" else kmeans_clusters
    label_to_aux[rest] = len(head) + divide(vectors[rest], k - len(head), seed=seed)
    return label_to_aux


def centroids(docs: np.ndarray, labels: np.ndarray, positives: Ragged) -> np.ndarray:
    """(L, D): unit mean of each label's document embeddings; its own embedding where it has none [DEXA Table 7].

    docs       (n, D)  embeddings of the documents of the first fit
    positives  n rows  their labels
    """
    matrix = positives.csr(len(labels))
    sums = matrix.T @ docs
    has_none = np.asarray(matrix.sum(axis=0)).ravel() == 0
    sums[has_none] = labels[has_none]
    return unit(sums)


def is_embedded(first: Any, facts: dict) -> bool:
    """Is the untrained encoder the one whose vectors `embed` wrote? first  an Architecture; facts  embed.json"""
    if UNTRAINED in facts:
        return all(getattr(first, name) == value for name, value in facts[UNTRAINED].items())
    same = (first.model, first.pooling) == (facts["checkpoint"], facts["pooling"])
    return KINDS[first.kind] is Transformer and first.layers == 0 and same


def label_vectors(inputs: Sequence[Path], space: str, first: Architecture) -> np.ndarray:
    """(L, D) float32: what is clustered.

    inputs  the stage's folders: documents, labels, tokenizer, pretrained embeddings
    first   the encoder, which sees the texts here as it does before it is trained
    """
    train, labels, tokenizer, embed = inputs
    pretrained = artifacts.load_array(embed, "labels")
    embedded = is_embedded(first, artifacts.load_json(embed, "embed.json"))
    if space == "pretrained" or (space == "labels" and embedded):
        return np.asarray(pretrained)
    encoder = build_untrained(first, train, labels, artifacts.load_json(tokenizer, "special.json"))
    texts = artifacts.load_ragged(labels, "tokens")
    vectors = np.asarray(pretrained) if embedded else encode(encoder, texts)
    if space == "labels":
        return vectors
    fitted = np.flatnonzero(~artifacts.load_array(train, "is_validation"))
    docs, positives = (artifacts.load_ragged(train, name).take(fitted) for name in ("tokens", "positives"))
    return centroids(encode(encoder, docs), vectors, positives)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """The encoder, the label embeddings, a copy of those of labels that share a vector, and the clusters' means."""
    k = params["K"]
    p = params["cluster"]
    first = params["encoder"]
    net = network(first, "encoder")
    model = params["embed"]["model"]
    embedded = model == UNTRAINED or is_embedded(SimpleNamespace(**first), {"checkpoint": model, **params["embed"]})
    builds = p["space"] == "centroids" or (p["space"] == "labels" and not embedded)
    dim = net.dim if builds else s.embed_dim
    vectors = FLOAT * s.labels * dim
    smaller = f"choose an embed.model of fewer dimensions than {dim}" if not builds else net.fewer
    parts = [Part("interpreter", INTERPRETER), Part("label vectors", vectors, mapped=not builds)]
    seconds = 4.0
    texts, tokens = (s.labels, s.label_tokens)
    if p["space"] == "centroids":
        texts, tokens = s.docs + s.labels, s.doc_tokens + s.label_tokens
        parts += [
            Part("document vectors", FLOAT * s.docs * dim, "set cluster.space to labels"),
            Part("centroids", 2 * vectors, "set cluster.space to labels"),
            Part("positives", 3 * (INT + FLOAT) * s.positives),
        ]
        seconds += 2 * FLOAT * s.positives * dim / BANDWIDTH
    if builds:
        parts += [
            Part("library of the encoder", net.imports),
            Part("encoder", 2 * net.weights, net.smaller),
            Part("tokens", INT * (s.doc_tokens + s.label_tokens)),
            Part("passes", net.forward(texts, tokens, host.threads, encoders.TEXTS), "lower XC_THREADS"),
        ]
        share = min(1, encoders.TEXTS / max(1, texts))
        flops, moved = net.work(share * texts, share * tokens, train=False)
        seconds += (flops / host.speed + moved / BANDWIDTH) / share
    if 0 < k < s.labels:
        parts += [Part("copy of the label vectors", vectors, smaller), *balanced_cost(s.labels, dim, host)]
        seconds += balanced_seconds(s.labels, k, dim)
        if p["algorithm"] == "k-means":
            seconds += kmeans_seconds(s.labels, k, dim, host)
        parts.append(Part("means", FLOAT * k * dim, f"lower K ({k})"))
    return Estimate("cluster", parts, seconds, INT * s.labels, on_device=builds)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("tokenizer", type=click.Path(exists=True, path_type=Path))
@click.argument("embed", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, tokenizer: Path, embed: Path, out: Path) -> None:
    settings = parameters()
    runtime.start(settings.top.seed)
    inputs = [train, labels, tokenizer, embed]
    artifacts.check_together(*inputs)
    frequency = np.asarray(artifacts.load_array(labels, "frequency"))
    embed_dim = artifacts.load_array(embed, "labels").shape[1]
    sizes = costs.sizes_of(train, labels, embed_dim=embed_dim)
    settings = follow(settings, sizes, "K", "cluster")
    costs.announce(cost, sizes, settings.values)
    p, top = settings.section("cluster", Params), settings.top
    k, first = top.K, settings.section("encoder", Architecture)
    shared = 0 < k < len(frequency)
    if k >= len(frequency):
        console.say(f"K = {k} >= {len(frequency)} labels: each label has an auxiliary vector of its own.")
    empty = np.zeros((len(frequency), 0), np.float32)  # nothing is clustered
    vectors = label_vectors(inputs, p.space, first) if shared else empty
    label_to_aux = share_vectors(vectors, frequency, k, p, top.seed)
    n_aux = int(label_to_aux.max()) + 1
    head = len(head_labels(frequency, p.head, k // 2)) if shared else 0
    facts: dict[str, float] = {
        "aux": n_aux,
        "head": head,
        "largest": int(np.bincount(label_to_aux).max()) if n_aux else 0,
    }
    facts["mean_cosine"] = round(mean_cosine(vectors, label_to_aux), 4) if shared else 1.0
    params = asdict(p) | {"K": k, "seed": top.seed}
    with artifacts.writing(out, name="cluster", params=params, inputs=inputs) as folder:
        artifacts.save_array(folder, "label_to_aux", label_to_aux)
        artifacts.save_json(folder, "cluster.json", facts)
    console.say(f"cluster: {n_aux} auxiliary vectors ({head} of head labels) for {len(frequency)} labels.")


if __name__ == "__main__":
    run(main)
