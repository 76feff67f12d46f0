"""A finished model, ready to answer: token ids in, labels and probabilities out. No torch unless its encoder needs it.

The fused score of a label is linear in the document but for the memory:

    rest(x, l) = x . (w_c c_l + w_s z_l) + w_p ln(inverse propensity of l)
    score(x, l) = rest(x, l) + memory(x, l) max(0, w_m - w_o rest(x, l))

so that one vector per label is stored and searched, with the propensity in dimensions of its own, in which every query
has the same value. `score` and `xc predict`
share this code; one text is answered as it is among others.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from xcutils.core import artifacts
from xcutils.core.errors import UserError
from xcutils.core.ragged import Ragged, starts
from xcutils.core.threads import threads
from xcutils.rank.compact import KIND, CompactBag
from xcutils.rank.weights import Fusion
from xcutils.search.index import Index
from xcutils.search.indexes import INDEXES
from xcutils.search.plain import Exact

Found = tuple[np.ndarray, np.ndarray]  # ids (Q, k), scores (Q, k)
HELD = 1 << 22  # sums of the memory held at once by a thread
TOGETHER = 256  # texts ranked at once by a thread, at most
MORE = 20  # labels that are searched beyond those that are asked for
SLACK = 1e-3  # what rounding may add to a score
TINY = 1e-300  # the least share that counts: a label whose sum is zero is not remembered


class Searchable(Protocol):
    """What an answer needs of an `Index`, which says more of each."""

    def __len__(self) -> int: ...

    def search(self, queries: np.ndarray, k: int, threads: int = 1) -> Found | None: ...

    def seen(self, queries: np.ndarray) -> np.ndarray: ...

    def take(self, ids: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Settings:
    """What a model was built with.

    search      the index, a name of INDEXES
    labels      {count, dim} of the vectors of labels;  docs  likewise
    ef          vectors looked at by a search for labels, and for documents
    views       dimensions of a document's embedding that are brought to length one by themselves, for labels
    neighbours  documents the memory looks at;  tau  temperature of their weights
    max_tokens  of a text, special ones included
    """

    search: str
    labels: dict[str, int]
    docs: dict[str, int]
    ef: dict[str, int]
    views: list[list[int]]
    neighbours: int
    tau: float
    max_tokens: int

    def as_asked(self, queries: np.ndarray) -> np.ndarray:
        """(Q, D + c) float32: the queries of the search for labels; the last c dimensions are for the propensity."""
        dim = queries.shape[1]
        asked = np.full((len(queries), self.labels["dim"]), constant(dim), dtype=np.float32)
        asked[:, :dim] = queries
        for start, stop in self.views:
            part = queries[:, start:stop]
            lengths = np.linalg.norm(part, axis=1, keepdims=True)
            asked[:, start:stop] = part / np.where(lengths > 0, lengths, 1)
        return asked


def constant(dim: int) -> float:
    """What a query of length one has in each dimension beyond its own `dim`: as much as in its largest ones."""
    return 4 / dim**0.5


class Scratch(threading.local):
    """Sums of the memory, one array a thread, of `size` places and one more; zero between two uses."""

    def __init__(self) -> None:
        self.sums = np.zeros(0)

    def of(self, size: int) -> np.ndarray:
        if len(self.sums) <= size:
            self.sums = np.zeros(size + 1)
        return self.sums


class Model:
    """Encoder, searches and fusion of a finished run."""

    def __init__(
        self,
        embed: Callable[[Ragged], np.ndarray],
        labels: Searchable,
        docs: Searchable,
        positives: Ragged,
        fusion: Fusion,
        settings: Settings,
    ):
        """
        embed      texts -> (Q, D) float32 of length one
        labels     the vectors of labels
        docs       the vectors of training documents
        positives  N rows  labels of the training documents
        """
        self.embed = embed
        self.labels = labels
        self.docs = docs
        self.positives = Ragged(np.asarray(positives.values), np.asarray(positives.offsets))  # faster than mapped ones
        self.fusion = fusion
        self.settings = settings
        self.n_labels = settings.labels["count"]
        self.scratch = Scratch()

    def predict(self, tokens: Ragged, k: int) -> Found:
        """(ids (Q, k), probabilities (Q, k)), best first, padded with -1 and 0."""
        ids, scores = self.rank(self.embed(tokens), k)
        return ids, self.fusion.probabilities(scores)

    def predict_among(self, tokens: Ragged, k: int, labels: np.ndarray) -> Found:
        """What `predict` gives when only these labels (n,) may be answered, each by its exact score."""
        scores = self.scores(self.embed(tokens), labels)
        ids, scores = _best(np.broadcast_to(labels, scores.shape), scores, k)
        return ids, self.fusion.probabilities(scores)

    def scores(self, queries: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """(Q, n) float64: the fused scores of these labels (n,), ascending, without a search for them.

        queries  (Q, D) embeddings of the documents
        """
        asked = self.labels.seen(self.settings.as_asked(queries))
        total = (asked @ self.labels.take(labels).T).astype(np.float64)
        if not self.fusion.memory or not self.settings.neighbours or not len(self.docs):
            return total
        for row in range(len(queries)):  # one by one: the sums of a text are as many as there are labels
            places, weights = self._remembered(queries[row : row + 1])
            sums = np.bincount(places, weights, self.n_labels)[labels]
            total[row] += self.fusion.remembered(total[row], sums)
        return total

    def rank(self, queries: np.ndarray, k: int, excluded: Ragged | None = None) -> Found:
        """(ids (Q, k) int64, fused scores (Q, k) float64), best first, padded with -1 and -inf.

        queries   (Q, D) embeddings of the documents
        excluded  Q rows  labels that may not be predicted
        """
        if not np.isfinite(queries).all():
            raise UserError("a text's embedding holds values that are not finite: the model has diverged, train again.")
        step = max(1, min(TOGETHER, HELD // max(1, self.n_labels)))
        if len(queries) <= step:
            return self._rank(queries, k, excluded)
        ids = np.empty((len(queries), k), dtype=np.int64)
        scores = np.empty((len(queries), k))

        def some(start: int) -> None:
            part = slice(start, min(start + step, len(queries)))
            out = None if excluded is None else excluded.take(np.arange(part.start, part.stop))
            ids[part], scores[part] = self._rank(queries[part], k, out)

        with ThreadPoolExecutor(threads()) as workers:
            list(workers.map(some, range(0, len(queries), step)))
        return ids, scores

    def _rank(self, queries: np.ndarray, k: int, excluded: Ragged | None) -> Found:
        """`rank` of a few documents."""
        asked = self.settings.as_asked(queries)
        more = MORE + (0 if excluded is None else int(excluded.lengths.max(initial=0)))
        found, linear = search(self.labels, asked, min(k + more, self.n_labels), self.n_labels)
        total = linear.astype(np.float64)
        if not self.fusion.memory or not self.settings.neighbours or not len(self.docs):
            _leave_out(found, total, excluded)
            return _best(found, total, k)
        places, weights = self._remembered(queries)
        sums = self.scratch.of(len(queries) * self.n_labels)
        np.add.at(sums, places, weights)
        found_places = found if len(found) == 1 else found + self._first_places(len(found))[:, None]
        rest = total
        if len(self.labels) < found.shape[1]:
            found_places = np.where(found < 0, len(found) * self.n_labels, found_places)  # the scratch has one more
            rest = np.where(found < 0, 0, total)
        total = total + self.fusion.remembered(rest, sums[found_places])
        _leave_out(found, total, excluded)
        sums[found_places] = 0  # what is left are labels that only the memory knows
        others, their_total = self._others(asked, places, sums, linear, total, k, excluded)
        sums[places] = 0
        if not others.size:
            return _best(found, total, k)
        return _best(np.concatenate([found, others], axis=1), np.concatenate([total, their_total], axis=1), k)

    def _remembered(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(places, weights): document * L + label of each label of the nearest training documents, and its share.

        The share of a document is softmax(similarity / tau) [RAE-XMC].
        """
        near, similarity = search(self.docs, queries, self.settings.neighbours, len(self.positives))
        shares = np.exp((similarity.astype(np.float64) - similarity[:, :1]) / self.settings.tau)
        shares /= shares.sum(axis=1, keepdims=True)
        owned, lengths = self.positives.gather(near.ravel())  # a document that is not there, -1, has no label
        shares = np.repeat(shares.ravel(), lengths)
        if len(near) == 1:
            return owned, shares
        return np.repeat(self._first_places(len(near)), lengths.reshape(near.shape).sum(axis=1)) + owned, shares

    def _first_places(self, count: int) -> np.ndarray:
        """(count,) int64: the place of the first label of each document."""
        return np.arange(count) * self.n_labels

    def _others(
        self,
        asked: np.ndarray,
        places: np.ndarray,
        sums: np.ndarray,
        linear: np.ndarray,
        total: np.ndarray,
        k: int,
        excluded: Ragged | None,
    ) -> Found:
        """(ids (Q, e), scores (Q, e)), padded: labels of the memory that may be among the best k but were not found.

        A label that was not found has no higher score without the memory than the last one that was.
        """
        least: np.ndarray = np.full(len(total), -np.inf)
        if total.shape[1] >= k:
            least = np.partition(total, total.shape[1] - k, axis=1)[:, total.shape[1] - k]
        last = linear[:, -1]
        last = np.where(last == -np.inf, 0, last)  # 0: of vectors that are zero
        gained = self.fusion.remembered(last, np.ones(len(last)))  # by a label of the last one's score, of all shares
        needed = (least - last - SLACK) / np.maximum(gained, TINY)
        remembered = sums[places]
        may = remembered >= np.maximum(needed if len(needed) == 1 else needed[places // self.n_labels], TINY)
        wanted = places[may]
        if not len(wanted):
            return np.zeros((len(asked), 0), dtype=np.int64), np.zeros((len(asked), 0))
        wanted = np.unique(wanted)
        rows, labels = np.divmod(wanted, self.n_labels)
        seen = self.labels.seen(asked)
        scores = np.einsum("pd,pd->p", self.labels.take(labels), seen[rows]).astype(np.float64)
        scores += self.fusion.remembered(scores, sums[wanted])
        counts = np.bincount(rows, minlength=len(asked))
        ids = np.full((len(asked), int(counts.max())), -1, dtype=np.int64)
        values = np.full(ids.shape, -np.inf)
        columns = np.arange(len(wanted)) - starts(counts)[rows]
        ids[rows, columns] = labels
        values[rows, columns] = scores
        _leave_out(ids, values, excluded)
        return ids, values


def search(index: Searchable, queries: np.ndarray, k: int, count: int) -> Found:
    """(ids (Q, k), scores (Q, k)) of the highest inner products, best first, padded with -1 and -inf.

    count  vectors of the index, those included that cannot be found
    """
    most = min(k, len(index))
    if not most or not len(queries):
        return np.full((len(queries), k), -1, dtype=np.int64), np.full((len(queries), k), -np.inf, dtype=np.float32)
    answer = index.search(queries, most)
    if answer is None:  # the graph does not reach so many: compare with all
        answer = Exact(index.take(np.arange(count)).astype(np.float16)).search(queries, most)
    assert answer is not None
    if most == k:
        return answer
    pads = ((0, 0), (0, k - most))
    return np.pad(answer[0], pads, constant_values=-1), np.pad(answer[1], pads, constant_values=-np.inf)


def _leave_out(ids: np.ndarray, scores: np.ndarray, excluded: Ragged | None) -> None:
    """Set the scores (Q, n) of those ids (Q, n) that are in the same row of `excluded` to -inf, in place."""
    if excluded is None or not len(excluded.values) or not ids.size:
        return
    span = int(max(ids.max(), np.max(excluded.values))) + 2
    keys = np.arange(len(ids))[:, None] * span + ids
    scores[np.isin(keys, excluded.row_ids() * span + excluded.values)] = -np.inf


def _best(ids: np.ndarray, scores: np.ndarray, k: int) -> Found:
    """The k highest scores of each row, best first, ties as they stand; -1 where there are fewer."""
    if ids.shape[1] < k:
        pads = ((0, 0), (0, k - ids.shape[1]))
        ids, scores = np.pad(ids, pads, constant_values=-1), np.pad(scores, pads, constant_values=-np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    rows = np.arange(len(ids))[:, None]
    ids, scores = ids[rows, order], scores[rows, order]
    ids[scores == -np.inf] = -1
    return ids, scores


def load(folder: Path) -> Model:
    """The model in a folder that the caller has checked."""
    settings = Settings(**artifacts.load_json(folder, "settings.json"))
    kind = INDEXES[settings.search]

    def opened(name: str, facts: dict[str, int]) -> Index:
        return kind.open(folder / f"{name}.{settings.search}", **facts, ef=settings.ef[name])

    return Model(
        load_embed(folder),
        opened("labels", settings.labels),
        opened("docs", settings.docs),
        artifacts.load_ragged(folder, "positives"),
        Fusion(**artifacts.load_json(folder, "fusion.json")),
        settings,
    )


def load_embed(folder: Path) -> Callable[[Ragged], np.ndarray]:
    """The encoder of a model: texts -> (Q, D) of length one."""
    if artifacts.load_json(folder, "encoder.json")["kind"] == KIND:
        return CompactBag.load(folder).embed
    from xcutils.core.runtime import device  # torch: only where the encoder needs it
    from xcutils.model.encoders import encode_here, load_encoder

    encoder = load_encoder(folder, device()).eval()  # no dropout
    return lambda tokens: encode_here(encoder, tokens)
