"""Bodies of requests to the admin API, and its errors: `{"error": …}` with a message for operators."""

import json
from typing import TypeVar

import msgspec
from aiohttp import web

T = TypeVar("T", bound=msgspec.Struct)


def refused(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    return kind(text=json.dumps({"error": message}), content_type="application/json")


async def read_body(request: web.Request, kind: type[T]) -> T:
    """The decoded body; an empty one means all defaults."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as wrong:
        raise refused(web.HTTPBadRequest, str(wrong)) from None
