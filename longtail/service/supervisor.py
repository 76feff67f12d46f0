"""The process that starts workers, and another one where one has died; it answers nothing itself."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from longtail.service.settings import Settings
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.threads import threads

GRACE = 30  # seconds that running requests have when the service is stopped
BACKLOG = 1024  # connections that wait for a worker
SILENT = 60  # seconds after which a worker that says nothing is one that hangs
ROOM = 64 << 10  # bytes that there must be for what is counted
NUMBERS = "PROMETHEUS_MULTIPROC_DIR"  # the folder that the processes share, as their library reads it
PAUSE = 60  # seconds between two starts of a worker that cannot start, at most


class Worker(Process):
    """A worker that was started at its door, and what it said of itself."""

    def __init__(self, config: uvicorn.Config, door: socket.socket):
        super().__init__(config, [door])
        self.ready = False  # it takes requests
        self.heard = time.monotonic()
        self.start()

    def lives(self) -> bool:
        """Whether it has not ended and has said something of late; it is asked again, and not waited for."""
        with contextlib.suppress(OSError, EOFError):  # it ended meanwhile
            self.parent_conn.send(b"ping")
            while self.parent_conn.poll():
                self.ready = self.parent_conn.recv()
                self.heard = time.monotonic()
        return self.exitcode is None and time.monotonic() < self.heard + SILENT

    def remove(self) -> None:
        """Wait for its end, after a kill if it hangs."""
        self.kill()
        self.join()


class Supervisor(Multiprocess):
    """Uvicorn's, but each worker has a door of its own, none is waited for, and SIGHUP ends no worker.

    A worker that ended leaves its door open: who waits there is answered by the next one. One that ended before it took
    requests closes it, so that all come to the others; the next one opens its door itself, once it is ready.
    """

    def __init__(self, config: uvicorn.Config, doors: list[socket.socket]):
        super().__init__(config, doors)
        self.failures = [0] * len(doors)  # starts that failed, one after the other
        self.again: list[float | None] = [None] * len(doors)  # when another worker is started; None: there is one

    def init_processes(self) -> None:
        self.processes: list[Worker] = [Worker(self.config, door) for door in self.sockets]  # type: ignore[assignment]

    def keep_subprocess_alive(self) -> None:
        for place, worker in enumerate(self.processes):
            if self.again[place] is None and not worker.lives():
                self.again[place] = time.monotonic() + self.bury(place)
            due = self.again[place]
            if due is not None and time.monotonic() >= due:
                self.processes[place] = Worker(self.config, self.sockets[place])
                self.again[place] = None

    def bury(self, place: int) -> int:
        """Seconds after which another worker is started in the place of this one, which has ended or hangs."""
        from longtail.service import metrics  # after the folder of the numbers is known

        worker = self.processes[place]
        worker.remove()
        metrics.forget(worker.pid or 0)
        if worker.ready:
            self.failures[place] = 0
            console.say(f"worker {worker.pid} has ended; another one is started.")
            return 0
        door = self.sockets[place]
        self.sockets[place] = bound(door.family, door.getsockname())
        door.close()
        self.failures[place] += 1
        pause = min(PAUSE, 2 ** self.failures[place])
        console.say(f"worker {worker.pid} could not be started; it is tried again in {pause} seconds.")
        return pause

    def handle_hup(self) -> None:
        for process in self.processes:
            if process.pid and process.exitcode is None:
                os.kill(process.pid, signal.SIGHUP)

    def handle_ttin(self) -> None:
        """There are as many workers as doors."""

    handle_ttou = handle_ttin


def serve(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until a signal ends it: SIGTERM and SIGINT after the running requests, SIGHUP reads the models anew."""
    share = max(1, threads() // workers)
    for name in ("XC_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, str(share))
    with numbers_together():
        from longtail.service.watching import Watched

        for path in filter(None, (settings.bundle, settings.compare)):
            Watched(path)  # what cannot be served is said here, once
        config = uvicorn.Config(
            functools.partial(application, settings),
            factory=True,
            workers=workers,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACE,
            timeout_worker_healthcheck=GRACE,
        )
        supervisor = Supervisor(config, doors(host, port, workers))
        number = f"{workers} worker{'s' * (workers > 1)}"
        console.say(f"serving {settings.bundle} at {address(supervisor.sockets[0])} with {number}; Ctrl-C ends it.")
        supervisor.run()
        for door in supervisor.sockets:
            door.close()
    console.say("stopped.")


def application(settings: Settings) -> ASGIApp:
    """The application of a worker; where its model cannot be read, the worker ends with a sentence."""
    from longtail.service.app import create_app

    try:
        return create_app(settings)
    except (UserError, OSError) as error:
        console.say(f"error: {error}")
        sys.exit(1)


@contextlib.contextmanager
def numbers_together() -> Iterator[None]:
    """Within the block the processes keep what they count in one folder; each its own where none can be written."""
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix="longtail-")
        (Path(folder) / "room").write_bytes(bytes(ROOM))
        os.environ[NUMBERS] = folder
    except OSError as error:
        os.environ.pop(NUMBERS, None)
        console.say(f"no folder for numbers can be written ({error}): /metrics shows those of the worker that answers.")
    try:
        yield
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def doors(host: str, port: int, count: int) -> list[socket.socket]:
    """As many sockets that listen at the address, one for each worker.

    The kernel gives each its share of the connections; of one socket for all, the first worker to wake would take
    every connection there is. They stay open here, so that the connections of a worker that died wait for the next.
    """
    found: list[socket.socket] = []
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as own:  # refused where another program listens, be it a service of the same user
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own.bind(where)
        for _ in range(count):
            found.append(bound(family, found[0].getsockname() if found else where))
            found[-1].listen(BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{host}:{port} cannot be listened on ({reason}): choose another --host or --port.") from None
    return found


def bound(family: int, where: Any) -> socket.socket:
    """A socket at this address, beside others there; it gets no connection until it listens."""
    door = socket.socket(family)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    door.bind(where)
    return door


def address(door: socket.socket) -> str:
    host, port = door.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
