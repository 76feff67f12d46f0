"""Datasets of any size, made from a seed: short texts, two to four labels to a document, most labels rare.

Labels lie in topics of sixteen that share a word. A document has one label that is its own, others of the same topic,
and others drawn from a power law; its text has about half of the words of each, and some of none. Every label has a
training document if there are as many documents as labels.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.apart import ROOT
from stages import parameters

TOPIC = 16  # labels that share a word
FEWEST, MOST = 2, 4  # labels of a document, words of a label
NOISE = 2  # words of a document that none of its labels has
SHIFT = 10  # of the power laws 1 / (rank + SHIFT)


def known_words() -> list[str]:
    """Whole words that the tokenizer knows."""
    from xcutils.model.tokens import load_tokenizer

    vocabulary = load_tokenizer(parameters(ROOT / "params.yaml").values["prepare"]["tokenizer"]).get_vocab()
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)


def power_law(count: int) -> np.ndarray:
    """(count,) float: the chances of things by their rank."""
    chances = 1 / np.arange(SHIFT, count + SHIFT)
    return chances / chances.sum()


def label_words(words: list[str], n_labels: int, rng: np.random.Generator) -> list[list[str]]:
    """The words of each label, the first of them its topic's."""
    order = rng.permutation(len(words))
    picks = order[rng.choice(len(words), (n_labels, MOST), p=power_law(len(words)))]
    topics = rng.integers(0, len(words), -(-n_labels // TOPIC))
    picks[:, 0] = topics[np.arange(n_labels) // TOPIC]
    counts = rng.integers(FEWEST, MOST + 1, n_labels)
    return [[words[word] for word in row[:count]] for row, count in zip(picks.tolist(), counts.tolist())]


def documents(
    words: list[str], labels: list[list[str]], ranked: np.ndarray, names: list[str], rng: np.random.Generator
) -> Iterator[dict]:
    """The lines of a file of documents.

    labels  the words of each label
    ranked  (L,) int  the labels, the most frequent first
    names   of the documents
    """
    count, n_labels = len(names), len(labels)
    own = np.concatenate([rng.permutation(n_labels) for _ in range(-(-count // n_labels))])[:count]
    near = np.minimum(own[:, None] // TOPIC * TOPIC + rng.integers(0, TOPIC, (count, MOST - 1)), n_labels - 1)
    far = ranked[rng.choice(n_labels, (count, MOST - 1), p=power_law(n_labels))]
    others = np.where(rng.random((count, MOST - 1)) < 0.5, near, far)
    numbers = rng.integers(FEWEST, MOST + 1, count)
    noise = rng.integers(0, len(words), (count, NOISE))
    said = rng.random((count, MOST, MOST), dtype=np.float32) < 0.5  # which words of each of its labels a text has
    for row, (first, rest, number) in enumerate(zip(own.tolist(), others.tolist(), numbers.tolist())):
        following = [label % n_labels for label in range(first, first + MOST)]  # where two draws were the same
        chosen = list(dict.fromkeys([first, *rest, *following]))[:number]
        title = [words[word] for word in noise[row].tolist()]
        for label, draws in zip(chosen, said[row].tolist()):
            title += [word for word, drawn in zip(labels[label], draws) if drawn] or labels[label][-1:]
        yield {"uid": names[row], "title": " ".join(title), "target_ind": sorted(chosen)}


def write(folder: Path, n_labels: int, n_docs: int, n_test: int, seed: int = 0) -> None:
    """Write trn.json.gz, tst.json.gz and lbl.json.gz: the same bytes for the same numbers."""
    words = known_words()
    rngs = [np.random.default_rng([seed, part]) for part in range(3)]
    labels, ranked = label_words(words, n_labels, rngs[0]), rngs[0].permutation(n_labels)
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "lbl.json.gz", ({"uid": f"l{i}", "title": " ".join(text)} for i, text in enumerate(labels)))
    _write_lines(folder / "trn.json.gz", documents(words, labels, ranked, [f"d{i}" for i in range(n_docs)], rngs[1]))
    _write_lines(folder / "tst.json.gz", documents(words, labels, ranked, [f"t{i}" for i in range(n_test)], rngs[2]))


def _write_lines(path: Path, rows: Iterator[dict]) -> None:
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
