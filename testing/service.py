"""`xc serve` as a process of its own, whose workers can be killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

SECONDS = 120  # until a service has to be there, on a busy machine
TOKEN = "a token for tests alone"


class Service:
    """A service that answers at `address`; what it prints is in the file `log`."""

    def __init__(self, process: subprocess.Popen, address: str, log: Path):
        self.process = process
        self.address = address
        self.log = log

    def workers(self) -> list[int]:
        """The processes that answer."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            try:
                if "spawn_main" in " ".join(child.cmdline()):
                    found.append(child.pid)
            except psutil.NoSuchProcess:  # it has ended since
                continue
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """The exit code, after the running requests."""
        self.signal(signal.SIGTERM)
        return self.process.wait(SECONDS)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def running(log: Path, *options: object, token: str | None = TOKEN, limit: int | None = None) -> Iterator[Service]:
    """A service on a free port, ready to answer, which has ended after the block.

    log    the file for what it prints
    limit  bytes that a file it writes may have, as on a disk that is full
    """
    env = {name: value for name, value in os.environ.items() if name != "XC_TOKEN"}
    env |= {"XC_TOKEN": token} if token else {}
    command = [sys.executable, "-m", "longtail.cli", "serve", "--port", "0", *map(str, options)]
    if limit is not None:
        command = ["prlimit", f"--fsize={limit}", *command]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        yield Service(process, _ready(process, log), log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(SECONDS)


def _ready(process: subprocess.Popen, log: Path) -> str:
    """The address, once the service answers there."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r" at (http://\S+) with", log.read_text()):
            try:
                if httpx.get(f"{found[1]}/ready").status_code == 200:
                    return found[1]
            except httpx.TransportError:
                pass
        time.sleep(0.05)
    raise AssertionError(f"the service did not start:\n{log.read_text()}")
