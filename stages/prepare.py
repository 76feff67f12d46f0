"""Raw texts -> token ids, positives, filter pairs and splits, all checked before anything is trained.

reads   a dataset folder (xcutils/datasets.py)
writes  train/      tokens (N rows) int32, positives (N rows) int32, ids, texts, is_validation (N,) bool,
                    filter (F,2) int64, meta.json
        test/       tokens, positives, ids, texts (N' rows), filter (F',2)
        labels/     tokens, ids, texts (L rows), frequency (L,) int64: training docs per label, validation included
        tokenizer/  tokenizer.json, special.json
        stats.json  the numbers of the papers' dataset tables; written last
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from tokenizers import Tokenizer

from xcutils import artifacts, runtime
from xcutils.datasets import Corpus, Dataset, load_dataset, split_validation
from xcutils.errors import UserError
from xcutils.params import load_params, value
from xcutils.ragged import Ragged, concatenate, from_strings
from xcutils.tokens import fill_empty, load_tokenizer, special_ids, tokenize

STEP = 1 << 16  # texts between two looks at the progress
# [DEXA Table 1] N, L, N', labels per point, points per label.
# Differs from the print: the last two columns stand swapped there in all rows but ORCAS-800K's.
PUBLISHED = {
    "LF-AmazonTitles-131K": (294_805, 131_073, 134_835, 2.29, 5.15),
    "LF-AmazonTitles-1.3M": (2_248_619, 1_305_265, 970_237, 22.20, 38.24),
    "ORCAS-800K": (7_371_396, 799_953, 2_551_398, 1.75, 16.12),
    "LF-Amazon-131K": (294_805, 131_073, 134_835, 2.29, 5.15),
    "LF-WikiSeeAlso-320K": (693_082, 312_330, 177_515, 2.11, 4.68),
    "LF-Wikipedia-500K": (1_813_391, 501_070, 783_743, 4.77, 24.75),
}


@dataclass(frozen=True)
class Params:
    tokenizer: str  # a local folder or a model's name
    max_tokens: int = value(low=3)  # the two special tokens included
    validation: float = value(above=0, high=0.5)  # share of the training docs
    refit: bool  # final models: fit on training and validation docs together, once the choices are made


@dataclass(frozen=True)
class Tokens:
    """Token ids of the docs of both splits and of the labels."""

    train: Ragged
    test: Ragged
    labels: Ragged


def check(data: Dataset, is_validation: np.ndarray) -> None:
    """Refuse a dataset that nothing could be learned from or measured on."""
    if not data.label_ids:
        raise UserError(f"{data.name} has no labels: the label file must hold at least one.")
    for split, corpus in (("training", data.train), ("test", data.test)):
        if not corpus.ids:
            raise UserError(f"{data.name} has no {split} document with a label: add one or name another dataset.")
    if not is_validation.any() or is_validation.all():
        wrong = "all" if is_validation.any() else "none"
        raise UserError(
            f"prepare.validation leaves {wrong} of the {len(is_validation)} training documents of {data.name} "
            f"for validation: {'lower' if is_validation.any() else 'raise'} it or add documents."
        )


def encode(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, name: str) -> Ragged:
    """The texts' token ids, with progress shown."""
    firsts = runtime.progress(range(0, len(texts), STEP), name, unit=f"x {STEP} texts")
    return concatenate(*(tokenize(tokenizer, texts[first : first + STEP], max_tokens) for first in firsts))


def frequencies(data: Dataset) -> np.ndarray:
    """(L,) int64: training docs of each label, validation included."""
    return np.bincount(data.train.positives.values, minlength=len(data.label_ids))


def statistics(data: Dataset, is_validation: np.ndarray, tokens: Tokens) -> dict:
    """The numbers of the papers' dataset tables, and what was left out; means are over training docs or labels."""
    train, test, n_labels = data.train, data.test, len(data.label_ids)
    n_positives = len(train.positives.values)
    known = set(train.ids)
    return {
        "dataset": data.name,
        "train_docs": len(train.ids),
        "validation_docs": int(is_validation.sum()),
        "test_docs": len(test.ids),
        "test_docs_also_in_train": sum(id in known for id in test.ids),
        "labels": n_labels,
        "labels_without_training": int((frequencies(data) == 0).sum()),
        "labels_without_text": sum(not text.strip() for text in data.label_texts),
        "labels_per_doc": n_positives / len(train.ids),
        "docs_per_label": n_positives / n_labels,
        "words_per_doc": sum(len(text.split()) for text in train.texts) / len(train.texts),
        "words_per_label": sum(len(text.split()) for text in data.label_texts) / n_labels,
        "tokens_per_doc": len(tokens.train.values) / len(train.ids),
        "train_filter_pairs": len(data.train_filter),
        "test_filter_pairs": len(data.test_filter),
        "skipped": data.skipped,
    }


def table(stats: dict) -> str:
    """The main numbers, beside the published ones where the dataset is one of the papers'."""
    names = {
        "train_docs": "training docs N",
        "labels": "labels L",
        "test_docs": "test docs N'",
        "labels_per_doc": "labels per doc",
        "docs_per_label": "docs per label",
        "words_per_doc": "words per doc",
    }
    published = dict(zip(names, PUBLISHED.get(stats["dataset"], ()), strict=False))
    lines = [f"{stats['dataset']:<20}{'here':>12}" + (f"{'published':>12}" if published else "")]
    for key, name in names.items():
        numbers = [stats[key], *([published[key]] if key in published else [])]
        lines.append(f"{name:<20}" + "".join(f"{n:>12,d}" if isinstance(n, int) else f"{n:>12.2f}" for n in numbers))
    left_out = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in stats["skipped"].items() if count]
    if left_out:
        lines.append(f"left out: {', '.join(left_out)}")
    for key in ("labels_without_training", "labels_without_text", "test_docs_also_in_train"):
        if stats[key]:
            lines.append(f"note: {stats[key]:,} {key.replace('_', ' ')}")
    return "\n".join(lines)


def save_corpus(folder: Path, corpus: Corpus, tokens: Ragged, pairs: np.ndarray) -> None:
    artifacts.save_ragged(folder, "tokens", tokens)
    artifacts.save_ragged(folder, "positives", corpus.positives)
    artifacts.save_ragged(folder, "ids", from_strings(corpus.ids))
    artifacts.save_ragged(folder, "texts", from_strings(corpus.texts))
    artifacts.save_array(folder, "filter", pairs)


def save(out: Path, data: Dataset, is_validation: np.ndarray, tokens: Tokens, p: Params) -> None:
    """The train, test and labels folders, each whole or not at all; the manifests say that they belong together."""
    with artifacts.writing(out / "train", name="prepare/train", params=asdict(p)) as folder:
        save_corpus(folder, data.train, tokens.train, data.train_filter)
        artifacts.save_array(folder, "is_validation", is_validation)
        artifacts.save_json(folder, "meta.json", {"dataset": data.name, "refit": p.refit})
    with artifacts.writing(out / "test", name="prepare/test", params=asdict(p), inputs=[out / "train"]) as folder:
        save_corpus(folder, data.test, tokens.test, data.test_filter)
    with artifacts.writing(out / "labels", name="prepare/labels", params=asdict(p), inputs=[out / "train"]) as folder:
        artifacts.save_ragged(folder, "tokens", tokens.labels)
        artifacts.save_ragged(folder, "ids", from_strings(data.label_ids))
        artifacts.save_ragged(folder, "texts", from_strings(data.label_texts))
        artifacts.save_array(folder, "frequency", frequencies(data))


def save_tokenizer(out: Path, tokenizer: Tokenizer, p: Params) -> None:
    with artifacts.writing(
        out / "tokenizer", name="prepare/tokenizer", params=asdict(p), inputs=[out / "train"]
    ) as folder:
        tokenizer.save(str(folder / "tokenizer.json"))
        special = special_ids(tokenizer) | {"max_tokens": p.max_tokens, "name": p.tokenizer}
        artifacts.save_json(folder, "special.json", special)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@runtime.command
def main(dataset: Path, out: Path) -> None:
    """Prepare the dataset folder DATASET and write the folders of OUT."""
    runtime.start()
    p = load_params(Params, "prepare")
    tokenizer = load_tokenizer(p.tokenizer)
    special_ids(tokenizer)  # a tokenizer of another style is refused before the long work
    data = load_dataset(dataset)
    is_validation = split_validation(data.train.ids, p.validation)
    check(data, is_validation)
    texts = {"train": data.train.texts, "test": data.test.texts, "labels": data.label_texts}
    tokens = Tokens(**{name: encode(tokenizer, part, p.max_tokens, name) for name, part in texts.items()})
    tokens = replace(tokens, labels=fill_empty(tokens.labels, tokenizer))
    stats = statistics(data, is_validation, tokens)
    out.mkdir(parents=True, exist_ok=True)
    (out / "stats.json").unlink(missing_ok=True)  # it is there only if all folders beside it are of one run
    save(out, data, is_validation, tokens, p)
    save_tokenizer(out, tokenizer, p)
    artifacts.replace_json(out / "stats.json", stats)
    runtime.say(table(stats))


if __name__ == "__main__":
    main()
