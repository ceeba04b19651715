"""Admin API helpers: decode request bodies, and build error responses `{"error": …}` with a message for
operators."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from aiohttp import web

T = TypeVar("T", bound=msgspec.Struct)


def http_error(error_class: type[web.HTTPError], message: str) -> web.HTTPError:
    return error_class(text=json.dumps({"error": message}), content_type="application/json")


def refused(status: int, message: str) -> web.Response:
    """Refuse a request, and close its connection, since an unread body may follow on it."""
    response = web.json_response({"error": message}, status=status)
    response.force_close()
    return response


@contextmanager
def parsing_parameters() -> Iterator[None]:
    """Answer a missing or malformed parameter with 400. Only for code that parses: an internal error in other
    code must not become a 400."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as wrong:
        raise http_error(web.HTTPBadRequest, f"bad or missing parameter: {wrong}") from None


async def decode_body(request: web.Request, kind: type[T]) -> T:
    """Decode the JSON body; an empty body gives every field its default. Raises HTTPBadRequest."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as wrong:
        raise http_error(web.HTTPBadRequest, str(wrong)) from None
