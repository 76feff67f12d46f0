"""What an unfinished stage has done so far: kept outside DVC's outputs, found by the next run, removed at the end.

A scratch folder is named by a hash of everything the result depends on, so that a run never goes on from the
state of another. Nothing in it is trusted before its hashes were found right; what is damaged is passed over, and said.
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

KEPT = 2  # snapshots kept: the newest may be the one a power cut has hurt
SHARE = 0.05  # of the time that writing snapshots may take
LEAST = 20.0  # seconds between two snapshots, at least
SPEED = 2e8  # bytes per second, until the first snapshot has been measured


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
    """The scratch folder of a stage; removed when the block has ended well, kept when it has not.

    pause  seconds between two snapshots; by default as few as SHARE allows
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(".lock"), say):
        folder.mkdir(exist_ok=True)
        yield Scratch(folder, say, pause)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process holds the lock file; it goes with the process, however that ends."""
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
        # the process that was waited for has removed the file: the next one may hold another of that name


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
        """The snapshots of an unfinished part; they go when it is finished."""
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
    """The state of a piece of work, written whole or not at all every now and then; the newest ones are kept.

    Time: a snapshot that took c seconds is followed by 19 c of work or more, which keeps the writing at 5% of the time
    whatever it costs (at 1.3 million labels of 768 dimensions, 16 GB, about every quarter of an hour).
    """

    spent = 0.0  # seconds that this process has taken to write snapshots

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda text: None, pause: float | None = None):
        self.folder = Path(folder)
        self.say = say
        self.pause = pause
        self.cost: float | None = None
        self.last = time.monotonic()
        self.newest: Path | None = None  # the newest good one

    def load(self) -> tuple[Mapping[str, np.ndarray], dict] | None:
        """(arrays, facts) of the newest whole snapshot; a damaged one is passed over and said so."""
        for folder in sorted(self.folder.glob("[0-9]*"), reverse=True):
            try:
                artifacts.check(folder)
                found = artifacts.load_arrays(folder, "state"), artifacts.load_json(folder, "state.json")
            except UserError as error:
                self.say(f"snapshot passed over: {error}")
                continue
            self.newest = folder
            return found
        return None

    def due(self, size: int) -> bool:
        """Is it time for the next one? `size` is in bytes, for when none has been measured yet."""
        waited = time.monotonic() - self.last
        if self.pause is not None:
            return waited >= self.pause
        cost = size / SPEED if self.cost is None else self.cost
        return waited >= max(LEAST, cost * (1 - SHARE) / SHARE)

    def save(self, arrays: dict[str, np.ndarray], facts: dict) -> None:
        """Write a snapshot; where that fails, the ones before it stay and the work goes on."""
        begin = time.monotonic()
        present = sorted(self.folder.glob("[0-9]*"))
        name = f"{int(present[-1].name) + 1 if present else 1:08d}"
        try:
            with artifacts.writing(self.folder / name) as draft:
                artifacts.save_arrays(draft, "state", arrays)
                artifacts.save_json(draft, "state.json", facts)
            self.newest = self.folder / name
            for old in sorted(self.folder.glob("[0-9]*"))[:-KEPT]:
                shutil.rmtree(old)
        except UserError as error:
            self.say(f"the work goes on without a new snapshot: {error}")
        self.last = time.monotonic()
        self.cost = self.last - begin
        Snapshots.spent += self.last - begin


def _allocate(path: Path, size: int) -> None:
    """A file of zeros that has its room on the disk: a full disk is found here, not while it is filled."""
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate") and size:
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.truncate(file.fileno(), size)


class Rows:
    """Rows in a file that are filled chunk by chunk, in any order, and a journal of the chunks that are whole.

    The journal holds each chunk's checksum: a chunk whose bytes did not all reach the disk is filled again.
    """

    def __init__(self, path: Path, shape: tuple[int, int]):
        self.journal, data = path.with_suffix(".journal"), path.with_suffix(".rows")
        size = 4 * shape[0] * shape[1]
        known = self._known() if data.is_file() and data.stat().st_size == size else {}
        if not known:
            _allocate(data, size)
        self.array = np.memmap(data, np.float32, "r+", shape=shape) if size else np.zeros(shape, np.float32)
        whole = {span: sum for span, sum in known.items() if span[1] <= shape[0] and self._sum(*span) == sum}
        self.done = set(whole)
        self.journal.write_text("".join(f"{start} {stop} {sum}\n" for (start, stop), sum in whole.items()))

    def fill(self, start: int, stop: int, rows: np.ndarray) -> None:
        """Put the rows of a chunk in their place."""
        self.array[start:stop] = rows
        with open(self.journal, "a", encoding="ascii") as file:
            file.write(f"{start} {stop} {self._sum(start, stop)}\n")

    def _sum(self, start: int, stop: int) -> int:
        return zlib.crc32(np.ascontiguousarray(self.array[start:stop]).data)

    def _known(self) -> dict[tuple[int, int], int]:
        """The chunks in the journal; a line that was not written whole is none."""
        known = {}
        for line in self.journal.read_text(errors="replace").splitlines() if self.journal.is_file() else ():
            parts = line.split()
            if len(parts) == 3 and all(part.isdecimal() and part.isascii() for part in parts):
                known[int(parts[0]), int(parts[1])] = int(parts[2])
        return known
