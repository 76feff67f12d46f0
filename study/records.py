"""Finished experiments in a file that git keeps, so that what one clone has measured is known to the others.

{
"code": {id: {source file: digest of what it does}},
"experiments": {
name: {"code": id, "parameters": digest, "rows": {row: {metric: value}}, "seconds": seconds},
...
}
}

Most experiments ran with the same code, which is there once. Names are sorted and an experiment is one line, so that a
difference of two versions reads well.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcutils.core.errors import UserError

Rows = dict[str, dict[str, float]]  # {row: {metric: value}}
Code = dict[str, str | None]  # {source file: digest of what it does}


@dataclass(frozen=True)
class Record:
    """A finished experiment.

    parameters  digest of the values that were wanted of it
    seconds     None where nobody has measured them
    """

    parameters: str
    rows: Rows
    code: Code
    seconds: float | None = None


def digest(value: Any) -> str:
    """A few letters that are others for another value."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:12]


def as_text(records: dict[str, Record]) -> str:
    """The file's text."""
    code, lines = {}, []
    for name, record in sorted(records.items()):
        id = digest(record.code)
        code[id] = record.code
        entry = {"code": id, "parameters": record.parameters, "rows": record.rows, "seconds": record.seconds}
        lines.append(f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}")
    experiments = ",\n".join(lines)
    return f'{{\n"code": {json.dumps(code, indent=1, sort_keys=True)},\n"experiments": {{\n{experiments}\n}}\n}}\n'


def write(file: Path, records: dict[str, Record]) -> None:
    """Write the file, whole or not at all."""
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(as_text(records), encoding="utf-8")
    os.replace(draft, file)


def read(file: Path) -> dict[str, Record]:
    """{experiment: record}"""
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        code, entries = tree["code"], tree["experiments"]
        return {name: Record(**{**entry, "code": dict(code[entry["code"]])}) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{file} is not a record of experiments ({error!r}): take the last good version from git."
        raise UserError(message) from None
