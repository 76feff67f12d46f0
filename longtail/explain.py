"""Why a label: the words of a text that weigh, the parts of its score, the nearest training documents that have it.

Nothing is estimated. A word weighs what the label's score falls by when the model is asked about the text without it,
and words are named together only if the score falls when they are taken away together.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from longtail.serving import System
from xcutils.core.ragged import Ragged, to_strings
from xcutils.rank.served import Model, search

if TYPE_CHECKING:
    from longtail import places

NAMED = 5  # words that are named as speaking for a label, at most
RELATED = 3  # training documents shown of a label
OWNED = 10_000  # training documents of a label that are looked through, at most
LEAST = 1e-6  # a smaller difference of two scores is rounding
JOINTS = "-'\u2019_"  # what stands inside a word: X-linked, Crohn's

Place = tuple[int, int]  # of the first character and of the one after the last
Documents = Callable[[Sequence[int]], list[tuple[str, str]]]  # rows of training documents -> (id, text) of each


@dataclass(frozen=True)
class Word:
    """A word of the text, all its occurrences together.

    places  where it stands, in characters
    known   whether the tokenizer knows a piece of it
    weight  how much the label's score falls without it; below zero the word speaks against the label
    """

    text: str
    places: list[Place]
    known: bool
    weight: float


@dataclass(frozen=True)
class Related:
    """A document of the memory that has the label.

    id, text    None where the model was handed on without its training documents; an example of an added label has
                a text and no id
    similarity  cosine of its embedding and the text's
    share       of the memory, from 0 to 1; 0: it is not among the documents that the memory looks at
    """

    id: str | None
    text: str | None
    similarity: float
    share: float


@dataclass(frozen=True)
class Explanation:
    """Why a text gets a label.

    known        false when no word of the text is known: the probability is then the label's share of the documents
    probability  as in a prediction;  score  the fused score behind it, the sum of `parts`
    words        every word of the text, in its order
    named        the words that speak for the label, the weightiest first; without them all the score is `without`
    documents    the nearest training documents that have the label
    """

    id: str
    text: str
    known: bool
    probability: float
    score: float
    parts: dict[str, float]
    words: list[Word]
    named: list[str]
    without: float
    documents: list[Related]


@dataclass(frozen=True)
class Asked:
    """What the model says of some labels (m,) for each of some texts (Q,).

    parts          part -> (Q, m);  scores, probabilities  (Q, m)
    near, shares   (Q, n) the training documents that the memory looks at, -1 where there are fewer, and their shares
    """

    known: np.ndarray
    parts: dict[str, np.ndarray]
    scores: np.ndarray
    probabilities: np.ndarray
    queries: np.ndarray
    near: np.ndarray
    shares: np.ndarray


def explain(
    system: System,
    text: str,
    labels: Sequence[str] | None = None,
    k: int = 5,
    documents: Documents | None = None,
) -> list[Explanation]:
    """An explanation for each of the labels with these ids, or for the k best of the text.

    documents  reads training documents, where they are kept
    """
    if labels is None:
        best = system.rank([text], k)[1][0]
        chosen = best[best >= 0]
    else:
        chosen = np.array([system.place(id) for id in labels], dtype=np.int64)
    if not len(chosen):
        return []
    words = words_of(system, text)
    asked = ask(system, [text, *(without(text, word.places) for word in words)], chosen)
    falls = asked.scores[0] - asked.scores[1:]
    supports = (falls > LEAST) & (asked.probabilities[1:] <= asked.probabilities[0])
    named = _named(system, text, words, chosen, asked, np.where(supports, falls, 0))
    return [
        Explanation(
            id=system.named(label)[0],
            text=system.named(label)[1],
            known=bool(asked.known[0]),
            probability=float(asked.probabilities[0, place]),
            score=float(asked.scores[0, place]),
            parts={name: float(values[0, place]) for name, values in asked.parts.items()},
            words=[Word(w.text, w.places, w.known, float(fall)) for w, fall in zip(words, falls[:, place])],
            named=[words[word].text for word in named[place][0]],
            without=named[place][1],
            documents=related(system, asked, label, documents),
        )
        for place, label in enumerate(chosen.tolist())
    ]


def _named(
    system: System, text: str, words: list[Word], labels: np.ndarray, asked: Asked, falls: np.ndarray
) -> list[tuple[list[int], float]]:
    """(words that speak for it, score without them) of each label (m,).

    The weightiest words, as long as each lowers the score further when it is taken away with those before it.

    falls  (words, m) how much the score falls without each word; 0 where it does not speak for the label
    """
    order = np.argsort(-falls, axis=0, kind="stable")[:NAMED].T
    candidates = [[int(w) for w in row if falls[w, place] > 0] for place, row in enumerate(order)]
    groups = sorted({tuple(row[:count]) for row in candidates for count in range(2, len(row) + 1)})
    together: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {
        (w,): (asked.scores[w + 1], asked.probabilities[w + 1]) for w in range(len(words))
    }
    if groups:
        texts = [without(text, [p for w in group for p in words[w].places]) for group in groups]
        again = ask(system, texts, labels)
        together |= dict(zip(groups, zip(again.scores, again.probabilities)))
    found = []
    for place, row in enumerate(candidates):
        count, least = 0, float(asked.scores[0, place])
        for more in range(1, len(row) + 1):
            scores, probabilities = together[tuple(row[:more])]
            if scores[place] > least - LEAST or probabilities[place] > asked.probabilities[0, place]:
                break
            count, least = more, float(scores[place])
        found.append((row[:count], least))
    return found


def ask(system: System, texts: list[str], labels: np.ndarray) -> Asked:
    """What the model says of the labels for each text, found by its searches or not."""
    model = system.model
    tokens = system.tokens(texts)
    known = system.known(tokens)
    queries = np.where(known[:, None], model.embed(tokens), 0).astype(np.float32)
    near, shares, similarity = neighbours(model, queries)
    shares[~known] = 0
    parts = linear_parts(model, queries, labels)
    rest = np.sum(list(parts.values()), axis=0)
    parts["memory"] = model.fusion.remembered(rest, remembered(model.positives, near, shares, labels))
    scores = rest + parts["memory"]
    frequent = system.frequency[labels] / max(1, len(model.positives))  # what a text of unknown words is answered with
    probabilities = np.where(known[:, None], model.fusion.probabilities(scores), frequent)
    return Asked(known, parts, scores, probabilities, queries, near, shares)


def linear_parts(model: Model, queries: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """part -> (Q, m) float64: the parts of the score but for the memory.

    A model that holds one vector per label, its classifier and its text together, cannot tell how the text matches
    the one and the other.
    """
    seen = model.labels.seen(model.settings.as_asked(queries)).astype(np.float64)
    vectors = model.labels.take(labels).astype(np.float64)
    dim = queries.shape[1]
    views = model.settings.views
    names = ("label text", "classifier") if len(views) == 2 else ("match",)
    places = {name: slice(*view) for name, view in zip(names, views if len(views) == 2 else [[0, dim]])}
    places["frequency"] = slice(dim, None)
    return {name: seen[:, place] @ vectors[:, place].T for name, place in places.items()}


def neighbours(model: Model, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(documents (Q, n), -1 where there are fewer, their shares, their similarities): what the memory looks at."""
    if not model.fusion.memory or not model.settings.neighbours or not len(model.docs):
        none = np.zeros((len(queries), 0))
        return none.astype(np.int64), none, none
    near, similarity = search(model.docs, queries, model.settings.neighbours, len(model.positives))
    shares = np.exp((similarity.astype(np.float64) - similarity[:, :1]) / model.settings.tau)
    return near, shares / shares.sum(axis=1, keepdims=True), similarity


def remembered(positives: Ragged, near: np.ndarray, shares: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(Q, m) float64: the sum of the shares of those near documents that have the label."""
    owned, lengths = positives.gather(near.ravel())
    sums = np.zeros((len(near), len(labels)))
    rows = np.repeat(np.repeat(np.arange(len(near)), near.shape[1]), lengths)
    weights = np.repeat(shares.ravel(), lengths)
    for column, label in enumerate(labels):
        is_it = owned == label
        sums[:, column] = np.bincount(rows[is_it], weights[is_it], minlength=len(near))
    return sums


def related(system: System, asked: Asked, label: int, documents: Documents | None) -> list[Related]:
    """The documents nearest to the first text that have the label; none where the text is not known."""
    if not asked.known[0]:
        return []
    model = system.model
    rows = np.searchsorted(model.positives.offsets, np.flatnonzero(model.positives.values == label), side="right") - 1
    shares = dict(zip(asked.near[0].tolist(), asked.shares[0].tolist()))
    if len(rows) > OWNED:  # those of the memory are the nearest; of the others there are enough
        rows = np.unique(np.concatenate([rows[:OWNED], rows[np.isin(rows, asked.near[0])]]))
    similarity = model.docs.take(rows) @ model.docs.seen(asked.queries[:1])[0]
    best = np.argsort(-similarity, kind="stable")[:RELATED]
    return [
        Related(*_document(system, row, documents), similarity=float(near), share=shares.get(row, 0.0))
        for row, near in zip(rows[best].tolist(), similarity[best])
    ]


def _document(system: System, row: int, documents: Documents | None) -> tuple[str | None, str | None]:
    """(id, text) of a document of the memory: one of the training, or an example that came with an added label."""
    example = row - (len(system.model.positives) - len(system.examples))
    if example >= 0:
        return None, system.examples[example]
    return documents([row])[0] if documents else (None, None)


def words_of(system: System, text: str) -> list[Word]:
    """The words of the text that the model reads, those that are the same put together, without a weight.

    They are the tokenizer's, so that a language without spaces has words too; what hyphens and apostrophes join is
    one word, and punctuation by itself is none.
    """
    encoding = system.tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets  # each is made anew whenever it is asked for
    pieces: dict[int | None, list[int]] = {}
    for token, place in enumerate(encoding.word_ids):
        pieces.setdefault(place, []).append(token)
    found: list[tuple[int, int, bool, bool]] = []  # start, end, known, read
    for tokens in pieces.values():
        start, end = (f(offsets[token][side] for token in tokens) for side, f in enumerate((min, max)))
        known = any(ids[token] != system.unknown for token in tokens)
        read = tokens[0] < system.model.settings.max_tokens - 2
        found += [(*place, known, read) for place in _pieces(text, start, end)]
    words: dict[str, Word] = {}
    is_read: set[str] = set()
    for start, end, known, read in _joined(text, sorted(set(found))):
        key = text[start:end].casefold()
        words.setdefault(key, Word(text[start:end], [], known, 0.0)).places.append((start, end))
        is_read |= {key} if read else set()
    return [word for key, word in words.items() if key in is_read]


def _pieces(text: str, start: int, end: int) -> list[Place]:
    """The parts of the text between start and end that have no space, marks that belong to them included."""
    while end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    pieces, at = [], start
    for part in text[start:end].split():
        at = text.index(part, at)
        if any(unicodedata.category(character)[0] not in "PZC" for character in part):
            pieces.append((at, at + len(part)))
        at += len(part)
    return pieces


def _joined(text: str, pieces: list[tuple[int, int, bool, bool]]) -> list[tuple[int, int, bool, bool]]:
    """The pieces, those put together between which there is nothing but a hyphen or an apostrophe."""
    words: list[tuple[int, int, bool, bool]] = []
    for piece in pieces:
        last = words[-1] if words else None
        between = text[last[1] : piece[0]] if last else ""
        if last and (piece[0] < last[1] or (between and not between.strip(JOINTS))):
            words[-1] = (last[0], max(last[1], piece[1]), last[2] or piece[2], last[3] or piece[3])
        else:
            words.append(piece)
    return words


def without(text: str, places: Sequence[Place]) -> str:
    """The text without what stands at these places, and without the space that would then be double."""
    kept, last = [], 0
    for start, end in sorted(places):
        kept.append(text[last:start])
        after_space = not start or text[start - 1].isspace()
        last = end + 1 if after_space and text[end : end + 1].isspace() else end
    return "".join([*kept, text[last:]])


def reader(documents: "places.Documents") -> Documents:
    """Reads the documents that a model was handed on with."""
    return lambda rows: list(zip(to_strings(documents.ids, rows), to_strings(documents.texts, rows)))
