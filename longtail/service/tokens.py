"""Who may change labels."""

import hmac
from http import HTTPStatus

from starlette.requests import Request

from longtail.service.answers import Refusal

SCHEME = "bearer"


def check_token(request: Request, token: str | None) -> None:
    """Refuse a request that does not know the token; the time this takes does not tell how much of it was right."""
    if token is None:
        raise Refusal(HTTPStatus.FORBIDDEN, "labels cannot be changed here: start the service with a token.")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != SCHEME or not given.strip():
        raise Refusal(
            HTTPStatus.UNAUTHORIZED,
            "labels are changed with the service's token: send it as `Authorization: Bearer TOKEN`.",
            {"www-authenticate": "Bearer"},
        )
    if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode("utf-8", "replace")):
        raise Refusal(HTTPStatus.FORBIDDEN, "the token is wrong: see the one that the service was started with.")
