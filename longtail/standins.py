"""How labels that are added to a run are scored: fitted on the labels that its first fit knew least of.

The first fit, `choose/`, has not seen the validation documents. A label whose documents are all among them is to its
encoder what an added label will be: a text it has learnt nothing of. Where such labels are few, those of one document
join them, and so on, until there are enough right pairs. For labels with example documents those of one to five play
this part. Their pairs with the validation documents say how likely a label is right at each similarity.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from xcutils.core import artifacts, runtime
from xcutils.core.folds import CHOOSE, spread
from xcutils.core.ragged import Ragged
from xcutils.model.encoders import encode, load_encoder
from xcutils.rank.assembly import views_of
from xcutils.rank.fusion import memory_scores
from xcutils.rank.standin import BLENDS, StandIn, blend, fit_line
from xcutils.rank.weights import Fusion
from xcutils.search.searched import vectors_of
from xcutils.search.searcher import Searcher

DOCS = 2000  # validation documents that are looked at, at most
PAIRS = 400  # right pairs with labels of no example document, about
LABELS = 500  # labels with example documents, at most
EXAMPLES = 5  # documents that such a label has, at most


def fit_stand_in(data: Path, stages: list[Path], index: Path) -> StandIn | None:
    """The fit for a finished run; None where what its training wrote is not there any more.

    data    the prepared data's folder, data/prepare
    stages  the folders of the stages whose vectors are searched; the last one has the encoder
    index   the run's model
    """
    needed = [data / "train", data / "labels", *stages]
    if not all((folder / artifacts.MANIFEST).is_file() for folder in needed):
        return None
    artifacts.check_together(*needed)
    fusion = Fusion(**artifacts.load_json(index, "fusion.json"))
    settings = SimpleNamespace(**artifacts.load_json(index, "settings.json"))
    pairs = Held(data / "train", data / "labels", stages, settings)
    text, _ = fit_line(*pairs.of(pairs.unseen(), 0.0), fusion)
    labels = pairs.seldom()
    tried = [(*fit_line(*pairs.of(labels, share), fusion), share) for share in BLENDS]
    examples, _, share = max(tried, key=lambda found: found[1])
    return StandIn(text, examples, share)


class Held:
    """Validation documents and labels as the first fit sees them."""

    def __init__(self, train: Path, labels: Path, stages: list[Path], settings: SimpleNamespace):
        is_validation = artifacts.load_array(train, "is_validation")
        positives = artifacts.load_ragged(train, "positives")
        vectors = vectors_of(stages, CHOOSE)
        fitted, held = np.flatnonzero(~is_validation), spread(np.flatnonzero(is_validation), DOCS)
        self.n_labels = len(artifacts.load_array(labels, "frequency"))
        self.queries = np.asarray(vectors["docs"][held], dtype=np.float32)
        self.docs = np.asarray(vectors["docs"][fitted], dtype=np.float32)
        self.known: Ragged = positives.take(fitted)
        self.right = positives.take(held).csr(self.n_labels)
        self.frequency = np.bincount(self.known.values, minlength=self.n_labels)
        self.tokens = artifacts.load_ragged(labels, "tokens")
        self.encoder = load_encoder(stages[-1] / CHOOSE, runtime.device())
        self.asked = _viewed(self.queries, list(views_of(vectors).values()))
        self.neighbours, self.tau = settings.neighbours, settings.tau

    def unseen(self) -> np.ndarray:
        """(n,) the labels of the validation documents that the first fit knows least of."""
        counts = np.asarray(self.right.sum(axis=0)).ravel()
        found = np.flatnonzero(counts)
        order = found[np.argsort(self.frequency[found], kind="stable")]
        enough = int(np.searchsorted(np.cumsum(counts[order]), PAIRS)) + 1
        none = int((self.frequency[order] == 0).sum())
        return order[: max(enough, min(none, LABELS))] if enough > none else order[: min(none, max(enough, LABELS))]

    def seldom(self) -> np.ndarray:
        """(n,) some labels of the validation documents that have few other documents."""
        counts = np.asarray(self.right.sum(axis=0)).ravel()
        return spread(np.flatnonzero((counts > 0) & (self.frequency > 0) & (self.frequency <= EXAMPLES)), LABELS)

    def of(self, labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(similarity (M,), the memory's share (M,), is_right (M,)) of all pairs of the documents with the labels.

        share  of the documents' mean in a label's vector; 0: its text alone
        """
        texts = encode(self.encoder, self.tokens.take(labels))
        vectors = blend(texts, self.means(labels), share)
        remembered = np.zeros((len(self.asked), len(labels)))
        if self.neighbours and len(self.docs):
            near, similarity = Searcher(self.docs).search(self.queries, self.neighbours)
            memory = memory_scores(near, similarity, self.known.csr(self.n_labels), tau=self.tau)
            remembered = memory[:, labels].toarray()
        right = self.right[:, labels].toarray() > 0
        return (self.asked @ vectors.T).ravel(), remembered.ravel(), right.ravel()

    def means(self, labels: np.ndarray) -> np.ndarray:
        """(n, D) the mean of the documents that each label has."""
        owned = self.known.csr(self.n_labels)[:, labels]
        return np.asarray(owned.T @ self.docs) / np.maximum(self.frequency[labels], 1)[:, None]


def _viewed(queries: np.ndarray, views: list[slice]) -> np.ndarray:
    """The queries as they are compared with labels: each view at length one."""
    out = queries.copy()
    for view in views:
        lengths = np.linalg.norm(queries[:, view], axis=1, keepdims=True)
        out[:, view] = queries[:, view] / np.where(lengths > 0, lengths, 1)
    return out
