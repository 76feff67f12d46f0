"""The application: what is answered at which path."""

import asyncio
import contextlib
import errno
import logging
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from longtail import __version__
from longtail.models import Model, cutoff
from longtail.service import metrics, pages, results, schemas
from longtail.service.answers import Refusal, as_json
from longtail.service.asking import Ranking
from longtail.service.batching import Batcher
from longtail.service.guard import Guard
from longtail.service.settings import Settings
from longtail.service.tokens import check_token
from longtail.service.watching import Watched
from xcutils.core.errors import UserError

log = logging.getLogger("longtail.service")

COMPARE = "compare"
SHOWN = 50  # labels of a search, if nothing else is asked for
NEIGHBOURS = 10
SWITCH = 0.0005  # seconds after which the batcher's thread lets the loop's one work, and the other way round
AT_ONCE = 2  # explanations that a worker works on at once, and as many searches of labels; others wait
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Error, "description": text}
    for status, text in {
        400: "The body is no JSON.",
        408: "The request took too long to arrive.",
        413: "The request is too large.",
        415: "The content type is not application/json.",
        422: "Something in the request is not as described.",
        503: "Too many requests.",
        504: "The answer took too long.",
    }.items()
}
LOCKED: dict[int | str, dict[str, Any]] = REFUSALS | {
    401: {"model": schemas.Error, "description": "There is no token."},
    403: {"model": schemas.Error, "description": "The token is wrong, or labels cannot be changed here."},
    507: {"model": schemas.Error, "description": "The disk is full."},
}
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": schemas.Error, "description": "There is none of this id."}}


class Service:
    """The models of one worker, and what works for them."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.served = Watched(settings.bundle)
        self.models = {"": self.served} | ({COMPARE: Watched(settings.compare)} if settings.compare else {})
        self.batcher = Batcher()
        self.explaining = asyncio.Semaphore(AT_ONCE)
        self.searching = asyncio.Semaphore(AT_ONCE)
        self.changing = asyncio.Semaphore(1)
        self.ready = False
        self.label_results: tuple[Model | None, dict] = (None, {})

    def watched(self, which: str | None) -> Watched:
        found = self.models.get(which or "")
        if found is None:
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"there is no model {which!r} here: leave `which` out for the one there is.",
            )
        return found

    async def work(self, turns: asyncio.Semaphore, function: Callable, *given: Any) -> Any:
        """The function's result, from a thread, so that others are answered meanwhile.

        turns  one is taken until the thread has ended, even if nobody waits for its result any more
        """
        await turns.acquire()
        thread = asyncio.create_task(anyio.to_thread.run_sync(function, *given))
        thread.add_done_callback(lambda _: turns.release())
        return await asyncio.shield(thread)

    def look(self, force: bool = False) -> None:
        """Follow the files of the models, and the changes of their labels."""
        for watched in self.models.values():
            watched.look(force)
            watched.model.refresh()
        metrics.LABELS.set(len(self.served.model.labels))

    async def watch(self) -> None:
        """Look again and again; end when the process that started this worker is gone."""
        parent = os.getppid()
        while True:
            await asyncio.sleep(self.settings.look_every)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            try:
                await anyio.to_thread.run_sync(self.look)
            except Exception:
                log.exception("the files of the model could not be looked at")

    def results_of(self, model: Model, id: str) -> dict | None:
        """What the test documents showed of a label of the model; read once."""
        if self.label_results[0] is not model:
            self.label_results = (model, results.of_labels(model))
        return self.label_results[1].get(id)


def create_app(settings: Settings) -> Guard:
    """The ASGI application of a service; its models are read at once, so that one that cannot be is said at once."""
    service = Service(settings)
    bodies = schemas.within(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sys.setswitchinterval(SWITCH)
        service.batcher.start()
        service.look()
        watching = asyncio.create_task(service.watch())
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, service.look, True))
        service.ready = True
        yield
        service.ready = False
        watching.cancel()
        service.batcher.stop()

    app = FastAPI(
        title="Longtail",
        version=__version__,
        description="The few right labels for a short text, among very many.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.openapi = lambda: described(app, bodies)  # type: ignore[method-assign]
    add_refusals(app)
    add_answers(app, service, bodies)
    add_labels(app, service)
    add_changes(app, service, bodies)
    add_states(app, service)
    pages.add(app, service.models)
    return Guard(app, settings)


def add_answers(app: FastAPI, service: Service, bodies: schemas.Bodies) -> None:
    """/predict, /explain"""

    @app.post("/predict", response_model=schemas.Predictions, responses=REFUSALS, openapi_extra=takes(bodies.predict))
    async def predict(request: Request) -> Response:
        """Labels of one or many texts, best first, with their probabilities."""
        asked: Any = await read(request, bodies.predict)
        watched = service.watched(asked.which)
        model, hash = watched.model, watched.hash
        least = cutoff(model.system, asked.threshold, asked.precision)
        texts = [given if isinstance(given, str) else given.text for given in asked.texts]
        ids = [None if isinstance(given, str) else given.id for given in asked.texts]
        question = Ranking(model, asked.k, tuple(asked.labels) if asked.labels else None)
        found = await service.batcher.answers(question, texts)
        metrics.TEXTS.inc(len(texts))
        predictions = [
            {"id": id, "known": ranked.known, "labels": ranked.labelled(least)} for id, ranked in zip(ids, found)
        ]
        return as_json({"predictions": predictions, "model": hash})

    @app.post("/explain", response_model=schemas.Explanations, responses=REFUSALS, openapi_extra=takes(bodies.explain))
    async def why(request: Request) -> Response:
        """Why a text gets these labels, or its k best: the words that weigh, and the nearest training documents."""
        asked: Any = await read(request, bodies.explain)
        watched = service.watched(asked.which)
        await watched.fresh()
        found = await service.work(service.explaining, explained, watched, asked.text, asked.labels, asked.k)
        known = all(one.pop("known") for one in found)
        return as_json({"known": known, "labels": found, "model": watched.hash})


def explained(watched: Watched, text: str, labels: list[str] | None, k: int) -> list[dict]:
    """The explanations as they are sent; of a model whose files are replaced meanwhile, by the new one."""
    while True:
        model = watched.model
        found = [asdict(one) for one in model.explain(text, labels, k)]
        if watched.unchanged() or not watched.look():
            return found


def add_labels(app: FastAPI, service: Service) -> None:
    """/labels: looked at"""

    @app.get("/labels", response_model=schemas.Labels, responses=REFUSALS)
    async def search(
        q: Annotated[str, Query(max_length=1000, description="Words of the label's text, or its id.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = SHOWN,
    ) -> Response:
        """Labels that hold every word of `q`, the likeliest first."""
        labels = (await service.served.fresh()).labels
        found = await service.work(service.searching, labels.search, q, limit)
        return as_json({"labels": [asdict(one) for one in found], "total": len(labels)})

    @app.get("/labels/{id:path}", response_model=schemas.LabelPage, responses=REFUSALS | UNKNOWN)
    async def label(id: str) -> Response:
        """A label: how frequent it is, what the test documents showed of it, and the labels near it."""
        model = await service.served.fresh()
        labels = model.labels
        if id not in labels:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no label {id!r}: search for it with /labels?q=.")
        near = await service.work(service.searching, labels.neighbours, id, NEIGHBOURS)
        found = await service.work(service.searching, service.results_of, model, id)
        return as_json({**asdict(labels.get(id)), "results": found, "neighbours": [asdict(one) for one in near]})


def add_changes(app: FastAPI, service: Service, bodies: schemas.Bodies) -> None:
    """/labels: changed, by who knows the token"""
    token = service.settings.token

    async def change(how: Callable[[Model], object], count: int) -> Response:
        await written(how)
        return as_json({"changed": count, "total": len(service.served.model.labels)})

    def changed_now(how: Callable[[Model], object]) -> Any:
        service.served.look()  # a change is of the model that is there, not of the one before it
        return how(service.served.model)

    async def written(how: Callable[[Model], object]) -> Any:
        try:
            return await service.work(service.changing, changed_now, how)
        except OSError as error:
            refusal = unwritten(error)
            if refusal is None:
                raise
            log.warning(refusal.sentence)
            raise refusal from None

    changed: dict[str, Any] = {"response_model": schemas.Changed, "responses": LOCKED}

    @app.post("/labels", openapi_extra=takes(bodies.add, locked=True), **changed)
    async def add(request: Request) -> Response:
        """Add labels, without training anew. A label stands in by its text and the texts of its examples."""
        check_token(request, token)
        asked: Any = await read(request, bodies.add)
        given = asked.model_dump()["labels"]
        return await change(lambda model: model.add_labels(given), len(given))

    @app.patch("/labels", openapi_extra=takes(bodies.rename, locked=True), **changed)
    async def rename(request: Request) -> Response:
        """Give labels other texts: {id: text}."""
        check_token(request, token)
        asked: Any = await read(request, bodies.rename)
        return await change(lambda model: model.rename_labels(asked.texts), len(asked.texts))

    @app.post("/labels/remove", openapi_extra=takes(bodies.remove, locked=True), **changed)
    async def remove(request: Request) -> Response:
        """Remove labels: they are answered no more."""
        check_token(request, token)
        asked: Any = await read(request, bodies.remove)
        return await change(lambda model: model.remove_labels(asked.ids), len(asked.ids))

    @app.post("/labels/undo", response_model=schemas.Undone, responses=LOCKED, openapi_extra=LOCK)
    async def undo(request: Request) -> Response:
        """Undo the last change of labels that holds."""
        check_token(request, token)
        said = await written(lambda model: model.undo())
        return as_json({"undone": said, "total": len(service.served.model.labels)})


def unwritten(error: OSError) -> Refusal | None:
    """What is said of a change that could not be written; None where there is no remedy to name."""
    if error.errno in FULL:
        text = f"the change could not be written ({error}): make room on the disk and send it again."
        return Refusal(HTTPStatus.INSUFFICIENT_STORAGE, text)
    if error.errno in CLOSED:
        text = f"the bundle's folder cannot be written ({error}): start the service as a user who may write there."
        return Refusal(HTTPStatus.FORBIDDEN, text)
    return None


def add_states(app: FastAPI, service: Service) -> None:
    """/health, /ready, /metrics, /version"""

    @app.get("/health", response_model=schemas.Status)
    async def health() -> Response:
        """The process lives."""
        return as_json({"status": "ok"})

    @app.get("/ready", response_model=schemas.Status, responses={503: {"model": schemas.Error}})
    async def ready() -> Response:
        """The model is read, and requests are taken."""
        if not service.ready:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the service is starting or stopping: ask again in a second.")
        return as_json({"status": "ready"})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def numbers() -> Response:
        """What is counted, of all workers, as Prometheus reads it."""
        return Response(await anyio.to_thread.run_sync(metrics.exposition), media_type=metrics.FORM)

    @app.get("/version", response_model=schemas.Version)
    async def version() -> Response:
        """Which Longtail, and which model."""
        model = await service.served.fresh()
        info = model.info
        facts = {name: info.get(name, "") for name in ("created", "dataset")}
        own = {"longtail": __version__, "python": platform.python_version(), "model": service.served.hash}
        return as_json(own | facts | {"labels": len(model.labels)})


def add_refusals(app: FastAPI) -> None:
    """Every error is answered with a sentence."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return error.response()

    async def mended(request: Request, error: Exception) -> Response:
        return as_json({"error": str(error)}, HTTPStatus.UNPROCESSABLE_ENTITY)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return as_json({"error": sentence(error.errors())}, HTTPStatus.UNPROCESSABLE_ENTITY)

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"{request.method} {request.url.path}: {error.detail}; /docs names what there is."
        return as_json({"error": text}, error.status_code, dict(error.headers or {}))

    async def failed(request: Request, error: Exception) -> Response:
        return as_json({"error": "the service failed at this request; its log says how."}, 500)

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(UserError, mended)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unknown)
    app.add_exception_handler(Exception, failed)


async def read(request: Request, schema: type[BaseModel]) -> Any:
    """The request's body."""
    try:
        return schema.model_validate_json(await request.body())
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        if found[0]["type"] == "json_invalid":
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"the body is no JSON in UTF-8 ({found[0]['msg'].partition(': ')[2]}): mend it."
            ) from None
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, sentence(found)) from None


def sentence(found: Any) -> str:
    """The first of the errors, as a sentence."""
    where = ".".join(str(part) for part in found[0]["loc"] if part not in ("body", "query", "path"))
    said = found[0]["msg"].removeprefix("Value error, ")
    return f"{where}: {said[0].lower()}{said[1:]}." if where else f"{said[0].lower()}{said[1:]}."


LOCK: dict[str, Any] = {"security": [{"token": []}]}


def takes(schema: type[BaseModel], locked: bool = False) -> dict[str, Any]:
    """What OpenAPI is told of a path that reads its own body."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}, **(LOCK if locked else {})}


def described(app: FastAPI, bodies: schemas.Bodies) -> dict[str, Any]:
    """The OpenAPI document, with the bodies that paths read themselves."""
    if not app.openapi_schema:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        own = [(body, "validation") for body in bodies.all()]
        _, definitions = models_json_schema(own, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(definitions["$defs"])
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = document
    return app.openapi_schema
