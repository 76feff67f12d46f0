"""One score from four parts: classifier, similarity, memory and propensity, weighted on validation documents.

How they are put together is in weights.py.

A shortlist is the union of what the searches found; every part is computed exactly for every pair in it.

The weights make (1 - tail) N@5 + tail PSN@5 as high as they can, but N@5 never lower than GIVEN below that of the best
part alone. They are looked for without a grid: many are drawn at random, and from the best of them Nelder and Mead's
method goes on, as far as it helps. A ranking changes in steps, so that there is no gradient to follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from xcutils.rank.weights import PARTS, WEIGHTS, Fusion, scores
from xcutils.search.metrics import Judged, Truth, goal

ALONE = ("classifier", "similarity", "memory")  # parts that rank labels by themselves, the first of PARTS
TOP = 5  # labels of a ranking that count
DEEP = 30  # labels whose recall tells weights apart that are as good for the first TOP
PER_PART = 40  # labels of each part that are weighed: those below it are not among the first TOP
DRAWN = 400  # weightings drawn at random
PROPENSITY = 0.03  # the mean of the propensity's weight in them
AROUND = 300  # more of them drawn around the best one that was found,
APART = 0.3  # from which each weight differs by about this share
FROM = 3  # of which the search begins from so many
TRIES = 60  # weightings that a search looks at, at most
STEPS = (0.2, 0.2, 0.2, 0.02, -0.2)  # by which it moves each weight at first
BOUNDS = (*((0, None),) * len(PARTS), (0, 1))  # of an overlap above 1 a score would fall where the rest rises
NEAR = 1e-3  # weights that differ by less are not told apart
SAME = 0.15  # points of the goal by which weightings are not told apart
GIVEN = 0.2  # points of N@5 that may be given away, against the best part alone
FORBIDDEN = 100.0  # what a point of N@5 below that counts, in points of the goal
CURVE = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)  # values of tail that are shown beside the one that is used


@dataclass(frozen=True)
class Shortlist:
    """Pairs of documents and labels, sorted by document, with the score of each part.

    rows    (M,) int64     document of each pair
    labels  (M,) int64     label of each pair
    parts   (M, 4) float32 in the order of PARTS; propensity is ln of the inverse propensity
    count   documents, those without a pair included
    """

    rows: np.ndarray
    labels: np.ndarray
    parts: np.ndarray
    count: int


def union(rankings: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, labels) of the different pairs in the rankings (Q, k), sorted by row, then label; -1 pads are left out."""
    stacked = np.concatenate(rankings, axis=1)
    rows = np.repeat(np.arange(len(stacked)), stacked.shape[1])
    labels = stacked.ravel()
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    span = int(labels.max(initial=0)) + 1
    keys = np.unique(rows * span + labels)
    return keys // span, keys % span


def pair_scores(
    queries: np.ndarray, vectors: np.ndarray, rows: np.ndarray, labels: np.ndarray, chunk: int = 1 << 16
) -> np.ndarray:
    """(M,) float32: the dot product of query and vector of each pair."""
    out = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), chunk):
        some = slice(start, start + chunk)
        np.einsum("md,md->m", queries[rows[some]], vectors[labels[some]], out=out[some])
    return out


def memory_scores(
    ids: np.ndarray, scores: np.ndarray, positives: sparse.csr_matrix, *, tau: float
) -> sparse.csr_matrix:
    """(Q, L) sparse: labels of the nearest training documents, weighted by softmax(similarity / tau) [RAE-XMC].

    ids, scores  (Q, n) nearest documents, padded with -1
    positives    (N, L) their labels
    """
    is_doc = ids >= 0
    best = np.where(is_doc, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(np.where(is_doc, (scores - np.where(np.isfinite(best), best, 0)) / tau, -np.inf))
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    rows = np.repeat(np.arange(len(ids)), ids.shape[1])[is_doc.ravel()]
    matrix = sparse.csr_matrix((weights[is_doc], (rows, ids[is_doc])), (len(ids), positives.shape[0]))
    return (matrix @ positives).tocsr().astype(np.float32)


def top_of(matrix: sparse.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids (Q, k), scores (Q, k)): the largest entries of each sparse row, best first, padded with -1 and -inf."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return rank(rows, matrix.indices.astype(np.int64), matrix.data, matrix.shape[0], k)


def entries(matrix: sparse.csr_matrix, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(M,) float32: the matrix's entries at these pairs, 0 where it has none."""
    matrix = matrix.sorted_indices()
    width = np.int64(matrix.shape[1])
    keys = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * width + matrix.indices
    wanted = rows * width + labels
    place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
    found = keys[place] == wanted if len(keys) else np.zeros(len(wanted), dtype=bool)
    return np.where(found, matrix.data[place] if len(keys) else 0, 0).astype(np.float32)


def rank(rows: np.ndarray, labels: np.ndarray, scores: np.ndarray, count: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids (count, k), scores (count, k)): each row's best pairs, ties by label, padded with -1 and -inf."""
    order = np.lexsort((labels, -scores, rows))
    rows, labels, scores = rows[order], labels[order], scores[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, np.arange(count))[rows]
    kept = place < k
    ids = np.full((count, k), -1, dtype=np.int64)
    values = np.full((count, k), -np.inf)
    ids[rows[kept], place[kept]] = labels[kept]
    values[rows[kept], place[kept]] = scores[kept]
    return ids, values


class Weighing:
    """Weightings of the parts, and the figures of each that was tried, on documents no part was trained on.

    parts    (M, 4) float64  of the pairs that can be among the first TOP
    tried    weights in the order of WEIGHTS -> {N@5, PSN@5}
    drawn    those that were drawn at random
    least    what N@5 may not fall below
    """

    def __init__(self, shortlist: Shortlist, truth: Truth):
        kept = among_first(shortlist, PER_PART)
        few = Shortlist(shortlist.rows[kept], shortlist.labels[kept], shortlist.parts[kept], shortlist.count)
        self.parts = few.parts.astype(np.float64)
        self.table = _Padded(few)
        self.judge = _Quick(self.table.labels, truth)
        self.tried: dict[tuple[float, ...], dict[str, float]] = {}
        self.drawn: list[tuple[float, ...]] = []
        self.least = max(self.figures(weights)["N@5"] for weights in alone().values()) - GIVEN

    def figures(self, weights: Sequence[float]) -> dict[str, float]:
        """N@5 and PSN@5 of the ranking by these weights."""
        key = tuple(float(weight) for weight in weights)
        if key not in self.tried:
            self.tried[key] = self.judge(self.table.best(scores(self.parts, key), TOP))
        return self.tried[key]

    def recall(self, weights: Sequence[float]) -> float:
        """How many positives are among the first DEEP."""
        return self.judge.recall(self.table.best(scores(self.parts, weights), min(DEEP, self.table.width)))

    def ranking(self, weights: Sequence[float]) -> np.ndarray:
        """(Q, 5) labels."""
        return self.table.top(scores(self.parts, weights), TOP)

    def value(self, weights: Sequence[float], tail: float) -> float:
        """The goal, less what is forbidden."""
        figures = self.figures(weights)
        return goal(figures, tail) - FORBIDDEN * max(0.0, self.least - figures["N@5"])

    def draw(self) -> None:
        """Try weightings drawn at random, always the same."""
        rng = np.random.default_rng(0)
        mixed = rng.dirichlet(np.ones(len(ALONE)), DRAWN)
        others = rng.exponential(PROPENSITY, DRAWN), rng.random(DRAWN)
        self.drawn = [scaled(weights) for weights in zip(*mixed.T, *others)]
        for weights in self.drawn:
            self.figures(weights)

    def draw_around(self, centre: Sequence[float]) -> None:
        """Try weightings near this one, always the same: which of them are as good shows how far the best is chance.

        Classifier and similarity know much the same: how they share what they weigh together is drawn from all ways. So
        is the propensity, which may be next to nothing.
        """
        rng = np.random.default_rng(1)
        around = np.array(centre) * np.exp(APART * rng.standard_normal((AROUND, len(WEIGHTS))))
        around[:, :2] = rng.dirichlet((1, 1), AROUND) * around[:, :2].sum(axis=1, keepdims=True)
        around[:, 3] = rng.exponential(PROPENSITY, AROUND)
        around[:, 4] = np.minimum(around[:, 4], 1)
        near = [scaled(weights) for weights in around.tolist()]
        self.drawn += near
        for weights in near:
            self.figures(weights)

    def search(self, start: Sequence[float], tail: float) -> None:
        """Try weights around the start, further and further where it helps."""
        simplex = np.array([start, *(np.array(start) + np.diag(STEPS))])
        minimize(
            lambda weights: -self.value(weights, tail),
            start,
            method="Nelder-Mead",
            bounds=BOUNDS,
            options={"initial_simplex": simplex, "maxfev": TRIES, "xatol": NEAR, "fatol": NEAR},
        )

    def best(self, tail: float) -> Fusion:
        """The middle of those drawn that are nearly best; or the best itself, where the middle is not as good.

        Where many are as good, the best weights are so on these documents by chance, and their middle less so. Of those
        that are as good, the half counts that finds more labels beyond the first TOP, which the goal does not see. Of
        equal ones the first is the best: a part alone is kept where nothing helps.
        """
        values = {tried: self.value(tried, tail) for tried in self.tried}
        best = max(values, key=lambda tried: values[tried])
        if best in alone().values():
            return Fusion.of(best)
        alike = [drawn for drawn in self.drawn if values[drawn] >= values[best] - SAME]
        alike = sorted(alike, key=lambda drawn: -self.recall(drawn))[: -(-len(alike) // 2)]
        middle = scaled(np.mean(alike or [best], axis=0).tolist())
        chosen = middle if self.value(middle, tail) >= values[best] - SAME else scaled(best)
        return Fusion.of(chosen)


class _Quick:
    """N@5 and PSN@5 of rankings that are places in a table of labels: no label is looked up twice.

    labels  (Q, width) label of each place, -1 for none
    """

    def __init__(self, labels: np.ndarray, truth: Truth):
        right = truth.hits(labels)
        per_doc = np.diff(truth.positives.indptr)
        reachable = np.concatenate(([0.0], np.cumsum(DISCOUNTS)))[np.minimum(per_doc, TOP)]
        self.gain = right / np.maximum(reachable, 1e-12)[:, None]
        self.weighted = self.gain * np.where(labels >= 0, truth.weights[labels], 0.0)
        best = truth.best
        first = best.places < TOP
        of_best = best.weights[first] * DISCOUNTS[best.places[first]] / reachable[best.docs[first]]
        self.most = {"N@5": max(1, len(labels)), "PSN@5": max(float(of_best.sum()), 1e-12)}

    def recall(self, places: np.ndarray) -> float:
        """places  (Q, n) columns of the table"""
        return float((np.take_along_axis(self.gain, places, axis=1) > 0).sum())

    def __call__(self, places: np.ndarray) -> dict[str, float]:
        """places  (Q, 5) columns of the table, best first"""
        gains = {"N@5": self.gain, "PSN@5": self.weighted}
        sums = {name: (np.take_along_axis(gain, places, axis=1) @ DISCOUNTS).sum() for name, gain in gains.items()}
        return {name: 100 * float(total) / self.most[name] for name, total in sums.items()}


DISCOUNTS = 1 / np.log2(np.arange(2, TOP + 2))


def among_first(shortlist: Shortlist, k: int) -> np.ndarray:
    """(M,) bool: is the pair among the first k of its document by any of the parts that rank by themselves?"""
    kept = np.zeros(len(shortlist.rows), dtype=bool)
    first = np.searchsorted(shortlist.rows, np.arange(shortlist.count))
    for part in range(len(ALONE)):
        order = np.lexsort((-shortlist.parts[:, part], shortlist.rows))
        kept[order[np.arange(len(order)) - first[shortlist.rows] < k]] = True
    return kept


def alone() -> dict[str, tuple[float, ...]]:
    """part -> the weights by which it ranks alone."""
    return {name: tuple(float(weight == name) for weight in WEIGHTS) for name in ALONE}


def scaled(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights that rank alike, of which the largest of the parts that rank by themselves is 1."""
    most = max(weights[: len(ALONE)])
    parts = len(PARTS)  # the overlap has no scale
    return (*(weight / most for weight in weights[:parts]), *weights[parts:]) if most else tuple(weights)


def fit_weights(weighing: Weighing, tail: float) -> Fusion:
    """The weights that are best for this `tail`."""
    weighing.draw()
    best = sorted(weighing.tried, key=lambda tried: -weighing.value(tried, tail))
    for start in best[:FROM]:
        weighing.search(start, tail)
    weighing.draw_around(max(weighing.tried, key=lambda tried: weighing.value(tried, tail)))
    return weighing.best(tail)


def tail_curve(weighing: Weighing, fitted: Fusion, truth: Truth) -> list[dict[str, float]]:
    """What each value of `tail` would give on the validation documents: a row per value, with its weights."""
    for tail in (min(CURVE), max(CURVE)):
        weighing.search([*fitted.weights().values()], tail)
    rows = []
    for tail in CURVE:
        weights = weighing.best(tail).weights()
        rows.append({"tail": tail, **shown(weighing, [*weights.values()], truth), **weights})
    return rows


def shown(weighing: Weighing, weights: Sequence[float], truth: Truth) -> dict[str, float]:
    """The figures at 1, 3 and 5 of the ranking by these weights."""
    return Judged(weighing.ranking(weights), truth).figures(recall_ks=())


class _Padded:
    """A shortlist laid out as a matrix, so that each of many weightings is ranked by one partial sort."""

    def __init__(self, shortlist: Shortlist):
        first = np.searchsorted(shortlist.rows, np.arange(shortlist.count))
        self.place = shortlist.rows, np.arange(len(shortlist.rows)) - first[shortlist.rows]
        width = max(5, int(self.place[1].max(initial=-1)) + 1)
        self.width = width
        self.labels = np.full((shortlist.count, width), -1, dtype=np.int64)
        self.labels[self.place] = shortlist.labels

    def top(self, scores: np.ndarray, k: int) -> np.ndarray:
        """(Q, k) labels of the highest scores (M,), best first, ties by label."""
        return np.take_along_axis(self.labels, self.best(scores, k), axis=1)

    def best(self, scores: np.ndarray, k: int) -> np.ndarray:
        """(Q, k) the columns where these labels stand."""
        lowest = np.full(self.labels.shape, np.inf)
        lowest[self.place] = -scores
        bound = np.partition(lowest, k - 1, axis=1)[:, k - 1, None]
        better, tied = lowest < bound, lowest == bound  # labels ascend in a row: of the tied ones the first are kept
        kept = better | (tied & (np.cumsum(tied, axis=1) <= k - better.sum(axis=1, keepdims=True)))
        columns = np.nonzero(kept)[1].reshape(-1, k)
        order = np.argsort(np.take_along_axis(lowest, columns, axis=1), axis=1, kind="stable")
        return np.take_along_axis(columns, order, axis=1)
