"""What every request passes first: limits on size, time and number; what is counted; headers of safety."""

import time
from http import HTTPStatus

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longtail.service import metrics
from longtail.service.answers import JSON, Refusal
from longtail.service.settings import Settings

ALWAYS = {"/health", "/ready", "/metrics", "/version"}  # answered however busy the service is
WITH_BODY = {"POST", "PUT", "PATCH"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """The application behind its limits."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.app = app
        self.settings = settings
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = _method(scope)
        if method == "HEAD":  # as GET; the server leaves the body out
            scope = {**scope, "method": "GET"}
        begin = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers.setdefault(name, value)
            await send(message)

        self.running += 1
        metrics.RUNNING.inc()
        try:
            await self._answer(scope, receive, sending)
        except Refusal as refusal:
            if not status:
                await refusal.response()(scope, receive, sending)
        finally:
            self.running -= 1
            metrics.RUNNING.dec()
            path = _route(scope)
            metrics.REQUESTS.labels(method, path, status).inc()
            metrics.SECONDS.labels(path).observe(time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.running > self.settings.max_running and scope["path"] not in ALWAYS:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"more than {self.settings.max_running} requests are being answered: ask again in a second.",
                {"retry-after": "1"},
            )
        if scope["method"] in WITH_BODY:
            receive = await self._arrived(Headers(scope=scope), receive)
        try:
            with anyio.fail_after(self.settings.answer_time):
                await self.app(scope, receive, send)
        except TimeoutError:
            remedy = "send fewer or shorter texts"
            if scope["method"] in WITH_BODY and scope["path"].startswith("/labels"):
                remedy = "the change may still come into force; look at the labels before you send it again"
            raise Refusal(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"the answer takes longer than {self.settings.answer_time:g} seconds: {remedy}.",
            ) from None

    async def _arrived(self, headers: Headers, receive: Receive) -> Receive:
        """`receive` of a request whose body has arrived whole."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON and _has_body(headers):
            given = f"is {kind!r}" if kind else "is not stated"
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content type {given}: send JSON, as {JSON}.")
        try:
            with anyio.fail_after(self.settings.read_time):
                body = await self._body(receive)
        except TimeoutError:
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the request has not arrived within {self.settings.read_time:g} seconds: send it again.",
                {"connection": "close"},
            ) from None
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return waiting.pop() if waiting else await receive()

        return receive_again

    async def _body(self, receive: Receive) -> bytes:
        """The body; one that is too large is read to its end, so that the client hears why, and is not kept."""
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(HTTPStatus.BAD_REQUEST, "the request ended before its body: send it whole.")
            part = message.get("body", b"")
            size += len(part)
            if size <= self.settings.max_body:
                parts.append(part)
            more = message.get("more_body", False)
        if size > self.settings.max_body:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the request has {size:,} bytes, more than {self.settings.max_body:,}: send it in parts.",
            )
        return b"".join(parts)


def _has_body(headers: Headers) -> bool:
    """Whether a body follows: a request without one, such as an undo, states no type."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _route(scope: Scope) -> str:
    """The path as the application names it, so that no client makes up names to be counted."""
    route = scope.get("route")
    return getattr(route, "path", "other")


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in {"GET", "HEAD", "DELETE", "OPTIONS", *WITH_BODY} else "other"
