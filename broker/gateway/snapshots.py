"""Admin API of snapshots, which hold objects of tiered topics for readers without a broker."""

from collections.abc import Callable
from dataclasses import asdict

import msgspec
from aiohttp import web

from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body, http_error
from tierlog.broker.gateway.tier_errors import tier_errors_as_http

DEFAULT_LEASE_MS = 24 * 3_600_000


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: tuple[str, ...]
    name: str | None = None
    lease_ms: int = DEFAULT_LEASE_MS


def snapshot_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    async def all_(_: web.Request) -> web.Response:
        with tier_errors_as_http():
            views = await current().snapshots.all()
        return web.json_response({"snapshots": [asdict(view) for view in views]})

    async def create(request: web.Request) -> web.Response:
        wanted = await decode_body(request, SnapshotRequest)
        if not wanted.topics:
            raise http_error(web.HTTPBadRequest, "`topics` must name at least one topic")
        with tier_errors_as_http():
            view = await current().snapshots.create(wanted.topics, wanted.lease_ms, wanted.name)
        return web.json_response(asdict(view))

    async def end(request: web.Request) -> web.Response:
        with tier_errors_as_http():
            return web.json_response({"id": await current().snapshots.end(request.match_info["id"])})

    return [
        web.get("/v1/tier/snapshots", all_),
        web.post("/v1/tier/snapshots", create),
        web.delete("/v1/tier/snapshots/{id}", end),
    ]
