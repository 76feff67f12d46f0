"""How many threads to use, for code that must not wait for torch to be imported."""

import os

from xcutils.core.errors import UserError


def threads_wanted() -> int | None:
    """XC_THREADS; None where it is not set."""
    given = os.environ.get("XC_THREADS")
    if given is None:
        return None
    if not given.isdecimal() or int(given) < 1:
        raise UserError(f"XC_THREADS is {given!r}; it must be a whole number of at least 1.")
    return int(given)


def threads() -> int:
    """XC_THREADS, else the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return threads_wanted() or cores
