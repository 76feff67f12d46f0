"""What a person sees of a command: progress, a line now and then, and errors as sentences. Imports nothing slow."""

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

import click

from xcutils.core.errors import UserError

T = TypeVar("T")
QUIET_SECONDS = 15  # without a terminal: at most one progress line in this time


def command(function: Callable) -> Callable:
    """The function, with a UserError shown as one sentence and exit code 1 instead of a traceback."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        except BrokenPipeError:  # the program that read the output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        except OSError as error:
            named = f"{error.filename} cannot" if error.filename else "a file could not"
            reason = error.strerror or error
            print(f"error: {named} be read or written ({reason}): check the path and the disk.", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("stopped.", file=sys.stderr)
            sys.exit(130)

    return run


def params_file(function: Callable) -> Callable:
    """The option --params, for a stage of several pipelines: the parameter file of the one it runs in."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--params", "file", default="params.yaml", type=kind, help="The parameter file.")(function)


def progress(items: Iterable[T], name: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """The items, with a bar (rate, time left) on a terminal and a quiet line now and then elsewhere."""
    total = len(items) if total is None and isinstance(items, Sized) else total
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=name, total=total, unit=unit)
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= QUIET_SECONDS:
            last = now
            rate = done / (now - begin)
            left = f", {(total - done) / rate:.0f} s left" if total else ""
            print(f"{name}: {done}/{total or '?'} ({rate:.3g} {unit}/s{left})", file=sys.stderr, flush=True)


def epochs(name: str) -> Callable[[Iterable[T], str], Iterator[T]]:
    """What the training loop shows of each epoch's batches."""
    return lambda batches, epoch: progress(batches, f"{name} {epoch}", unit="batch")


def say(text: str) -> None:
    """One line for the person who watches."""
    print(text, file=sys.stderr, flush=True)
