"""A bundle: one folder with all that prediction needs, checked, that loads anywhere. No pickle in it.

It holds the files of the run's model, and beside them

    documents.{ids,texts}.*.npy  of the training documents, unless they were left out
    about.json                   version, hash, pipeline, dataset, created, numbers of the data, libraries
    metrics.json, parameters.json
    bins.csv, labels.csv, reliability.csv, curve-*.csv  results by frequency, of labels, calibration, training
    standin.json                 how labels that are added are scored (standins.py)
    changes.jsonl                the changes of labels that the run had
    README.md                    the model card
    manifest.json                format, and each file's size, sha256 and shapes

Labels that are changed later are in the folder changes/, the one part of a bundle that is not in its manifest.
"""

import json
import os
from pathlib import Path

from xcutils.core import artifacts
from xcutils.core.errors import UserError

BUNDLE = 1  # the format's number
NAME = "bundle"
REMEDY = "copy it again from where it came from, or write it anew with `xc bundle`"


def is_bundle(folder: Path) -> bool:
    """Whether the folder is meant to be a bundle, damaged or not."""
    if (folder / "about.json").is_file():
        return True
    try:
        return json.loads((folder / artifacts.MANIFEST).read_text(encoding="utf-8"))["name"] == NAME
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_bundle(folder: Path, contents: bool = True) -> dict:
    """The manifest of a bundle, after a check of its format and of the size and content of each file.

    Files that do not belong to it are passed over: the hub and git put some of their own beside a bundle's.
    contents  compare hashes; without it a file whose size is right is taken as it is
    """
    manifest = _manifest(folder)
    for name, facts in manifest["files"].items():
        file = folder / name
        size = file.stat().st_size if file.is_file() else None
        if size != facts["bytes"]:
            found = "missing" if size is None else f"{size} bytes long"
            raise UserError(f"{file} is {found}, not {facts['bytes']} bytes: {REMEDY}.")
        if contents and artifacts.sha256(file) != facts["sha256"]:
            raise UserError(f"{file} is damaged (its content is not what was written): {REMEDY}.")
    return manifest


def _manifest(folder: Path) -> dict:
    """The manifest, after checking that it is undamaged and of this version."""
    file = folder / artifacts.MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        formats = manifest["format"], manifest["parameters"]["bundle"]
        facts = {key: value for key, value in manifest.items() if key != "seal"}
        is_whole = manifest["seal"] == artifacts.seal(facts) and isinstance(manifest["files"], dict)
    except OSError:
        raise UserError(f"{folder} is no whole bundle ({artifacts.MANIFEST} is missing): {REMEDY}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{file} is damaged (it is no manifest of a bundle): {REMEDY}.") from None
    if not is_whole:
        raise UserError(f"{file} is damaged (its content is not what was written): {REMEDY}.")
    if formats != (artifacts.FORMAT, BUNDLE):
        ours = (artifacts.FORMAT, BUNDLE)
        age = "an older" if formats < ours else "a newer"
        raise UserError(
            f"{folder} was written by {age} version of Longtail (format {formats[0]}.{formats[1]}; this one reads "
            f"{ours[0]}.{ours[1]}): write it anew with `xc bundle`, or install the version that wrote it."
        )
    return manifest


def size_of(folder: Path) -> int:
    """Bytes of the files in a bundle."""
    return sum(os.path.getsize(file) for file in folder.rglob("*") if file.is_file())
