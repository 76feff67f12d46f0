"""Where a model is: the folder of a finished run, or a bundle."""

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from longtail import __version__
from longtail.serving import System, load_system, model_of
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES, Pipeline
from xcutils.core.ragged import Ragged


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

    def load(self, check: bool) -> System: ...

    def info(self) -> dict: ...

    def documents(self) -> Documents | None: ...


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

    def load(self, check: bool) -> System:
        return load_system(self.data, self.pipeline)

    def info(self) -> dict:
        stats = _json(self.data / "prepare" / "stats.json") or {}
        manifest = artifacts.load_manifest(self.folder)
        made = datetime.fromtimestamp((self.folder / artifacts.MANIFEST).stat().st_mtime, timezone.utc)
        return {
            "version": __version__,
            "hash": artifacts.fingerprint(self.folder),
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


def find_place(path: Path, pipeline: str = "") -> Place:
    """The run at this path: a checkout's folder, or its data/ folder."""
    if pipeline not in PIPELINES:
        raise UserError(
            f"there is no pipeline {pipeline!r}: choose among {', '.join(filter(None, PIPELINES))}, or none."
        )
    chosen = PIPELINES[pipeline]
    for data in (path / "data", path):
        if model_of(data, chosen).is_dir():
            return Run(data, chosen)
    raise UserError(f"{path} is neither a bundle nor a folder in which `{chosen.command}` has run: check the path.")


def _json(file: Path) -> dict | None:
    """What is in the file; None where it is not there or cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
