"""A model whose files are watched: when they change it is read anew, while the old one answers."""

import logging
import os
import threading
import time
from pathlib import Path

import anyio

import longtail
from longtail.models import Model
from longtail.places import find_place
from longtail.service import metrics
from xcutils.core.errors import UserError

Stamp = tuple[tuple[str, int, int, int], ...]
AGAIN = 5.0  # seconds after which files that were refused are looked at again

log = logging.getLogger("longtail.service")


def stamp_of(folder: Path) -> Stamp | None:
    """Which files the folder has, and since when; None while it is being replaced."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    facts = entry.stat()
                    found.append((entry.name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
    except OSError:
        return None
    return tuple(sorted(found))


class Watched:
    """The model at a path, as its files were when they were last found to be right, and its labels as they are now."""

    def __init__(self, path: Path):
        self.path = path
        self.lock = threading.RLock()  # of reading anew
        self.refused: tuple[Stamp, float] | None = None  # files that cannot be trusted, and when that was found
        self.model, self.hash, self.stamp = self._read()

    def _read(self) -> tuple[Model, str, Stamp | None]:
        """(the model, its hash, the stamp of its files before they were read: what changes meanwhile is seen later)."""
        stamp = stamp_of(find_place(self.path).folder)
        model = longtail.load(self.path)
        return model, model.place.hash(), stamp

    def look(self, force: bool = False) -> bool:
        """Read the model anew if its files have changed, or by force; whether it has been.

        Files that cannot be trusted, or are being written, leave the model as it is; they are said once.
        """
        with self.lock:
            now = stamp_of(self.model.place.folder)
            if now is None or (now == self.stamp and not force):
                return False
            if self.refused and self.refused[0] == now and time.monotonic() < self.refused[1] + AGAIN and not force:
                return False
            try:
                self.model, self.hash, self.stamp = self._read()
            except (UserError, OSError) as error:
                if self.refused is None or self.refused[0] != now:
                    metrics.RELOADS.labels("refused").inc()
                    log.warning("the model stays as it was: %s", error)
                self.refused = now, time.monotonic()
                return False
            self.refused = None
            metrics.RELOADS.labels("done").inc()
            return True

    async def fresh(self) -> Model:
        """The model, with every change of its labels that was made before, by whichever process."""
        model = self.model
        if model.is_behind:
            await anyio.to_thread.run_sync(model.refresh)
        return model

    def unchanged(self) -> bool:
        """Whether the files in the folder are still those of the model."""
        try:
            return self.model.place.hash() == self.hash
        except UserError:
            return False
