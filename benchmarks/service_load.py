"""Texts per second and waiting times of `xc serve` under load: `make bench-service`.

Clients are as cheap as they can be, since they share the machine with the service: a socket each, a request made
beforehand, an answer read to its end. Each asks one text at a time, and the next as soon as it is answered. The texts
are the test documents of the run.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import click
import numpy as np

from benchmarks.apart import ROOT
from testing.service import running
from xcutils.core import artifacts, console
from xcutils.core.ragged import to_strings

WARM_SECONDS = 2.0
HEAD = b"\r\n\r\n"
LENGTH = b"content-length: "


def requests(texts: list[str], k: int) -> list[bytes]:
    """The bytes of a request for each text."""
    bodies = [json.dumps({"texts": [text], "k": k}).encode() for text in texts]
    head = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    return [head.format(len(body)).encode() + body for body in bodies]


class Client(asyncio.Protocol):
    """One connection that asks again as soon as it is answered; `waits` are the seconds of each answer."""

    def __init__(self, asked: list[bytes], start: int):
        self.asked = asked
        self.place = start
        self.waits: list[tuple[float, float]] = []  # when it was answered, after how long
        self.failed = 0
        self.buffer = b""
        self.left = -1  # bytes of the answer that are still to come; -1: its head is
        self.is_over = False

    def connection_made(self, transport) -> None:
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.begin = time.perf_counter()
        self.transport.write(self.asked[self.place % len(self.asked)])
        self.place += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.left < 0 and (end := self.buffer.find(HEAD)) >= 0:
            head = self.buffer[:end].lower()
            self.failed += not head.startswith(b"http/1.1 200")
            self.left = int(head.partition(LENGTH)[2].partition(b"\r\n")[0]) + end + len(HEAD)
        if 0 <= self.left <= len(self.buffer):
            now = time.perf_counter()
            self.waits.append((now, now - self.begin))
            self.buffer, self.left = self.buffer[self.left :], -1
            if self.is_over:
                self.transport.close()
            else:
                self._ask()


async def load(address: str, asked: list[bytes], clients: int, seconds: float) -> tuple[np.ndarray, float, int]:
    """(seconds of each answer, texts per second, answers that were none) of so many clients at once."""
    place, loop = urlsplit(address), asyncio.get_running_loop()
    made = [Client(asked, i * len(asked) // clients) for i in range(clients)]
    for client in made:
        await loop.create_connection(lambda client=client: client, place.hostname, place.port)
    await asyncio.sleep(WARM_SECONDS)
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    end = time.perf_counter()
    for client in made:
        client.is_over = True
    waits = np.array([wait for client in made for at, wait in client.waits if begin <= at <= end])
    await asyncio.sleep(0.2)
    return waits, len(waits) / (end - begin), sum(client.failed for client in made)


def texts_of(data: Path) -> list[str]:
    """The texts of the run's test documents."""
    return to_strings(artifacts.load_ragged(artifacts.check(data / "prepare" / "test"), "texts"))


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=ROOT / "data", help="The finished run.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--clients", default="1,8,64", show_default=True, help="Numbers of clients, one after the other.")
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="For each of them.")
@click.option("-k", "k", type=click.IntRange(1), default=5, show_default=True, help="Labels of a text.")
@console.command
def main(data: Path, workers: int, clients: str, seconds: float, k: int) -> None:
    """Print texts per second and the waiting times of 1, 8 and 64 clients."""
    asked = requests(texts_of(data), k)
    with tempfile.TemporaryDirectory() as folder:
        with running(Path(folder, "log"), "--bundle", data, "--workers", workers) as service:
            click.echo(f"{workers} workers\nclients  texts/s  p50 ms  p95 ms  p99 ms  failed")
            for count in map(int, clients.split(",")):
                waits, rate, failed = asyncio.run(load(service.address, asked, count, seconds))
                p50, p95, p99 = np.percentile(1000 * waits, (50, 95, 99))
                click.echo(f"{count:7d}  {rate:7.0f}  {p50:6.1f}  {p95:6.1f}  {p99:6.1f}  {failed:6d}")


if __name__ == "__main__":
    main()
