"""Rows of Parquet files, batch by batch. pyarrow is imported when the first file is read."""

from collections.abc import Callable, Iterator
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.lines import FREE_BYTES, MOST_BYTES, MOST_RATIO
from xcutils.data.skips import Skips
from xcutils.data.values import BadRow

MAGIC = b"PAR1"
BATCH_BYTES = 1 << 25  # what a batch of average rows takes
MOST_BATCH = 8192  # rows
FREE_ROWS = 10_000_000  # a file may have so many rows however small it is


def parquet_rows(path: Path, choose: Callable, report: Skips) -> Iterator[tuple[int, list]]:
    """(row from 1, values of the chosen columns) of each row; rows that are not UTF-8 go to the report."""
    rows = 0
    for columns in _batches(path, choose):
        for values in zip(*columns):
            rows += 1
            bad = next((value for value in values if isinstance(value, BadRow)), None)
            if bad:
                bad.note(report, path, rows)
            else:
                yield rows, list(values)
    report.count(path, rows)


def _batches(path: Path, choose: Callable) -> Iterator[list[list]]:
    """The chosen columns of each batch as lists of Python values; a column of None where none was chosen."""
    _check_frame(path)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            facts = file.metadata
            size = _check_size(path, facts)
            chosen = choose(file.schema_arrow.names)
            rows = max(1, min(MOST_BATCH, BATCH_BYTES * max(facts.num_rows, 1) // max(size, 1)))
            left = facts.num_rows
            wanted = [name for name in chosen if name is not None]
            for batch in file.iter_batches(rows, columns=wanted, use_threads=False):
                left -= len(batch)
                columns = {name: _values(batch.column(name)) for name in set(wanted)}
                yield [[None] * len(batch) if name is None else columns[name] for name in chosen]
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # whatever pyarrow makes of damaged bytes
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is damaged or of a kind pyarrow cannot read ({reason}): write it again.") from None
    if left:
        raise UserError(f"{path}: the footer counts {facts.num_rows:,} rows, {facts.num_rows - left:,} are there.")


def _check_frame(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            file.seek(0, 2)
            file.seek(-min(4, file.tell()), 2)
            end = file.read(4)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check that it is there and may be read.") from None
    if start != MAGIC:
        raise UserError(f"{path} is no Parquet file (it does not start with PAR1): check its name, or write it again.")
    if end != MAGIC:
        raise UserError(f"{path} is cut off (it does not end with PAR1): fetch it again.")


def _check_size(path: Path, facts) -> int:
    """The bytes that the file's columns take unpacked, after checking that they are no more than a dataset takes."""
    packed = path.stat().st_size
    unpacked = sum(max(facts.row_group(i).total_byte_size, 0) for i in range(facts.num_row_groups))
    too_large = unpacked > MOST_BYTES or unpacked > max(FREE_BYTES, MOST_RATIO * packed)
    if too_large or not 0 <= facts.num_rows <= max(FREE_ROWS, MOST_RATIO * packed):
        raise UserError(
            f"{path} says it holds {facts.num_rows:,} rows of {unpacked >> 20:,} MB in {packed:,} bytes, which no "
            "dataset does: write it again."
        )
    return unpacked


def _values(column) -> list:
    """The column's Python values, a BadRow where one is not UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(item) for item in column]


def _value(item):
    try:
        return item.as_py()
    except UnicodeDecodeError:
        return BadRow("rows_not_utf8", "the text is not UTF-8")
