"""A dataset small enough to run every stage in seconds, and the means to run them as the dvc.yaml files would.

A stage of the unified pipeline has its folder before its name: `unidec/train`.
"""

import csv
import gzip
import importlib
import io
import json
import os
import shlex
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from xcutils.core import pipelines

ROOT = Path(__file__).resolve().parents[1]


def load_yaml(file: str | Path) -> dict:
    """A file of the project."""
    return YAML(typ="safe").load((ROOT / file).read_text(encoding="utf-8"))


# Folder of a pipeline, with a slash where it has a name -> its dvc.yaml.
DVC_FILES = {f"{folder}/".lstrip("/"): load_yaml(Path(folder, "dvc.yaml")) for folder in pipelines.PIPELINES}
EVERY = {f"{folder}{name}": facts for folder, tree in DVC_FILES.items() for name, facts in tree["stages"].items()}
STAGES = {name: facts for name, facts in EVERY.items() if "/" not in name}
UNIFIED = {name: facts for name, facts in EVERY.items() if name not in STAGES}
SHARED = ("prepare",)  # the stages of the modular pipeline whose outputs the unified one reads
PARAMS = pipelines.MODULAR.params.as_posix()
UNIDEC = pipelines.UNIDEC.params.as_posix()
DATASET = "data/raw/tiny"
# The parameters that name a checkpoint.
NAMED_CHECKPOINTS = ["prepare.tokenizer", "embed.model", "encoder.model"]
NAMED_CHECKPOINTS += [f"{UNIDEC}:{name}" for name in ("embed.model", "train.model")]

LOOKS = ("small", "large", "flat")
COLOURS = ("red", "green", "blue")
THINGS = ("box", "ball", "cup", "lid", "jar")
LABELS = [" ".join(words) for words in product(LOOKS, COLOURS, THINGS)][:40]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"red green blue small large round flat box ball cup lid jar".split()]
TRAIN = 60  # training docs
TEST = 20  # test docs
NAMED = 10  # so many labels are also training docs; the next six are also test docs
RECIPROCAL = 6  # pairs of a doc and a label of which each is the other's

# What differs from the project's own parameter files: fewer of everything, and what learning so little depends on.
SETTINGS = {
    "K": 12,
    "dataset": DATASET,
    "prepare.validation": 0.25,
    "prepare.refit": True,
    "cluster.head": 6,
    "encoder.buckets": 64,
    "encoder.hidden": 8,
    "encoder.epochs": 2,
    "encoder.batch_size": 16,
    "encoder.warmup": 1,
    "encoder.cluster_from": 1,
    "encoder.lr": 0.01,
    "encoder.aux_lr": 0.01,
    "encoder.positives": 3,
    "classifier.epochs": 2,
    "classifier.batch_size": 16,
    "classifier.warmup": 1,
    "classifier.lr": 0.02,
    "classifier.encoder_lr": 0.005,
    "classifier.dropout": 0.2,
    "index.m": 8,
    "index.ef_construction": 64,
    "score.neighbours": 5,
    f"{UNIDEC}:beta": 2,
    f"{UNIDEC}:eta": 2,
    f"{UNIDEC}:train.buckets": 64,
    f"{UNIDEC}:train.hidden": 8,
    f"{UNIDEC}:train.pretrained": 0,  # test_pretrained.py
    f"{UNIDEC}:train.epochs": 3,
    f"{UNIDEC}:train.extra": 8,
    f"{UNIDEC}:train.average_after": 1,
    f"{UNIDEC}:train.refresh": 2,
    f"{UNIDEC}:train.batch_size": 16,
    f"{UNIDEC}:train.warmup": 1,
    f"{UNIDEC}:train.lr": 0.01,
    f"{UNIDEC}:train.head_lr": 0.005,
    f"{UNIDEC}:train.classifier_lr": 0.02,
    f"{UNIDEC}:train.classifier_dropout": 0.2,
    f"{UNIDEC}:index.m": 8,
    f"{UNIDEC}:index.ef_construction": 64,
    f"{UNIDEC}:score.neighbours": 5,
}


def label_id(label: int) -> str:
    return LABELS[label].replace(" ", "-")


def dataset_rows(seed: int = 0) -> dict[str, list[dict]]:
    """The lines of trn.json.gz, tst.json.gz and lbl.json.gz: a doc's text names its labels, some labels are docs too.

    The first training docs are labels 0..9, and doc i < 6 has label 10 + i. The first test docs are labels 10..15, and
    their text names label i as well, which would be the right guess if the pair were not reciprocal. Every fifth text
    holds a word that the small checkpoint's tokenizer does not know.
    """
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(2, len(LABELS) + 2)
    chances = rng.permutation(chances / chances.sum())
    return {
        "lbl": [{"uid": label_id(i), "title": LABELS[i]} for i in range(len(LABELS))],
        "trn": [_doc("trn", i, chances, rng) for i in range(TRAIN)],
        "tst": [_doc("tst", i, chances, rng) for i in range(TEST)],
    }


def _doc(file: str, i: int, chances: np.ndarray, rng: np.random.Generator) -> dict:
    """Document i of the file; `chances` are those of each label to be drawn."""
    allowed = chances * (np.arange(len(LABELS)) >= NAMED + RECIPROCAL) if i < NAMED else chances
    labels = rng.choice(len(LABELS), rng.integers(1, 4), replace=False, p=allowed / allowed.sum()).tolist()
    own, named = None, []  # the label that the doc is, and what its text names besides its labels
    if file == "trn" and i < NAMED:
        own, named = i, [i]
        labels = [NAMED + i, *labels] if i < RECIPROCAL else labels
    elif file == "tst" and i < RECIPROCAL:
        own, named = NAMED + i, [NAMED + i, i]
    text = " ".join([LABELS[label] for label in [*named, *labels]] + ["curious"] * (i % 5 == 0))
    return {"uid": f"{file}-{i}" if own is None else label_id(own), "title": text, "target_ind": labels}


def larger_rows(count: int, seed: int = 0) -> dict[str, list[dict]]:
    """The same files with `count` training docs and labels: enough for many batches, chunks and blocks of a graph."""
    rng = np.random.default_rng(seed)
    words = np.array(WORDS[4:])
    texts = [" ".join(row) for row in words[rng.integers(0, len(words), (count, 4))].tolist()]
    files = {"lbl": [{"uid": f"label-{i}", "title": text} for i, text in enumerate(texts)]}
    for file, size in (("trn", count), ("tst", 50)):
        chosen = rng.integers(0, count, (size, 2)).tolist()
        files[file] = [
            {"uid": f"{file}-{i}", "title": " ".join(texts[label] for label in labels), "target_ind": labels}
            for i, labels in enumerate(chosen)
        ]
    return files


def write_dataset(folder: Path, files: dict[str, list[dict]] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (files or dataset_rows()).items():
        with gzip.open(folder / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def encode(form: str, rows: list[dict]) -> bytes:
    """The rows as a file of the form; lists are JSON lists where the form has no lists."""
    if form == "parquet":
        import pyarrow
        from pyarrow import parquet

        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file.getvalue()
    if form.startswith("jsonl"):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    else:
        text = io.StringIO(newline="")
        delimiter = "\t" if form.startswith("tsv") else ","
        writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({key: json.dumps(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows)
        content = text.getvalue().encode()
    return gzip.compress(content) if form.endswith(".gz") else content


def make_params(file: str = PARAMS, **changes) -> dict:
    """The values of a parameter file of the project with SETTINGS and then `changes`; names as in `dvc exp run -S`."""
    tree = load_yaml(file)
    for name, value in {**SETTINGS, **changes}.items():
        place, _, name = name.rpartition(":")
        if (place or PARAMS) == file:
            *section, key = name.split(".")
            (tree[section[0]] if section else tree)[key] = value
    return tree


def write_params(folder: Path, tree: dict, file: str = PARAMS) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    with open(folder / file, "w", encoding="utf-8") as out:
        YAML().dump(tree, out)


def write_all_params(folder: Path, **changes) -> None:
    """The parameter files of both pipelines."""
    for file in (PARAMS, UNIDEC):
        write_params(folder, make_params(file, **changes), file)


def make_checkpoint(folder: Path) -> Path:
    """The folder, which now holds a checkpoint: a random BERT of six small layers, and a tokenizer that knows WORDS."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "max_position_embeddings": 32}
    config = BertConfig(vocab_size=len(WORDS), num_hidden_layers=6, initializer_range=0.3, **sizes)
    BertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def small_checkpoint(folder: Path) -> dict[str, str]:
    """The changes that put the checkpoint in `folder` in place of the default one."""
    return dict.fromkeys(NAMED_CHECKPOINTS, str(folder))


def module(stage: str):
    """The module of the stage's code."""
    return importlib.import_module(shlex.split(EVERY[stage]["cmd"])[2])


def arguments(stage: str) -> list[str]:
    """What dvc.yaml puts on the stage's command line."""
    return shlex.split(EVERY[stage]["cmd"].replace("${dataset}", DATASET))[3:]


def home(stage: str) -> Path:
    """The folder that the stage writes."""
    folder, _, name = stage.rpartition("/")
    return Path(folder, "data", name)


def invoke(folder: Path, command, args: Iterable, text: str | None = None) -> Result:
    """The outcome of a click command started in `folder`; an exception other than an exit goes through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(command, [str(a) for a in args], text, {"XC_THREADS": "1"}, catch_exceptions=False)


def run_stage(folder: Path, stage: str) -> Result:
    return invoke(folder, module(stage).main, arguments(stage))


def run_stages(folder: Path, stages: Iterable[str] = STAGES) -> dict[str, str]:
    """Run the stages, each of which must end well; what each said on stderr."""
    said = {}
    for stage in stages:
        result = run_stage(folder, stage)
        assert result.exit_code == 0, f"{stage}: {result.stderr}"
        said[stage] = result.stderr
    return said


def make_project(folder: Path, files: dict[str, list[dict]] | None = None, **changes) -> Path:
    """A folder with the tiny dataset (or these files) and parameters, in which nothing has run yet."""
    write_dataset(folder / DATASET, files)
    write_all_params(folder, **changes)
    return folder


def link_before(base: Path, folder: Path, first: str) -> list[str]:
    """Link what the stages before `first` wrote in `base` into the folder; the stages of its pipeline that are left."""
    names = list(STAGES) if first in STAGES else [*SHARED, *UNIFIED]
    place = names.index(first)
    for name in ["raw", *names[:place]]:
        (folder / home(name)).parent.mkdir(parents=True, exist_ok=True)
        os.symlink((base / home(name)).resolve(), folder / home(name))
    return names[place:]


def branch(base: Path, folder: Path, first: str, **changes) -> tuple[Path, list[str]]:
    """(a project whose stages before `first` are those of `base`, the stages that are left to run)."""
    left = link_before(base, folder, first)
    write_all_params(folder, **changes)
    return folder, left
