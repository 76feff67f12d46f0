"""What a process needs before it works: threads, device, seeds, memory, and scratch of its own.

Values that change no result, or its last digits, come from the environment: XC_THREADS, XC_DEVICE, XC_MEMORY
(gigabytes), XC_SNAPSHOT (seconds between two snapshots), XC_PORTABLE (see processor.py), XC_PRECISION.
"""

import ctypes
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from xcutils.core import processor, scratch
from xcutils.core.console import say
from xcutils.core.errors import UserError
from xcutils.core.rooms import code_of


def start(seed: int = 0) -> torch.device:
    """The device to work on, after threads and seeds are set."""
    threads = os.environ.get("XC_THREADS")
    if threads is not None:
        if not threads.isdecimal() or int(threads) < 1:
            raise UserError(f"XC_THREADS is {threads!r}; it must be a whole number of at least 1.")
        torch.set_num_threads(int(threads))
    wanted = device()
    precision(wanted)  # a wrong value is refused before anything is done
    _keep_freed_memory()
    torch.set_deterministic_debug_mode("warn")  # two threads must not add in the order they arrive
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 a property that has no type
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # for libraries that draw from the global generator; ours take a generator
    return wanted


def _keep_freed_memory() -> None:
    """Let glibc reuse large freed blocks: otherwise every step maps and clears its arrays again.

    The price is memory: torch asks for aligned blocks, which need a little more room than the hole that a block of the
    same size left. What every step allocates again takes up to twice its size; large blocks are best allocated once.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no block gets a mapping of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: freed memory stays with the process
    except (OSError, AttributeError):
        pass  # another C library: nothing to set


def device() -> torch.device:
    """XC_DEVICE, else CUDA where there is one, else the CPU."""
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


def precision(device: torch.device) -> torch.dtype:
    """XC_PRECISION: in which numbers transformers are multiplied, float32 or bfloat16; never where it is emulated.

    `auto`, the default, is bfloat16 on a GPU that has it, and on a CPU that has it if XC_PORTABLE=0: a default run
    gives the same figures on CPUs with such a unit and without.
    """
    given = os.environ.get("XC_PRECISION", "auto")
    if given not in ("auto", "float32", "bfloat16"):
        raise UserError(f"XC_PRECISION is {given!r}; it must be auto, float32 or bfloat16.")
    portable = processor.portable()
    if given == "float32" or (given == "auto" and device.type == "cpu" and portable):
        return torch.float32
    missing = _missing_bfloat16(device)
    if given == "bfloat16" and missing:
        raise UserError(f"XC_PRECISION=bfloat16 cannot be used: {missing}.")
    return torch.float32 if missing else torch.bfloat16


def _missing_bfloat16(device: torch.device) -> str:
    """Why bfloat16 would be emulated on the device, and the remedy; empty where it is not."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported():
        return ""
    if device.type != "cpu":
        return f"{device} has no unit for it; set XC_PRECISION=float32"
    if not processor.multiplies_bfloat16():
        return "the processor has neither AVX-512-BF16 nor AMX and would emulate it; set XC_PRECISION=float32"
    if processor.kept_to_avx2():
        return "the libraries keep to AVX2, which would emulate it; set XC_PORTABLE=0 as well"
    return ""


def mixed_precision(device: torch.device) -> AbstractContextManager:
    """Products in `precision`; what stands outside, and pooling, norms and losses, stay in float32."""
    if precision(device) == torch.bfloat16:
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def memory(root: Path = Path("/")) -> float:
    """Bytes this process may hold in all: XC_MEMORY (GB), else what it holds now plus what the system can still give.

    The system can give the machine's available memory or what is left of a control group's limit, whichever is less;
    caches that can be dropped count as free. Without /proc (macOS) the answer is the machine's memory.
    """
    given = os.environ.get("XC_MEMORY")
    if given is not None:
        try:
            gigabytes = float(given)
        except ValueError:
            gigabytes = math.nan
        if not 0 < gigabytes < math.inf:
            raise UserError(f"XC_MEMORY is {given!r}; it must be a number of gigabytes above 0.")
        return gigabytes * 1e9
    try:
        facts = _pairs(root / "proc/meminfo")
        held = int((root / "proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    available = facts.get("MemAvailable", facts.get("MemFree", 0) + facts.get("Cached", 0)) * 1024
    return float(held + max(0, min([available, *_group_rests(root)])))


def _group_rests(root: Path) -> Iterator[int]:
    """What is left of the memory limit of each control group this process is in (versions 1 and 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit, usage, cache = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        folder = top / name.strip("/")
        for group in [folder, *folder.parents][: len(folder.relative_to(top).parts) + 1]:
            try:  # no limit is written as "max" or is larger than any memory; a container may not show its parents
                most, used = (int((group / file).read_text()) for file in (limit, usage))
            except (OSError, ValueError):
                continue
            try:
                used -= _pairs(group / "memory.stat").get(cache, 0)
            except (OSError, ValueError):
                pass
            yield max(0, most - used)


def _pairs(file: Path) -> dict[str, int]:
    """The numbers of a file of `name value` lines."""
    rows = [line.replace(":", " ").split() for line in file.read_text().splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


def strength(size: int = 768, seconds: float = 0.1) -> tuple[int, float]:
    """(threads, floating-point operations per second): the best of a few products of square matrices."""
    square = torch.ones(size, size)
    best, stop = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < stop or math.isinf(best):
        begin = time.perf_counter()
        square @ square
        best = min(best, time.perf_counter() - begin)
    return torch.get_num_threads(), 2 * size**3 / best


@contextmanager
def resumable(stage: Path, params, inputs: Iterable[Path], **facts) -> Iterator[scratch.Scratch]:
    """The scratch of this piece of work; it is in the project's folder even when DVC runs the stage in another one.

    stage   the file of the stage's code: work is resumed only if this file and the rooms it reaches are the same
    params  the stage's parameters
    facts   what else its result depends on (seed, K)
    """
    name = Path(stage).stem
    stage = Path(stage).resolve()
    facts |= {"stage": name, "params": asdict(params), **_machine()}
    folder = f"{name}-{scratch.work_key(facts, inputs, code_of(stage))}"
    place = Path(os.environ.get("DVC_ROOT", ".")).resolve() / ".scratch" / folder
    with scratch.opened(place, lambda text: say(f"{name}: {text}"), _pause()) as opened:
        try:
            yield opened
        except KeyboardInterrupt:
            say(f"{name}: what is in {place.name} of .scratch is kept, the next run goes on from there.")
            raise


def _machine() -> dict:
    """The settings of the machine that the last digits of a result depend on."""
    place = device()
    instructions = {"portable": processor.portable(), "precision": str(precision(place))}
    return {"threads": torch.get_num_threads(), "device": str(place), **instructions}


def _pause() -> float | None:
    """XC_SNAPSHOT, the seconds between two snapshots; None where it is not set."""
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
