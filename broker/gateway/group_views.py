"""Admin route of consumer groups: those that this node coordinates, their lag now and over the last hour.

`GET /v1/groups?search=TEXT&first=N&limit=N` lists groups in the order of their names; with `group=NAME` the
answer has one group with its members, partitions and history. `trend`: age in milliseconds and lag of the
oldest sample. The lag is that of the metrics (groups.group_lag): in
offsets, at most a few seconds old, and only of groups that group.lag.metrics.max.partitions admits.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

from aiohttp import web

from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import http_error, parsing_parameters
from tierlog.broker.groups.group_service import GroupService
from tierlog.protocol.errors import ErrorCode

LIMIT_MAX = 1_000
MEMBERS_MAX = 500
PARTITIONS_MAX = 2_000


def group_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    async def show(request: web.Request) -> web.Response:
        groups, query = current().groups, request.query
        with parsing_parameters():
            first = max(int(query.get("first", "0")), 0)
            limit = min(max(int(query.get("limit", "100")), 0), LIMIT_MAX)
        await groups.lag.refresh()
        if (name := query.get("group")) is not None:
            return web.json_response(_group(groups, name))
        return web.json_response(await _groups(groups, query.get("search", ""), first, limit))

    return [web.get("/v1/groups", show)]


async def _groups(groups: GroupService, search: str, first: int, limit: int) -> dict[str, Any]:
    error, listed = groups.list_groups()
    known: dict[str, tuple[str | None, str | None]] = {name: (kind, state) for name, _, state, kind in listed}
    await asyncio.sleep(0)
    lags: dict[str, int] = {}
    for row in groups.lag.topics:
        lags[row.group] = lags.get(row.group, 0) + row.lag
    found = sorted(name for name in {*known, *lags} if search in name)
    return {
        "total": len(found),
        "left_out_partitions": groups.lag.left_out,
        "error": None if error is ErrorCode.NONE else error.name,
        "groups": [
            {
                "group": name,
                "type": known.get(name, ("", None))[0],
                "state": known.get(name, (None, "Empty"))[1],
                "lag": lags.get(name),
                "trend": groups.lag.history.oldest(name),
            }
            for name in islice(found, first, first + limit)
        ],
    }


def _group(groups: GroupService, name: str) -> dict[str, Any]:
    consumer, classic = groups.describe_consumer(name), groups.describe(name)
    rows = [row for row in groups.lag.partitions if row.group == name]
    view: dict[str, Any] = {"group": name, "type": None, "state": "Empty", "members": []}
    if not isinstance(consumer, ErrorCode):
        view |= {"type": "consumer", "state": consumer.group_state}
        view["members"] = [
            {"member_id": one.member_id, "client_id": one.client_id, "host": one.client_host}
            for one in consumer.members[:MEMBERS_MAX]
        ]
        view["member_count"] = len(consumer.members)
    elif not isinstance(classic, ErrorCode):
        view |= {"type": "classic", "state": classic.group_state}
        view["members"] = [
            {"member_id": one.member_id, "client_id": one.client_id, "host": one.client_host}
            for one in classic.members[:MEMBERS_MAX]
        ]
        view["member_count"] = len(classic.members)
    elif not rows:
        raise http_error(web.HTTPNotFound, f"this node coordinates no group {name!r}")
    view["partition_count"] = len(rows)
    view["partitions"] = [
        {
            "topic": row.partition.topic,
            "partition": row.partition.partition,
            "committed_offset": row.committed_offset,
            "lag": row.lag,
        }
        for row in sorted(rows, key=lambda row: -(row.lag or 0))[:PARTITIONS_MAX]
    ]
    view["history"] = groups.lag.history.of(name)
    return view
