"""The page and what it shows, the page of the interface, their scripts and styles: files of this package alone."""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

import anyio
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from longtail.service import results
from longtail.service.answers import as_json
from longtail.service.watching import Watched

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Files:
    """The files of the page, read once; a browser that has one asks only whether it is still the same."""

    def __init__(self) -> None:
        folder = files("longtail.service").joinpath("static")
        self.held = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}
        self.tags = {name: f'"{sha256(held).hexdigest()[:16]}"' for name, held in self.held.items()}

    def response(self, request: Request, name: str) -> Response:
        if name not in self.held:
            raise HTTPException(404)
        headers = {"etag": self.tags[name], "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == self.tags[name]:
            return Response(status_code=304, headers=headers)
        kind = f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        return Response(self.held[name], headers=headers, media_type=kind)


def add(app: FastAPI, models: Mapping[str, Watched]) -> None:
    """/, /docs, /static/..., /models"""
    held = Files()

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return held.response(request, "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return held.response(request, "docs.html")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return held.response(request, "icon.svg")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        return held.response(request, name)

    @app.get("/models", include_in_schema=False)
    async def shown() -> Response:
        """What the page shows of each model."""
        found = [await anyio.to_thread.run_sync(results.described, one.model, which) for which, one in models.items()]
        return as_json({"models": found})
