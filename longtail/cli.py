"""`xc`: predictions for new texts, the table of a run, datasets checked, brought in and handed to other tools.

A command is imported when it is called, so that help and a mistyped name are answered at once.
"""

import importlib
import os
import sys

import click

from longtail import __version__
from xcutils.core import processor

# Before numpy and torch are loaded, which the commands do. Idle OpenMP workers sleep, as in the stages.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
processor.same_everywhere()

# name -> (module:function, the first line of its help)
COMMANDS = {
    "predict": ("predict:predict", "Labels for new TEXTS, best first, with their probabilities."),
    "explain": ("explain:explain", "Why TEXT gets its labels: words, parts of the score, documents."),
    "serve": ("serve:serve", "Serve a model over HTTP, with a page."),
    "table": ("table:table", "The test metrics of the last run, one row per phase."),
    "report": ("report:report", "Write the last run as one HTML file that opens anywhere."),
    "labels": ("labels:labels", "Add, remove and rename labels without training; undo it."),
    "bundle": ("bundle:bundle", "Write the finished run's model to a FOLDER of its own."),
    "check": ("data:check", "Say whether the dataset at PATH can be trained on."),
    "import": ("data:import_data", "Write the dataset at PATH to FOLDER in the repository's form."),
    "export": ("data:export", "Write the prepared dataset to FOLDER in the repository's form."),
    "estimate": ("estimate:estimate", "The memory, time and disk each stage will take; nothing is run."),
    "recipe": ("recipe:recipe", "List the methods, or put the parameters of one in place."),
    "tune": ("tune:tune", "Search better values for the present dataset."),
    "timings": ("timings:timings", "Run the pipeline anew; print its time, memory and size."),
    "next": ("next:what_next", "What to try after a first run."),
}


class Commands(click.Group):
    """The commands of the table above, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, function = COMMANDS[name][0].split(":")
        return getattr(importlib.import_module(f"longtail.commands.{module}"), function)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="longtail", message="%(prog)s %(version)s")
def main() -> None:
    """Longtail: the few right labels for a short text, among very many."""


if __name__ == "__main__":
    sys.exit(main())
