"""One value of a row as checked text: what a text, an id or a label may be, in every form of dataset."""

from pathlib import Path

from xcutils.data.lines import MOST_TEXT, short
from xcutils.data.skips import Skips


class BadRow(Exception):
    """The row cannot be used: its kind (a key of skips.REMEDIES), the reason, and perhaps a remedy of its own."""

    def __init__(self, kind: str, reason: str, remedy: str = ""):
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.remedy = remedy

    def note(self, report: Skips, path: Path, line: int) -> None:
        report.skip(path, line, self.kind, self.reason, self.remedy)


def checked(text: str, what: str) -> str:
    """The text, after checking its length, and that it has no NUL and no lone surrogate (\\ud800: not in UTF-8)."""
    if len(text) > MOST_TEXT:
        raise BadRow("rows_too_long", f"{what} has {len(text):,} characters, {MOST_TEXT:,} are the most")
    if "\0" in text:
        raise BadRow("rows_with_nul", f"{what} holds a NUL character")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadRow("rows_malformed", f"{what} holds half a character ({short(text)})") from None
    return text


def as_text(value, what: str) -> str:
    """A cell as text: text as it is, numbers as they are written, "" for an empty cell."""
    if isinstance(value, str):
        return checked(value, what)
    if isinstance(value, bytes):
        try:
            return checked(value.decode("utf-8"), what)
        except UnicodeDecodeError:
            raise BadRow("rows_not_utf8", f"{what} is not UTF-8") from None
    if value is None or value != value:  # NaN, which some tools write for an empty cell
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return checked(str(value), what) if abs(value) < 10**300 else _refuse(value, what)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return _refuse(value, what)


def _refuse(value, what: str):
    raise BadRow("rows_malformed", f"{what} is {short(value)}, not text")
