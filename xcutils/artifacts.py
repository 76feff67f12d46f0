"""Artifact folders: written whole or not at all, checked before they are read, no pickle anywhere."""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from xcutils.errors import UserError
from xcutils.ragged import Ragged

FORMAT = 1
MANIFEST = "manifest.json"


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A fresh folder that takes the place of `out` only when the block has ended well, manifest written last."""
    out = Path(out)
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        save_json(draft, MANIFEST, {"format": FORMAT, "files": _contents(draft)})
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _contents(folder: Path) -> dict:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": _sha256(p)} for p in files}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check(folder: Path, hashes: bool = False) -> Path:
    """The folder, after its manifest and the size (with `hashes` also the content) of each file were found right."""
    folder = Path(folder)
    remedy = "run `dvc repro` to make it again"
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not a finished artifact ({MANIFEST} is missing): {remedy}.")
    manifest = load_json(folder, MANIFEST)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise UserError(f"{folder} has format {found}, this version reads {FORMAT}: {remedy}.")
    for name, facts in manifest["files"].items():
        size = (folder / name).stat().st_size if (folder / name).is_file() else None
        if size != facts["bytes"]:
            found = "missing" if size is None else f"{size} bytes long"
            raise UserError(f"{folder / name} is {found}, not {facts['bytes']} bytes: {remedy}.")
        if hashes and _sha256(folder / name) != facts["sha256"]:
            raise UserError(f"{folder / name} is damaged (its content is not what was written): {remedy}.")
    return folder


def fingerprint(folder: Path) -> str:
    """A hash of everything in a finished artifact folder."""
    return _sha256(check(folder) / MANIFEST)


def save_json(folder: Path, name: str, value) -> None:
    (Path(folder) / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_json(folder: Path, name: str):
    try:
        return json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{Path(folder) / name} cannot be read ({error}): run `dvc repro` to make it again.") from None


def save_rows(folder: Path, name: str, rows: list[dict]) -> None:
    """A CSV table with one line per dict; a key that a row lacks is left empty."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    with open(Path(folder) / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def save_array(folder: Path, name: str, array: np.ndarray) -> None:
    np.save(Path(folder) / f"{name}.npy", np.asarray(array, order="C"), allow_pickle=False)


def load_array(folder: Path, name: str) -> np.ndarray:
    """The array, memory-mapped and read-only."""
    path = Path(folder) / f"{name}.npy"
    try:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # an empty array cannot be mapped; anything else is damage
            array = np.load(path, allow_pickle=False) if path.stat().st_size < 1024 else None
            if array is None or array.size:
                raise
            return array
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): run `dvc repro` to make it again.") from None


def save_ragged(folder: Path, name: str, ragged: Ragged) -> None:
    save_array(folder, f"{name}.values", ragged.values)
    save_array(folder, f"{name}.offsets", ragged.offsets)


def load_ragged(folder: Path, name: str) -> Ragged:
    return Ragged(load_array(folder, f"{name}.values"), load_array(folder, f"{name}.offsets"))


def save_tensors(folder: Path, name: str, tensors: dict[str, np.ndarray]) -> None:
    save_file({key: np.asarray(value, order="C") for key, value in tensors.items()}, Path(folder) / name)


def load_tensors(folder: Path, name: str) -> dict[str, np.ndarray]:
    try:
        return load_file(Path(folder) / name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{Path(folder) / name} cannot be read ({error}): run `dvc repro` to make it again.") from None
