"""Artifact folders: written whole or not at all, checked before they are read, no pickle anywhere.

A folder's manifest.json is written last. It says what the folder is and what it was made from: format, name,
parameters, inputs (name -> fingerprint), library versions, and each file's size, sha256, shapes and dtypes.
"""

import csv
import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from xcutils.core.errors import UserError
from xcutils.core.pipelines import writer_of
from xcutils.core.ragged import Ragged

if TYPE_CHECKING:
    import torch

FORMAT = 2
MANIFEST = "manifest.json"
LIBRARIES = ("numpy", "scipy", "torch", "transformers", "tokenizers", "safetensors", "hnswlib", "usearch")
SIGNS_OF_A_FULL_DISK = ("requested and", "No space left", "File too large", "quota")  # numpy and safetensors say so
LARGE_FILE = 1 << 20  # bytes: a file of this size or more, once found right, is hashed again only after it has changed
_adopted: dict[tuple[int, ...], dict] = {}  # an adopted file -> its entry in the manifest


@contextmanager
def writing(out: Path, *, name: str = "", params: dict | None = None, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """A fresh folder, which replaces `out` only after the block has ended without an error and all is on the disk.

    name, params, inputs  for the manifest: what the artifact is, and the parameters and artifacts it was made from
    """
    out = Path(out)
    draft = out.with_name(f".{out.name}.draft")
    old = out.with_name(f".{out.name}.old")
    if old.is_dir() and not out.exists():  # a process was killed between the two renames below
        os.replace(old, out)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        facts = {"format": FORMAT, "name": name, "parameters": params or {}, "inputs": _fingerprints(inputs)}
        yield draft
        for path in draft.rglob("*"):
            _sync(path)
        facts |= {"libraries": libraries(), "files": _contents(draft)}
        save_json(draft, MANIFEST, {**facts, "seal": seal(facts)})
        _sync(draft / MANIFEST)
        _sync(draft)
        if out.is_dir():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(out, old)
        os.replace(draft, out)
        _sync(out.parent)
    except (OSError, SafetensorError) as error:
        if sentence := _not_written(out, error):
            raise UserError(sentence) from None
        raise
    finally:
        if old.is_dir() and not out.exists():
            os.replace(old, out)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _not_written(out: Path, error: Exception) -> str | None:
    """What to say when a file could not be written whole; None when that is not what went wrong."""
    text = " ".join(str(error).split())
    number = getattr(error, "errno", None)
    full = number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) or any(sign in text for sign in SIGNS_OF_A_FULL_DISK)
    if not full and number not in (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM):
        return None
    advice = "make room on the disk" if full else "check the disk and its permissions"
    again = f"run `{command(out)}` again"
    return f"{out} could not be written ({text}): {advice} and {again}; what was there before is unhurt."


def command(path: Path) -> str:
    """The command that makes this file or folder again: each pipeline has its own."""
    return writer_of(path).command


def remedy(path: Path) -> str:
    """What to do about something that cannot be used."""
    return f"run `{command(path)}` to make it again"


def seal(facts: dict) -> str:
    """A hash of all that a manifest says."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Have the system put the file's or folder's contents on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def libraries() -> dict[str, str]:
    """The versions of Python and of the libraries that results depend on."""
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "none"
    return versions


def _fingerprints(folders: Iterable[Path]) -> dict[str, str]:
    return {load_manifest(folder)["name"]: fingerprint(folder) for folder in folders}


def _contents(folder: Path) -> dict:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): _adopted.get(_inode(p)) or _facts(p) for p in files}


def _facts(path: Path) -> dict:
    return {"bytes": path.stat().st_size, "sha256": sha256(path), **_shapes(path)}


def _inode(path: Path) -> tuple[int, ...]:
    """Which file it is, and since when it has had its contents."""
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def adopt(part: Path, folder: Path) -> None:
    """Put the files of a finished folder into `folder`, without copying or hashing them again if links work."""
    folder.mkdir(parents=True, exist_ok=True)
    files = load_manifest(part)["files"]
    for path in part.iterdir():
        if path.name == MANIFEST:
            continue
        try:
            os.link(path, folder / path.name)
            _adopted[_inode(path)] = files[path.name]
        except OSError:
            shutil.copyfile(path, folder / path.name)


def _shapes(path: Path) -> dict:
    """The shapes and dtypes of the arrays in a file."""
    if path.suffix == ".npy":
        array = load_array(path.parent, path.stem)
        return {"arrays": {"": [str(array.dtype), *array.shape]}}
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            parts = {key: file.get_slice(key) for key in file.keys()}
            return {"arrays": {key: [part.get_dtype(), *part.get_shape()] for key, part in parts.items()}}
    return {}


def sha256(path: Path) -> str:
    """The hash of a file's contents."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load_manifest(folder: Path) -> dict:
    """The folder's manifest, after checking that it is undamaged and of this version."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not a finished artifact ({MANIFEST} is missing): {remedy(folder)}.")
    manifest = load_json(folder, MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise UserError(f"{folder / MANIFEST} is no manifest: {remedy(folder)}.")
    if manifest.get("format") != FORMAT:
        raise UserError(f"{folder} has format {manifest.get('format')}, this version reads {FORMAT}: {remedy(folder)}.")
    facts = {key: value for key, value in manifest.items() if key != "seal"}
    if manifest.get("seal") != seal(facts) or (folder / MANIFEST).read_text(encoding="utf-8") != _as_text(manifest):
        raise UserError(f"{folder / MANIFEST} is damaged (its content is not what was written): {remedy(folder)}.")
    return manifest


def check(folder: Path) -> Path:
    """The folder, after checking its manifest and the size and content of each file."""
    folder = Path(folder)
    manifest = load_manifest(folder)
    verified: dict | None = None  # stamps of earlier checks
    fresh: dict[str, list] = {}  # stamps of this one
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in manifest["files"] and name != MANIFEST:
            raise UserError(f"{path} does not belong to {folder}: take it out, or {remedy(path)}.")
    for name, facts in manifest["files"].items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            found = "missing" if size is None else f"{size} bytes long"
            raise UserError(f"{path} is {found}, not {facts['bytes']} bytes: {remedy(path)}.")
        stamp = _stamp(path, facts["sha256"])
        if size >= LARGE_FILE:
            verified = _load_verified(folder) if verified is None else verified
            if verified.get(str(path.resolve())) == stamp:
                continue
            fresh[str(path.resolve())] = stamp
        if sha256(path) != facts["sha256"]:
            raise UserError(f"{path} is damaged (its content is not what was written): {remedy(path)}.")
    if fresh:
        _save_verified(folder, {**(verified or {}), **fresh})
    return folder


def check_together(*folders: Path) -> None:
    """Check every folder, and that each was made from the others as they are now."""
    manifests = {folder: load_manifest(check(folder)) for folder in folders}
    folder_of = {manifest["name"]: folder for folder, manifest in manifests.items()}
    for folder, manifest in manifests.items():
        for name, then in manifest["inputs"].items():
            if name in folder_of and fingerprint(folder_of[name]) != then:
                raise UserError(
                    f"{folder} was made from another {folder_of[name]} than the one that is there: {remedy(folder)}."
                )


def check_origin(folder: Path, sources: Iterable[Path]) -> Path:
    """The checked folder, after a look at whether it was made from the sources, those of them that are there."""
    inputs = load_manifest(check(folder))["inputs"]
    for source in sources:
        if (source / MANIFEST).is_file() and inputs.get(load_manifest(source)["name"]) not in (
            None,
            fingerprint(source),
        ):
            raise UserError(f"{folder} was made from another {source} than the one that is there: {remedy(folder)}.")
    return folder


def _stamp(path: Path, content: str) -> list:
    """Facts of which one changes whenever somebody writes to the file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, content]


def _verified(folder: Path) -> Path | None:
    """The file that remembers the stamps of verified files of the folder's project; None outside a project."""
    given = os.environ.get("DVC_ROOT")
    roots = [Path(given)] if given else [p for p in folder.resolve().parents if (p / "dvc.yaml").is_file()]
    return roots[-1] / ".scratch" / "verified.json" if roots else None


def _load_verified(folder: Path) -> dict:
    file = _verified(folder)
    if file is None:
        return {}
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _save_verified(folder: Path, known: dict) -> None:
    file = _verified(folder)
    if file is None:
        return
    try:
        file.parent.mkdir(exist_ok=True)
        draft = file.with_name(f".verified.{os.getpid()}")
        draft.write_text(json.dumps({path: stamp for path, stamp in known.items() if os.path.exists(path)}))
        os.replace(draft, file)
    except OSError:
        pass  # the files are hashed again next time


def fingerprint(folder: Path) -> str:
    """A hash of everything in a finished artifact folder: that of its manifest, which holds every file's hash."""
    return sha256(Path(folder) / MANIFEST)


def save_json(folder: Path, name: str, value) -> None:
    (Path(folder) / name).write_text(_as_text(value), encoding="utf-8")


def _as_text(value) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def replace_json(path: Path, value) -> None:
    """Write a file that is always whole: the old value or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    save_json(draft.parent, draft.name, value)
    _sync(draft)
    os.replace(draft, path)


def load_json(folder: Path, name: str):
    try:
        return json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{Path(folder) / name} cannot be read ({error}): {remedy(Path(folder) / name)}.") from None


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
    """The array, memory-mapped and read-only; not as numpy's memmap, of which many small reads are slow."""
    path = Path(folder) / f"{name}.npy"
    try:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        except ValueError:  # an empty array cannot be mapped; anything else is damage
            array = np.load(path, allow_pickle=False) if path.stat().st_size < 1024 else None
            if array is None or array.size:
                raise
            return array
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): {remedy(path)}.") from None


def save_arrays(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Many arrays in one file, written one after another without a copy of them in memory."""
    np.savez(Path(folder) / f"{name}.npz", allow_pickle=False, **arrays)


def load_arrays(folder: Path, name: str) -> Mapping[str, np.ndarray]:
    """The arrays, each read when it is asked for."""
    path = Path(folder) / f"{name}.npz"
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}): {remedy(path)}.") from None


def save_ragged(folder: Path, name: str, ragged: Ragged) -> None:
    save_array(folder, f"{name}.values", ragged.values)
    save_array(folder, f"{name}.offsets", ragged.offsets)


def load_ragged(folder: Path, name: str) -> Ragged:
    return Ragged(load_array(folder, f"{name}.values"), load_array(folder, f"{name}.offsets"))


def save_tensors(folder: Path, name: str, tensors: dict[str, np.ndarray]) -> None:
    save_file({key: np.asarray(value, order="C") for key, value in tensors.items()}, Path(folder) / name)


def load_tensors(folder: Path, name: str) -> dict[str, "torch.Tensor"]:
    from safetensors.torch import load_file  # torch is slow to import: only where tensors are wanted

    try:
        return load_file(Path(folder) / name)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{Path(folder) / name} cannot be read ({error}): {remedy(Path(folder) / name)}.") from None
