"""The report of rows that could not be used: where each stands, why it was skipped, what to do about it."""

import csv
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from xcutils.core.errors import UserError

REPORT = "skipped.csv"
MOST_ROWS = 200_000  # listed one by one; beyond it they are counted only
MOST_USELESS_ROWS = 100_000  # rows at the start of a file: if none of them can be used, the file is refused
REMEDIES = {
    "rows_without_text": "give the row a text or take it out",
    "rows_without_labels": "give the row at least one label or take it out",
    "rows_with_unknown_label": "correct the label or add it to the label file",
    "rows_with_repeated_id": "give each document an id of its own, or the same text to add labels to a document",
    "rows_not_utf8": "convert the file to UTF-8",
    "rows_with_nul": "take the NUL characters out",
    "rows_not_json": "write one JSON object per line",
    "rows_of_wrong_width": "give the row the header's columns; put a cell that holds the separator in quotes",
    "rows_badly_quoted": "close the quote, and write a quote inside a quoted cell twice",
    "rows_too_long": "shorten the text",
    "rows_malformed": "correct the value",
}


@dataclass(frozen=True)
class Skip:
    """One row that was left out."""

    file: str
    line: int
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}: {self.remedy}."


@dataclass
class Skips:
    """What was left out of the files of a dataset, row by row, and how many rows each file had."""

    rows: list[Skip] = field(default_factory=list)
    reasons: Counter = field(default_factory=Counter)  # kind -> rows
    by_file: Counter = field(default_factory=Counter)  # file -> rows left out
    read: Counter = field(default_factory=Counter)  # file -> rows it has, those left out included
    notes: list[str] = field(default_factory=list)  # which column was taken for what
    first: dict[str, Skip] = field(default_factory=dict)  # file -> the first row left out

    def skip(self, path: Path, line: int, kind: str, reason: str, remedy: str = "") -> None:
        """Note a row of the file that cannot be used; `kind` is one of REMEDIES."""
        skip = Skip(str(path), line, reason, remedy or REMEDIES[kind])
        if len(self.rows) < MOST_ROWS:
            self.rows.append(skip)
        self.first.setdefault(skip.file, skip)
        self.reasons[kind] += 1
        self.by_file[skip.file] += 1
        if line <= self.by_file[skip.file] + 1 and line > MOST_USELESS_ROWS:
            raise UserError(
                f"{path}: none of the first {MOST_USELESS_ROWS:,} rows can be used: {reason}: {skip.remedy}."
            )

    def count(self, path: Path, rows: int) -> None:
        self.read[str(path)] += rows

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    def refuse_above(self, share: float) -> None:
        """Refuse if more than this share of any file's rows was left out."""
        for file, skipped in self.by_file.items():
            if skipped > share * self.read[file]:
                raise UserError(
                    f"{file}: {skipped:,} of {self.read[file]:,} rows cannot be used, more than prepare.bad_rows = "
                    f"{share:g} allows; the first is line {self.first[file].line}: {self.first[file].reason}: "
                    f"{self.first[file].remedy}. `xc check` lists them all."
                )

    def save(self, path: Path) -> None:
        """Write the report as a CSV table; only the header if nothing was left out."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("file", "line", "reason", "remedy"))
            writer.writerows((row.file, row.line, row.reason, row.remedy) for row in self.rows)
            if self.total > len(self.rows):
                writer.writerow(("", "", f"{self.total - len(self.rows)} more rows", "see the ones above first"))

    def shown(self, most: int) -> list[str]:
        """A line per row left out, `most` at most, and how many more there are."""
        lines = [f"  {row}" for row in self.rows[:most]]
        return lines + ([f"  and {self.total - len(lines):,} more"] if self.total > len(lines) else [])
