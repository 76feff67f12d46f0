"""Encoders by name: building, saving, loading, moving and running any of them.

A new kind is a subclass of `Encoder` with `build`, `rebuild`, `check` and `network` (its cost), and a row of KINDS.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from xcutils.core import artifacts
from xcutils.core.params import value
from xcutils.core.ragged import Ragged
from xcutils.model.bag import BagOfEmbeddings
from xcutils.model.costs import Network
from xcutils.model.encoder import Encoder
from xcutils.model.gru import BiGRU
from xcutils.model.heads import TwoHeads
from xcutils.model.pretrained import BesidePretrained
from xcutils.model.transformer import Transformer

# Kind -> class. The kinds of COMPOSED are built around other encoders, and a user cannot choose them.
KINDS: dict[str, Any] = {"bag-of-embeddings": BagOfEmbeddings, "bi-gru": BiGRU, "transformer": Transformer}
COMPOSED: dict[str, Any] = {"two-heads": TwoHeads, "beside-pretrained": BesidePretrained}
TEXTS = 4096  # texts in one pass


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The parameters of an encoder."""

    kind: str = value(among=KINDS)
    model: str
    pooling: Literal["mean", "cls"]
    layers: int = value(low=0)
    hidden: int = value(low=1)
    dropout: float = value(low=0, high=0.95)
    ngrams: int = value(low=1, high=5)
    buckets: int = value(low=1)

    def build(self, texts: Iterable[Ragged], special: dict) -> Encoder:
        """A fresh encoder.

        texts    what it will read, for the bag's first weights
        special  the tokenizer's special tokens
        """
        return KINDS[self.kind].build(self, texts, special)


def network(section: dict, name: str) -> Network:
    """The cost of the encoder that a section of the parameters describes."""
    return KINDS[section["kind"]].network(SimpleNamespace(**section), name)


def check_architecture(section: dict, max_tokens: int) -> None:
    """Refuse a section of the parameters whose encoder could not be built."""
    KINDS[section["kind"]].check(SimpleNamespace(**section), max_tokens)


def save_encoder(folder: Path, encoder: Encoder, name: str = "encoder") -> None:
    """Write encoder.json, which says what it is, and encoder.safetensors, its weights; or files of another name."""
    state = {name: tensor.detach().cpu().numpy() for name, tensor in encoder.state().items()}
    artifacts.save_json(folder, f"{name}.json", encoder.config())
    artifacts.save_tensors(folder, f"{name}.safetensors", state)


def load_encoder(folder: Path, device: torch.device | str = "cpu", name: str = "encoder") -> Encoder:
    """The encoder that a stage saved, on the device."""
    state = artifacts.load_tensors(folder, f"{name}.safetensors")
    return move(rebuild(artifacts.load_json(folder, f"{name}.json"), state), device)


def rebuild(config: dict, state: dict[str, torch.Tensor]) -> Encoder:
    """The encoder that `config()` and `state()` described."""
    kind = config["kind"]
    if kind in COMPOSED:
        return COMPOSED[kind].rebuild(config, state, rebuild)
    return KINDS[kind].rebuild(config, state)


def encode(
    encoder: Encoder,
    texts: Any,
    *,
    read: bool = False,
    normalise: bool = True,
    chunk: int = TEXTS,
    watch: Callable = iter,
) -> np.ndarray:
    """(rows, D) float32: the embeddings of all texts, of length one by default, in chunks without gradients.

    texts  token ids; with `read`, what encoder.read made of them
    """
    return encode_sets(encoder, {"texts": texts}, read=read, normalise=normalise, chunk=chunk, watch=watch)["texts"]


def encode_here(encoder: Encoder, tokens: Ragged, chunk: int = TEXTS) -> np.ndarray:
    """What `encode` gives, in this thread alone: for a few texts that wait for an answer."""
    out = np.empty((len(tokens), encoder.dim), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(tokens), chunk):
            part = tokens.take(np.arange(start, min(start + chunk, len(tokens))))
            out[start : start + chunk] = F.normalize(encoder.embed(encoder.read(part)).float(), dim=1).cpu().numpy()
    return out


class InMemory:
    """Rows that are filled chunk by chunk; scratch.Rows does the same in a file, for work that may be interrupted."""

    def __init__(self, name: str, shape: tuple[int, int]):
        self.array = np.zeros(shape, dtype=np.float32)
        self.done: set[tuple[int, int]] = set()

    def fill(self, start: int, stop: int, rows: np.ndarray) -> None:
        self.array[start:stop] = rows


def encode_sets(
    encoder: Encoder,
    sets: Mapping[str, Any],
    *,
    read: bool = False,
    normalise: bool = True,
    chunk: int = TEXTS,
    watch: Callable = iter,
    into: Callable = InMemory,
) -> dict[str, np.ndarray]:
    """name -> (rows, D) float32: `encode` of several sets of texts in one go.

    No chunk spans two sets, so that a text's vector is the same as by itself. On a CPU the chunks run side by side on
    one thread each: no thread waits for another inside an operation.
    into  (name, shape) -> the rows to fill; chunks that are done already are left alone
    """
    out = {name: into(name, (len(tokens), encoder.dim)) for name, tokens in sets.items()}

    def fill(name: str, start: int, stop: int) -> None:
        with torch.no_grad():
            part = sets[name].take(np.arange(start, stop))
            vectors = encoder.embed(part if read else encoder.read(part)).float()
            out[name].fill(start, stop, (F.normalize(vectors, dim=1) if normalise else vectors).cpu().numpy())

    was_training = encoder.training
    encoder.eval()
    todo = [
        (name, start, stop)
        for name, tokens in sets.items()
        for start, stop in ((i, min(i + chunk, len(tokens))) for i in range(0, len(tokens), chunk))
        if (start, stop) not in out[name].done
    ]
    with _one_thread_each() as workers, ThreadPoolExecutor(workers) as threads:
        try:
            for done in watch([threads.submit(fill, *part) for part in todo]):
                done.result()
        except BaseException:  # also Ctrl-C: do not wait for the chunks that have not begun
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    encoder.train(was_training)
    return {name: rows.array for name, rows in out.items()}


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """The number of workers to use while every operation runs on one thread."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield count
    finally:
        torch.set_num_threads(count)


def move(encoder: Encoder, device: torch.device | str) -> Encoder:
    """The encoder with its parameters and tables on the device."""
    for table in encoder.tables:
        table.values = table.values.to(device)
    return encoder.to(device)
