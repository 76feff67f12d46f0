"""Records of CSV and TSV files: quoted cells may span several lines, and lines that are no record are passed over."""

import csv
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from xcutils.core.errors import UserError
from xcutils.data.lines import MOST_LINE, MOST_TEXT, Line, cut_off, lines
from xcutils.data.skips import Skips

TOO_LONG = f"longer than {MOST_LINE >> 20} MB"
DELIMITERS = {"csv": ",", "tsv": "\t"}
SWALLOWED = 3  # lines that a quote in a TSV file may take in before it is suspected to be a stray one
LOOKED_AT = 200  # lines that are looked at to tell a stray quote from a text of many lines


class _Feed:
    """The file's lines for csv.reader; those of the current record are kept, so that they can be read again."""

    def __init__(self, path: Path):
        self._lines = lines(path)
        self._back: deque[Line] = deque()
        self.ended = False
        self.start()

    def start(self) -> None:
        """The next line is the first of a record."""
        self.record: list[Line] = []
        self.unusable: Line | None = None  # the last such line of the record
        self._size = 0

    def __iter__(self) -> "_Feed":
        return self

    def take(self) -> Line | None:
        """The next line, None after the last."""
        line = self._back.popleft() if self._back else next(self._lines, None)
        if line is None:
            self.ended = True
        else:
            self.record.append(line)
        return line

    def __next__(self) -> str:
        line = self.take()
        if line is None:
            raise StopIteration
        if line.text is None:
            self.unusable = line
            return '"' * (line.quotes % 2) + line.end  # leaves a quote open if the line does
        self._size += len(line.text)
        if self._size > MOST_LINE:
            raise csv.Error(TOO_LONG)
        return line.text + line.end

    def give_back(self, rest: list[Line]) -> None:
        self._back.extendleft(reversed(rest))
        self.ended = False


def records(path: Path, form: str, report: Skips, header: bool) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of each record, the header too, that is as wide as the first; others go to the report.

    A file is refused if most of its records are not as wide as the first, or if it ends inside a record.
    """
    csv.field_size_limit(MOST_TEXT)  # for the whole process: there is no other way to set it
    delimiter = DELIMITERS[form]
    feed = _Feed(path)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    width = rows = odd = odd_line = odd_width = 0
    while True:
        feed.start()
        cells: list[str] | None
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            cells = _failed(path, feed, report, delimiter, width, str(error))
        else:
            if len(feed.record) > SWALLOWED and delimiter == "\t":
                cells = _plain(feed, delimiter, width) or cells
        first = feed.record[0].number
        unusable = feed.unusable if cells is not None else None
        if cells == [] and not unusable:
            continue
        rows += 1
        if unusable:
            report.skip(path, unusable.number, unusable.kind, unusable.reason)
        if cells is None or unusable:
            if header and not width:
                raise UserError(f"{path}, line 1: {report.rows[-1].reason}: correct the header.")
            continue
        width = width or len(cells)
        if len(cells) == width:
            yield first, cells
            continue
        if len(cells) < width and not feed.record[-1].end:
            raise cut_off(path, first)
        if not odd:
            odd_line, odd_width = first, len(cells)
        odd += 1
        report.skip(path, first, "rows_of_wrong_width", f"{len(cells)} columns instead of {width}")
    report.count(path, max(rows - header, 0))
    if odd and odd > (rows - 1) / 2:
        raise UserError(
            f"{path}: line 1 has {width} columns, but {odd:,} of the other {rows - 1:,} rows have another number (line "
            f"{odd_line} has {odd_width}): correct the header, or put cells that hold the separator in quotes."
        )


def _failed(path: Path, feed: _Feed, report: Skips, delimiter: str, width: int, error: str) -> list[str] | None:
    """The cells of a record that csv.reader gave up on, or None after reporting it; the feed is past the record."""
    first, *rest = feed.record
    if delimiter == "\t" and (plain := _plain(feed, delimiter, width, failed=True)):
        return plain
    if feed.ended and "unexpected end" in error:
        raise UserError(
            f"{path}, line {first.number}: a quote opened here is never closed: the file is cut off, or the quote "
            "should be written twice."
        )
    if _is_stray(rest, delimiter, width):
        feed.give_back(rest)
    else:
        _pass_over(feed)
    if "field limit" in error:
        report.skip(path, first.number, "rows_too_long", f"a cell is longer than {MOST_TEXT:,} characters")
    elif error == TOO_LONG:
        report.skip(path, first.number, "rows_too_long", f"the record is {error}")
    else:
        report.skip(path, first.number, "rows_badly_quoted", f"the quotes are wrong ({error})")
    return None


def _plain(feed: _Feed, delimiter: str, width: int, failed: bool = False) -> list[str]:
    """The cells of the record's first line if its quotes are plain characters, as in TSV files that quote nothing.

    They are if the line has all columns, and the quotes either make no sense or took in lines that are records
    themselves. Otherwise there are no cells.
    """
    first, *rest = feed.record
    cells = first.text.split(delimiter) if first.text is not None else []
    if len(cells) != width or not (failed or _is_stray(rest[:-1], delimiter, width)):
        return []
    feed.give_back(rest)
    feed.unusable = None
    del feed.record[1:]
    return cells


def _is_stray(rest: list[Line], delimiter: str, width: int) -> bool:
    """Are most of the lines that the open quote took in records of their own?"""
    looked = [line.text for line in rest[:LOOKED_AT] if line.text]
    return sum(text.count(delimiter) == width - 1 for text in looked) * 2 > len(looked)


def _pass_over(feed: _Feed) -> None:
    """Take lines until as many quotes were closed as opened."""
    quotes = sum(line.quotes if line.text is None else line.text.count('"') for line in feed.record)
    while quotes % 2 and (line := feed.take()):
        quotes += line.quotes if line.text is None else line.text.count('"')
        del feed.record[1:]  # a text of any length takes no memory
