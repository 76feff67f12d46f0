"""The features of a bag of embeddings: tokens, and n-grams hashed into buckets. Imports no torch."""

import numpy as np

from xcutils.core.ragged import Ragged, starts

ODD, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # multiplicative hashing of n-grams


def bag_features(tokens: Ragged, vocabulary: int, ngrams: int, rows: int) -> Ragged:
    """The table rows (int32) of each text: its tokens, then its n-grams hashed into the rows behind the vocabulary."""
    values = np.asarray(tokens.values, dtype=np.int64)
    owner = tokens.row_ids()  # the text of each value
    parts, owners = [values.astype(np.int32)], [owner]
    key = values.astype(np.uint64)
    for n in range(2, ngrams + 1):
        if len(values) < n:
            break
        key = _mix(key[:-1]) + values[n - 1 :].astype(np.uint64)
        inside = owner[: len(key)] == owner[n - 1 :]  # not across two texts
        parts.append((vocabulary + (_mix(key) >> SHIFT) % np.uint64(rows - vocabulary)).astype(np.int32)[inside])
        owners.append(owner[: len(key)][inside])
    if len(tokens) == 1:
        return Ragged(np.concatenate(parts), np.array([0, sum(map(len, parts))]))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Ragged(np.concatenate(parts)[order], starts(np.bincount(owner, minlength=len(tokens))))


def _mix(key: np.ndarray) -> np.ndarray:
    key = (key + np.uint64(1)) * ODD
    return key ^ (key >> SHIFT)
