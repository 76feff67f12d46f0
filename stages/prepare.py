"""Raw texts -> token ids, positives, filter pairs and splits, all checked before anything is trained.

reads   a dataset: a folder or a file (xcutils/data/datasets.py)
writes  train/      tokens (N rows) int32, positives (N rows) int32, ids, texts, is_validation (N,) bool,
                    filter (F,2) int64, meta.json
        test/       tokens, positives, ids, texts (N' rows), filter (F',2)
        labels/     tokens, ids, texts (L rows), frequency (L,) int64: training docs per label, validation included
        tokenizer/  tokenizer.json, special.json
        skipped.csv the rows that could not be used: file, line, reason, remedy
        stats.json  the numbers of the papers' dataset tables; written last
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import click
import numpy as np
from tokenizers import Tokenizer

from stages import parameters, run
from xcutils.core import artifacts, console, runtime
from xcutils.core.costs import INT, INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.core.params import value
from xcutils.core.ragged import Ragged, concatenate, from_strings
from xcutils.core.rules import follow, split_sizes, validation_share
from xcutils.data.corpora import Corpus, Dataset, split_validation
from xcutils.data.datasets import load_dataset
from xcutils.data.filters import as_in_test
from xcutils.data.skips import REPORT
from xcutils.data.summaries import check_trainable, frequencies, statistics, table
from xcutils.model.checkpoints import checkpoint_folder, weight_files
from xcutils.model.costs import VOCABULARY
from xcutils.model.encoders import check_architecture
from xcutils.model.tokens import check_vocabulary, fill_empty, load_tokenizer, special_ids, tokenize
from xcutils.model.untrained import UNTRAINED

STEP = 1 << 16  # texts tokenised between two updates of the progress
SHOWN = 5  # skipped rows that are shown


@dataclass(frozen=True, kw_only=True)
class Params:
    tokenizer: str
    max_tokens: int = value(low=3)  # two special tokens and one of the text
    validation: float | Literal["auto"] = value(above=0, high=0.5)
    bad_rows: float = value(low=0, high=1)
    refit: Literal["auto", "continue", True, False]


@dataclass(frozen=True)
class Tokens:
    """Token ids of the docs of both splits and of the labels."""

    train: Ragged
    test: Ragged
    labels: Ragged


def encode(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, name: str) -> Ragged:
    """The texts' token ids; shows progress."""
    firsts = console.progress(range(0, len(texts), STEP), name, unit=f"x {STEP} texts")
    return concatenate(*(tokenize(tokenizer, texts[first : first + STEP], max_tokens) for first in firsts))


def check_models(params: dict) -> None:
    """Refuse checkpoints that later stages could not use; done first, because the stages before them take long."""
    p = params["prepare"]
    own = params["embed"]["model"] == UNTRAINED
    sections = [] if own else [{"kind": "transformer", "layers": 0, **params["embed"]}]
    for section in [*sections, params["encoder"]]:
        name = f"{'encoder' if section is params['encoder'] else 'embed'}.model"
        check_vocabulary(checkpoint_folder(p["tokenizer"]), section["model"], name)
        weight_files(section["model"])
        check_architecture(section, p["max_tokens"])


def save_corpus(folder: Path, corpus: Corpus, tokens: Ragged, pairs: np.ndarray) -> None:
    artifacts.save_ragged(folder, "tokens", tokens)
    artifacts.save_ragged(folder, "positives", corpus.positives)
    artifacts.save_ragged(folder, "ids", from_strings(corpus.ids))
    artifacts.save_ragged(folder, "texts", from_strings(corpus.texts))
    artifacts.save_array(folder, "filter", pairs)


def facts(p: Params) -> dict:
    """The parameters that the written files depend on."""
    return {name: value for name, value in asdict(p).items() if name != "bad_rows"}


def save(out: Path, data: Dataset, is_validation: np.ndarray, tokens: Tokens, p: Params) -> None:
    """Write train, test and labels, each whole or not at all; the manifests show that they belong together."""
    with artifacts.writing(out / "train", name="prepare/train", params=facts(p)) as folder:
        save_corpus(folder, data.train, tokens.train, data.train_filter)
        artifacts.save_array(folder, "is_validation", is_validation)
        artifacts.save_json(folder, "meta.json", {"dataset": data.name, "refit": p.refit})
    with artifacts.writing(out / "test", name="prepare/test", params=facts(p), inputs=[out / "train"]) as folder:
        save_corpus(folder, data.test, tokens.test, data.test_filter)
    with artifacts.writing(out / "labels", name="prepare/labels", params=facts(p), inputs=[out / "train"]) as folder:
        artifacts.save_ragged(folder, "tokens", tokens.labels)
        artifacts.save_ragged(folder, "ids", from_strings(data.label_ids))
        artifacts.save_ragged(folder, "texts", from_strings(data.label_texts))
        artifacts.save_array(folder, "frequency", frequencies(data))


def save_tokenizer(out: Path, tokenizer: Tokenizer, p: Params) -> None:
    with artifacts.writing(
        out / "tokenizer", name="prepare/tokenizer", params=facts(p), inputs=[out / "train"]
    ) as folder:
        tokenizer.save(str(folder / "tokenizer.json"))
        special = special_ids(tokenizer) | {"max_tokens": p.max_tokens, "name": p.tokenizer}
        artifacts.save_json(folder, "special.json", special)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """Ids and texts as Python strings, tokens and positives as arrays."""
    count = s.docs + s.labels + s.test
    tokens = s.doc_tokens + s.label_tokens + s.test_tokens
    text = 5 * tokens  # bytes of the texts themselves
    parts = [
        Part("interpreter", INTERPRETER + VOCABULARY),
        Part("ids and texts", count * 2 * 66 + 2 * text),
        Part("their bytes", count * 2 * 42 + text),
        Part("tokens", 3 * INT * tokens, "lower prepare.max_tokens"),
        Part("positives", s.positives * 2 * (INT + INT)),
        Part("table of ids", 110 * count),
    ]
    disk = INT * tokens + INT * s.positives + 2 * LONG * count * 3 + text + 12 * count
    return Estimate("prepare", parts, 3 + count * 45e-6 + tokens * 1e-6, disk)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(dataset: Path, out: Path) -> None:
    """Prepare the folder or file DATASET and write the folders of OUT."""
    runtime.start()
    settings = parameters()
    check_models(settings.values)
    p = settings.section("prepare", Params)
    tokenizer = load_tokenizer(p.tokenizer)
    special_ids(tokenizer)  # refuses a tokenizer of another style before the long work
    data = load_dataset(dataset)
    data.report.refuse_above(p.bad_rows)
    sizes = split_sizes(len(data.train.ids), len(data.label_ids), p.validation)
    p = follow(settings, sizes, "prepare").section("prepare", Params)
    is_validation = split_validation(data.train.identity, validation_share(p.validation, sizes.docs))
    check_trainable(data, is_validation)
    data = replace(data, train_filter=as_in_test(data, is_validation))
    texts = {"train": data.train.texts, "test": data.test.texts, "labels": data.label_texts}
    tokens = Tokens(**{name: encode(tokenizer, part, p.max_tokens, name) for name, part in texts.items()})
    tokens = replace(tokens, labels=fill_empty(tokens.labels, tokenizer))
    stats = statistics(data, is_validation) | {"tokens_per_doc": len(tokens.train.values) / len(data.train.ids)}
    out.mkdir(parents=True, exist_ok=True)
    (out / "stats.json").unlink(missing_ok=True)  # it is there only when all folders beside it are from one run
    save(out, data, is_validation, tokens, p)
    save_tokenizer(out, tokenizer, p)
    data.report.save(out / REPORT)
    artifacts.replace_json(out / "stats.json", stats)
    console.say("\n".join([*data.report.notes, table(stats), *data.report.shown(SHOWN)]))


if __name__ == "__main__":
    run(main)
