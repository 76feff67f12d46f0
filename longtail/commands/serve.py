"""`xc serve`: a model over HTTP, and its page."""

from pathlib import Path

import click

from xcutils.core import console
from xcutils.core.errors import UserError

LEAST_TOKEN = 16  # characters


@click.command()
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    default=Path("."),
    show_default=True,
    help="A bundle, or a run's folder.",
)
@click.option("--compare", type=click.Path(path_type=Path), help="Another one, shown beside it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0: every one.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: one that is free.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer.")
@click.option("--token", envvar="XC_TOKEN", help="Who knows it may change labels (better: the variable XC_TOKEN).")
@click.option("--max-body", type=click.IntRange(1024), default=4 << 20, show_default=True, help="Bytes of a request.")
@click.option("--max-texts", type=click.IntRange(1), default=1000, show_default=True, help="Texts of a request.")
@click.option("--max-length", type=click.IntRange(1), default=20_000, show_default=True, help="Characters of a text.")
@click.option(
    "--max-running", type=click.IntRange(1), default=256, show_default=True, help="Requests a worker answers at once."
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, help="Seconds for an answer."
)
@console.command
def serve(
    bundle: Path,
    compare: Path | None,
    host: str,
    port: int,
    workers: int,
    token: str | None,
    max_body: int,
    max_texts: int,
    max_length: int,
    max_running: int,
    timeout: float,
) -> None:
    """Serve a model over HTTP, with a page.

    The page is at /, its interface at /docs. Labels can be changed only by who knows the token. SIGTERM ends it after
    the running requests; SIGHUP, or a change of the model's files, has the model read anew.
    """
    if token is not None and len(token) < LEAST_TOKEN:
        raise UserError(
            f"the token has fewer than {LEAST_TOKEN} characters: take a longer one, which nobody can guess."
        )
    from longtail.service.settings import Settings
    from longtail.service.supervisor import serve as run

    limits = {"max_body": max_body, "max_texts": max_texts, "max_length": max_length, "max_running": max_running}
    settings = Settings(bundle, compare, token or None, **limits, answer_time=timeout)
    run(settings, host, port, workers)
