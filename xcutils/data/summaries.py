"""A dataset in numbers, as the papers' tables show it, and whether anything can be learned from it."""

import numpy as np

from xcutils.core.errors import UserError
from xcutils.data.corpora import Dataset

# [DEXA Table 1] N, L, N', labels per point, points per label.
# Differs from the print: its last two columns are swapped in all rows but ORCAS-800K's.
PUBLISHED = {
    "LF-AmazonTitles-131K": (294_805, 131_073, 134_835, 2.29, 5.15),
    "LF-AmazonTitles-1.3M": (2_248_619, 1_305_265, 970_237, 22.20, 38.24),
    "ORCAS-800K": (7_371_396, 799_953, 2_551_398, 1.75, 16.12),
    "LF-Amazon-131K": (294_805, 131_073, 134_835, 2.29, 5.15),
    "LF-WikiSeeAlso-320K": (693_082, 312_330, 177_515, 2.11, 4.68),
    "LF-Wikipedia-500K": (1_813_391, 501_070, 783_743, 4.77, 24.75),
}


def check_trainable(data: Dataset, is_validation: np.ndarray) -> None:
    """Refuse a dataset that nothing could be learned from or measured on."""
    if not data.label_ids:
        raise UserError(f"{data.name} has no labels: it needs at least one, with a training document.")
    for split, corpus in (("training", data.train), ("test", data.test)):
        if not corpus.ids:
            raise UserError(f"{data.name} has no {split} document with a label: add one or name another dataset.")
    if not is_validation.any() or is_validation.all():
        wrong = "all" if is_validation.any() else "none"
        raise UserError(
            f"prepare.validation leaves {wrong} of the {len(is_validation)} training documents of {data.name} "
            f"for validation: {'lower' if is_validation.any() else 'raise'} it or add documents."
        )


def frequencies(data: Dataset) -> np.ndarray:
    """(L,) int64: training docs of each label, validation included."""
    return np.bincount(data.train.positives.values, minlength=len(data.label_ids))


def statistics(data: Dataset, is_validation: np.ndarray) -> dict:
    """The numbers of the papers' dataset tables, and what was left out; means are over training docs or labels."""
    train = data.train
    test = data.test
    n_labels = len(data.label_ids)
    n_positives = len(train.positives.values)
    known = set(train.identity)
    return {
        "dataset": data.name,
        "train_docs": len(train.ids),
        "validation_docs": int(is_validation.sum()),
        "test_docs": len(test.ids),
        "test_docs_also_in_train": sum(key in known for key in test.identity),
        "labels": n_labels,
        "labels_without_training": int((frequencies(data) == 0).sum()),
        "labels_without_text": sum(not text.strip() for text in data.label_texts),
        "labels_per_doc": n_positives / max(len(train.ids), 1),
        "docs_per_label": n_positives / max(n_labels, 1),
        "words_per_doc": _words(train.texts),
        "words_per_label": _words(data.label_texts),
        "train_filter_pairs": len(data.train_filter),
        "test_filter_pairs": len(data.test_filter),
        "skipped": data.skipped,
    }


def _words(texts: list[str]) -> float:
    return sum(len(text.split()) for text in texts) / max(len(texts), 1)


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
