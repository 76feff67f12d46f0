"""Rows of different length in two flat arrays: tokens, positives, texts and ids without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse


@dataclass(frozen=True)
class Ragged:
    """Row i is values[offsets[i]:offsets[i + 1]] (the layout of a CSR matrix without data).

    values   (sum of lengths,) any  the rows, one after another
    offsets  (rows + 1,) int64      where each row starts
    """

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "Ragged":
        """The named rows, in the order given."""
        rows = np.asarray(rows, dtype=np.int64)
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = starts(lengths)
        flat = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Ragged(np.asarray(self.values[flat]), offsets)

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(values of the named rows one after another, their lengths); a row of -1 has none."""
        first = self.offsets[rows]
        lengths = np.where(rows < 0, 0, self.offsets[rows + 1] - first)
        ends = np.cumsum(lengths)
        flat = np.repeat(first - ends + lengths, lengths)
        flat += np.arange(len(flat))
        return self.values[flat], lengths

    def cut(self, most: int) -> "Ragged":
        """The first `most` values of each row."""
        place = np.arange(len(self.values)) - np.repeat(self.offsets[:-1], self.lengths)
        return Ragged(self.values[place < most], starts(np.minimum(self.lengths, most)))

    def row_ids(self) -> np.ndarray:
        """(values,) int64: the row of each value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def csr(self, columns: int) -> "sparse.csr_matrix":
        """The binary matrix (rows, columns) whose ones stand at the values."""
        from scipy import sparse  # slow to import: only where a matrix is wanted

        ones = np.ones(len(self.values), dtype=np.float32)
        return sparse.csr_matrix((ones, np.asarray(self.values), np.asarray(self.offsets)), (len(self), columns))


def starts(lengths: np.ndarray) -> np.ndarray:
    """(rows + 1,) int64 offsets of rows with these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def from_rows(rows: Sequence[Sequence], dtype) -> Ragged:
    """A Ragged with these rows."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    flat = (value for row in rows for value in row)
    return Ragged(np.fromiter(flat, dtype=dtype, count=int(lengths.sum())), starts(lengths))


def concatenate(*parts: Ragged) -> Ragged:
    """The rows of all parts, one part after another."""
    return Ragged(np.concatenate([p.values for p in parts]), starts(np.concatenate([p.lengths for p in parts])))


def from_strings(strings: Sequence[str]) -> Ragged:
    """The strings as rows of UTF-8 bytes, so that millions of them can be memory-mapped."""
    encoded = [s.encode("utf-8") for s in strings]
    lengths = np.fromiter((len(e) for e in encoded), dtype=np.int64, count=len(encoded))
    return Ragged(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts(lengths))


def to_strings(texts: Ragged, rows: Sequence[int] | None = None) -> list[str]:
    """The strings of the named rows (all by default)."""
    return [texts[row].tobytes().decode("utf-8") for row in (range(len(texts)) if rows is None else rows)]
