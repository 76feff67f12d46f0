"""The commits of a git repository and the files at its HEAD, read by `git` itself.

All of history is read by one process. The same HEAD gives the same commits on each machine: git gets an environment and
options of its own, and no configuration of the user. Only its idea of a rename may differ between versions of git.
Nothing is fetched, written or started that a repository's configuration names.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from xcutils.core.errors import UserError

BLOCK = 1 << 20  # bytes of git's output that are read at once

# Nothing is taken from the machine or its user, nothing is asked of a remote, and history is what the commits say.
ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
# These, and what follows them, are stated because the repository's own configuration could state others.
SETTINGS = ("core.commitGraph=false", "log.showRoot=true", "log.showSignature=false")
LOG = (
    *("log", "-z", "--date-order", "--encoding=UTF-8", "--format=%H%x00%P%x00%an%x00%B%x00", "--no-color"),
    *("--name-status", "--find-renames=50%", "-l1000", "--no-rename-empty", "--ignore-submodules=all"),
    *("--no-ext-diff", "--no-textconv"),
)


class Commit(NamedTuple):
    """A commit as git shows it.

    changes  (path before, path after) of each file; they differ if it was renamed
    """

    hash: str
    parents: int
    author: str
    message: str
    changes: list[tuple[str, str]]


def is_repository(folder: Path) -> bool:
    """Does the folder have a .git (a folder, or a file as in a worktree), or is it a bare repository itself?"""
    return (folder / ".git").exists() or _is_bare(folder)


def _is_bare(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def find_head(folder: Path) -> tuple[str, bool]:
    """(the hash of the commit at HEAD, is the history cut off there?)"""
    (shallow,) = _fields(folder, "rev-parse", "--is-shallow-repository")
    command, options = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    found = subprocess.run(command, capture_output=True, **options)
    if found.returncode:
        raise UserError(f"{folder} is a git repository without a commit: commit something or name another dataset.")
    return found.stdout.decode().strip(), shallow.strip() == b"true"


def files_at(folder: Path, head: str) -> set[str]:
    """The paths of all files at HEAD; a submodule is none."""
    entries = (entry.partition(b"\t") for entry in _fields(folder, "ls-tree", "-r", "-z", "--full-tree", head))
    return {_path(path) for facts, _, path in entries if b" commit " not in facts}


def commits_to(folder: Path, head: str) -> Iterator[Commit]:
    """All commits, newest first: a commit stands before its parents, and before older ones where neither is a parent.

    git prints hash, parents, author, message, nothing, and then for each file a status and its path, or two paths.
    """
    fields = _fields(folder, *LOG, head, "--")
    hash = next(fields, None)
    while hash is not None:
        parents, author, message, _ = (next(fields) for _ in range(4))
        changes = []
        while (status := next(fields, None)) is not None and len(status := status.strip()) < len(hash):
            before = _path(next(fields))
            changes.append((before, _path(next(fields)) if status.startswith(b"R") else before))
        yield Commit(hash.decode(), len(parents.split()), _words(author), _words(message), changes)
        hash = status


def _path(raw: bytes) -> str:
    return sys.intern(raw.decode("utf-8", "backslashreplace"))


def _words(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _fields(folder: Path, *arguments: str) -> Iterator[bytes]:
    """What git prints, in the pieces between its NUL bytes."""
    command, options = _git(folder, *arguments)
    with tempfile.TemporaryFile() as errors:
        with _started(command, stdout=subprocess.PIPE, stderr=errors, **options) as process:
            assert process.stdout is not None
            rest = b""
            while block := process.stdout.read(BLOCK):
                *whole, rest = (rest + block).split(b"\0")
                yield from whole
            if rest:
                yield rest
        if process.returncode:
            errors.seek(0)
            raise _unreadable(folder, errors.read())


def _git(folder: Path, *arguments: str) -> tuple[list[str], dict]:
    """A call of git on the folder's own repository, and what subprocess is to know of it."""
    place = folder.resolve()
    settings = [word for setting in SETTINGS for word in ("-c", setting)]
    repository = place if _is_bare(place) else place / ".git"
    command = ["git", "--no-pager", f"--git-dir={repository}", *settings, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return command, {"cwd": place, "env": inherited | ENVIRONMENT, "stdin": subprocess.DEVNULL}


def _started(command: list[str], **options) -> subprocess.Popen:
    try:
        return subprocess.Popen(command, **options)
    except FileNotFoundError:
        raise UserError("The program `git` is not there: install it to read a repository's history.") from None


def _unreadable(folder: Path, errors: bytes) -> UserError:
    said = errors.decode("utf-8", "replace").strip().splitlines() or ["git gives no reason"]
    reason = next((line for line in said if line.startswith("fatal: ")), said[-1]).removeprefix("fatal: ")
    return UserError(f"{folder}: git cannot read all of its history ({reason}): clone it again, and the whole of it.")
