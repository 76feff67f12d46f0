"""Test documents whose first label is wrong, and why: each reason is computed for the very pair of labels.

No stage keeps rankings of single documents, so the documents are ranked here once more, by the model that `score`
measured; at most RANKED of them.
"""

import re
from dataclasses import dataclass

import numpy as np

from longtail.explain import Asked, ask, explain
from longtail.report.facts import Run
from longtail.serving import System, load_system
from xcutils.core import artifacts
from xcutils.core.ragged import Ragged, from_rows, to_strings

RANKED = 2000  # test documents that are ranked, at most
DEEP = 100  # labels ranked of each, as for the metrics
FIRST = 5  # labels that a reader would look at
SURE, DRAWN = 25, 25  # mistakes shown: those of the highest probability, and others drawn at random
FEW = 5  # training documents of a label that are few
COMPARED = 1000  # labels drawn to say how near two labels are
NEAR = 0.99  # the share of them that is less near than the other label
MOSTLY = 0.5  # the share of the documents with one label that have the other too
CLOSE = 0.05  # a smaller difference of two probabilities is close
READ = 4096  # training documents whose words are read at once

# reason -> what the summary says of it
REASONS = {
    "unknown": "the text has a word that no training document has",
    "few": f"the right label has {FEW} training documents or fewer",
    "late": f"the right label is found, but below the first {FIRST}",
    "lost": f"the right label is not among the first {DEEP}",
    "close": f"the right label is at most {100 * CLOSE:g} points of probability behind",
    "named": "the text has every word of the label given",
    "similar": "the label given is very like the right one",
    "together": "training documents with the right label mostly have the one given, too",
    "neighbours": "none of the nearest training documents has the right label",
}


@dataclass(frozen=True)
class Mistake:
    """A test document whose first label is wrong, and its right label that came nearest.

    given, right  {id, text, probability}
    reasons       key of REASONS -> the sentence for this document
    decided       how far the label given is ahead, and by which part of the score most
    words         that speak for the label given
    """

    id: str
    text: str
    given: dict
    right: dict
    reasons: dict[str, str]
    decided: str
    words: list[str]


@dataclass(frozen=True)
class Mistakes:
    """What was looked at, and the mistakes that are shown.

    ranked  test documents with a right label that were ranked;  of  all of them
    wrong   those of the ranked whose first label is wrong
    """

    ranked: int
    of: int
    wrong: int
    shown: list[Mistake]


@dataclass(frozen=True)
class Doc:
    """A test document: its labels by the model, best first, -1 where there are fewer, and the right ones."""

    id: str
    text: str
    ranked: np.ndarray
    positives: np.ndarray


def find_mistakes(run: Run) -> Mistakes:
    """The surest mistakes on the test documents, and as many that are drawn at random."""
    system = load_system(run.data, run.pipeline)
    test = artifacts.check(run.data / "prepare" / "test")
    positives, ids, texts = (artifacts.load_ragged(test, name) for name in ("positives", "ids", "texts"))
    labelled = np.flatnonzero(positives.lengths > 0)
    rows = np.sort(np.random.default_rng(0).permutation(labelled)[:RANKED])
    queries = system.model.embed(artifacts.load_ragged(test, "tokens").take(rows))
    found, scores = system.model.rank(queries, DEEP, _excluded(artifacts.load_array(test, "filter"), rows))
    wrong = np.flatnonzero([first not in positives[row] for first, row in zip(found[:, 0], rows)])
    wrong = wrong[found[wrong, 0] >= 0]
    docs = [
        Doc(_one(ids, rows[place]), _one(texts, rows[place]), found[place], positives[rows[place]])
        for place in _chosen(wrong, scores[:, 0])
    ]
    known = _in_training(run, set().union(*(words(doc.text) for doc in docs)))
    sample = np.random.default_rng(0).permutation(system.model.n_labels)[:COMPARED]
    shown = [_mistake(system, doc, known, sample) for doc in docs]
    return Mistakes(len(rows), len(labelled), len(wrong), shown)


def _one(strings: Ragged, row: int) -> str:
    return to_strings(strings, [row])[0]


def _excluded(pairs: np.ndarray, rows: np.ndarray) -> Ragged:
    """The labels that may not be predicted of each document."""
    by_row: dict[int, list[int]] = {}
    for row, label in pairs.tolist():
        by_row.setdefault(row, []).append(label)
    return from_rows([sorted(by_row.get(row, [])) for row in rows.tolist()], np.int64)


def _chosen(wrong: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The surest mistakes first, then others drawn at random but always the same."""
    order = wrong[np.argsort(-scores[wrong], kind="stable")]
    others = order[SURE:]
    drawn = np.sort(np.random.default_rng(1).permutation(len(others))[:DRAWN])
    return np.concatenate([order[:SURE], others[drawn]])


def words(text: str) -> set[str]:
    """The words of a text, in small letters."""
    return set(re.findall(r"\w+", text.casefold()))


def _in_training(run: Run, wanted: set[str]) -> set[str]:
    """Those of the words that some training document has."""
    train = artifacts.load_ragged(run.data / "prepare" / "train", "texts")
    found: set[str] = set()
    for start in range(0, len(train), READ):
        if found == wanted:
            break
        some = to_strings(train, range(start, min(start + READ, len(train))))
        found |= wanted & words("\n".join(some))
    return found


def _mistake(system: System, doc: Doc, known: set[str], sample: np.ndarray) -> Mistake:
    """The mistake of a document.

    known   words of training documents;  sample  labels to compare with
    """
    given = int(doc.ranked[0])
    asked = ask(system, [doc.text], np.array([given, *doc.positives], dtype=np.int64))
    right = 1 + int(asked.scores[0, 1:].argmax())
    pair = (given, int(doc.positives[right - 1]))
    ids, texts = (to_strings(strings, pair) for strings in (system.label_ids, system.label_texts))
    (why,) = explain(system, doc.text, ids[:1])
    named = [
        {"id": id, "text": text, "probability": float(asked.probabilities[0, column])}
        for id, text, column in zip(ids, texts, (0, right))
    ]
    reasons = {
        "unknown": unknown(doc, known),
        "few": _few(system, pair[1]),
        **_place(doc, pair[1]),
        "close": _close(asked, right),
        "named": _named(doc, texts[0]),
        "similar": _similar(system, pair, sample),
        "together": _together(system, pair),
        "neighbours": _neighbours(system, asked, pair),
    }
    ahead = {name: float(values[0, 0] - values[0, right]) for name, values in asked.parts.items()}
    part = max(ahead, key=lambda name: ahead[name])
    return Mistake(
        doc.id,
        doc.text,
        given=named[0],
        right=named[1],
        reasons={name: sentence for name, sentence in reasons.items() if sentence},
        decided=f"ahead by {asked.scores[0, 0] - asked.scores[0, right]:.2f}, most by its {part} ({ahead[part]:+.2f})",
        words=why.named,
    )


def unknown(doc: Doc, known: set[str]) -> str:
    strange = sorted(words(doc.text) - known)
    return f"in no training document: {', '.join(strange)}" if strange else ""


def _few(system: System, right: int) -> str:
    count = int(system.frequency[right])
    return f"the right label has {count} training document{'s' * (count != 1)}" if count <= FEW else ""


def _place(doc: Doc, right: int) -> dict[str, str]:
    places = np.flatnonzero(doc.ranked == right)
    if not len(places):
        return {"lost": f"the right label is not among the first {DEEP}"}
    return {"late": f"the right label is at place {places[0] + 1}" if places[0] >= FIRST else ""}


def _close(asked: Asked, right: int) -> str:
    behind = float(asked.probabilities[0, 0] - asked.probabilities[0, right])
    return f"the right label is only {100 * max(0.0, behind):.1f} points behind" if behind <= CLOSE else ""


def _named(doc: Doc, given: str) -> str:
    wanted = words(given)
    return "the text has every word of the label given" if wanted and wanted <= words(doc.text) else ""


def _similar(system: System, pair: tuple[int, int], sample: np.ndarray) -> str:
    """By the vectors that labels are found by, without their frequency."""
    model = system.model
    vectors = model.labels.take(np.array([*pair, *sample]))[:, : model.settings.docs["dim"]].astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    near = vectors @ vectors[1] / np.maximum(lengths * lengths[1], 1e-12)
    less, count = int((near[2:] < near[0]).sum()), len(sample)
    if less < NEAR * count:
        return ""
    return f"the label given is nearer to the right one than {less:,} of {count:,} labels are (cosine {near[0]:.2f})"


def _owners(system: System, label: int) -> np.ndarray:
    """The training documents that have the label."""
    positives = system.model.positives
    return np.searchsorted(positives.offsets, np.flatnonzero(positives.values == label), side="right") - 1


def _together(system: System, pair: tuple[int, int]) -> str:
    given, right = (_owners(system, label) for label in pair)
    both = len(np.intersect1d(given, right))
    if not len(right) or both < MOSTLY * len(right):
        return ""
    return f"{both} of the {len(right)} training documents with the right label have the one given, too"


def _neighbours(system: System, asked: Asked, pair: tuple[int, int]) -> str:
    near = asked.near[0][asked.near[0] >= 0]
    if not len(near) or not asked.known[0]:
        return ""
    given, right = (int(np.isin(near, _owners(system, label)).sum()) for label in pair)
    if right:
        return ""
    return f"of the {len(near)} nearest training documents {given} have the label given and none the right one"
