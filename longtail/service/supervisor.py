"""The process that starts workers, and another one where one has died; it answers nothing itself."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import tempfile

import uvicorn
from uvicorn.supervisors import Multiprocess

from longtail.service.settings import Settings
from xcutils.core import console
from xcutils.core.errors import UserError
from xcutils.core.threads import threads

GRACE = 30  # seconds that running requests have when the service is stopped
BACKLOG = 1024  # connections that wait for a worker


class Supervisor(Multiprocess):
    """Uvicorn's, but each worker has a door of its own, the dead are no longer counted, and SIGHUP ends no worker."""

    @property
    def sockets(self) -> list[socket.socket]:
        """The door of the worker that is started next: of the first that has ended, or of one more."""
        ended = [place for place, process in enumerate(self.processes) if process.exitcode is not None]
        return [self.doors[ended[0] if ended else len(self.processes)]]

    @sockets.setter
    def sockets(self, doors: list[socket.socket]) -> None:
        self.doors = doors

    def keep_subprocess_alive(self) -> None:
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        from longtail.service import metrics  # after the folder of the numbers is known

        for pid in before - {process.pid for process in self.processes}:
            console.say(f"worker {pid} has ended; another one was started.")
            metrics.forget(pid or 0)

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
    numbers = tempfile.mkdtemp(prefix="longtail-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = numbers
    try:
        from longtail.service.app import create_app
        from longtail.service.watching import Watched

        for path in filter(None, (settings.bundle, settings.compare)):
            Watched(path)  # what cannot be served is said here, once
        config = uvicorn.Config(
            functools.partial(create_app, settings),
            factory=True,
            workers=workers,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACE,
            timeout_worker_healthcheck=GRACE,
        )
        with contextlib.ExitStack() as stack:
            listening = [stack.enter_context(door) for door in doors(host, port, workers)]
            number = f"{workers} worker{'s' * (workers > 1)}"
            console.say(f"serving {settings.bundle} at {address(listening[0])} with {number}; Ctrl-C ends it.")
            Supervisor(config, listening).run()
    finally:
        shutil.rmtree(numbers, ignore_errors=True)
    console.say("stopped.")


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
            door = socket.socket(family)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            door.bind(found[0].getsockname() if found else where)
            door.listen(BACKLOG)
            found.append(door)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{host}:{port} cannot be listened on ({reason}): choose another --host or --port.") from None
    return found


def address(door: socket.socket) -> str:
    host, port = door.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
