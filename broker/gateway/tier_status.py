"""Admin routes of tiering on this node: what is uploaded, damaged or late, flush, and where an offset is."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from tierlog.base.tasks import TaskGroup
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import parsing_parameters
from tierlog.broker.gateway.tier_errors import tier_errors_as_http
from tierlog.broker.remote.tier_views import PartitionTierStatus
from tierlog.tiering.quarantine import DamagedRange

STATUSES_PER_TURN = 200
"""Statuses of tiered partitions that are written in one turn of the event loop: a millisecond."""

UPLOADS_MAX = 50
"""Partitions that GET /v1/tier/uploads lists."""

UPLOADS_KEPT_S = 4.0
"""How long its response is kept, so that several open pages cost no more than one."""

DISCONNECT_CHECK_S = 1.0
"""Time between two checks whether the client of a long request is still connected."""

T = TypeVar("T")


def tier_status_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    collecting = asyncio.Lock()
    kept: dict[str, Any] = {"until": -1.0, "view": {}}

    async def status(request: web.Request) -> web.Response:
        return await status_response("partitions", await current().tiering.status(request.query.get("topic")))

    async def uploads(_: web.Request) -> web.Response:
        """Sums over the tiered partitions that this node leads, and those whose uploads fail or wait."""
        serving, loop = current(), asyncio.get_running_loop()
        async with collecting:
            if loop.time() >= kept["until"]:
                kept["view"] = _uploads_view(await serving.tiering.status())
                kept["until"] = loop.time() + UPLOADS_KEPT_S
            return web.json_response(kept["view"])

    async def damaged(_: web.Request) -> web.Response:
        """Ranges of remote objects that this node does not serve."""
        rows = [_damaged_view(one) for one in current().remote.log.quarantine.damaged]
        return web.json_response({"damaged": rows})

    async def behind(_: web.Request) -> web.Response:
        """Partitions led by this node with a record that was not uploaded within
        remote.log.copy.max.lag.ms."""
        return await status_response("behind", await current().tiering.behind())

    async def unread(_: web.Request) -> web.Response:
        """Partitions that this node cannot lead until it has read their manifest in the bucket, after the
        quorum was recovered."""
        errors = current().manifest_recovery.errors
        rows = [
            {"topic": name.topic, "partition": name.partition, "error": errors[name]}
            for name in sorted(errors)
        ]
        return web.json_response({"unread": rows})

    async def flush(request: web.Request) -> web.Response:
        """Respond once the manifests in the bucket cover the log ends. A client that disconnects ends the
        wait."""
        manager = current().tiering
        with parsing_parameters():
            topic = str((await request.json())["topic"])
        with tier_errors_as_http():
            return await status_response("partitions", await _while_connected(request, manager.flush(topic)))

    async def explain(request: web.Request) -> web.Response:
        manager, query = current().tiering, request.query
        with parsing_parameters():
            topic, partition, offset = query["topic"], int(query["partition"]), int(query["offset"])
        with tier_errors_as_http():
            location = await manager.explain(topic, partition, offset)
            return web.json_response(asdict(location))

    return [
        web.get("/v1/tier/status", status),
        web.get("/v1/tier/uploads", uploads),
        web.get("/v1/tier/damaged", damaged),
        web.get("/v1/tier/behind", behind),
        web.get("/v1/tier/unread", unread),
        web.post("/v1/tier/flush", flush),
        web.get("/v1/tier/explain", explain),
    ]


def _uploads_view(found: Sequence[PartitionTierStatus]) -> dict[str, Any]:
    """`rows`: at most UPLOADS_MAX, failures first, then those that wait for the most bytes."""
    waiting = [one for one in found if one.pending_segments or one.last_error is not None]
    rows = nsmallest(UPLOADS_MAX, waiting, key=lambda one: (one.last_error is None, -one.pending_bytes))
    return {
        "partitions": len(found),
        "uploading": sum(one.uploading for one in found),
        "pending_bytes": sum(one.pending_bytes for one in found),
        "oldest_ms": max((one.pending_age_ms for one in waiting), default=0),
        "failing": sum(one.last_error is not None for one in found),
        "rows": [asdict(one) for one in rows],
    }


def _damaged_view(damaged: DamagedRange) -> dict[str, Any]:
    return {
        "topic": damaged.name.topic,
        "partition": damaged.name.partition,
        "first_offset": damaged.place.first_offset,
        "end_offset": damaged.place.end_offset,
        "object": damaged.place.key,
        "error": damaged.error,
        "missing": damaged.is_missing,
    }


async def status_response(name: str, found: Sequence[PartitionTierStatus]) -> web.Response:
    """An object with one list, written in several turns of the event loop."""
    rows: list[bytes] = []
    for at in range(0, len(found), STATUSES_PER_TURN):
        rows += map(msgspec.json.encode, found[at : at + STATUSES_PER_TURN])
        await asyncio.sleep(0)
    body = b'{"%s":[%s]}' % (name.encode(), b",".join(rows))
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def _while_connected(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. The work is cancelled if the client disconnects: aiohttp lets handlers run on."""
    tasks = TaskGroup(lambda name, failure: None)  # raised to the caller
    task = tasks.spawn("admin request", work)
    try:
        while not task.done():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has disconnected")
            await asyncio.wait((task,), timeout=DISCONNECT_CHECK_S)
    finally:
        await tasks.close()
    return task.result()
