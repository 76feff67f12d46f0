"""Texts of many clients are asked together, and each client gets its own answers, or its own error."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from longtail.service.batching import PIECE, TOGETHER, Batcher


@dataclass(eq=False)
class Echo:
    """Answers every text with itself and the key; `asked` are the texts of each time, `hold` delays the first."""

    key: str = "a"
    asked: list[list[str]] = field(default_factory=list)
    hold: threading.Event | None = None

    def ask(self, texts: list[str]) -> list[str]:
        if self.hold is not None and not self.asked:
            self.asked.append(texts)
            self.hold.wait(10)
            return [self.key + text for text in texts]
        self.asked.append(texts)
        if any(text == "bad" for text in texts):
            raise ValueError("bad")
        return [self.key + text for text in texts]


def run(work) -> list:
    """What `work` gives, a coroutine of a batcher that runs."""

    async def main() -> list:
        batcher = Batcher()
        batcher.start()
        try:
            return await work(batcher)
        finally:
            await asyncio.to_thread(batcher.stop)

    return asyncio.run(main())


async def behind_another(batcher: Batcher, question: Echo, *jobs) -> list:
    """The outcomes of jobs that all arrive while the model works on another one."""
    question.hold = threading.Event()
    first = asyncio.create_task(batcher.answers(question, ["first"]))
    while not question.asked:
        await asyncio.sleep(0.001)
    others = [asyncio.create_task(job) for job in jobs]
    await asyncio.sleep(0.01)
    question.hold.set()
    await first
    return await asyncio.gather(*others, return_exceptions=True)


def test_what_waits_is_asked_together_in_its_order():
    question = Echo()
    found = run(lambda b: behind_another(b, question, *(b.answers(question, [str(i), "x"]) for i in range(5))))
    assert found == [[f"a{i}", "ax"] for i in range(5)]
    assert question.asked[1:] == [[text for i in range(5) for text in (str(i), "x")]]


def test_questions_of_different_keys_are_asked_apart():
    one, other = Echo("a"), Echo("b")
    found = run(lambda b: behind_another(b, one, b.answers(one, ["1"]), b.answers(other, ["2"]), b.answers(one, ["3"])))
    assert found == [["a1"], ["b2"], ["a3"]]
    assert one.asked[1:] == [["1", "3"]] and other.asked == [["2"]]


def test_an_error_is_of_the_one_whose_text_it_is():
    question = Echo()
    jobs = (["1"], ["bad"], ["3"])
    good, bad, also_good = run(lambda b: behind_another(b, question, *(b.answers(question, job) for job in jobs)))
    assert (good, also_good) == (["a1"], ["a3"])
    assert isinstance(bad, ValueError)


def test_a_large_request_is_asked_in_pieces_and_lets_others_through():
    question, many = Echo(), [str(i) for i in range(3 * PIECE)]
    large, small = run(lambda b: behind_another(b, question, b.answers(question, many), b.answers(question, ["small"])))
    assert large == ["a" + text for text in many] and small == ["asmall"]
    assert question.asked[1] == [*many[:PIECE], "small"]
    assert max(map(len, question.asked)) <= TOGETHER


def test_who_has_gone_is_not_asked_for():
    question = Echo()

    async def work(batcher: Batcher) -> list:
        question.hold = threading.Event()
        first = asyncio.create_task(batcher.answers(question, ["first"]))
        while not question.asked:
            await asyncio.sleep(0.001)
        gone = asyncio.create_task(batcher.answers(question, ["gone"]))
        await asyncio.sleep(0.01)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        question.hold.set()
        await first
        return await batcher.answers(question, ["next"])

    assert run(work) == ["anext"]
    assert ["gone"] not in question.asked


def test_a_stop_answers_what_waits():
    question = Echo()

    async def main() -> list:
        batcher = Batcher()
        waiting = [asyncio.create_task(batcher.answers(question, [str(i)])) for i in range(3)]
        await asyncio.sleep(0.01)
        batcher.start()
        await asyncio.to_thread(batcher.stop)
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == [["a0"], ["a1"], ["a2"]]
