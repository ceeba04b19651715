"""Admin route of offsets: where the partitions of a topic that this node leads begin and end in each tier.

`GET /v1/offsets?topic=T&first=N&limit=N` answers rows as those of `GET /v1/tier/status`, of partitions that
are not tiered too. `first` is the lowest partition.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import http_error, parsing_parameters
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.quorum.client import MetadataClient

LIMIT_MAX = 100
"""Partitions of one response: some milliseconds of work."""


def offset_routes(current: Callable[[], Serving], metadata: MetadataClient) -> list[web.AbstractRouteDef]:
    async def show(request: web.Request) -> web.Response:
        serving = current()
        with parsing_parameters():
            name, first = request.query["topic"], int(request.query.get("first", "0"))
            limit = min(int(request.query.get("limit", "100")), LIMIT_MAX)
        topic = metadata.image.topic(name)
        if topic is None:
            raise http_error(web.HTTPNotFound, f"there is no topic {name!r}")
        numbers = range(max(first, 0), min(max(first, 0) + max(limit, 0), len(topic.partitions)))
        replicas = [serving.replicas.get(name, number) for number in numbers]
        rows = [_row(serving, one) for one in replicas if one is not None and one.is_leader]
        return web.json_response({"partitions": rows})

    return [web.get("/v1/offsets", show)]


def _row(serving: Serving, replica: Replica) -> dict[str, Any]:
    status = serving.tiering.status_of(replica)
    if status is not None:
        return {**asdict(status), "tiered": True}
    return {
        "topic": replica.name.topic,
        "partition": replica.name.partition,
        "tiered": False,
        "log_start_offset": replica.log_start_offset,
        "high_watermark": replica.high_watermark,
        "local_log_start_offset": replica.local_log_start_offset,
        "log_end_offset": replica.log_end_offset,
        "remote_start_offset": None,
        "remote_end_offset": None,
        "local_bytes": replica.log.size_bytes,
        "remote_bytes": 0,
        "last_error": None,
    }
