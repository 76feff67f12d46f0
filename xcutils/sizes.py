"""Sizes of data that has not been prepared: a dataset folder, or one that only a paper describes."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from xcutils.datasets import FILES, describe, load_dataset
from xcutils.errors import UserError
from xcutils.estimates import Sizes, prepared
from xcutils.tokens import load_tokenizer, tokenize

SAMPLE = 20_000  # lines of each file that are read; the others are only counted
TITLE, QUERY = 13, 6  # tokens of a product's title, of a search query
BIG = "40M"  # labels of which no public dataset has as many


@dataclass(frozen=True)
class _File:
    """What a file of a dataset folder holds."""

    lines: int
    tokens: float  # of a line
    labels: float  # of a line


def raw(folder: Path, params: dict) -> Sizes:
    """The sizes a dataset folder will have when prepared, judged by the first lines of each file."""
    says, p = describe(folder), params["prepare"]
    tokenizer = load_tokenizer(p["tokenizer"])

    def mean_tokens(texts: list[str]) -> float:
        return len(tokenize(tokenizer, texts, p["max_tokens"]).values) / max(1, len(texts))

    if says.format == "hpo":
        data = load_dataset(folder)
        splits = {"train": data.train, "test": data.test}
        files = {
            name: _File(len(c.ids), mean_tokens(c.texts[:SAMPLE]), len(c.positives.values) / max(1, len(c.ids)))
            for name, c in splits.items()
        }
        files["labels"] = _File(len(data.label_ids), mean_tokens(data.label_texts[:SAMPLE]), 0)
    else:
        files = {
            part: _scan(Path(folder) / name, "title" in says.name.lower(), mean_tokens) for part, name in FILES.items()
        }
    return _sizes(files["train"], files["labels"], files["test"], p)


def _scan(path: Path, title_alone: bool, mean_tokens) -> _File:
    """The file's lines, and the means of the first of them."""
    texts, labels = [], 0
    try:
        with gzip.open(path, "rb") as file:
            for line in islice(file, SAMPLE):
                row = json.loads(line)
                texts.append(str(row.get("title", "")) + ("" if title_alone else f" {row.get('content') or ''}"))
                labels += len(row.get("target_ind", ()))
            rest = sum(block.count(b"\n") for block in _blocks(file))
    except (OSError, EOFError, zlib.error, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): a dataset folder holds {', '.join(FILES.values())}."
        ) from None
    return _File(len(texts) + rest, mean_tokens(texts), labels / max(1, len(texts)))


def _blocks(file) -> Iterator[bytes]:
    while block := file.read(1 << 20):
        yield block


def _sizes(train: _File, labels: _File, test: _File, p: dict) -> Sizes:
    return Sizes(
        docs=train.lines,
        labels=labels.lines,
        positives=round(train.lines * train.labels),
        validation=round(train.lines * p["validation"]),
        test=test.lines,
        doc_tokens=round(train.lines * train.tokens),
        label_tokens=round(labels.lines * labels.tokens),
        test_tokens=round(test.lines * test.tokens),
        refit=p["refit"],
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
    """(name, sizes) of a dataset folder, a prepared one, a published one; else of what is there."""
    if name is not None:
        from stages.prepare import PUBLISHED

        if path is not None:
            raise UserError("give either a dataset folder or --like, not both.")
        if name not in (*PUBLISHED, BIG):
            raise UserError(f"--like {name} is not known; known: {', '.join((*PUBLISHED, BIG))}.")
        return name, like(name, PUBLISHED, params)
    if path is None:
        path = data / "prepare" if (data / "prepare" / "stats.json").is_file() else Path(params["dataset"])
    if (path / "train").is_dir():
        return str(path), prepared(path / "train", path / "labels", path / "test")
    if not path.is_dir():
        raise UserError(f"There is no dataset folder {path}: correct the path, or name a published one by --like.")
    return str(path), raw(path, params)


def scaled(s: Sizes, params: dict, *, docs=None, labels=None, positives=None, test=None, tokens=None) -> Sizes:
    """The sizes with these numbers in place of their own; what a document or label has of something, it keeps.

    tokens  of a text, on average
    """
    docs, labels, test = docs or s.docs, labels or s.labels, test or s.test

    def of(total: int, was: int, now: int) -> int:
        return round(now * tokens) if tokens else round(total * now / max(1, was))

    return replace(
        s,
        docs=docs,
        labels=labels,
        test=test,
        positives=positives or round(s.positives * docs / s.docs),
        filtered=round(s.filtered * docs / s.docs),
        validation=round(docs * params["prepare"]["validation"]),
        refit=params["prepare"]["refit"],
        doc_tokens=of(s.doc_tokens, s.docs, docs),
        label_tokens=of(s.label_tokens, s.labels, labels),
        test_tokens=of(s.test_tokens, s.test, test),
    )


def describe_sizes(name: str, s: Sizes, dim: int) -> str:
    """The sizes in a line."""
    counts = f"N = {s.docs:,} documents, L = {s.labels:,} labels, {s.positives:,} positives, {s.test:,} test documents"
    means = f"{s.doc_tokens / s.docs:.1f} tokens of a document, {s.label_tokens / s.labels:.1f} of a label"
    return f"{name}: {counts}; {means}; D = {dim}"
