"""Writing a bundle (bundles.py says what is in it): whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longtail.bundles import BUNDLE, NAME, is_bundle
from longtail.card import card
from longtail.journal import BROUGHT, CHANGES, JOURNAL
from longtail.places import Place
from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.pipelines import PIPELINES

LEFT_OUT = ("tail.csv", "validation.json", "documents.")  # how names begin of files that are not copied as they are


def write_bundle(place: Place, out: Path, *, with_documents: bool = True) -> Path:
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
