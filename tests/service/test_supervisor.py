"""What the supervisor makes of what a worker says, without a process."""

import time
from multiprocessing import Pipe
from types import SimpleNamespace

from longtail.service.supervisor import SILENT, Worker


def a_worker(heard: float, exitcode: int | None = None) -> Worker:
    """A worker that was heard so many seconds ago."""
    worker = Worker.__new__(Worker)
    worker.parent_conn, worker.child_conn = Pipe()
    worker.process = SimpleNamespace(exitcode=exitcode)
    worker.ready, worker.heard = False, time.monotonic() - heard
    return worker


def test_a_worker_is_asked_and_not_waited_for():
    worker = a_worker(heard=SILENT / 2)
    begin = time.monotonic()
    assert worker.lives() and not worker.ready
    assert time.monotonic() - begin < 1
    assert worker.child_conn.recv() == b"ping"


def test_all_that_a_worker_said_is_heard():
    worker = a_worker(heard=SILENT + 1)
    for started in (False, False, True):
        worker.child_conn.send(started)
    assert worker.lives() and worker.ready


def test_one_that_ended_or_is_silent_for_long_lives_no_more():
    assert not a_worker(heard=SILENT + 1).lives()
    assert not a_worker(heard=0, exitcode=1).lives()
