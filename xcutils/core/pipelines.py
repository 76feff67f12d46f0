"""The pipelines, one row each: where they are, their stages, what is searched in the end, the rows of their metrics.

A new pipeline is a folder with a dvc.yaml and a params.yaml, and a row here. The library knows stages by name only.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from xcutils.core.params import value


@dataclass(frozen=True, kw_only=True)
class Top:
    """The values that stand above the sections of params.yaml."""

    K: int | Literal["auto"] = value(low=0)
    dataset: str
    seed: int = value(low=0, high=2**31 - 1)


@dataclass(frozen=True, kw_only=True)
class UnifiedTop:
    """The values that stand above the sections of unidec/params.yaml."""

    beta: int = value(low=1)
    eta: int = value(low=0)
    seed: int = value(low=0, high=2**31 - 1)


@dataclass(frozen=True)
class Pipeline:
    """One dvc.yaml with its parameters.

    folder    where its dvc.yaml, params.yaml, metrics.json and data/ are; the root's is empty
    top       the values that stand above the sections of its params.yaml
    stages    stage -> the module that runs; the same word names its section of params.yaml and its folder in data/
    trains    the stage that trains the encoder
    searched  the stages whose vectors are searched; the last one has the encoder that they are searched with
    rows      row of metrics.json -> its name in a table
    absent    rows that are missing when the encoder was trained alone
    """

    folder: str
    top: type
    stages: dict[str, str]
    trains: str
    searched: tuple[str, ...]
    rows: dict[str, str]
    absent: tuple[str, ...] = ()

    @property
    def params(self) -> Path:
        return Path(self.folder, "params.yaml")

    @property
    def metrics(self) -> Path:
        return Path(self.folder, "metrics.json")

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"dvc repro {self.folder}/dvc.yaml" if self.folder else "dvc repro"

    def data(self, data: Path) -> Path:
        """The folder that this pipeline's stages write into; `data` is the root pipeline's."""
        return data.parent / self.folder / data.name


MODULAR = Pipeline(
    folder="",
    top=Top,
    stages={
        "prepare": "stages.prepare",
        "embed": "stages.embed",
        "gandalf": "stages.gandalf",
        "cluster": "stages.cluster",
        "encoder": "stages.encoder",
        "augment": "stages.augment",
        "classifier": "stages.classifier",
        "index": "stages.index",
        "score": "stages.score",
    },
    trains="encoder",
    searched=("augment", "classifier"),
    rows={
        "BM25": "BM25 on label text",
        "zero-shot": "zero-shot",
        "encoder-no-aux": "encoder without auxiliary vectors",
        "encoder": "encoder with them",
        "classifier": "classifier",
        "memory": "memory",
        "fused": "fused",
    },
)
UNIDEC = Pipeline(
    folder="unidec",
    top=UnifiedTop,
    stages={
        "embed": "stages.embed",
        "gandalf": "stages.gandalf",
        "train": "unidec.train",
        "index": "stages.index",
        "score": "unidec.score",
    },
    trains="train",
    searched=("train",),
    rows={
        "encoder": "encoder alone",
        "classifier": "classifiers alone",
        "concatenated": "both concatenated",
        "memory": "memory",
        "fused": "fused",
    },
    absent=("classifier", "concatenated"),
)
PIPELINES = {pipeline.folder: pipeline for pipeline in (MODULAR, UNIDEC)}


def pipeline_of(file: Path) -> Pipeline:
    """The pipeline whose parameter file this is, by the folder it is in."""
    return PIPELINES.get(Path(file).parent.name, MODULAR)


def writer_of(path: Path) -> Pipeline:
    """The pipeline that writes this file or folder: its data/, or its metrics.json."""
    for folder, inside in pairwise(Path(path).parts):
        if folder and folder in PIPELINES and inside in ("data", "metrics.json"):
            return PIPELINES[folder]
    return MODULAR
