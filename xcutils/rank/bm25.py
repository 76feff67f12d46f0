"""Labels ranked by the words they share with a document: Okapi BM25, which learns nothing [Okapi].

The labels' texts are searched, a document's text is the query, and token ids are the words. No library: all of it is
one sparse product, with the ties and pads that the other rows of the metrics have. bm25s, which the comparison with
other tools uses, would be one more dependency of every run for this row alone.
"""

import numpy as np
import torch
from scipy import sparse

from xcutils.core.costs import FLOAT, Sizes
from xcutils.core.ragged import Ragged
from xcutils.rank.fusion import rank

SCORES = 1 << 24  # scores held at once
K1, B = 1.2, 0.75  # how soon repeated words stop counting, how much long texts count less: Lucene's defaults


def search(queries: Ragged, labels: Ragged, k: int, *, chunk: int = SCORES) -> tuple[np.ndarray, np.ndarray]:
    """(ids (Q, k) int64, scores (Q, k) float64) of the k best labels, best first, ties by label id.

    Only labels that share a token with the query are found: -1 and -inf where there are fewer than k.
    queries  Q rows  token ids
    labels   L rows  token ids
    chunk    scores held at once
    """
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf)
    weights = token_weights(labels, 1 + max(queries.values.max(initial=-1), labels.values.max(initial=-1)))
    step = max(1, chunk // max(1, len(labels)))
    for start in range(0, len(queries), step):
        some = slice(start, min(start + step, len(queries)))
        shared = queries.take(np.arange(some.start, some.stop)).csr(weights.shape[0]) @ weights
        ids[some], scores[some] = _best(shared, k)
    return ids, scores


def token_weights(labels: Ragged, n_tokens: int) -> sparse.csr_matrix:
    """(n_tokens, L) float32: what a token adds to a label's score each time it occurs in the query [Okapi].

    idf(t) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / mean length)), tf = how often t occurs in the label.
    Differs from: idf is ln(1 + (L - n + 0.5) / (n + 0.5)) with n labels that have t, as in Lucene. Without the 1 a
    token that more than half of the labels have would count against them.
    """
    ones = np.ones(len(labels.values), dtype=np.float32)
    counts = sparse.csr_matrix((ones, (labels.values, labels.row_ids())), (n_tokens, len(labels)))  # adds equal places
    n_having = np.diff(counts.indptr)
    idf = np.log1p((len(labels) - n_having + 0.5) / (n_having + 0.5))
    lengths = labels.lengths / max(1e-30, labels.lengths.mean()) if len(labels) else labels.lengths
    damping = K1 * (1 - B + B * lengths)
    counts.data *= np.repeat(idf, n_having) * (K1 + 1) / (counts.data + damping[counts.indices])
    return counts


def _best(scores: sparse.csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest entries of each row, as `search` gives them; all entries are above 0.

    A partial sort of the dense rows finds the k-th largest entry; entries that are not below it are sorted in full.
    """
    most = min(k, scores.shape[1])
    if most == 0:
        return np.full((scores.shape[0], k), -1), np.full((scores.shape[0], k), -np.inf)
    least = torch.from_numpy(scores.toarray()).topk(most, dim=1).values[:, -1].numpy()
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
    kept = scores.data >= least[rows]
    return rank(rows[kept], scores.indices[kept].astype(np.int64), scores.data[kept], scores.shape[0], k)


def bytes_of(s: Sizes, queries: int) -> float:
    """Bytes of a search: while tokens are weighted, or of dense scores and the quarter of them that is above 0."""
    scores = min(queries * s.labels, max(SCORES, s.labels))
    return max(45 * s.label_tokens, (FLOAT + FLOAT) * s.label_tokens + (FLOAT + 21 / 4) * scores)


def seconds_of(s: Sizes, queries: int) -> float:
    return 1e-8 * queries * s.labels + 1e-7 * s.label_tokens
