"""What a worker does while its threads work: whose turn it is; what is said of a change that is late or unwritten."""

import asyncio
import errno
import os
import threading
import time

import httpx
import pytest

import longtail
from longtail.journal import Journal
from longtail.models import Model
from longtail.service.app import Service, create_app
from longtail.service.settings import Settings
from testing.service import TOKEN
from tests.service.conftest import LOCKED

NEW = {"labels": [{"id": "new", "text": "round red marble"}]}


def ask(app, *requests: tuple[str, str, dict]) -> list[httpx.Response]:
    """The answers of the application, without a socket, to requests that are sent at once."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=LOCKED) as client:
            return await asyncio.gather(*(client.request(how, path, json=body) for how, path, body in requests))

    return asyncio.run(run())


def test_a_turn_lasts_until_its_thread_has_ended(tiny_bundle):
    """Each of six clients gives up after a moment; no more than two threads ever work."""
    service = Service(Settings(tiny_bundle))
    now, most, done, lock = 0, 0, 0, threading.Lock()

    def work() -> None:
        nonlocal now, most, done
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.1)
        with lock:
            now, done = now - 1, done + 1

    async def run() -> None:
        for _ in range(6):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(service.work(service.explaining, work), 0.02)
        await asyncio.wait_for(service.work(service.explaining, work), 5)
        assert await asyncio.wait_for(service.work(service.searching, lambda: 3), 5) == 3

    asyncio.run(run())
    assert most == 2 and now == 0 and done >= 3


def test_labels_are_searched_while_explanations_take_long(tiny_bundle, monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(Model, "explain", lambda *_: over.wait(10) and [])
    app = create_app(Settings(tiny_bundle))

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            waiting = [asyncio.create_task(client.post("/explain", json={"text": "a"})) for _ in range(3)]
            await asyncio.sleep(0.1)
            found = await asyncio.wait_for(client.get("/labels?q=red"), 5)
            assert found.status_code == 200 and not any(one.done() for one in waiting)
            over.set()
            assert {one.status_code for one in await asyncio.gather(*waiting)} == {200}

    asyncio.run(run())


def test_a_change_that_takes_too_long_is_made_and_that_is_said(own_bundle, monkeypatch):
    real = Journal.append

    def slow(*given):
        time.sleep(0.5)
        return real(*given)

    monkeypatch.setattr(Journal, "append", slow)
    app = create_app(Settings(own_bundle, token=TOKEN, answer_time=0.1))

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=LOCKED) as client:
            answer = await client.post("/labels", json=NEW)
            await asyncio.sleep(1)
            return answer

    answer = asyncio.run(run())
    assert answer.status_code == 504 and "may still come into force" in answer.json()["error"]
    assert "new" in longtail.load(own_bundle).labels


@pytest.mark.parametrize(
    "code, status, said",
    [
        (errno.ENOSPC, 507, "make room"),
        (errno.EDQUOT, 507, "make room"),
        (errno.EROFS, 403, "folder cannot be written"),
        (errno.EACCES, 403, "folder cannot be written"),
    ],
)
def test_a_change_that_cannot_be_written_says_why(own_bundle, monkeypatch, code, status, said):
    def refuse(*_) -> None:
        raise OSError(code, os.strerror(code))

    app = create_app(Settings(own_bundle, token=TOKEN))
    monkeypatch.setattr(os, "fsync", refuse)
    before = longtail.load(own_bundle).changes()
    (answer,) = ask(app, ("POST", "/labels", NEW))
    assert answer.status_code == status and said in answer.json()["error"]
    monkeypatch.undo()
    assert longtail.load(own_bundle).changes() == before  # the line that was written is gone again
    (answer,) = ask(app, ("POST", "/labels", NEW))
    assert answer.json()["changed"] == 1 and len(longtail.load(own_bundle).changes()) == len(before) + 1
