"""`xc recipe`: the parameters of another method."""

import click

from xcutils.core import console
from xcutils.core.errors import UserError


@click.command()
@click.argument("name", required=False)
@click.option("--show", is_flag=True, help="Change nothing; print what NAME would change.")
@console.command
def recipe(name: str | None, show: bool) -> None:
    """List the methods, or put the parameters of one in place.

    The recipe NAME takes the place of its pipeline's params.yaml. What is there is kept, by git or beside it. The
    present dataset stays, unless the recipe is for a certain one. Without NAME all recipes are listed, with a * before
    those whose values are in place.
    """
    from longtail import recipes

    if name is None:
        if show:
            raise UserError("--show wants the name of a recipe: `xc recipe` lists them all.")
        click.echo(_listed(recipes.listing()))
        return
    found = recipes.load(name)
    if not show:
        click.echo("\n".join([*recipes.put(found), *recipes.next_steps(found)]))
        return
    changed = recipes.differences(found)
    click.echo(_compared(name, changed) if changed else f"{found.place} has the values of recipe {name}.")


def _listed(found: list[tuple[str, str, bool]]) -> str:
    """Every recipe with its title, a * before those whose values are in place."""
    width = max(len(name) for name, _, _ in found)
    return "\n".join(f"{'*' if here else ' '} {name:<{width}}  {title}" for name, title, here in found)


def _compared(name: str, changed: list[tuple]) -> str:
    """The values that differ, in three columns."""
    rows = [("", "present", name), *(tuple(map(_written, row)) for row in changed)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{key:<{first}}  {old:<{second}}  {new}" for key, old, new in rows)


def _written(value: object) -> str:
    """A value as params.yaml has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
