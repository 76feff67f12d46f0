"""Sizes of data that has not been prepared: a dataset, or one that only a paper describes."""

from dataclasses import dataclass, replace
from pathlib import Path

from longtail import files
from xcutils.core import artifacts
from xcutils.core.costs import Sizes, sizes_of
from xcutils.core.errors import UserError
from xcutils.core.rules import decide, split_sizes
from xcutils.data.datasets import load_dataset
from xcutils.data.summaries import PUBLISHED
from xcutils.model.tokens import load_tokenizer, tokenize

SAMPLE = 20_000  # texts whose tokens are counted, about
TITLE, QUERY = 13, 6  # tokens of a product's title, of a search query
BIG = "40M"  # a dataset of 40 million labels, more than any public one has


@dataclass(frozen=True)
class _File:
    """What a part of a dataset holds."""

    lines: int
    tokens: float  # of a line
    labels: float  # of a line


def raw(path: Path, params: dict) -> Sizes:
    """The sizes a dataset will have when prepared; tokens are counted in some of its texts."""
    p = params["prepare"]
    tokenizer, data = load_tokenizer(p["tokenizer"]), load_dataset(path)

    def mean_tokens(texts: list[str]) -> float:
        some = texts[:: max(1, len(texts) // SAMPLE)]
        return len(tokenize(tokenizer, some, p["max_tokens"]).values) / max(1, len(some))

    train, test = (
        _File(len(c.ids), mean_tokens(c.texts), len(c.positives.values) / max(1, len(c.ids)))
        for c in (data.train, data.test)
    )
    return _sizes(train, _File(len(data.label_ids), mean_tokens(data.label_texts), 0), test, p)


def _sizes(train: _File, labels: _File, test: _File, p: dict) -> Sizes:
    split = split_sizes(train.lines, labels.lines, p["validation"])
    return replace(
        split,
        positives=round(train.lines * train.labels),
        test=test.lines,
        doc_tokens=round(train.lines * train.tokens),
        label_tokens=round(labels.lines * labels.tokens),
        test_tokens=round(test.lines * test.tokens),
        refit=decide("prepare.refit", p["refit"], split),
    )


def like(name: str, published: dict[str, tuple], params: dict) -> Sizes:
    """The sizes of a dataset that the papers describe.

    Tokens are not published: titles are taken to have 13, queries 6, longer texts as many as prepare.max_tokens allows.
    40M is LF-AmazonTitles-1.3M scaled to 40 million labels, with as many documents and positives for each label.
    published  {name: (N, L, N', labels per document, documents per label)}
    """
    p = params["prepare"]
    docs, labels, test, per_doc, _ = published["LF-AmazonTitles-1.3M" if name == BIG else name]
    if name == BIG:
        scale = 40_000_000 / labels
        docs, labels, test = round(scale * docs), 40_000_000, round(scale * test)
    longest = p["max_tokens"] - 2
    tokens = min(longest, TITLE if "Titles" in name or name == BIG else QUERY if name.startswith("ORCAS") else longest)
    return _sizes(_File(docs, tokens, per_doc), _File(labels, tokens, 0), _File(test, tokens, per_doc), p)


def find(path: Path | None, name: str | None, params: dict, data: Path = Path("data")) -> tuple[str, Sizes]:
    """(name, sizes) of a dataset, a prepared one, a published one; else of what is there."""
    if name is not None:
        if path is not None:
            raise UserError("give either a dataset or --like, not both.")
        if name not in (*PUBLISHED, BIG):
            raise UserError(f"--like {name} is not known; known: {', '.join((*PUBLISHED, BIG))}.")
        return name, like(name, PUBLISHED, params)
    if path is None:
        path = data / "prepare" if (data / "prepare" / "stats.json").is_file() else files.find(params["dataset"])
    if (path / "train").is_dir():
        parts = path / "train", path / "labels", path / "test"
        artifacts.check_together(*parts)
        return str(path), sizes_of(*parts)
    if not path.exists():
        raise UserError(f"There is no dataset {path}: correct the path, or name a published one by --like.")
    return str(path), raw(path, params)


def scaled(s: Sizes, params: dict, *, docs=None, labels=None, positives=None, test=None, tokens=None) -> Sizes:
    """The sizes with these numbers in place of their own; what a document or label has of something, it keeps.

    tokens  of a text, on average
    """
    docs, labels, test = docs or s.docs, labels or s.labels, test or s.test
    split = split_sizes(docs, labels, params["prepare"]["validation"])

    def of(total: int, was: int, now: int) -> int:
        return round(now * tokens) if tokens else round(total * now / max(1, was))

    return replace(
        s,
        docs=docs,
        labels=labels,
        test=test,
        positives=positives or round(s.positives * docs / s.docs),
        filtered=round(s.filtered * docs / s.docs),
        validation=split.validation,
        refit=decide("prepare.refit", params["prepare"]["refit"], split),
        doc_tokens=of(s.doc_tokens, s.docs, docs),
        label_tokens=of(s.label_tokens, s.labels, labels),
        test_tokens=of(s.test_tokens, s.test, test),
    )


def describe_sizes(name: str, s: Sizes) -> str:
    """The sizes in a line."""
    counts = f"N = {s.docs:,} documents, L = {s.labels:,} labels, {s.positives:,} positives, {s.test:,} test documents"
    means = f"{s.doc_tokens / s.docs:.1f} tokens of a document, {s.label_tokens / s.labels:.1f} of a label"
    return f"{name}: {counts}; {means}; D = {s.dim}"
