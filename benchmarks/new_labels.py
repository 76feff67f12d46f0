"""How well labels are found that were added without training, and how long changes take.

python -m benchmarks.new_labels [--labels 1000] [--examples 5] [--work .scratch/new-labels]

The default run must be finished. A model is trained without some of its labels, chosen at random among those of the
test documents; documents whose labels all go are left out as well. They are then added by their text, and by their
text and some of their training documents. On the test documents that have such labels it is compared with the
encoder before training, which knows no label either (zero-shot), and with the run that had all labels. Figures are of
all labels, and of the new ones alone, as if no other could be answered.

python -m benchmarks.new_labels --timings [--count 262000] [--changes 10000]

The labels of a generated model, whose texts are words of the default one's, are changed: half of the changes add one,
a quarter remove one, a quarter give one another text.
"""

import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import click
import numpy as np

import longtail
from benchmarks.apart import ROOT
from longtail.bundles import BUNDLE, NAME
from longtail.journal import BROUGHT
from longtail.models import Model
from longtail.places import Bundle, Run
from xcutils.core import artifacts, console
from xcutils.core.pipelines import MODULAR
from xcutils.core.ragged import Ragged, from_strings, to_strings
from xcutils.rank.served import constant
from xcutils.search.index import Building
from xcutils.search.indexes import INDEXES
from xcutils.search.metrics import hits

LEAST = 2  # training documents of a label that is left out, so that it can have examples
SEED = 0
COLUMNS = ("all labels: R@10 of the new", "P@5", "new labels alone: R@10", "P@5")
ASKED = 1000  # texts that are timed one by one
FAST = Building(m=16, ef_construction=100, threads=2)  # of a generated model, whose answers nobody reads


# --- found ------------------------------------------------------------------------------------------------------------


class Data:
    """The prepared documents and labels of the default run."""

    def __init__(self, data: Path):
        self.train, self.test, labels = (
            artifacts.check(data / "prepare" / part) for part in ("train", "test", "labels")
        )
        self.ids, self.texts = (to_strings(artifacts.load_ragged(labels, name)) for name in ("ids", "texts"))
        self.docs = {part: to_strings(artifacts.load_ragged(place, "texts")) for part, place in self.places.items()}
        self.positives = {part: artifacts.load_ragged(place, "positives") for part, place in self.places.items()}
        self.frequency = np.asarray(artifacts.load_array(labels, "frequency"))

    @property
    def places(self) -> dict[str, Path]:
        return {"train": self.train, "test": self.test}

    def held(self, count: int) -> np.ndarray:
        """(count,) the labels that are left out, ascending."""
        in_test = np.unique(self.positives["test"].values)
        may = in_test[self.frequency[in_test] >= LEAST]
        return np.sort(np.random.default_rng(SEED).choice(may, min(count, len(may)), replace=False))

    def without(self, part: str, held: np.ndarray) -> tuple[list[str], list[list[str]]]:
        """(texts, ids of their labels) of the documents that have a label which is not left out."""
        rows = [np.setdiff1d(self.positives[part][row], held).tolist() for row in range(len(self.docs[part]))]
        kept = [(text, [self.ids[label] for label in row]) for text, row in zip(self.docs[part], rows) if row]
        return [text for text, _ in kept], [ids for _, ids in kept]

    def examples(self, held: np.ndarray, count: int) -> list[list[str]]:
        """The first training documents of each label."""
        owners = self.positives["train"].csr(len(self.ids)).tocsc()
        return [[self.docs["train"][row] for row in owners[:, label].indices[:count]] for label in held]


def rankings(model: Model, texts: list[str], data: Data, held: np.ndarray) -> list[np.ndarray]:
    """[of all labels, of the new ones alone]: (Q, 10) labels of the default run, -1 where there are fewer."""
    place = {id: label for label, id in enumerate(data.ids)}
    new = np.array(sorted(model.system.places[id] for id in (data.ids[label] for label in held)), dtype=np.int64)
    own = np.array([place[id] for id in model.system.ids] + [-1])
    return [own[model.system.rank(texts, 10, among)[1]] for among in (None, new)]


def zero_shot(data: Data, rows: np.ndarray, held: np.ndarray) -> list[np.ndarray]:
    """What `rankings` gives, by the encoder before training."""
    from xcutils.model.encoders import encode
    from xcutils.model.untrained import build_zero_shot
    from xcutils.search.exact import exact

    prepare, embed = data.train.parent, data.train.parent.parent / "embed"
    special = artifacts.load_json(prepare / "tokenizer", "special.json")
    encoder = build_zero_shot(artifacts.load_json(embed, "embed.json"), data.train, prepare / "labels", special)
    queries = encode(encoder, artifacts.load_ragged(data.test, "tokens").take(rows))
    vectors = np.asarray(artifacts.load_array(embed, "labels"))
    return [exact(queries, vectors, 10)[0], held[exact(queries, vectors[held], 10)[0]]]


def figures(found: list[np.ndarray], truth, held: np.ndarray) -> list[float]:
    """The figures of COLUMNS, in percent. truth  (Q, L) of the documents that have a label that was left out"""
    is_new = np.zeros(truth.shape[1], dtype=np.float32)
    is_new[held] = 1
    new = truth.multiply(is_new).tocsr()
    new.eliminate_zeros()
    every, alone = found
    counts = new.getnnz(axis=1)

    def recall(ranking: np.ndarray) -> float:
        return 100 * float((hits(ranking, new).sum(axis=1) / counts).mean())

    def precision(ranking: np.ndarray, right) -> float:
        return 100 * float(hits(ranking[:, :5], right).mean())

    return [recall(every), precision(every, truth), recall(alone), precision(alone, new)]


def found(data: Data, held: np.ndarray, examples: int, work: Path) -> dict[str, list[float]]:
    """Row of the table -> its figures."""
    every = data.positives["test"].csr(len(data.ids))
    rows = np.flatnonzero(np.isin(data.positives["test"].values, held))
    rows = np.unique(data.positives["test"].row_ids()[rows])
    truth, texts = every[rows], [data.docs["test"][row] for row in rows]
    console.say(f"{len(held):,} labels are left out; {len(rows):,} of {every.shape[0]:,} test documents have some")
    full = longtail.load(ROOT)
    out = {"zero-shot": figures(zero_shot(data, rows, held), truth, held)}
    kept = {id: text for id, text in zip(data.ids, data.texts) if id not in {data.ids[label] for label in held}}
    model = longtail.fit(
        *data.without("train", held), kept, test=data.without("test", held), folder=work / "run", progress=True
    )
    names = [(data.ids[label], data.texts[label]) for label in held]
    nothing = np.full((len(rows), 10), -1)
    place = {id: label for label, id in enumerate(data.ids)}
    own = np.array([*(place[id] for id in model.system.ids), -1])
    out["not added"] = figures([own[model.system.rank(texts, 10)[1]], nothing], truth, held)
    model.add_labels(names)
    out["added by text"] = figures(rankings(model, texts, data, held), truth, held)
    model.undo()
    model.add_labels([(*name, docs) for name, docs in zip(names, data.examples(held, examples))])
    out[f"added by text and up to {examples} documents"] = figures(rankings(model, texts, data, held), truth, held)
    model.undo()
    out["trained with all labels"] = figures(rankings(full, texts, data, held), truth, held)
    return out


# --- time -------------------------------------------------------------------------------------------------------------


def generated(folder: Path, count: int) -> Path:
    """A bundle with so many labels, whose texts are words of the default run's labels."""
    base = Run(ROOT / "data", MODULAR)
    system = base.load()
    rng = np.random.default_rng(SEED)
    words = np.array(sorted({word for text in system.texts for word in text.split()}))
    texts = [" ".join(row) for row in words[rng.integers(0, len(words), (count, 4))].tolist()]
    old = system.model.settings
    vectors = np.zeros((count, old.labels["dim"]), dtype=np.float16)
    for start in range(0, count, 1 << 14):
        some = slice(start, start + (1 << 14))
        vectors[some, : old.docs["dim"]] = system.embed(texts[some])
    vectors[:, old.docs["dim"] :] = rng.random((count, 1)) * 0.1 / constant(old.docs["dim"])
    settings = replace(old, labels=old.labels | {"count": count})
    positives = system.model.positives
    members = rng.integers(0, count, len(positives.values)).astype(np.int32)
    with artifacts.writing(folder, name=NAME, params={"bundle": BUNDLE}) as draft:
        for file in base.folder.iterdir():
            if file.is_file() and not file.name.startswith(("labels.", "ids.", "texts.", "manifest")):
                shutil.copyfile(file, draft / file.name)
        INDEXES[settings.search].build(vectors, draft / f"labels.{settings.search}", FAST)
        artifacts.save_json(draft, "settings.json", asdict(settings))
        artifacts.save_ragged(draft, "ids", from_strings([f"G{number}" for number in range(count)]))
        artifacts.save_ragged(draft, "texts", from_strings(texts))
        artifacts.save_ragged(draft, "positives", Ragged(members, np.asarray(positives.offsets)))
        artifacts.save_array(draft, "frequency", np.bincount(members, minlength=count))
        artifacts.save_json(draft, "standin.json", base.stand_in().as_dict())
        artifacts.save_json(draft, "about.json", {})
        (draft / BROUGHT).write_bytes(b"")
    return folder


def timed(folder: Path, changes: int, ids: list[str] | None = None) -> dict[str, float]:
    """What changes of a bundle's labels take, in seconds, and an answer before and after, in milliseconds.

    ids  of the bundle's labels; None: as `generated` names them
    """
    out: dict[str, float] = {}

    def clock(name: str, work) -> None:
        begin = time.perf_counter()
        work()
        out[name] = time.perf_counter() - begin

    shutil.rmtree(folder / "changes", ignore_errors=True)
    model = Model(Bundle(folder))
    texts = model.system.texts
    ids = [f"G{number}" for number in range(len(texts))] if ids is None else ids
    out["ms per text before"] = milliseconds(model, texts[:ASKED])
    rng = np.random.default_rng(SEED)
    some = rng.choice(len(texts), changes, replace=False)
    gone, renamed = np.split(some[: changes // 2], 2)
    added = [(f"N{i}", f"{texts[i]} {texts[j]}") for i, j in zip(some.tolist(), some[::-1].tolist())][: changes // 2]
    clock("seconds to add", lambda: model.add_labels(added))
    clock("seconds to remove", lambda: model.remove_labels([ids[i] for i in gone]))
    clock("seconds to rename", lambda: model.rename_labels({ids[i]: f"{texts[i]} again" for i in renamed}))
    clock("seconds to add one more", lambda: model.add_labels([("one", "one more label")]))
    clock("seconds to undo that", model.undo)
    out["ms per text after"] = milliseconds(model, texts[:ASKED])
    clock("seconds to load with the changes", lambda: Model(Bundle(folder)))
    return out


def milliseconds(model: Model, texts: list[str]) -> float:
    """Of one text by itself, the median."""
    taken = []
    for text in texts:
        begin = time.perf_counter()
        model.predict(text)
        taken.append(time.perf_counter() - begin)
    return 1000 * float(np.median(taken))


@click.command()
@click.option("--labels", default=1000, show_default=True, help="Labels that are left out.")
@click.option(
    "--examples", default=5, show_default=True, help="Training documents that a label is added with, at most."
)
@click.option("--work", type=click.Path(path_type=Path), default=ROOT / ".scratch" / "new-labels", help="A folder.")
@click.option("--timings", is_flag=True, help="Time changes in place of this.")
@click.option("--count", default=262_000, show_default=True, help="Labels of the model whose changes are timed.")
@click.option("--changes", default=10_000, show_default=True, help="Changes.")
@console.command
def main(labels: int, examples: int, work: Path, timings: bool, count: int, changes: int) -> None:
    if timings:
        folder = work / f"generated-{count}"
        taken = timed(folder if folder.is_dir() else generated(folder, count), changes)
        click.echo("\n".join(f"{name:<34}{figure:8.2f}" for name, figure in taken.items()))
        return
    data = Data(ROOT / "data")
    table = found(data, data.held(labels), examples, work)
    (work / "found.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    click.echo("| | " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * len(COLUMNS))
    for row, row_figures in table.items():
        click.echo(f"| {row} | " + " | ".join(f"{figure:.2f}" for figure in row_figures) + " |")


if __name__ == "__main__":
    main()
