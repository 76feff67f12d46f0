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
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from longtail.card import card
from longtail.journal import BROUGHT, CHANGES, JOURNAL
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

if TYPE_CHECKING:
    from longtail.places import Place

BUNDLE = 1  # the format's number
NAME = "bundle"
LEFT_OUT = ("tail.csv", "validation.json", "documents.")  # how names begin of files that are not copied as they are
REMEDY = "copy it again from where it came from, or write it anew with `xc bundle`"


def write_bundle(place: "Place", out: Path, *, with_documents: bool = True) -> Path:
    """The folder `out`, now a bundle of the model; written whole or not at all.

    with_documents  ids and texts of the training documents go with it
    """
    out = out.resolve()
    refuse_other_folders(out)
    info = place.info()
    documents = place.documents() if with_documents else None
    with _in_words_of_a_bundle(), artifacts.writing(out, name=NAME, params={"bundle": BUNDLE}) as folder:
        for name in artifacts.load_manifest(place.folder)["files"]:
            if not name.startswith(LEFT_OUT):
                shutil.copyfile(place.folder / name, folder / name)
        if documents is not None:
            artifacts.save_ragged(folder, "documents.ids", documents.ids)
            artifacts.save_ragged(folder, "documents.texts", documents.texts)
        for name, file in place.tables().items():
            shutil.copyfile(file, folder / name)
        apart = {"metrics": info.pop("metrics"), "parameters": info.pop("parameters"), "about": info}
        for name, value in apart.items():
            artifacts.save_json(folder, f"{name}.json", value)
        artifacts.save_json(folder, "standin.json", place.stand_in().as_dict())
        (folder / BROUGHT).write_bytes(place.journal().content())
        (folder / "README.md").write_text(card(apart, documents is not None), encoding="utf-8")
    return out


def refuse_other_folders(out: Path) -> None:
    """Refuse a folder that is no bundle, and a bundle whose labels have been changed: either would be lost."""
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not is_bundle(out)):
        raise UserError(f"{out} is there and is no bundle: name a folder that is not there yet.")
    if (out / CHANGES / JOURNAL).is_file():
        raise UserError(f"{out} is a bundle whose labels were changed, which would be lost: name another folder.")


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


@contextmanager
def _in_words_of_a_bundle() -> Iterator[None]:
    """What cannot be written is made again by `xc bundle`, not by the command of a pipeline."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for pipeline in PIPELINES.values():
            text = text.replace(f"run `{pipeline.command}` again", "run `xc bundle` again")
        raise UserError(text) from None
