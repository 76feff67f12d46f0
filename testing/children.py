"""Stages in processes of their own that can be killed.

Each is forked from a process that has imported everything and computed nothing: to import torch takes seconds, and a
fork takes none.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from testing import tiny


def import_all() -> None:
    """Import what the stages need, once, before the first fork."""
    for stage in tiny.EVERY:
        tiny.module(stage)
    import transformers.models.auto.modeling_auto  # noqa: F401


class Child:
    """A process that works in `folder`; what it prints goes into the file `log`."""

    def __init__(self, folder: Path, log: Path, work: Callable[[], None], **env: str):
        self.log = log
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.chdir(folder)
            os.environ.update(env)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            work()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self, until: Callable[[], bool] = lambda: False, seconds: float = float("inf")) -> int | None:
        """The exit code, or None when `until` holds or the time is over first."""
        end = time.monotonic() + seconds
        while self.poll() is None and not until() and time.monotonic() < end:
            time.sleep(0.002)
        return self.code

    def kill(self) -> None:
        """As a power cut or the kernel would: nothing is told to the process."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder with its bytes."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
