"""The journal of label changes: one line per change, sealed one after the other; a change is there once its line is.

A process that is killed while it writes leaves a line without its end, which is no change: readers pass it over and
the next writer takes it away. Undoing is a line too, so that nothing that was ever done is forgotten.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from xcutils.core.errors import UserError

CHANGES = "changes"  # the folder in a run's data, or in a bundle
JOURNAL = "journal.jsonl"
BROUGHT = "changes.jsonl"  # in a bundle: the changes that it was written with
ADD, REMOVE, RENAME, UNDO = "add", "remove", "rename", "undo"


@dataclass(frozen=True)
class Entry:
    """A change.

    what  add: a list of {id, text, examples}; remove: ids; rename: {id: text}; undo: the number of what is undone
    """

    number: int
    time: str
    kind: str
    what: Any
    seal: str

    def line(self) -> bytes:
        return (json.dumps(self.__dict__, ensure_ascii=False) + "\n").encode()

    def said(self) -> str:
        """The change in words."""
        if self.kind == UNDO:
            return f"undid {self.what}"
        word = {ADD: "added", REMOVE: "removed", RENAME: "renamed"}[self.kind]
        ids = [item["id"] if isinstance(item, dict) else item for item in self.what]
        more = f" and {len(ids) - 3:,} more" if len(ids) > 3 else ""
        return f"{word} {', '.join(ids[:3])}{more}"


class Journal:
    """The changes of one model.

    folder   where its own lines are
    brought  a file of lines before them, which is never written to; None: there is none
    """

    def __init__(self, folder: Path, brought: Path | None = None):
        self.file = folder / JOURNAL
        self.brought = brought

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Facts of which one changes with every change."""
        try:
            facts = self.file.stat()
        except FileNotFoundError:
            return None
        return facts.st_size, facts.st_mtime_ns

    def entries(self) -> list[Entry]:
        """All changes, oldest first, after a check of every line."""
        found: list[Entry] = []
        for file in filter(None, (self.brought, self.file)):
            for number, line in enumerate(_whole_lines(file), 1):
                found.append(_read(line, found[-1] if found else None, f"{file}, line {number}"))
        return found

    def content(self) -> bytes:
        """The lines of all changes."""
        return b"".join(entry.line() for entry in self.entries())

    def effective(self) -> list[Entry]:
        """The changes that hold, oldest first: those that were not undone."""
        entries = self.entries()
        undone = {entry.what for entry in entries if entry.kind == UNDO}
        return [entry for entry in entries if entry.kind != UNDO and entry.number not in undone]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes within the block, in this process or another."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.file.parent / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def append(self, kind: str, what: Any) -> Entry:
        """Write a change, on the disk when this returns; inside `locked`. One that fails leaves no line."""
        entries = self.entries()
        last = entries[-1] if entries else None
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        number = last.number + 1 if last else 1
        entry = Entry(number, now, kind, what, _seal(last, number, now, kind, what))
        before = sum(map(len, _whole_lines(self.file)))
        with open(self.file, "ab", buffering=0) as file:
            file.truncate(before)  # a line that was not written to its end
            try:
                rest = entry.line()
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:  # the line may be there whole, and would be read as a change
                file.truncate(before)
                raise
        return entry


def _whole_lines(file: Path) -> list[bytes]:
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _read(line: bytes, last: Entry | None, where: str) -> Entry:
    try:
        entry = Entry(**json.loads(line))
        is_next = entry.number == (last.number + 1 if last else 1)
        is_right = is_next and entry.seal == _seal(last, entry.number, entry.time, entry.kind, entry.what)
    except (ValueError, TypeError, RecursionError):
        is_right = False
    if not is_right:
        raise UserError(
            f"{where} is damaged (it is not what was written): put back a copy of this file, or take away this line "
            "and all after it, which forgets their changes."
        )
    return entry


def _seal(last: Entry | None, *facts: Any) -> str:
    """A hash of an entry's facts and of all entries before it."""
    text = json.dumps([last.seal if last else "", *facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
