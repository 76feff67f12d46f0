"""How to add a loss, an encoder, a reader, an ANN library, a stage, a method: the steps of docs/architecture.md.

Each test does it with a toy in a copy of the project, names the files that had to be changed, and runs the stages that
use it: nothing else needs to know.
"""

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from textwrap import dedent

import pytest

from longtail.cli import main
from longtail.recipes import values_of
from stages import parameters
from testing.tiny import DATASET, LABELS, ROOT, SETTINGS, UNIDEC, dataset_rows, invoke, small_checkpoint
from xcutils.core import artifacts
from xcutils.core.pipelines import PIPELINES
from xcutils.model.encoders import COMPOSED, KINDS
from xcutils.search.indexes import INDEXES
from xcutils.train.losses import LOSSES

# Runs stages and then commands in the copy: base, checkpoint, folder, {first stage: how many}, changes, commands.
PROGRAM = """
import json, sys
from pathlib import Path
from longtail.cli import main
from testing import tiny
from xcutils.core.pipelines import PIPELINES

base, model, place, runs, changes, commands = json.loads(sys.argv[1])
changes = {**tiny.small_checkpoint(Path(model)), **changes}
said, folder = {}, Path(place)
for first, count in runs.items():
    folder, left = tiny.branch(Path(base), Path(place, first), first, **changes)
    for file in (pipeline.params.as_posix() for pipeline in PIPELINES.values()):
        tiny.write_params(folder, tiny.make_params(file, **changes), file)
    said.update(tiny.run_stages(folder, left[:count]))
told = [tiny.invoke(folder, main, command).output for command in commands]
print(json.dumps([said, told]))
"""


@dataclass
class House:
    """A copy of the project, to be built on.

    base, model  a finished tiny run, and the checkpoint it was made with
    changed      the files that were there before and are no longer as they were
    said         stage -> what it said
    told         what each command printed
    """

    folder: Path
    base: Path
    model: Path
    changed: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def bring(self, *names: str) -> None:
        """Files and folders of the project; of a folder neither outputs nor what Python writes."""
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", *(["data"] if name == "unidec" else []))
                shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, self.folder / name)

    def write(self, name: str, text: str) -> None:
        """A new file."""
        file = self.folder / name
        assert not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip(), encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """An edit of a file that is there."""
        text = (self.folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        (self.folder / name).write_text(text.replace(old, new), encoding="utf-8")
        self.changed = sorted({*self.changed, name})

    def before(self, name: str, line: str, text: str) -> None:
        """Lines before the one that begins so."""
        self.change(name, f"\n{line}", f"\n{text}\n{line}")

    def row(self, name: str, table: str, row: str) -> None:
        """A row of a table."""
        text = (self.folder / name).read_text(encoding="utf-8")
        (opened,) = re.findall(rf"^{table}\b[^=\n]*= \{{", text, flags=re.MULTILINE)
        self.change(name, f"\n{opened}", f"\n{opened}\n    {row},\n    ")

    def run(self, runs: dict[str, int | None], *commands: list[str], base: Path | None = None, **changes) -> None:
        """Run so many stages from each of these on, with these parameters, then commands where the last ones ran."""
        job = [str(base or self.base), str(self.model), str(self.place), runs, changes, commands]
        done = self.python("-c", PROGRAM, json.dumps(job))
        assert done.returncode == 0, done.stderr
        self.said, self.told = json.loads(done.stdout.splitlines()[-1])

    def python(self, *args: str) -> subprocess.CompletedProcess:
        env = os.environ | {"XC_THREADS": "1", "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, *args], cwd=self.folder, env=env, text=True, capture_output=True)

    @property
    def place(self) -> Path:
        return self.folder.parent / "runs"

    def curve(self, first: str, file: str) -> list[float]:
        """The training loss by epoch."""
        with open(self.place / first / file / "curve-choose.csv", newline="") as rows:
            return [float(row["loss"]) for row in csv.DictReader(rows)]


@pytest.fixture
def house(tmp_path, tiny_run, tiny_model) -> House:
    made = House(tmp_path / "project", tiny_run, tiny_model)
    made.bring("xcutils", "stages", "unidec", "longtail", "testing", "recipes")
    made.bring("dvc.yaml", "params.yaml", "pyproject.toml")
    return made


# --- a loss -----------------------------------------------------------------------------------------------------------

EXPONENTIAL = '''
def _exponential(pairs: Pairs, *, tau: float) -> Tensor:
    """exp(-s/tau) of a positive and exp(s/tau) of a negative, mean over all pairs [AdaBoost]."""
    scores = pairs.x @ pairs.labels.T
    return (torch.where(pairs.is_positive(), -scores, scores) / tau).exp().mean()


'''


@pytest.mark.stage
def test_adding_a_loss(house):
    """Every trainer that has its parameters offers it: the encoder's, the classifiers' and the unified one."""
    house.before("xcutils/train/losses.py", "LOSSES = {", EXPONENTIAL)
    house.row("xcutils/train/losses.py", "LOSSES", '"exponential": Loss(_exponential, ("tau",))')
    assert house.changed == ["xcutils/train/losses.py"]
    chosen = {
        **{"encoder.loss": "exponential", "encoder.tau": 0.5, "classifier.loss": "exponential", "classifier.tau": 0.5},
        **{f"{UNIDEC}:train.encoder_loss": "exponential", f"{UNIDEC}:train.tau": 0.5},
        f"{UNIDEC}:train.classifier_loss": "exponential+bce",
    }
    house.run({"encoder": 3, "unidec/embed": 3}, ["estimate", "-S", "encoder.loss=exponent"], **chosen)
    for first, folder in (("encoder", "encoder"), ("encoder", "classifier"), ("unidec/embed", "train")):
        losses = house.curve(first, f"unidec/data/{folder}" if "/" in first else f"data/{folder}")
        assert all(map(isfinite, losses)) and losses[-1] < losses[0], folder
    assert "encoder.loss is 'exponent'; allowed: exponential, " in house.told[0]


# --- an encoder -------------------------------------------------------------------------------------------------------

MEAN = '''
"""The mean of a text's token vectors, from a pretrained token table."""

import numpy as np
import torch
from torch.nn import functional as F

from xcutils.core.costs import FLOAT, FRAGMENTATION
from xcutils.model.checkpoints import token_table
from xcutils.model.costs import Network
from xcutils.model.encoder import Encoder
from xcutils.model.rows import RowTable


class MeanOfTokens(Encoder):
    def __init__(self, vectors):
        super().__init__()
        self.dim, self.vectors = vectors.shape[1], RowTable(vectors, lr=0.0)
        self.tables = [self.vectors]

    @classmethod
    def build(cls, p, texts, special):
        return cls(token_table(p.model))

    @classmethod
    def rebuild(cls, config, state):
        return cls(state["vectors"])

    @staticmethod
    def check(p, max_tokens):
        """Any checkpoint's token table will do."""

    @staticmethod
    def network(p, section):
        rows, dim = token_table(p.model).shape
        return MeanNetwork(dim, rows, dim, 0)

    def embed(self, texts):
        used, place = np.unique(texts.values, return_inverse=True)
        rows = self.vectors.rows(torch.from_numpy(used.astype(np.int64)).to(self.device))
        places, offsets = torch.from_numpy(place), torch.from_numpy(texts.offsets[:-1])
        return F.embedding_bag(places.to(self.device), rows, offsets.to(self.device), mode="mean")

    def config(self):
        return {"kind": "mean"}

    def state(self):
        return {"vectors": self.vectors.values}


class MeanNetwork(Network):
    def step(self, texts, tokens):
        return 6 * FRAGMENTATION * (FLOAT * texts * self.dim + self.picked(texts, tokens))

    def chunk(self, texts, tokens):
        return 2 * (FLOAT * texts * self.dim + self.picked(texts, tokens))

    def work(self, texts, tokens, *, train):
        return 0.0, (3 if train else 1) * FLOAT * tokens * self.width
'''


@pytest.mark.stage
def test_adding_an_encoder(house):
    """It is trained, saved, loaded, searched with, asked for labels, and says what it takes; also below two heads."""
    house.write("xcutils/model/mean.py", MEAN)
    house.before("xcutils/model/encoders.py", "from xcutils.model.heads", "from xcutils.model.mean import MeanOfTokens")
    house.row("xcutils/model/encoders.py", "KINDS", '"mean": MeanOfTokens')
    assert house.changed == ["xcutils/model/encoders.py"]
    commands = ["predict", "-k", "2", LABELS[0]], ["estimate"]
    kinds = {"encoder.kind": "mean", f"{UNIDEC}:train.kind": "mean"}
    house.run({"unidec/embed": 3, "encoder": None}, *commands, **kinds)
    own, both = (house.place / first for first in ("encoder", "unidec/embed"))
    assert artifacts.load_json(own / "data" / "classifier" / "final", "encoder.json") == {"kind": "mean"}
    assert artifacts.load_json(both / "unidec" / "data" / "train" / "final", "encoder.json")["encoder"] == {
        "kind": "mean"
    }
    report = artifacts.load_json(own, "metrics.json")
    assert report["encoder"] != artifacts.load_json(house.base, "metrics.json")["encoder"]
    assert report["fused"]["P@1"] > 100 / len(LABELS)
    assert LABELS[0] in house.told[0] and "encoder: about" in house.said["encoder"]
    assert [line.split()[0] for line in house.told[1].splitlines()[2:11]] == list(PIPELINES[""].stages)


# --- a reader ---------------------------------------------------------------------------------------------------------

FASTTEXT = '''
"""fastText's form: train.txt with a line `__label__a __label__b the text` for each document."""

from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.corpora import Collector, Dataset, no_pairs, split_test
from xcutils.data.skips import Skips

MARK = "__label__"


def read_fasttext(folder: Path, name: str) -> Dataset:
    file, report = folder / "train.txt", Skips()
    if not file.is_file():
        raise UserError(f"{file} is missing: fastText's form has its documents there.")
    docs, labels = Collector(by_text=True), {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        own = [word.removeprefix(MARK).replace("_", " ") for word in words if word.startswith(MARK)]
        if own:
            text = " ".join(word for word in words if not word.startswith(MARK))
            docs.add(str(number), text, [labels.setdefault(label, len(labels)) for label in own])
        else:
            report.skip(file, number, "rows_without_labels", "the line has no label")
    report.count(file, number)
    texts, (train, test) = list(labels), split_test(docs.corpus())
    return Dataset(name, train, test, texts, texts, no_pairs(), no_pairs(), dict(report.reasons), report)
'''


def fasttext_lines() -> Iterator[str]:
    yield "a line without a label"
    for row in dataset_rows()["trn"]:
        yield " ".join([*(f"__label__{LABELS[label].replace(' ', '_')}" for label in row["target_ind"]), row["title"]])


@pytest.mark.stage
def test_adding_a_reader(house, tmp_path):
    """The form that dataset.yaml names is checked, prepared and imported; its rows are skipped and noted as others."""
    house.write("xcutils/data/fasttext.py", FASTTEXT)
    house.before(
        "xcutils/data/datasets.py", "from xcutils.data.filters", "from xcutils.data.fasttext import read_fasttext"
    )
    row = '    "fasttext": Form(lambda folder, says: read_fasttext(folder, says.name)),'
    house.before("xcutils/data/datasets.py", '    "hpo": Form(_read_hpo_package),', row)
    assert house.changed == ["xcutils/data/datasets.py"]
    folder = tmp_path / "base" / DATASET
    folder.mkdir(parents=True)
    (folder / "dataset.yaml").write_text("format: fasttext\n")
    (folder / "train.txt").write_text("\n".join([*fasttext_lines(), ""]))
    house.run({"prepare": 1}, ["check", DATASET], base=tmp_path / "base")
    prepared = house.place / "prepare" / "data" / "prepare"
    texts = {row["title"] for row in dataset_rows()["trn"]}
    counts = json.loads((prepared / "stats.json").read_text())
    assert counts["train_docs"] + counts["test_docs"] == len(texts)
    assert "train.txt,1,the line has no label" in (prepared / "skipped.csv").read_text()
    assert "train.txt, line 1: the line has no label" in house.told[0]


# --- an ANN library ---------------------------------------------------------------------------------------------------

FLAT = '''
"""Vectors in one file, all of which are looked at."""

import numpy as np

from xcutils.core.costs import Part
from xcutils.search.exact import exact
from xcutils.search.graphs import alive


class Flat:
    exhaustive = False

    def __init__(self, ids, vectors):
        self.ids, self.vectors, self.ef = ids, vectors, 0

    @classmethod
    def over(cls, vectors, building, *, ef):
        return cls(alive(vectors), np.asarray(vectors, dtype=np.float32))

    @classmethod
    def build(cls, vectors, file, building, *, drafts=None, say=print, stop=None):
        made = cls.over(vectors, building, ef=0)
        with open(file, "wb") as out:
            np.savez(out, ids=made.ids, vectors=made.vectors)

    @classmethod
    def open(cls, file, *, count, dim, ef):
        saved = np.load(file)
        return cls(saved["ids"], saved["vectors"])

    def __len__(self):
        return len(self.ids)

    def search(self, queries, k, threads=1):
        places, scores = exact(queries, self.vectors[self.ids], k)
        return self.ids[places], scores

    def seen(self, queries):
        return queries

    def take(self, ids):
        return self.vectors[ids]

    @staticmethod
    def cost(count, dim, m):
        return [Part("flat vectors", 4 * count * dim)]

    @staticmethod
    def building_cost(sizes, dim):
        return []

    @staticmethod
    def disk(count, dim, m):
        return 4 * count * dim

    @staticmethod
    def seconds(ef, m, count, dim):
        return 1e-10 * count * dim
'''


@pytest.mark.stage
def test_adding_an_ann_library(house):
    """`index` builds it, `score` and `xc predict` open and search it, `xc estimate` says what it takes."""
    house.write("xcutils/search/flat.py", FLAT)
    house.before("xcutils/search/indexes.py", "from xcutils.search.eight", "from xcutils.search.flat import Flat")
    house.row("xcutils/search/indexes.py", "INDEXES", '"flat": Flat')
    assert house.changed == ["xcutils/search/indexes.py"]
    commands = ["predict", "-k", "2", LABELS[0]], ["estimate", "--labels", "10000000"]
    house.run({"index": None}, *commands, **{"index.search": "flat"})
    run = house.place / "index"
    built = artifacts.check(run / "data" / "index")
    assert artifacts.load_json(built, "settings.json")["search"] == "flat"
    assert {file.name for file in built.glob("*.flat")} == {"labels.flat", "docs.flat"}
    report, before = (artifacts.load_json(folder, "metrics.json") for folder in (run, house.base))
    assert report["index"]["recall@100 labels"] > 99
    assert abs(report["fused"]["N@5"] - before["fused"]["N@5"]) < 5
    assert LABELS[0] in house.told[0] and "index" in house.told[1]
    assert "index: about" in house.said["index"]


# --- a stage ----------------------------------------------------------------------------------------------------------

FREQUENT = '''
"""The most frequent labels: what a text without a known word is answered with.

reads   prepare/labels frequency (L,)
writes  labels (n,) int64
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from stages import parameters
from xcutils.core import artifacts, console, costs, runtime
from xcutils.core.costs import INTERPRETER, LONG, Estimate, Host, Part, Sizes
from xcutils.core.params import value


@dataclass(frozen=True)
class Params:
    count: int = value(low=1)


def cost(s: Sizes, params: dict, host: Host) -> Estimate:
    """All labels in order."""
    parts = [Part("interpreter", INTERPRETER), Part("labels in order", 2 * LONG * s.labels)]
    return Estimate("frequent", parts, 3, LONG * params["frequent"]["count"])


@click.command()
@click.argument("labels", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@console.command
def main(labels: Path, out: Path) -> None:
    settings = parameters()
    p = settings.section("frequent", Params)
    runtime.start()
    artifacts.check_together(labels)
    frequency = artifacts.load_array(labels, "frequency")
    costs.announce(cost, Sizes(docs=0, labels=len(frequency)), settings.values)
    with artifacts.writing(out, name="frequent", params=asdict(p), inputs=[labels]) as folder:
        artifacts.save_array(folder, "labels", np.argsort(-frequency, kind="stable")[: p.count])


if __name__ == "__main__":
    main()
'''
FREQUENT_IN_DVC = """\
  frequent:
    desc: "the most frequent labels"
    cmd: python -m stages.frequent data/prepare/labels data/frequent
    deps: [data/prepare/labels, stages/__init__.py, stages/frequent.py, xcutils/core]
    params: [frequent]
    outs: [data/frequent]
"""
PARTS_OF_A_STAGE = [".gitignore", "dvc.yaml", "params.yaml", "recipes/dexa.yaml", "xcutils/core/pipelines.py"]


@pytest.mark.stage
def test_adding_a_stage(house):
    """It runs as dvc.yaml says, its parameters are checked, its cost is asked for; the pipeline's own tests pass."""
    house.bring("tests", "constraints.txt", ".gitignore", ".dvcignore", ".dvc/config", "metrics.json")
    house.write("stages/frequent.py", FREQUENT)
    for file in ("params.yaml", "recipes/dexa.yaml"):
        house.before(file, "cluster:", "frequent:\n  count: 5             # labels\n")
    house.before(
        "xcutils/core/pipelines.py", '        "cluster": "stages.cluster"', '        "frequent": "stages.frequent",'
    )
    house.before("dvc.yaml", "  cluster:", FREQUENT_IN_DVC.rstrip())
    house.before(".gitignore", "/data/embed/", "/data/frequent/")
    assert house.changed == PARTS_OF_A_STAGE
    commands = ["estimate"], ["estimate", "-S", "frequent.count=0"], ["recipe", "ngame", "--show"]
    house.run({"frequent": 1}, *commands, **{"frequent.count": 3})
    folder = house.place / "frequent" / "data"
    found = artifacts.load_array(artifacts.check(folder / "frequent"), "labels")
    frequency = artifacts.load_array(folder / "prepare" / "labels", "frequency")
    assert len(found) == 3 and frequency[found].min() >= sorted(frequency)[-3]
    assert house.said["frequent"].startswith("frequent: about 0.28 GB")
    assert [line.split()[0] for line in house.told[0].splitlines()[5:7]] == ["frequent", "cluster"]
    assert "frequent.count is 0; it must be at least 1" in house.told[1]
    assert re.search(r"^frequent.count +3 +5$", house.told[2], flags=re.MULTILINE)
    tests = ["tests/pipeline/test_pipeline_file.py", "-m", "not pipeline", "-p", "no:cacheprovider"]
    done = house.python("-m", "pytest", "-q", *tests)
    assert done.returncode == 0, done.stdout


# --- a method ---------------------------------------------------------------------------------------------------------

RECIPE = """\
# NGAME with a wide bag: an example.
# Source: nobody.
base: ngame
encoder: {ngrams: 3, buckets: 65536}  # twice as many
"""


def test_adding_a_method(tmp_path):
    """A file with what differs from its base: `xc recipe` lists it and puts the whole of it in place, checked."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "wide.yaml").write_text(RECIPE)
    own, base = values_of("wide", tmp_path), values_of("ngame", tmp_path)
    assert own == base | {"encoder": base["encoder"] | {"ngrams": 3, "buckets": 65536}}
    listed = invoke(tmp_path, main, ["recipe"]).output.splitlines()
    assert [line for line in listed if re.fullmatch(r"  wide +NGAME with a wide bag: an example\.", line)]
    put = invoke(tmp_path, main, ["recipe", "wide"])
    assert put.exit_code == 0, put.output
    assert parameters(tmp_path / "params.yaml").values == own
    assert re.search(r"buckets: 65536 .*# .*; twice as many", (tmp_path / "params.yaml").read_text())


PIPELINE = 'OTHER = dataclasses.replace(UNIDEC, folder="other")'


@pytest.mark.stage
def test_adding_a_method_with_a_loop_of_its_own(house):
    """A folder and a row of PIPELINES: its stages run there, and every command knows it by the folder's name.

    The toy's stages are those of the unified method.
    """
    for name in ("dvc.yaml", "params.yaml"):
        text = (ROOT / "unidec" / name).read_text(encoding="utf-8")
        house.write(f"other/{name}", text.replace("unidec/", "other/"))
    house.change("xcutils/core/pipelines.py", "(MODULAR, UNIDEC)}", "(MODULAR, UNIDEC, OTHER)}")
    house.before("xcutils/core/pipelines.py", "PIPELINES = ", f"import dataclasses\n{PIPELINE}")
    assert house.changed == ["xcutils/core/pipelines.py"]
    commands = [
        ["table", "--other"],
        ["predict", "--other", "-k", "2", LABELS[0]],
        ["estimate", "--other", "-S", "other/params.yaml:train.epochs=1"],
        ["estimate", "--other", "-S", "other/params.yaml:train.epoch=1"],
    ]
    small = SETTINGS | small_checkpoint(house.model)
    small = {name.replace(UNIDEC, "other/params.yaml"): v for name, v in small.items() if name.startswith(UNIDEC)}
    house.run({"other/embed": None}, *commands, **small)
    made = house.place / "other" / "embed" / "other"
    assert {folder.name for folder in (made / "data").iterdir()} == {*PIPELINES["unidec"].stages}
    assert artifacts.load_json(made, "metrics.json")["fused"]["P@1"] > 0
    assert "both concatenated" in house.told[0] and LABELS[0] in house.told[1]
    assert [line.split()[0] for line in house.told[2].splitlines()[2:7]] == list(PIPELINES["unidec"].stages)
    assert "other/params.yaml: train.epoch is not a parameter" in house.told[3]


# --- the tables -------------------------------------------------------------------------------------------------------

ROWS = {*LOSSES, *KINDS, *COMPOSED, *INDEXES, *PIPELINES} - {""}


def asked_by_name(text: str) -> list[str]:
    """Comparisons with the name of a row of a table: a new row would not be known there."""
    found = []
    for node in ast.walk(ast.parse(text)):
        asked = node if isinstance(node, ast.Compare) else getattr(node, "pattern", None)
        constants = [] if asked is None else [part for part in ast.walk(asked) if isinstance(part, ast.Constant)]
        if any(constant.value in ROWS for constant in constants):
            found.append(f"line {asked.lineno}: {ast.unparse(asked)}")
    return found


@pytest.mark.parametrize("package", ["xcutils", "stages", "unidec", "longtail"])
def test_nobody_asks_which_row_of_a_table_was_chosen(package):
    """Code asks the row: what it costs, which positives it pulls, whether it is exact."""
    for file in sorted((ROOT / package).rglob("*.py")):
        assert asked_by_name(file.read_text(encoding="utf-8")) == [], file


@pytest.mark.parametrize(
    "text",
    [
        "if p.kind == 'bi-gru':\n    pass",
        "x = 1 if section['kind'] != 'transformer' else 2",
        "any(loss in ('triplet', 'bce') for loss in losses)",
        "while facts['search'] == 'hnsw':\n    pass",
        "match p.loss:\n    case 'supcon':\n        pass",
        "if pipeline.folder == 'unidec':\n    pass",
    ],
)
def test_a_question_for_a_row_is_found(text):
    assert len(asked_by_name(text)) == 1
    assert asked_by_name("if p.pooling == 'cls' or p.loss == name:\n    kinds['transformer']") == []
