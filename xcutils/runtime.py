"""What a process needs before it works: threads, device, seeds, progress, and errors shown as sentences.

Values that change no result come from the environment: XC_THREADS, XC_DEVICE, XC_SNAPSHOT (seconds between snapshots).
"""

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tqdm import tqdm

from xcutils import scratch
from xcutils.errors import UserError

T = TypeVar("T")
QUIET_SECONDS = 15  # without a terminal: at most one progress line in this time


def start(seed: int = 0) -> torch.device:
    """The device to work on, after threads and seeds are set."""
    threads = os.environ.get("XC_THREADS")
    if threads is not None:
        if not threads.isdecimal() or int(threads) < 1:
            raise UserError(f"XC_THREADS is {threads!r}; it must be a whole number of at least 1.")
        torch.set_num_threads(int(threads))
    _keep_freed_memory()
    torch.set_deterministic_debug_mode("warn")  # two threads must not add in the order they arrive
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # for libraries that draw from the global generator; ours take a generator
    return device()


def _keep_freed_memory() -> None:
    """Let glibc reuse large freed blocks: otherwise every step maps and clears its arrays anew."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block gets a mapping of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: freed memory stays with the process
    except (OSError, AttributeError):
        pass  # another C library: nothing to set


def device() -> torch.device:
    """XC_DEVICE, else CUDA where it is there, else the CPU."""
    wanted = os.environ.get("XC_DEVICE")
    if wanted:
        try:
            torch.empty(0, device=wanted)
            return torch.device(wanted)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"XC_DEVICE={wanted} cannot be used ({reason}): unset it or name cpu, cuda or mps."
            ) from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def command(function: Callable) -> Callable:
    """The function, with a UserError shown as one sentence and exit code 1 instead of a traceback."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("stopped: what was done so far is kept, the next run goes on from there.", file=sys.stderr)
            sys.exit(130)

    return run


@contextmanager
def resumable(stage: str, params, inputs: Iterable[Path], **facts) -> Iterator[scratch.Scratch]:
    """Scratch of this very piece of work, in the project's folder also when DVC runs the stage in a temporary one.

    params  the stage's parameters; facts: what else its result depends on (seed, K)
    """
    facts |= {"stage": stage, "params": asdict(params), "threads": torch.get_num_threads(), "device": str(device())}
    here = Path(__file__).parent
    code = [here.parent / "stages" / f"{stage}.py", *sorted(here.glob("*.py"))]
    name = f"{stage}-{scratch.fingerprint(facts, inputs, code)}"
    folder = Path(os.environ.get("DVC_ROOT", ".")).resolve() / ".scratch" / name
    with scratch.opened(folder, lambda text: say(f"{stage}: {text}"), _pause()) as opened:
        yield opened


def _pause() -> float | None:
    """Seconds between two snapshots, where the environment says so."""
    given = os.environ.get("XC_SNAPSHOT")
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UserError(f"XC_SNAPSHOT is {given!r}; it must be a number of seconds, 0 for a snapshot at every step.")
    return seconds


def progress(items: Iterable[T], name: str, total: int | None = None, unit: str = "it") -> Iterator[T]:
    """The items, with a bar (rate, time left) on a terminal and a quiet line now and then elsewhere."""
    total = len(items) if total is None and hasattr(items, "__len__") else total
    if sys.stderr.isatty():
        yield from tqdm(items, desc=name, total=total, unit=unit)
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= QUIET_SECONDS:
            last, rate = now, done / (now - begin)
            left = f", {(total - done) / rate:.0f} s left" if total else ""
            print(f"{name}: {done}/{total or '?'} ({rate:.3g} {unit}/s{left})", file=sys.stderr, flush=True)


def epochs(name: str) -> Callable[[Iterable[T], str], Iterator[T]]:
    """What the training loop shows of each epoch's batches."""
    return lambda batches, epoch: progress(batches, f"{name} {epoch}", unit="batch")


def say(text: str) -> None:
    """One line for the person who watches."""
    print(text, file=sys.stderr, flush=True)
