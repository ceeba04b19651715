"""Admin route that balances leaders and replicas by load, or shows what would move and why:
`POST /v1/partitions/balance/load`.

Any broker measures and plans, for one request at a time. It responds after the measurement; moves run on.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web

from tierlog.base.types import TopicPartition
from tierlog.broker.gateway.node import Serving
from tierlog.broker.gateway.requests import decode_body, http_error
from tierlog.broker.maintenance.rebalancer import Report
from tierlog.config.balancing import MAX_BYTES_PER_SECOND, MAX_MOVES, MEASUREMENT_S
from tierlog.metadata.controller.commands import NamedOutcome
from tierlog.metadata.controller.load_balance import Action, Bounds, BrokerLoad
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode

MOVES_MAX = 1000
MAY_HAVE_STARTED = (
    "if `tierlog partition list --moving` shows moves, remove their throttle afterwards with `tierlog "
    "partition unthrottle`"
)


class BalanceByLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seconds`: for which the load is measured. `throttle`: bytes a second for each broker."""

    dry_run: bool = False
    leaders: bool = True
    replicas: bool = True
    seconds: Annotated[float, msgspec.Meta(ge=0.1, le=600)] = MEASUREMENT_S
    max_moves: Annotated[int, msgspec.Meta(ge=1, le=MOVES_MAX)] = MAX_MOVES
    throttle: Annotated[int, msgspec.Meta(ge=1)] = MAX_BYTES_PER_SECOND


def load_balance_routes(
    current: Callable[[], Serving], metadata: MetadataClient
) -> list[web.AbstractRouteDef]:
    async def balance(request: web.Request) -> web.Response:
        body = await decode_body(request, BalanceByLoad)
        rebalancer = current().rebalancer
        if rebalancer.busy.locked():
            raise http_error(web.HTTPConflict, "this broker measures the load for another request")
        bounds = Bounds(max_actions=body.max_moves, moves_leaders=body.leaders, moves_replicas=body.replicas)
        outcomes: list[NamedOutcome] = []
        try:
            async with rebalancer.busy:
                report = await rebalancer.measure(body.seconds, bounds)
                if not body.dry_run and report.plan.actions:
                    outcomes = await rebalancer.execute(report, body.throttle)
        except MetadataUnavailable as unavailable:
            started = "" if body.dry_run else f"; {MAY_HAVE_STARTED}"
            raise http_error(web.HTTPServiceUnavailable, f"{unavailable}{started}") from None
        view = await asyncio.to_thread(_view, metadata.image, report)
        return web.json_response({**view, "outcomes": [_outcome(one) for one in outcomes]})

    return [web.post("/v1/partitions/balance/load", balance)]


def _view(image: ClusterImage, report: Report) -> dict[str, Any]:
    plan, disks = report.plan, report.loads.disks if report.loads is not None else {}
    after = {one.broker_id: one for one in plan.after}
    return {
        "faults": [one.text for one in report.faults],
        "seconds": report.seconds,
        "brokers": [
            {
                "id": one.broker_id,
                "rack": image.brokers[one.broker_id].rack if one.broker_id in image.brokers else None,
                "disk_bytes": disks[one.broker_id].total_bytes,
                "free_bytes": disks[one.broker_id].usable_bytes,
                "now": _load(one),
                "then": _load(after[one.broker_id]),
            }
            for one in plan.before
        ],
        "left_alone": list(plan.left_alone),
        "actions": [_action(one) for one in plan.actions],
        "hot": [_hot(image, where, rate) for where, rate in plan.hot],
    }


def _load(one: BrokerLoad) -> dict[str, float]:
    return {
        "stored_bytes": round(one.stored_bytes),
        "written_bytes_per_s": round(one.written_per_s),
        "led_bytes_per_s": round(one.led_per_s),
    }


def _action(one: Action) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "before": list(one.before),
        "after": list(one.after),
        "copied_bytes": one.copied_bytes,
        "reason": one.reason,
    }


def _hot(image: ClusterImage, where: TopicPartition, rate: float) -> dict[str, Any]:
    topic = image.topic(where.topic)
    partitions = () if topic is None else topic.partitions
    leader = partitions[where.partition].leader if where.partition < len(partitions) else None
    return {
        "topic": where.topic,
        "partition": where.partition,
        "leader": leader,
        "bytes_per_s": round(rate),
    }


def _outcome(one: NamedOutcome) -> dict[str, Any]:
    error = None if one.error is ErrorCode.NONE else one.error.name
    return {"topic": one.topic, "partition": one.partition, "error": error, "message": one.message}
