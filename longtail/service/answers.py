"""Answers of the service that are no result: one sentence each, as JSON."""

from http import HTTPStatus

import orjson
from starlette.responses import Response

JSON = "application/json"


class Refusal(Exception):
    """A request that is not answered: the status code, and a sentence for whoever sent it."""

    def __init__(self, status: HTTPStatus, sentence: str, headers: dict[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = headers

    def response(self) -> Response:
        return as_json({"error": self.sentence}, self.status, self.headers)


def as_json(value: object, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    """The value as a JSON response; NumPy's numbers and dataclasses are known too."""
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, JSON)
