"""What values of a parameter give on validation documents, dataset by dataset: for the rules of `auto` (Linux).

python -m benchmarks.rules encoder.batch_size=256,1024 [--dataset PATH ...] [--part tenth ...] [-S NAME=VALUE ...]

A part of a dataset (xc export's form, in WORK/NAME/PART/titles) shows what a rule meets elsewhere:

whole   the dataset
tenth   a tenth of the training documents, by a hash
long    the longer half of the training documents
few     at most two labels to a training document, drawn at random but always the same

Labels that are left without a training document are left out. Each value is one run up to `index`, in a clone of HEAD,
without the second fit; no test document is ranked. A run that is finished is not made again.

writes  WORK/rules.md, what is printed
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from benchmarks.apart import ROOT
from benchmarks.ours import changes_for
from benchmarks.runs import Clone, say_what_is_left_out
from stages import parameters
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged
from xcutils.data.corpora import Corpus, Dataset, from_pairs, hash_share, known_labels
from xcutils.data.datasets import load_dataset, write_xc

WORK = ROOT / ".scratch" / "rules"
WHOLE = "whole"
TENTH, FEW = 0.1, 2
COLUMNS = ("P@1", "P@5", "N@5", "PSP@5", "PSN@5")
ROWS = ("fused", "classifier")  # of data/index/validation.json


def tenth(train: Corpus) -> Corpus:
    return train.take(np.flatnonzero([hash_share(key, "tenth") < TENTH for key in train.identity]))


def longer(train: Corpus) -> Corpus:
    lengths = np.array([len(text) for text in train.texts])
    return train.take(np.flatnonzero(lengths > np.median(lengths)))


def few(train: Corpus) -> Corpus:
    """Each document's labels in an order of its own, cut after the first ones."""
    rows = train.positives.row_ids()
    order = np.lexsort((np.random.default_rng(0).random(len(rows)), rows))
    cut = Ragged(train.positives.values[order], train.positives.offsets).cut(FEW)
    return replace(train, positives=from_pairs(cut.row_ids(), cut.values.astype(np.int64), len(train.ids)))


PARTS = {"tenth": tenth, "long": longer, "few": few}


def part_of(data: Dataset, part: str) -> Dataset:
    """The dataset with a part of its training documents, over the labels that these have."""
    kept, test, ids, _ = known_labels(PARTS[part](data.train), data.test, data.label_ids)
    texts = dict(zip(data.label_ids, data.label_texts))
    filters = [
        moved(pairs, (before, after), (data.label_ids, ids))
        for pairs, before, after in (
            (data.train_filter, data.train, kept),
            (data.test_filter, data.test, test),
        )
    ]
    named = {"name": f"{data.name} ({part})", "label_ids": ids, "label_texts": [texts[id] for id in ids]}
    return replace(data, train=kept, test=test, train_filter=filters[0], test_filter=filters[1], **named)


def moved(pairs: np.ndarray, docs: tuple[Corpus, Corpus], labels: tuple[list[str], list[str]]) -> np.ndarray:
    """The pairs (doc row, label id) that are left where docs and labels stand elsewhere now, or nowhere."""
    to_doc, to_label = (_places(*ids) for ids in ((docs[0].ids, docs[1].ids), labels))
    new = np.stack([to_doc[pairs[:, 0]], to_label[pairs[:, 1]]], axis=1)
    return new[(new >= 0).all(axis=1)]


def _places(before: list[str], after: list[str]) -> np.ndarray:
    """(before,) int64: the place of each id afterwards, -1 where it is not there any more."""
    place = {id: row for row, id in enumerate(after)}
    return np.array([place.get(id, -1) for id in before], dtype=np.int64)


def titles_of(dataset: Path | None, part: str, folder: Path) -> Path | None:
    """The dataset's own path, or where its part stands, written if need be."""
    if part == WHOLE:
        return dataset
    titles = folder / "titles"
    if not titles.is_dir():
        source = dataset or ROOT / parameters(ROOT / "params.yaml").values["dataset"]
        console.say(f"{folder.parent.name}, {part}: the dataset")
        write_xc(titles, part_of(load_dataset(source), part))
    return titles


def figures(folder: Path, changes: Sequence[str]) -> dict[str, dict[str, float]]:
    """{row: figures} on the validation documents, of a run that is made unless it is finished."""
    clone, record = Clone(folder, changes=changes), folder / "validation.json"
    if not record.is_file():
        clone.repro("index")
        shutil.copy(clone.checkout / "data" / "index" / "validation.json", record)
        shutil.rmtree(clone.checkout)
    return json.loads(record.read_text(encoding="utf-8"))


def rules(
    name: str, values: Sequence[str], datasets: Sequence[Path | None], parts: Sequence[str], given: Sequence[str]
) -> str:
    """The table: a line for each value on each part of each dataset."""
    lines = ["| dataset | part | " + name + " | " + " | ".join(f"{row} {c}" for row in ROWS for c in COLUMNS) + " |"]
    lines.append("|---" * 3 + "|--:" * (len(ROWS) * len(COLUMNS)) + "|")
    for dataset in datasets:
        for part in parts:
            folder = WORK / (dataset.name if dataset else "default") / part
            titles = titles_of(dataset, part, folder)
            for value in values:
                changes = [*changes_for(titles, [*given, f"{name}={value}"]), "prepare.refit=false"]
                console.say(f"{folder.parent.name}, {part}: {name}={value}")
                found = figures(folder / "-".join([*given, f"{name}={value}"]), changes)
                cells = [f"{found[row][column]:.2f}" for row in ROWS if row in found for column in COLUMNS]
                lines.append(f"| {folder.parent.name} | {part} | {value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command()
@click.argument("change")
@click.option("--dataset", "datasets", multiple=True, type=click.Path(path_type=Path), help="beside the default one")
@click.option("--only", is_flag=True, help="without the default dataset")
@click.option("--part", "parts", multiple=True, type=click.Choice([WHOLE, *PARTS]), default=[WHOLE])
@click.option("-S", "given", multiple=True, help="another value of params.yaml, for all runs")
@console.command
def main(change: str, datasets: tuple[Path, ...], only: bool, parts: tuple[str, ...], given: tuple[str, ...]) -> None:
    name, equals, values = change.partition("=")
    if not equals or not values:
        raise UserError(f"{change} names no values: write it like encoder.batch_size=256,1024.")
    say_what_is_left_out()
    table = rules(name, values.split(","), [*([] if only else [None]), *datasets], parts, given)
    (WORK / "rules.md").write_text(table + "\n", encoding="utf-8")
    click.echo(table)


if __name__ == "__main__":
    main()
