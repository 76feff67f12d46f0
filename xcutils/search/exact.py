"""Nearest neighbours by cosine, exactly: every query against every vector, without all scores in memory at once.

Answers are always (Q, k): padded with id -1 and score -inf where there are fewer than k vectors.
"""

import warnings

import numpy as np
import torch

SCORES = 1 << 26  # scores held at once


def exact(
    queries: np.ndarray,
    vectors: np.ndarray,
    k: int,
    *,
    chunk: int = SCORES,
    device: torch.device | str = "cpu",
) -> tuple[np.ndarray, np.ndarray]:
    """(ids (Q, k) int64, scores (Q, k) float32) of the k nearest rows, best first; never Q x V in memory.

    chunk   scores held at once
    device  where the products are made
    """
    count = min(k, len(vectors))
    ids = np.full((len(queries), k), -1, dtype=np.int64)
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    if count == 0 or len(queries) == 0:
        return ids, scores
    table = _tensor(vectors).to(device)
    step = min(len(queries), max(1, chunk // len(vectors)))
    # Allocated once for all steps: see runtime._keep_freed_memory.
    held = torch.empty((step, len(vectors)), dtype=torch.float32, device=device)
    for start in range(0, len(queries), step):
        batch = _tensor(queries[start : start + step]).to(device)
        best, places = torch.mm(batch, table.T, out=held[: len(batch)]).topk(count, dim=1)
        ids[start : start + step, :count] = places.cpu().numpy()
        scores[start : start + step, :count] = best.cpu().numpy()
    return ids, scores


def _tensor(vectors: np.ndarray) -> torch.Tensor:
    """The vectors as a tensor over the same memory, for reading: no copy of a memory map."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that a read-only array must not be written to
        return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
