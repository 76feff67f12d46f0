"""Which auxiliary vector each label shares [DEXA section 4]: head labels have their own, the rest share by cluster.

reads   embed labels (L, D), docs (N, D); prepare/train positives; prepare/labels frequency (L,)
writes  label_to_aux (L,) int32 (-1 everywhere when K = 0), cluster.json {aux, head, largest, mean_cosine}
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np

from stages import parameters
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import BANDWIDTH, FLOAT, INT, INTERPRETER, Estimate, Host, Part, Sizes
from xcutils.core.params import value
from xcutils.core.vectors import unit
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
    space: Literal["labels", "centroids"]
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


def centroids(docs: np.ndarray, labels: np.ndarray, positives, in_fit: np.ndarray) -> np.ndarray:
    """(L, D): unit mean of each label's document embeddings; its own embedding where it has none [DEXA Table 7]."""
    fitted = np.flatnonzero(in_fit)
    matrix = positives.take(fitted).csr(len(labels))
    sums = matrix.T @ np.asarray(docs)[fitted]
    has_none = np.asarray(matrix.sum(axis=0)).ravel() == 0
    sums[has_none] = labels[has_none]
    return unit(sums)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """The label embeddings, a copy of those of labels that share a vector, and the clusters' means."""
    dim = s.embed_dim
    k = params["K"]
    p = params["cluster"]
    vectors = FLOAT * s.labels * dim
    smaller = f"choose an embed.model of fewer dimensions than {dim}"
    parts = [Part("interpreter", INTERPRETER), Part("label vectors", vectors, mapped=True)]
    seconds = 4.0
    if p["space"] == "centroids":
        docs = FLOAT * s.docs * dim
        parts += [
            Part("document vectors", docs, mapped=True),
            Part("copy of the document vectors", docs, "set cluster.space to labels"),
            Part("centroids", 2 * vectors, "set cluster.space to labels"),
            Part("positives", 3 * (INT + FLOAT) * s.positives),
        ]
        seconds += 2 * FLOAT * s.positives * dim / BANDWIDTH
    if 0 < k < s.labels:
        parts += [Part("copy of the label vectors", vectors, smaller), *balanced_cost(s.labels, dim, host)]
        seconds += balanced_seconds(s.labels, k, dim)
        if p["algorithm"] == "k-means":
            seconds += kmeans_seconds(s.labels, k, dim, host)
        parts.append(Part("means", FLOAT * k * dim, f"lower K ({k})"))
    return Estimate("cluster", parts, seconds, INT * s.labels)


@click.command()
@click.argument("train", type=click.Path(exists=True, path_type=Path))
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("embed", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(train: Path, labels: Path, embed: Path, out: Path) -> None:
    settings = parameters()
    p, top = settings.section("cluster", Params), settings.top
    runtime.start(top.seed)
    inputs = [train, labels, embed]
    artifacts.check_together(*inputs)
    vectors = artifacts.load_array(embed, "labels")
    costs.announce(cost, costs.sizes_of(train, labels, embed_dim=vectors.shape[1]), settings.values)
    if p.space == "centroids":
        positives = artifacts.load_ragged(train, "positives")
        in_fit = ~artifacts.load_array(train, "is_validation")
        vectors = centroids(artifacts.load_array(embed, "docs"), vectors, positives, in_fit)
    frequency = artifacts.load_array(labels, "frequency")
    if top.K >= len(vectors):
        console.say(f"K = {top.K} >= {len(vectors)} labels: each label has an auxiliary vector of its own.")
    label_to_aux = share_vectors(np.asarray(vectors), np.asarray(frequency), top.K, p, top.seed)
    n_aux = int(label_to_aux.max()) + 1
    shared = 0 < top.K < len(vectors)
    head = len(head_labels(frequency, p.head, top.K // 2)) if shared else 0
    facts: dict[str, float] = {
        "aux": n_aux,
        "head": head,
        "largest": int(np.bincount(label_to_aux).max()) if n_aux else 0,
    }
    facts["mean_cosine"] = round(mean_cosine(np.asarray(vectors), label_to_aux), 4) if shared else 1.0
    params = asdict(p) | {"K": top.K, "seed": top.seed}
    with artifacts.writing(out, name="cluster", params=params, inputs=inputs) as folder:
        artifacts.save_array(folder, "label_to_aux", label_to_aux)
        artifacts.save_json(folder, "cluster.json", facts)
    console.say(f"cluster: {n_aux} auxiliary vectors ({head} of head labels) for {len(vectors)} labels.")


if __name__ == "__main__":
    main()
