"""Rows of numbers that are compared by cosine."""

import numpy as np

from xcutils.core.errors import UserError


def finite(vectors: np.ndarray, first: int = 0) -> np.ndarray:
    """The rows in float32; rows that are not finite are refused. first  the number of the first row"""
    vectors = np.asarray(vectors, dtype=np.float32)
    if not np.isfinite(vectors).all():
        row = first + int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise UserError(f"vector {row} holds values that are not finite: the model that made it has diverged.")
    return vectors


def unit(vectors: np.ndarray) -> np.ndarray:
    """The rows at length one; zero rows stay zero, rows that are not finite are refused."""
    vectors = finite(vectors)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def mean_length(vectors: np.ndarray) -> float:
    """The mean length of the rows: what vectors whose length matters are divided by to be searched."""
    return max(float(np.linalg.norm(vectors, axis=1).mean()), 1e-12) if len(vectors) else 1.0
