"""Admin routes with which a job replaces remote segments, on the leader of their partition.

`begin` announces a new segment and gives a lease for it, `renew` prolongs leases, `commit` puts a verified
segment into the manifest, and `cancel` gives leases back. 404: there is no such topic. 409: the manifest,
the leader or the lease has changed; the job plans again. 503: try the same request later.
"""

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import msgspec
from aiohttp import web

from tierlog.base.types import TopicIdPartition
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body, parsing_parameters
from tierlog.broker.gateway.tier_errors import tier_errors_as_http
from tierlog.broker.remote.replacements import LEASE_MS
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.compaction import last_records_of_producers
from tierlog.metadata.records import RemoteSegment


class BeginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`old`: ids of successive segments; `ends`: of the new one, exclusive. `compacts`: the new segment may
    lack records of the old one. `leader_epoch`: null allows any. `request_id`: a request that has the
    same is a repetition."""

    topic_id: UUID
    partition: int
    base_offset: int
    old: tuple[UUID, ...]
    ends: tuple[int, ...]
    lease_ms: Annotated[int, msgspec.Meta(ge=1_000, le=600_000)] = LEASE_MS
    compacts: bool = False
    leader_epoch: int | None = None
    request_id: UUID | None = None


class LeasesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uuids: tuple[UUID, ...]


class CommitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`new`: manifest entries, each an array of its fields in order."""

    topic_id: UUID
    partition: int
    old: tuple[UUID, ...]
    new: tuple[RemoteSegment, ...]


def replacement_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    async def limits(request: web.Request) -> web.Response:
        with parsing_parameters():
            where = TopicIdPartition(UUID(request.query["topic_id"]), int(request.query["partition"]))
        with tier_errors_as_http():
            replica, found = current().replacements.limits(where)
            view: dict[str, Any] = {
                "leader_epoch": replica.leader_epoch,
                "log_start_offset": replica.log_start_offset,
                "local_log_start_offset": replica.local_log_start_offset,
                "index_interval_bytes": replica.config.index_interval_bytes,
                "bytes_max": found.bytes_max,
                "span_ms_max": found.span_ms_max,
                "compaction": None,
            }
            if "compact" in replica.config.cleanup_policy:
                view["compaction"] = _compaction_view(replica)
            return web.json_response(view)

    async def begin(request: web.Request) -> web.Response:
        body = await decode_body(request, BeginRequest)
        where = TopicIdPartition(body.topic_id, body.partition)
        with tier_errors_as_http():
            replacements = current().replacements
            lease = await replacements.begin(
                where,
                body.base_offset,
                body.old,
                body.ends,
                body.lease_ms,
                compacts=body.compacts,
                leader_epoch=body.leader_epoch,
                request_id=body.request_id,
            )
            row: dict[str, Any] = {
                "uuid": str(lease.attempt.uuid),
                "base_offset": lease.base_offset,
                "last_offset": lease.last_offset,
                "leader_epoch": lease.attempt.leader_epoch,
            }
            return web.json_response({"new": [row]})

    async def renew(request: web.Request) -> web.Response:
        body = await decode_body(request, LeasesRequest)
        return web.json_response({"uuids": [str(uuid) for uuid in current().replacements.renew(body.uuids)]})

    async def cancel(request: web.Request) -> web.Response:
        body = await decode_body(request, LeasesRequest)
        current().replacements.cancel(body.uuids)
        return web.json_response({})

    async def commit(request: web.Request) -> web.Response:
        body = await decode_body(request, CommitRequest)
        with tier_errors_as_http():
            where = TopicIdPartition(body.topic_id, body.partition)
            await current().replacements.commit(where, body.old, body.new)
            return web.json_response({})

    path = "/v1/tier/replacements"
    return [
        web.get(path, limits),
        web.post(f"{path}/begin", begin),
        web.post(f"{path}/renew", renew),
        web.post(f"{path}/cancel", cancel),
        web.post(f"{path}/commit", commit),
    ]


def _compaction_view(replica: Replica) -> dict[str, Any]:
    """Settings, and the last data offset of each producer, whose batch is kept: rows of producer id, epoch
    and offset (-1: only markers)."""
    last = last_records_of_producers(replica.log.producers)
    return {
        "min_compaction_lag_ms": replica.config.min_compaction_lag_ms,
        "delete_retention_ms": replica.config.delete_retention_ms,
        "producers": [[producer_id, one.epoch, one.offset] for producer_id, one in last.items()],
    }
