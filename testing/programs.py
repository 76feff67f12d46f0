"""What the programs share that measure the pipeline or attack it: a table printed row by row, and how they end."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

ROOT = Path(__file__).resolve().parents[1]


class Table:
    """A table of columns of fixed width, printed row by row while the program works.

    columns  {name: format of its values, as ">8.1f"}
    """

    def __init__(self, columns: dict[str, str]):
        self.columns = columns

    def print_head(self) -> None:
        widths = [f"{spec[0]}{spec[1:].partition('.')[0].rstrip(',')}" for spec in self.columns.values()]
        click.echo(" ".join(format(name, width) for name, width in zip(self.columns, widths)))

    def print_row(self, values: Sequence) -> None:
        """A value for each column, in their order."""
        click.echo(" ".join(format(value, spec) for value, spec in zip(values, self.columns.values(), strict=True)))


def finish(failures: Sequence[str]) -> NoReturn:
    """End the program: with 1 and the failures on stderr, or with 0 where there are none."""
    for failure in failures:
        click.echo(failure, err=True)
    raise SystemExit(1 if failures else 0)


def output_of(module: str, *arguments) -> str:
    """What `python -m module` prints in a process of its own, which must end well."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
