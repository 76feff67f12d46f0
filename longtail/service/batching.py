"""Texts of many clients answered together: who waits while the model works is answered at its next turn."""

import asyncio
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from longtail.service import metrics

TOGETHER = 256  # texts the model is asked at once, at most
PIECE = 64  # texts of one request that are asked at once, so that no large request holds up the small ones

Answer = TypeVar("Answer", covariant=True)


class Question(Protocol[Answer]):
    """What is asked about texts. Questions of one key are asked together; an answer depends on its own text alone."""

    @property
    def key(self) -> Hashable: ...

    def ask(self, texts: list[str]) -> Sequence[Answer]: ...


@dataclass
class Job:
    question: Question
    texts: list[str]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future


class Batcher:
    """A thread that asks what is waiting, as much as there is, and waits for nothing."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name="batcher", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Answer what is waiting, and end."""
        self.queue.put(None)
        self.thread.join()

    async def answers(self, question: Question[Answer], texts: list[str]) -> list[Answer]:
        """An answer for each text, in their order."""
        found: list[Answer] = []
        loop = asyncio.get_running_loop()
        for start in range(0, len(texts), PIECE):
            future = loop.create_future()
            self.queue.put(Job(question, texts[start : start + PIECE], loop, future))
            found += await future
        return found

    def _work(self) -> None:
        while (first := self.queue.get()) is not None:
            jobs, texts, is_last = [first], len(first.texts), False
            while texts < TOGETHER:
                try:
                    more = self.queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    is_last = True
                    break
                jobs.append(more)
                texts += len(more.texts)
            _answer(jobs)
            if is_last:
                return


def _answer(jobs: list[Job]) -> None:
    """Answer the jobs, those of one key together."""
    groups: dict[Hashable, list[Job]] = {}
    for job in jobs:
        if not job.future.cancelled():  # its client has gone, or its time is over
            groups.setdefault(job.question.key, []).append(job)
    for group in groups.values():
        try:
            texts = [text for job in group for text in job.texts]
            metrics.BATCH.observe(len(texts))
            answers = iter(group[0].question.ask(texts))
            _deliver([(job, list(islice(answers, len(job.texts))), None) for job in group])
        except Exception as error:
            if len(group) == 1:
                _deliver([(group[0], None, error)])
            else:  # whose text it was that failed: each by itself
                for job in group:
                    _answer([job])


def _deliver(results: list[tuple[Job, list | None, Exception | None]]) -> None:
    """Hand the results to the loop that waits for them."""

    def hand_over() -> None:
        for job, answers, error in results:
            if job.future.done():
                continue
            if error is None:
                job.future.set_result(answers)
            else:
                job.future.set_exception(error)

    try:
        results[0][0].loop.call_soon_threadsafe(hand_over)
    except RuntimeError:  # the loop has ended: nobody waits any more
        return
