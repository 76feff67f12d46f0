"""`xc tune`: a search for better parameters."""

from pathlib import Path

import click

from xcutils.core import console

RECIPE = Path("recipes", "tuned.yaml")


@click.command()
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=60, show_default=True, help="Time to take.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn.")
@console.command
def tune(minutes: float, seed: int) -> None:
    """Search better values for the present dataset.

    Trials with other values are fitted and judged by validation documents; no test document is read. One that is behind
    after its encoder is given up. The best values are written as the recipe `tuned`. Stopped at any time and started
    again, the search goes on with the trials it has; a trial that was interrupted is made anew.
    """
    from longtail import tuning

    search = tuning.Tuning()
    study = tuning.search(search, minutes, seed)
    RECIPE.parent.mkdir(exist_ok=True)
    RECIPE.write_text(tuning.recipe_of(search, study), encoding="utf-8")
    click.echo(f"wrote {RECIPE}: `xc recipe tuned` puts its values in place, `dvc repro` then fits and measures them.")
