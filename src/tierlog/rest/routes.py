"""Routes of the gateway, as one table: the server and the OpenAPI document are made from it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from tierlog.rest.errors import BAD_REQUEST, INVALID_JSON, JSON, RestError
from tierlog.rest.gateway import Call

Handler = Callable[[Call], Awaitable[web.StreamResponse]]
NDJSON = "application/x-ndjson"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the query. `schema`: JSON Schema."""

    name: str
    schema: dict[str, Any]
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`body`: type of the request; None for no body. `streams_in`: the body is a stream of such objects.
    `result`: type of the response or of each line; None for no content. `lines`: further types of lines."""

    method: str
    path: str
    operation: str
    summary: str
    handler: Handler
    tag: str
    query: Sequence[Parameter] = ()
    body: type[Any] | None = None
    streams_in: bool = False
    result: type[Any] | None = None
    lines: Sequence[type[Any]] = ()
    status: int = 200
    media: str = JSON


def decoded(body: bytes, kind: type[Any]) -> Any:
    """The body of a request. Raises RestError."""
    try:
        body.decode()  # msgspec does not look at the text of fields that it passes on
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError as wrong:
        raise RestError(INVALID_JSON, f"not UTF-8: {wrong}") from None
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise RestError(INVALID_JSON, str(wrong)) from None


def flag(query: Any, name: str) -> bool:
    """A parameter that is true or false, or missing. Raises RestError."""
    text = query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise RestError(BAD_REQUEST, f"{name}: {text!r} is neither true nor false")
    return bool(text == "true")


def number(query: Any, name: str, default: int, most: int = 2**62) -> int:
    """A number that is not negative. Raises RestError."""
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise RestError(BAD_REQUEST, f"{name}: {text[:40]!r} is not a number from 0 to {most}")
    return int(text)


def moment_ms(text: str) -> int | None:
    """ms since 1970 of a time in RFC 3339, which is in UTC without an offset; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, (moment - EPOCH) // timedelta(milliseconds=1))


def refuse_unknown(query: Any, known: Sequence[str]) -> None:
    """Raises RestError for a parameter that no route reads: it may be a typing error."""
    unknown = sorted(set(query) - set(known))
    if unknown:
        raise RestError(BAD_REQUEST, f"unknown parameter {unknown[0][:40]!r}; known: {', '.join(known)}")
