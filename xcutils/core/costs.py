"""How a stage, an encoder or a searcher states its cost: memory part by part, time and disk.

The figures themselves are beside the code whose cost they are. A stage has `cost(Sizes, params, Host) -> Estimate`,
which lists the arrays that are in memory together at each of the stage's fullest moments; the peak is the largest sum.
Memory mapped from files counts as resident, because the system shows it so, but not as needed: it can be dropped and
read again.

Time is rough: arithmetic at the speed of a matrix product, which is timed for the estimate, and constants measured on
two virtual cores. Training is counted to its last epoch; early stopping makes it shorter. The estimate is of a run on
the CPU: a graphics card's own memory is not looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import NamedTuple

from xcutils.core import artifacts
from xcutils.core.console import say
from xcutils.core.errors import UserError
from xcutils.core.folds import CONTINUE, Refit

FLOAT, LONG, INT = 4, 8, 4  # bytes
INTERPRETER = 0.28e9  # Python, numpy, torch and its threads
FRAGMENTATION = 2  # what every step allocates again takes twice its size: see runtime._keep_freed_memory
BANDWIDTH = 12e9  # bytes moved per second where memory and not arithmetic is the limit
STEP_SECONDS = 2e-3  # of a training step, besides what it computes
MINUTES_FROM, HOURS_FROM = 120, 7200  # seconds


@dataclass(frozen=True)
class Sizes:
    """The numbers of a prepared dataset that memory and time depend on; 0 where a stage does not need them."""

    docs: int  # N, training documents, validation included
    labels: int  # L
    positives: int = 0  # pairs of a training document and a label
    validation: int = 0  # documents
    test: int = 0  # documents
    doc_tokens: int = 0  # of all training documents together
    label_tokens: int = 0
    test_tokens: int = 0
    filtered: int = 0  # filter pairs of the training documents
    refit: Refit = True
    dim: int = 0  # dimensions of the trained encoder's vectors
    embed_dim: int = 0  # of the pretrained encoder's

    @property
    def fits(self) -> int:
        """How often a training stage trains: once to choose, and once more on all documents."""
        return 2 if self.refit else 1

    def trained(self, epochs: int, more: int) -> int:
        """Epochs of all fits together; more  those of a final fit that goes on from the first one."""
        goes_on = self.refit == CONTINUE and 0 < more < epochs
        return epochs + (0 if not self.refit else more if goes_on else epochs)

    @property
    def per_doc(self) -> float:
        """Mean number of positives of a document."""
        return self.positives / max(1, self.docs)


@dataclass(frozen=True)
class Host:
    """What the estimate is for."""

    threads: int
    speed: float  # floating-point operations per second of all threads together


class Part(NamedTuple):
    """Something in memory, and what makes it smaller."""

    name: str
    bytes: float
    remedy: str = ""  # "lower classifier.batch_size (1024)"; empty where the data alone decides
    mapped: bool = False  # a file's pages


@dataclass(frozen=True)
class Estimate:
    """A stage's fullest moment, its time and the size of what it writes."""

    stage: str
    parts: list[Part]
    seconds: float
    disk: float
    on_device: bool = False  # it works on a graphics card where there is one

    @property
    def peak(self) -> float:
        """Bytes resident at the fullest moment."""
        return sum(part.bytes for part in self.parts)

    @property
    def needed(self) -> float:
        """The peak without what the system can drop and read again."""
        return sum(part.bytes for part in self.parts if not part.mapped)

    def largest(self, count: int = 3) -> str:
        """The largest parts in words."""
        parts = sorted(self.parts, key=lambda part: -part.bytes)[:count]
        return ", ".join(f"{part.name} {gigabytes(part.bytes)}" for part in parts)

    def line(self) -> str:
        return f"{self.stage}: about {gigabytes(self.peak)} and {duration(self.seconds)} ({self.largest()})"

    def refusal(self, room: float) -> str:
        """Why it cannot run in `room` bytes and what to lower; empty when it can."""
        if self.needed <= room:
            return ""
        held = [part for part in self.parts if not part.mapped]
        part = max((p for p in held if p.remedy), key=lambda p: p.bytes, default=max(held, key=lambda p: p.bytes))
        still = self.needed - part.bytes
        more = f" (even without them {gigabytes(still)} are needed)" if still > room else ""
        return (
            f"{self.stage} needs about {gigabytes(self.needed)} of memory and {gigabytes(room)} are available here: "
            f"{part.remedy or 'take fewer documents or labels'}, since {gigabytes(part.bytes)} of it are for the "
            f"{part.name}{more}; `xc estimate` shows every stage, XC_MEMORY=<GB> overrules this."
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count < 10e9 else f"{count / 1e9:,.0f} GB"


def duration(seconds: float) -> str:
    if seconds < MINUTES_FROM:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < HOURS_FROM else f"{seconds / 3600:,.0f} h"


def fullest(kept: list[Part], moments: list[list[Part]]) -> list[Part]:
    """The parts that are kept all the time, and those of the fullest moment."""
    return kept + max(moments, key=lambda parts: sum(part.bytes for part in parts))


def distinct(drawn: float, labels: int) -> float:
    """How many different labels are to be expected among so many drawn at random."""
    return labels * (1 - exp(-drawn / max(1, labels)))


def sizes_of(train: Path, labels: Path | int, test: Path | None = None, *, dim: int = 0, embed_dim: int = 0) -> Sizes:
    """The sizes of prepared data, which the caller has checked; only headers of arrays and a few numbers are read.

    labels  the folder of the labels, or their number where a stage does not read it
    """
    tokens, positives = (artifacts.load_ragged(train, name) for name in ("tokens", "positives"))
    label_tokens = None if isinstance(labels, int) else artifacts.load_ragged(labels, "tokens")
    test_tokens = None if test is None else artifacts.load_ragged(test, "tokens")
    return Sizes(
        docs=len(tokens),
        labels=labels if isinstance(labels, int) else len(artifacts.load_array(labels, "frequency")),
        positives=len(positives.values),
        validation=int(artifacts.load_array(train, "is_validation").sum()),
        test=0 if test_tokens is None else len(test_tokens),
        doc_tokens=len(tokens.values),
        label_tokens=0 if label_tokens is None else len(label_tokens.values),
        test_tokens=0 if test_tokens is None else len(test_tokens.values),
        filtered=len(artifacts.load_array(train, "filter")),
        refit=artifacts.load_json(train, "meta.json")["refit"],
        dim=dim,
        embed_dim=embed_dim,
    )


def this_host() -> Host:
    from xcutils.core import runtime  # imports torch: only where a machine is looked at

    return Host(*runtime.strength())


def announce(cost: Callable[[Sizes, dict, Host], Estimate], sizes: Sizes, params: dict) -> None:
    """Say what a stage will take by its own `cost`, or refuse it when this machine cannot hold it.

    On a device other than the CPU, batches, activations and scores are not in the machine's memory: no stage that works
    there is refused.
    """
    from xcutils.core import runtime

    estimate = cost(sizes, params, this_host())
    device = runtime.device()
    if device.type != "cpu" and estimate.on_device:
        say(f"{estimate.line()}; that is of a run on the CPU, and this one is on {device}")
        return
    refusal = estimate.refusal(runtime.memory())
    if refusal:
        raise UserError(refusal)
    say(estimate.line())
