"""What an unfinished stage has done so far: kept outside DVC's outputs, found by the next run, removed at the end.

A scratch folder is named by a hash of everything the result depends on, so that a run is never resumed from the
state of another. Nothing in it is used before its hashes are checked; what is damaged is passed over with a message.
"""

import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from xcutils.core import artifacts
from xcutils.core.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: two runs of one stage at a time are not told apart
    fcntl = None  # type: ignore[assignment]

SNAPSHOTS_KEPT = 2  # snapshots kept: a power cut may have damaged the newest
MOST_TIME_SHARE = 0.05  # of all time, at most, goes into writing snapshots
LEAST_PAUSE = 20.0  # seconds between two snapshots, at least
DISK_SPEED = 2e8  # bytes per second, until the first snapshot has been measured


def work_key(facts: dict, inputs: Iterable[Path], code: Iterable[Path]) -> str:
    """A hash of parameters and machine (`facts`), artifact folders (`inputs`), source files and library versions."""
    parts = {
        "facts": facts,
        "inputs": [artifacts.fingerprint(folder) for folder in inputs],
        "code": {path.parent.name + "/" + path.name: artifacts.sha256(path) for path in code},
        "libraries": artifacts.libraries(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


@contextmanager
def opened(folder: Path, say: Callable[[str], None], pause: float | None = None) -> Iterator["Scratch"]:
    """The scratch folder of a stage; removed when the block ends without an error, kept otherwise.

    pause  seconds between two snapshots; None: as often as MOST_TIME_SHARE allows
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock"), say):
        folder.mkdir(exist_ok=True)
        yield Scratch(folder, say, pause)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file during the block, once no other process does; the system releases it however we end."""
    if fcntl is None:
        yield
        return
    while True:
        with open(path, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waiting for another process that is at work on the same stage with the same parameters")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        # The process that was waited for has removed this file, and another may hold a new one of its name: try again.


class Scratch:
    """Parts that are finished, snapshots of those that are not, and rows that are filled one chunk at a time."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None, pause: float | None = None):
        self.folder = Path(folder)
        self.say = say
        self.pause = pause

    def part(self, name: str, make: Callable[[Path], None]) -> Path:
        """The folder of a part of the stage's work: `make` fills it, unless an earlier run has finished it."""
        folder = self.folder / name
        if folder.is_dir():
            try:
                artifacts.check(folder)
                self.say(f"{name}: taken from the run that was interrupted")
                return folder
            except UserError as error:
                self.say(f"passed over: {error}")
                shutil.rmtree(folder)
        with artifacts.writing(folder) as draft:
            make(draft)
        shutil.rmtree(self._snapshots(name), ignore_errors=True)
        return folder

    def snapshots(self, name: str) -> "Snapshots":
        """The snapshots of an unfinished part; they are removed when it is finished."""
        return Snapshots(self._snapshots(name), self.say, self.pause)

    def rows(self, name: str, shape: tuple[int, int]) -> "Rows":
        """A float32 array that is filled chunk by chunk and remembers which chunks are whole."""
        rows = Rows(self.folder / name, shape)
        if rows.done:
            done = sum(stop - start for start, stop in rows.done)
            self.say(f"{name}: goes on after {done:,} of {shape[0]:,} rows, where it was interrupted")
        return rows

    def _snapshots(self, name: str) -> Path:
        return self.folder / f"{name}.snapshots"


class Snapshots:
    """The state of a piece of work, written now and then, each time whole or not at all; the newest ones are kept.

    A snapshot that took c seconds to write is followed by at least 19 c seconds of work, so that writing takes at most
    5% of the time (with 1.3 million labels of 768 dimensions, 16 GB: one about every quarter of an hour).
    """

    spent = 0.0  # seconds that this process has taken to write snapshots

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None, pause: float | None = None):
        self.folder = Path(folder)
        self.say = say
        self.pause = pause
        self.cost: float | None = None
        self.last = time.monotonic()
        self.newest: Path | None = None  # the newest whole one

    def load(self) -> tuple[Mapping[str, np.ndarray], dict] | None:
        """(arrays, facts) of the newest whole snapshot; a damaged one is passed over with a message."""
        for folder in sorted(self.folder.glob("[0-9]*"), reverse=True):
            try:
                artifacts.check(folder)
                state = artifacts.load_arrays(folder, "state"), artifacts.load_json(folder, "state.json")
            except UserError as error:
                self.say(f"snapshot passed over: {error}")
                continue
            self.newest = folder
            return state
        return None

    def due(self, size: int) -> bool:
        """Is it time for the next one? Before the first is timed, its cost is guessed from its `size` in bytes."""
        waited = time.monotonic() - self.last
        if self.pause is not None:
            return waited >= self.pause
        cost = size / DISK_SPEED if self.cost is None else self.cost
        return waited >= max(LEAST_PAUSE, cost * (1 - MOST_TIME_SHARE) / MOST_TIME_SHARE)

    def save(self, arrays: dict[str, np.ndarray], facts: dict) -> None:
        """Write a snapshot; if that fails, the earlier ones stay and the work continues."""
        begin = time.monotonic()
        present = sorted(self.folder.glob("[0-9]*"))
        name = f"{int(present[-1].name) + 1 if present else 1:08d}"
        try:
            with artifacts.writing(self.folder / name) as draft:
                artifacts.save_arrays(draft, "state", arrays)
                artifacts.save_json(draft, "state.json", facts)
            self.newest = self.folder / name
            for old in sorted(self.folder.glob("[0-9]*"))[:-SNAPSHOTS_KEPT]:
                shutil.rmtree(old)
        except UserError as error:
            self.say(f"the work goes on without a new snapshot: {error}")
        self.last = time.monotonic()
        self.cost = self.last - begin
        Snapshots.spent += self.last - begin


def _allocate(path: Path, size: int) -> None:
    """Make a file of zeros with its space reserved: a full disk is noticed here, not while the file is filled."""
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.truncate(file.fileno(), size)


class Rows:
    """Rows in a file that are filled chunk by chunk, in any order, and a journal of the chunks that are whole.

    The journal holds each chunk's checksum: a chunk that did not reach the disk whole is filled again.
    """

    def __init__(self, path: Path, shape: tuple[int, int]):
        self.journal = path.with_suffix(".journal")
        data = path.with_suffix(".rows")
        size = 4 * shape[0] * shape[1]
        known = self._known() if data.is_file() and data.stat().st_size == size else {}
        if not known:
            _allocate(data, size)
        self.array = np.memmap(data, np.float32, "r+", shape=shape) if size else np.zeros(shape, np.float32)
        whole = {span: crc for span, crc in known.items() if span[1] <= shape[0] and self._checksum(*span) == crc}
        self.done = set(whole)
        self.journal.write_text("".join(f"{start} {stop} {crc}\n" for (start, stop), crc in whole.items()))

    def fill(self, start: int, stop: int, rows: np.ndarray) -> None:
        """Put the rows of a chunk in their place."""
        self.array[start:stop] = rows
        with open(self.journal, "a", encoding="ascii") as file:
            file.write(f"{start} {stop} {self._checksum(start, stop)}\n")

    def _checksum(self, start: int, stop: int) -> int:
        return zlib.crc32(np.ascontiguousarray(self.array[start:stop]).data)

    def _known(self) -> dict[tuple[int, int], int]:
        """(start, stop) -> checksum of the chunks in the journal; a line that was not written whole is left out."""
        known = {}
        for line in self.journal.read_text(errors="replace").splitlines() if self.journal.is_file() else ():
            parts = line.split()
            if len(parts) == 3 and all(part.isdecimal() and part.isascii() for part in parts):
                known[int(parts[0]), int(parts[1])] = int(parts[2])
        return known
