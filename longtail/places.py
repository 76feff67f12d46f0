"""Where a model is: the folder of a finished run, or a bundle."""

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from longtail import __version__
from longtail.bundles import check_bundle, is_bundle
from longtail.journal import BROUGHT, CHANGES, Journal
from longtail.serving import System, load_system, model_of, open_system
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES, Pipeline
from xcutils.core.ragged import Ragged
from xcutils.rank.standin import StandIn
from xcutils.rank.weights import Fusion

STAND_IN = "standin.json"
# What a run measured that goes with a bundle: its name there -> where it is in the run's data folder.
TABLES = {
    "bins.csv": "score/bins.csv",
    "labels.csv": "score/labels.csv",
    "reliability.csv": "score/reliability.csv",
    "curve-encoder.csv": "encoder/curve-choose.csv",
    "curve-classifier.csv": "classifier/curve-choose.csv",
    "curve-train.csv": "train/curve-choose.csv",
}


@dataclass(frozen=True)
class Documents:
    """Ids and texts of the training documents, a row of UTF-8 bytes each (`to_strings` gives strings)."""

    ids: Ragged
    texts: Ragged


class Place(Protocol):
    """A folder that holds a model."""

    @property
    def folder(self) -> Path:
        """The folder of the model's files."""

    @property
    def changes(self) -> Path:
        """The folder of the changes of its labels."""

    def hash(self) -> str:
        """What tells this model from every other; empty where no whole one is there."""

    def load(self, check: bool = True) -> System:
        """What answers, without the changes of its labels."""

    def journal(self) -> Journal:
        """The changes of its labels."""

    def stand_in(self) -> StandIn:
        """How labels that are added are scored."""

    def info(self) -> dict:
        """What the model is."""

    def documents(self) -> Documents | None:
        """The training documents, where they are known."""

    def tables(self) -> dict[str, Path]:
        """What the run measured, as far as it is here: a name of TABLES -> the file."""


@dataclass(frozen=True)
class Run:
    """A finished run of a pipeline.

    data  the root pipeline's data folder
    """

    data: Path
    pipeline: Pipeline

    @property
    def folder(self) -> Path:
        return model_of(self.data, self.pipeline)

    @property
    def changes(self) -> Path:
        return self.pipeline.data(self.data) / CHANGES

    def hash(self) -> str:
        return _hash(self.folder)

    def load(self, check: bool = True) -> System:
        return load_system(self.data, self.pipeline)

    def journal(self) -> Journal:
        return Journal(self.changes)

    def stand_in(self) -> StandIn:
        """Fitted when it is asked for first, and kept beside the journal."""
        kept, model = _json(self.changes / STAND_IN) or {}, self.hash()
        if kept.get("model") == model:
            return StandIn.of(kept["fit"])
        from longtail.standins import fit_stand_in  # torch: only where there is something to fit

        made = self.pipeline.data(self.data)
        fit = fit_stand_in(self.data / "prepare", [made / stage for stage in self.pipeline.searched], self.folder)
        fit = fit or StandIn.unfitted(Fusion(**artifacts.load_json(self.folder, "fusion.json")))
        if self.changes.is_dir():
            artifacts.replace_json(self.changes / STAND_IN, {"model": model, "fit": fit.as_dict()})
        return fit

    def info(self) -> dict:
        stats = _json(self.data / "prepare" / "stats.json") or {}
        manifest = artifacts.load_manifest(self.folder)
        made = datetime.fromtimestamp((self.folder / artifacts.MANIFEST).stat().st_mtime, timezone.utc)
        return {
            "version": __version__,
            "hash": self.hash(),
            "pipeline": self.pipeline.folder or "modular",
            "dataset": stats.get("dataset", ""),
            "created": made.isoformat(timespec="seconds"),
            "data": stats,
            "metrics": _json(self.pipeline.data(self.data).parent / "metrics.json") or {},
            "parameters": self.parameters(),
            "libraries": manifest["libraries"],
        }

    def parameters(self) -> dict[str, dict]:
        """Stage -> the parameters it ran with, as the manifests of what it wrote say."""
        made = self.pipeline.data(self.data)
        folders = {"prepare": self.data / "prepare" / "train"}
        folders |= {stage: made / stage for stage in self.pipeline.stages if stage != "prepare"}
        found = {stage: _json(folder / artifacts.MANIFEST) for stage, folder in folders.items()}
        return {stage: manifest["parameters"] for stage, manifest in found.items() if manifest}

    def documents(self) -> Documents | None:
        train = self.data / "prepare" / "train"
        if not (train / artifacts.MANIFEST).is_file():
            return None
        return Documents(artifacts.load_ragged(train, "ids"), artifacts.load_ragged(train, "texts"))

    def tables(self) -> dict[str, Path]:
        made = self.pipeline.data(self.data)
        return {name: made / file for name, file in TABLES.items() if (made / file).is_file()}


@dataclass(frozen=True)
class Bundle:
    """A folder that `write_bundle` wrote."""

    folder: Path

    @property
    def changes(self) -> Path:
        return self.folder / CHANGES

    def hash(self) -> str:
        return _hash(self.folder)

    def load(self, check: bool = True) -> System:
        check_bundle(self.folder, check)
        return open_system(self.folder)

    def journal(self) -> Journal:
        return Journal(self.changes, self.folder / BROUGHT)

    def stand_in(self) -> StandIn:
        return StandIn.of(artifacts.load_json(self.folder, STAND_IN))

    def info(self) -> dict:
        about = artifacts.load_json(self.folder, "about.json")
        return about | {name: artifacts.load_json(self.folder, f"{name}.json") for name in ("metrics", "parameters")}

    def documents(self) -> Documents | None:
        if not (self.folder / "documents.ids.values.npy").is_file():
            return None
        return Documents(*(artifacts.load_ragged(self.folder, f"documents.{name}") for name in ("ids", "texts")))

    def tables(self) -> dict[str, Path]:
        return {name: self.folder / name for name in TABLES if (self.folder / name).is_file()}


def find_place(path: Path, pipeline: str = "") -> Place:
    """The bundle at this path, or the run: in a checkout's folder, or in its data/ folder."""
    if is_bundle(path):
        return Bundle(path)
    if pipeline not in PIPELINES:
        raise UserError(
            f"there is no pipeline {pipeline!r}: choose among {', '.join(filter(None, PIPELINES))}, or none."
        )
    chosen = PIPELINES[pipeline]
    for data in (path / "data", path):
        if model_of(data, chosen).is_dir():
            return Run(data, chosen)
    raise UserError(f"{path} is neither a bundle nor a folder in which `{chosen.command}` has run: check the path.")


def _hash(folder: Path) -> str:
    """The fingerprint of the folder; empty where it is not finished, or is being replaced."""
    try:
        return artifacts.fingerprint(folder)
    except OSError:
        return ""


def _json(file: Path) -> dict | None:
    """What is in the file; None where it is not there or cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
