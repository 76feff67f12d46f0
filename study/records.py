"""Finished experiments in a file that git keeps, so that what one clone has measured is known to the others.

{
"name": {"code": digest, "parameters": digest, "rows": {row: {metric: value}}, "seconds": seconds},
...
}

Names are sorted and an experiment is one line, so that a difference of two versions reads well.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xcutils.core.errors import UserError

Rows = dict[str, dict[str, float]]  # {row: {metric: value}}


@dataclass(frozen=True)
class Record:
    """A finished experiment.

    code        digest of the code it ran with, see study/code.py
    parameters  digest of the values that were wanted of it
    seconds     None where nobody has measured them
    """

    code: str
    parameters: str
    rows: Rows
    seconds: float | None = None


def digest(value: Any) -> str:
    """Twelve letters that are others for another value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:12]


def as_text(records: dict[str, Record]) -> str:
    """The file's text."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(asdict(record), sort_keys=True)}" for name, record in sorted(records.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(file: Path, records: dict[str, Record]) -> None:
    """Write the file, whole or not at all."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(as_text(records), encoding="utf-8")
    os.replace(draft, file)


def read(file: Path) -> dict[str, Record]:
    """{experiment: record}"""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {name: Record(**entry) for name, entry in entries.items()}
    except (ValueError, TypeError, AttributeError) as error:
        message = f"{file} is not a record of experiments ({error!r}): take the last good version from git."
        raise UserError(message) from None
