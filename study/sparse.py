"""The default dataset with fewer labels to a document, as the papers' data have them: data/raw/hpo-3 of the study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from xcutils.core.ragged import Ragged
from xcutils.data.corpora import Corpus, Dataset, from_pairs
from xcutils.data.datasets import load_dataset, write_xc

PER_DOC = 3  # labels that a training document keeps; five documents to a label are left, as in AmazonTitles-131K
FULL = "data/raw/hpo"
SPARSE = f"{FULL}-{PER_DOC}"


def thin(docs: Corpus, per_doc: int, seed: int = 0) -> Corpus:
    """The documents with at most `per_doc` of their labels, drawn at random."""
    labels = docs.positives
    order = np.lexsort((np.random.default_rng(seed).random(len(labels.values)), labels.row_ids()))
    drawn = Ragged(labels.values[order], labels.offsets).cut(per_doc)  # the first of each row's shuffled labels
    return replace(docs, positives=from_pairs(drawn.row_ids(), drawn.values, len(docs.ids)))


def make_sparse(data: Dataset, per_doc: int = PER_DOC) -> Dataset:
    """The dataset with thinned training documents.

    A label without a training document is removed; a test document keeps all of its labels that are left.
    """
    train = thin(data.train, per_doc)
    left = np.unique(train.positives.values)
    label_to_new = np.full(len(data.label_ids), -1)
    label_to_new[left] = np.arange(len(left))
    return replace(
        data,
        name=f"{data.name}-{per_doc}",
        train=train.relabelled(label_to_new),
        test=data.test.relabelled(label_to_new),
        label_ids=[data.label_ids[label] for label in left],
        label_texts=[data.label_texts[label] for label in left],
    )


def write_sparse(root: Path) -> None:
    """Write the sparse dataset where its settings look for it, unless it is there."""
    if not (root / SPARSE).is_dir():
        write_xc(root / SPARSE, make_sparse(load_dataset(root / FULL)))
