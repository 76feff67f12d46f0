"""A finished run, packed into the folder that answers: one vector per label, the documents, a small encoder."""

import shutil
from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.model.bag import BagOfEmbeddings
from xcutils.model.encoder import Encoder
from xcutils.model.encoders import save_encoder
from xcutils.rank.compact import CompactBag
from xcutils.rank.served import constant
from xcutils.rank.weights import Fusion
from xcutils.search.exact import exact
from xcutils.search.index import Index
from xcutils.search.searcher import recall

COMBINED = 1 << 16  # labels whose vectors are made at once
EFS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # how far a search may look


def combined(
    vectors: dict[str, np.ndarray], views: dict[str, slice], fusion: Fusion, propensity: np.ndarray
) -> np.ndarray:
    """(L, D + c) float16: the vector whose product with a document is the fused score but for the memory.

    The propensity is spread over c dimensions, so many that in none of them a value is larger than those of the
    vectors themselves: in eight bits a large value would cost all others their precision.

    vectors     "labels" and, where there are any, "classifiers", (L, D) or the dimensions of their view
    views       name -> the dimensions of a document that the vectors are compared with; all of them where it has none
    propensity  (L,) ln of the inverse propensity
    """
    weights = {"labels": fusion.similarity, "classifiers": fusion.classifier}
    if "classifiers" not in vectors:
        weights["labels"] += fusion.classifier  # the part `classifier` is then the similarity too
    dim = max((view.stop for view in views.values()), default=vectors["labels"].shape[1])
    out = np.zeros((len(propensity), dim), dtype=np.float16)
    for start in range(0, len(out), COMBINED):
        some = slice(start, start + COMBINED)
        rows = np.zeros((len(out[some]), dim), dtype=np.float32)
        for name, weight in weights.items():
            if name in vectors:
                rows[:, views.get(name, slice(0, dim))] += weight * vectors[name][some]
        out[some] = rows
    own = fusion.propensity * propensity / constant(dim)
    peak = max(float(np.abs(out).max(initial=0)), 1e-6)
    count = int(np.clip(np.ceil(np.abs(own).max(initial=0) / peak), 1, dim))
    return np.concatenate([out, np.repeat((own / count).astype(np.float16)[:, None], count, axis=1)], axis=1)


def save_small(folder: Path, encoder: Encoder) -> None:
    """Write the encoder as it is served."""
    if isinstance(encoder, BagOfEmbeddings):
        vectors, weights = encoder.vectors.numpy(), encoder.weights.numpy()
        CompactBag.of(vectors, weights, vocabulary=encoder.vocabulary, ngrams=encoder.ngrams).save(folder)
    else:
        save_encoder(folder, encoder)


def copy_texts(folder: Path, train: Path, labels: Path, tokenizer: Path) -> None:
    """Write what prediction needs of the prepared data: ids and texts of labels, positives, tokenizer."""
    for name in ("ids", "texts"):
        artifacts.save_ragged(folder, name, artifacts.load_ragged(labels, name))
    artifacts.save_array(folder, "frequency", artifacts.load_array(labels, "frequency"))
    artifacts.save_ragged(folder, "positives", artifacts.load_ragged(train, "positives"))
    shutil.copyfile(tokenizer / "tokenizer.json", folder / "tokenizer.json")


def reach(index: Index, queries: np.ndarray, vectors: np.ndarray, k: int, least: float, first: int = 0) -> int:
    """The smallest ef of EFS by which at least the share `least` of the true k nearest is found.

    queries  (q, D)  some that are like those that will come
    vectors  (n, D)  what the index is over
    first    an ef that is not too small, whatever is found by it
    """
    efs = [max(first, EFS[0]), *(ef for ef in EFS if ef > first)]
    if index.exhaustive or not len(queries) or not len(index):
        return efs[0]
    k = min(k, len(index))
    true = exact(index.seen(queries), vectors, k)[0]
    for ef in efs:
        index.ef = ef
        found = index.search(queries, k)
        if found is not None and recall(found[0], true) >= 100 * least:
            return ef
    return efs[-1]
