"""Lines of a text file, plain or gzip, one in memory at a time; no file can make its reader's memory grow unbounded."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from xcutils.core.errors import UserError

MOST_LINE = 1 << 23  # bytes of a line; longer ones are passed over
MOST_TEXT = 1 << 20  # characters of one text
MOST_RATIO = 200  # how many times its size a gzip file may expand to
FREE_BYTES = 1 << 25  # a file may expand to this size whatever the ratio
MOST_BYTES = 1 << 38  # of an expanded file
BLOCK = 1 << 16  # bytes between two looks at the expansion
BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """Line `number` (from 1) of a file, without its line end.

    text    None where the line cannot be used: `kind` and `reason` say why
    end     its line end, which only the last line of a file may lack
    quotes  quote characters in an unusable line, for a reader of quoted cells
    """

    number: int
    text: str | None
    end: str
    kind: str = ""
    reason: str = ""
    quotes: int = 0


def short(value) -> str:
    """The value, cut to a length that fits into a sentence."""
    text = repr(value[:80]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase | None]]:
    """(the file's content, the compressed file under it if there is one)."""
    with open(path, "rb") as raw:
        if Path(path).suffix != ".gz":
            yield raw, None
            return
        with gzip.GzipFile(fileobj=raw) as content:
            yield content, raw


def _check_expansion(path: Path, content: io.BufferedIOBase, raw: io.BufferedIOBase) -> None:
    expanded, packed = content.tell(), max(raw.tell(), 1)
    if expanded > MOST_BYTES or expanded > max(FREE_BYTES, MOST_RATIO * packed):
        raise UserError(
            f"{path} expands to more than {expanded >> 20} MB from {packed / 2**20:.2g} MB, which no text does: fetch "
            "it again, or unpack it by hand if it is right."
        )


def raw_lines(path: Path) -> Iterator[tuple[int, bytes | None, bool, int]]:
    """(number, line with its end, is it whole, 0); for an over-long line (number, None, is it whole, quotes in it)."""
    number = looked = 0
    try:
        with _opened(path) as (content, packed):
            while raw := content.readline(MOST_LINE):
                number += 1
                looked += len(raw)
                if packed and looked > BLOCK:
                    looked = 0
                    _check_expansion(path, content, packed)
                whole = raw.endswith(b"\n")
                if whole or len(raw) < MOST_LINE:
                    yield number, raw, whole, 0
                    continue
                quotes = raw.count(b'"')
                while not whole and (raw := content.readline(BLOCK)):
                    quotes += raw.count(b'"')
                    whole = raw.endswith(b"\n")
                    if packed:
                        _check_expansion(path, content, packed)
                yield number, None, whole, quotes
    except FileNotFoundError:
        raise UserError(f"{path} is missing: check its name.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or no gzip file (after line {number}: {error}): fetch it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): check that it may be read.") from None


def lines(path: Path) -> Iterator[Line]:
    """Every line of a UTF-8 file, with or without BOM, LF or CRLF; a line that cannot be used says why."""
    for number, raw, whole, quotes in raw_lines(path):
        if raw is None:
            reason = f"the line is longer than {MOST_LINE >> 20} MB"
            yield Line(number, None, "\n" if whole else "", "rows_too_long", reason, quotes)
            continue
        if number == 1:
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise UserError(f"{path} is UTF-16: convert it to UTF-8.")
            raw = raw.removeprefix(BOM)
        end = ("\r\n" if raw.endswith(b"\r\n") else "\n") if whole else ""
        kind = reason = ""
        try:
            text = (raw[: -len(end)] if end else raw).decode("utf-8")
        except UnicodeDecodeError as error:
            kind, reason = "rows_not_utf8", f"byte {error.start + 1} of the line is not UTF-8"
        if not kind and "\0" not in text:
            yield Line(number, text, end)
            continue
        if not whole:
            raise cut_off(path, number)
        yield Line(number, None, end, kind or "rows_with_nul", reason or "the line holds a NUL byte", raw.count(b'"'))


def cut_off(path: Path, line: int) -> UserError:
    """The refusal of a file whose last line has no line end and makes no sense."""
    return UserError(f"{path}, line {line}: the file ends in the middle of a line, it was cut off: fetch it again.")
