"""A model whose files are watched: when they change it is read anew, while the old one answers."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import longtail
from longtail.models import Model
from longtail.service import metrics
from xcutils.core.errors import UserError

Stamp = tuple[tuple[str, int, int, int], ...]

log = logging.getLogger("longtail.service")


def stamp_of(folder: Path) -> Stamp | None:
    """Which files the folder has, and since when; None while it is being replaced."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    facts = entry.stat()
                    found.append((entry.name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
    except OSError:
        return None
    return tuple(sorted(found))


class Watched:
    """The model at a path, as its files were when they were last found to be right."""

    def __init__(self, path: Path):
        self.path = path
        self.model: Model = longtail.load(path)
        self.hash = str(self.model.info["hash"])
        self.stamp = stamp_of(self.model.place.folder)
        self.lock = threading.RLock()  # of changes

    def look(self, force: bool = False) -> bool:
        """Read the model anew if its files have changed, or by force; whether it has been.

        Files that cannot be trusted, or are being written, leave the model as it is; they are said once.
        """
        with self.lock:
            now = stamp_of(self.model.place.folder)
            if now is None or (now == self.stamp and not force):
                return False
            self.stamp = now  # of before they are read: what changes meanwhile is seen at the next look
            try:
                model = longtail.load(self.path)
            except (UserError, OSError) as error:
                metrics.RELOADS.labels("refused").inc()
                log.warning("the model stays as it was: %s", error)
                return False
            self.model, self.hash = model, str(model.info["hash"])
            metrics.RELOADS.labels("done").inc()
            return True

    def change(self, how: Callable[[Model], int]) -> int:
        """Change the labels of the model as it is now on the disk; how many were changed."""
        with self.lock:
            self.look()
            count = how(self.model)
            self.hash = str(self.model.info["hash"])
            self.stamp = stamp_of(self.model.place.folder)
            return count
