"""The features of a bag of embeddings: tokens, and n-grams hashed into buckets. Imports no torch."""

import numpy as np

from xcutils.core.ragged import Ragged, starts

ODD, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # multiplicative hashing of n-grams


def bag_features(tokens: Ragged, vocabulary: int, ngrams: int, rows: int) -> Ragged:
    """The table rows (int32) of each text: its tokens, then its n-grams hashed into the rows behind the vocabulary."""
    values = np.asarray(tokens.values, dtype=np.int64)
    if len(tokens) == 1:
        return _features_of_one(values, vocabulary, ngrams, rows)
    owner = tokens.row_ids()  # the text of each value
    parts, owners = [values.astype(np.int32)], [owner]
    key = values.astype(np.uint64)
    for n in range(2, ngrams + 1):
        if len(values) < n:
            break
        key, hashed = _longer(key, values[n - 1 :], vocabulary, rows)
        inside = owner[: len(key)] == owner[n - 1 :]  # not across two texts
        parts.append(hashed[inside])
        owners.append(owner[: len(key)][inside])
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Ragged(np.concatenate(parts)[order], starts(np.bincount(owner, minlength=len(tokens))))


def _features_of_one(values: np.ndarray, vocabulary: int, ngrams: int, rows: int) -> Ragged:
    """`bag_features` of one text."""
    parts, key = [values.astype(np.int32)], values.astype(np.uint64)
    for n in range(2, min(ngrams, len(values)) + 1):
        key, hashed = _longer(key, values[n - 1 :], vocabulary, rows)
        parts.append(hashed)
    features = np.concatenate(parts)
    return Ragged(features, np.array([0, len(features)]))


def _longer(key: np.ndarray, last: np.ndarray, vocabulary: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(keys, table rows (int32)) of n-grams, from the keys of those that are a token shorter and their last tokens."""
    key = _mix(key[:-1]) + last.astype(np.uint64)
    return key, (vocabulary + (_mix(key) >> SHIFT) % np.uint64(rows - vocabulary)).astype(np.int32)


def _mix(key: np.ndarray) -> np.ndarray:
    key = (key + np.uint64(1)) * ODD
    return key ^ (key >> SHIFT)
