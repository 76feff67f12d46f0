"""`xc next`: what to try after a first run."""

import click

NEXT = """What to try next (first: source .venv/bin/activate)
  xc predict "your text"                 labels for a text of your own
  dvc exp run -S K=0                     the same without auxiliary vectors (NGAME)
  dvc exp run -S K=65536                 an auxiliary vector for every label
  xc recipe                              other methods: ANCE, DEXML, Renee, UniDEC and more (docs/methods.md)
  dvc metrics diff                       what that changed
  dvc plots show                         curves, and results by label frequency
  xc check my.csv                        can your own data be trained on? (docs/own-data.md)
  dvc exp run -S dataset=my.csv          then do it
  make peers                             PECOS, omikuji, napkinXC and BM25 on the same split"""


@click.command("next")
def what_next() -> None:
    """What to try after a first run."""
    click.echo(NEXT)
