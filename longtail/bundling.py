"""Writing a bundle (bundles.py says what is in it): whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from longtail.bundles import BUNDLE, NAME, is_bundle
from longtail.card import card
from longtail.journal import BROUGHT, UNDO, Entry, Journal
from longtail.places import Bundle, Place
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

LEFT_OUT = ("tail.csv", "validation.json", "documents.")  # how names begin of files that are not copied as they are


def write_bundle(place: Place, out: Path, *, with_documents: bool = True, keep_changes: bool = False) -> Path:
    """The folder `out`, now a bundle of the model; written whole or not at all.

    with_documents  ids and texts of the training documents go with it
    keep_changes    a bundle that is replaced hands its changes of labels on to this one
    """
    out = out.resolve()
    refuse_other_folders(out)
    journal_of(place, out, keep_changes)  # refuses now what would be refused when all is written
    hash, info = place.hash(), place.info()
    documents = place.documents() if with_documents else None
    with (
        ExitStack() as until_replaced,
        _in_words_of_a_bundle(),
        artifacts.writing(out, name=NAME, params={"bundle": BUNDLE}) as folder,
    ):
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
        (folder / "README.md").write_text(card(apart, documents is not None), encoding="utf-8")
        if is_bundle(out):  # whoever would change its labels now waits, and then finds another model there
            until_replaced.enter_context(Bundle(out).journal().locked())
        (folder / BROUGHT).write_bytes(journal_of(place, out, keep_changes))
        if place.hash() != hash:
            raise UserError(f"{place.folder} was replaced while it was copied: run `xc bundle` again.")
    return out


def refuse_other_folders(out: Path) -> None:
    """Refuse a folder that is no bundle: what is in it would be lost."""
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not is_bundle(out)):
        raise UserError(f"{out} is there and is no bundle: name a folder that is not there yet.")


def journal_of(place: Place, out: Path, keep_changes: bool) -> bytes:
    """The lines of all changes that a bundle of the model in the folder `out` shall have.

    A bundle that is there may have changes that the model lacks: they are refused, or kept, which puts those that hold
    after the model's own.
    """
    own = place.journal().entries()
    there = Bundle(out).journal().entries() if is_bundle(out) else []
    shared = next((i for i, pair in enumerate(zip(own, there)) if pair[0] != pair[1]), min(len(own), len(there)))
    if shared == len(there):
        return b"".join(entry.line() for entry in own)
    if not keep_changes:
        raise UserError(
            f"{out} is a bundle whose labels were changed, which would be lost: keep the changes (--keep-changes; "
            "keep_changes=True in Python), or name another folder."
        )
    if shared == len(own):
        return b"".join(entry.line() for entry in there)
    return _joined(own, there[shared:])


def _joined(own: list[Entry], more: list[Entry]) -> bytes:
    """The lines of the model's own changes, and after them of those of the others that hold, sealed anew."""
    undone = {entry.what for entry in more if entry.kind == UNDO}
    own_undone = {entry.what for entry in own if entry.kind == UNDO}
    with tempfile.TemporaryDirectory() as scratch:
        brought = Path(scratch, BROUGHT)
        brought.write_bytes(b"".join(entry.line() for entry in own))
        journal = Journal(Path(scratch), brought)
        for entry in more:
            if entry.kind == UNDO and entry.what < more[0].number and entry.what not in own_undone:
                journal.append(UNDO, entry.what)  # of a change that both have
            elif entry.kind != UNDO and entry.number not in undone:
                journal.append(entry.kind, entry.what)
        return journal.content()


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
