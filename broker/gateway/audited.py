"""Audited admin requests: an entry of the audit log for each change by the admin HTTP API.

The response leaves after the entry is written. Requests between nodes are signed and have no entries. Denied
requests do not arrive here: `gateway.authentication` records them.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import Any

from aiohttp import web

from tierlog.broker.audit.entries import Entry, in_parts
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.authentication import origin_of
from tierlog.broker.gateway.request_guard import READS
from tierlog.metadata.quorum.tls import SIGNED_PREFIXES

REFUSED_MAX = 100
"""Topics and partitions of a request that was not carried out which have entries; the others are counted."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def audited(audit: AuditLog) -> Middleware:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in READS or request.path.startswith(SIGNED_PREFIXES):
            return await handler(request)
        status = 500
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as failure:
            status = failure.status
            raise
        finally:
            await _record(audit, request, status)
        return response

    return record


async def _record(audit: AuditLog, request: web.Request, status: int) -> None:
    """Write the path, which may name a broker or a voter, and topics and partitions that the body names."""
    entry, named = origin_of(request), list(_topics(await _body_of(request)))
    if 300 <= status < 500 and len(named) > REFUSED_MAX:
        entry["omitted"] = len(named) - REFUSED_MAX
        del named[REFUSED_MAX:]
    outcome = "OK" if status < 300 else f"HTTP_{status}"
    resources = chain([{"type": "PATH", "name": request.path}], named)
    await audit.record(in_parts(entry, ({**one, "outcome": outcome} for one in resources)))


async def _body_of(request: web.Request) -> Any:
    try:
        return json.loads(await request.read() or b"null")  # it has been received
    except (ValueError, RecursionError):  # a route that needs no body may have taken any
        return None


def _topics(body: Any) -> Iterator[Entry]:
    if not isinstance(body, dict):
        return
    if isinstance(topic := body.get("topic"), str):
        yield {"type": "TOPIC", "name": topic}
    for move in body["moves"] if isinstance(body.get("moves"), list) else ():
        if isinstance(move, dict):
            replicas = move.get("replicas")
            shown = replicas if isinstance(replicas, list) and all(map(_is_number, replicas)) else None
            yield {**_partition(move.get("topic"), move.get("partition")), "replicas": shown}
    for one in body["partitions"] if isinstance(body.get("partitions"), list) else ():
        if isinstance(one, list) and len(one) == 2:
            yield _partition(*one)


def _partition(topic: Any, number: Any) -> Entry:
    """Anything else than a name and a number is left out: the handler refuses it."""
    shown = f"{topic}-{number}" if isinstance(topic, str) and _is_number(number) else ""
    return {"type": "PARTITION", "name": shown}


def _is_number(value: Any) -> bool:
    return isinstance(value, int)
