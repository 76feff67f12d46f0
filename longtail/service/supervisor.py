"""The process that starts workers, and another one where one has died; it answers nothing itself."""

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
    """Uvicorn's, which also counts the dead no longer, and has workers read their models anew by a signal."""

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
        with Door.at(host, port) as door:
            number = f"{workers} worker{'s' * (workers > 1)}"
            console.say(f"serving {settings.bundle} at {door.address()} with {number}; Ctrl-C ends it.")
            Supervisor(config, [door]).run()
    finally:
        shutil.rmtree(numbers, ignore_errors=True)
    console.say("stopped.")


class Door(socket.socket):
    """A socket at the service's address, where nobody listens; the copy that a worker gets is one of its own.

    So the kernel gives each worker its share of the connections. Of one that all listen on, the first to wake takes
    every connection there is.
    """

    @classmethod
    def at(cls, host: str, port: int) -> "Door":
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            refuse_taken(family, where)
            return cls.opened(family, where)
        except OSError as error:
            reason = error.strerror or error
            text = f"{host}:{port} cannot be listened on ({reason}): choose another --host or --port."
            raise UserError(text) from None

    @classmethod
    def opened(cls, family: int, where: tuple) -> "Door":
        door = cls(family, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        door.bind(where)
        return door

    def __reduce__(self) -> tuple:
        return Door.opened, (int(self.family), self.getsockname())

    def address(self) -> str:
        host, port = self.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def refuse_taken(family: int, where: tuple) -> None:
    """An OSError if another program, be it another service of this user, listens there."""
    with socket.socket(family, socket.SOCK_STREAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(where)
