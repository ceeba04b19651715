"""Admin routes of bulk loads, on the leader of a partition (ADR 0044).

`begin` says where the load begins and what its segments need, `announce` allows one segment to be put,
`renew` prolongs the lease, `commit` adds the segments, and `cancel` gives the lease back. All but `cancel`
and `renew` may be repeated; `announce` announces another attempt each time. 404: there is no such topic. 409:
the partition cannot be loaded into, or the lease has ended; the job begins again. 503: try the same request
later.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import msgspec
from aiohttp import web

from tierlog.base.types import TopicIdPartition
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body
from tierlog.broker.gateway.tier_errors import tier_errors_as_http
from tierlog.broker.remote.loads import LEASE_MS, LoadLease
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import Load
from tierlog.metadata.records import RemoteSegment


class LoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic_id: UUID
    partition: int
    load_id: UUID

    @property
    def where(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


class BeginLoadRequest(LoadRequest, frozen=True, forbid_unknown_fields=True):
    lease_ms: Annotated[int, msgspec.Meta(ge=1_000, le=600_000)] = LEASE_MS


class AnnounceRequest(LoadRequest, frozen=True, forbid_unknown_fields=True):
    """Offsets are inclusive, as in the object keys."""

    base_offset: int
    last_offset: int


class CommitLoadRequest(LoadRequest, frozen=True, forbid_unknown_fields=True):
    """`segments`: manifest entries, each an array of its fields in order."""

    segments: tuple[RemoteSegment, ...]


def load_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    async def begin(request: web.Request) -> web.Response:
        body = await decode_body(request, BeginLoadRequest)
        with tier_errors_as_http():
            replica, found = current().loads.begin(body.where, body.load_id, body.lease_ms)
            return web.json_response(_view(replica, found))

    async def announce(request: web.Request) -> web.Response:
        body = await decode_body(request, AnnounceRequest)
        with tier_errors_as_http():
            attempt = await current().loads.announce(
                body.where, body.load_id, body.base_offset, body.last_offset
            )
            return web.json_response({"uuid": str(attempt.uuid), "leader_epoch": attempt.leader_epoch})

    async def renew(request: web.Request) -> web.Response:
        body = await decode_body(request, LoadRequest)
        return web.json_response({"is_held": current().loads.renew(body.where, body.load_id)})

    async def cancel(request: web.Request) -> web.Response:
        body = await decode_body(request, LoadRequest)
        current().loads.cancel(body.where, body.load_id)
        return web.json_response({})

    async def commit(request: web.Request) -> web.Response:
        body = await decode_body(request, CommitLoadRequest)
        with tier_errors_as_http():
            load = await current().loads.commit(body.where, body.load_id, body.segments)
            return web.json_response(_loaded(load))

    path = "/v1/tier/loads"
    return [
        web.post(f"{path}/begin", begin),
        web.post(f"{path}/announce", announce),
        web.post(f"{path}/renew", renew),
        web.post(f"{path}/cancel", cancel),
        web.post(f"{path}/commit", commit),
    ]


def _loaded(load: Load) -> dict[str, Any]:
    return {"loaded": {"base_offset": load.base_offset, "end_offset": load.end_offset}}


def _view(replica: Replica, found: Load | LoadLease) -> dict[str, Any]:
    """The offsets of a load that was committed, or the properties that its segments need."""
    if isinstance(found, Load):
        return _loaded(found)
    config = replica.config
    return {
        "loaded": None,
        "base_offset": found.base_offset,
        "leader_epoch": found.leader_epoch,
        "leader_epochs": [list(entry) for entry in found.leader_epochs],
        "producer_snapshot": b64encode(found.producer_snapshot).decode(),
        "segment_bytes": config.segment_bytes,
        "index_interval_bytes": config.index_interval_bytes,
        "max_message_bytes": config.max_message_bytes,
        "compression_type": config.compression_type,
        "message_timestamp_type": config.message_timestamp_type,
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
    }
