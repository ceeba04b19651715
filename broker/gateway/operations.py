"""Admin routes that show, move and balance brokers and partitions.

Each change is a command that the controller validates and commits; any node forwards it to the quorum leader.
Responses of routes that change partitions have `outcomes`, one for each partition: `error` is null or the
name of Kafka's error code. If a request fails as a whole, the response is `{"error": …}` with a message for
operators: 400 invalid request, 404 no such broker or topic, 409 not in this state, 503 no quorum.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition, brokers_view, partitions_view
from tierlog.broker.gateway.requests import decode_body, http_error
from tierlog.metadata.controller.balance import MAX_ELECTIONS, rebalance
from tierlog.metadata.controller.commands import (
    AlterConfigs,
    ElectionKind,
    ElectLeaders,
    NamedOutcome,
    Reassign,
    StopBroker,
    UnregisterBroker,
)
from tierlog.metadata.controller.moves import MovePlan, drain, spread
from tierlog.metadata.controller.throttles import unthrottle
from tierlog.metadata.image import BrokerImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.errors import ErrorCode


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`replicas`: preferred leader first; null cancels the running reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class Moves(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`throttle`: bytes a second for each broker that sends or receives replicas, until `unthrottle`."""

    moves: tuple[Move, ...]
    throttle: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Unthrottle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`partitions`: (topic, number); null: all."""

    partitions: tuple[tuple[str, int], ...] | None = None


class Election(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`partitions`: (topic, number); null: all that need one."""

    partitions: tuple[tuple[str, int], ...] | None = None
    kind: Literal["preferred", "unclean"] = "preferred"


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dry_run: bool = False


class Balance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    leaders: bool = True
    replicas: bool = True
    dry_run: bool = False


Operation = Callable[[MetadataClient, web.Request], Awaitable[dict[str, Any]]]


def operation_routes(metadata: MetadataClient) -> list[web.AbstractRouteDef]:
    return [
        web.route(method, path, _route_handler(metadata, operation))
        for method, path, operation in (
            ("GET", "/v1/brokers", _brokers),
            ("POST", "/v1/brokers/{id}/drain", _drain),
            ("POST", "/v1/brokers/{id}/stop", _stop),
            ("DELETE", "/v1/brokers/{id}", _unregister),
            ("GET", "/v1/partitions", _partitions),
            ("POST", "/v1/partitions/move", _move),
            ("POST", "/v1/partitions/unthrottle", _unthrottle),
            ("POST", "/v1/partitions/elect", _elect),
            ("POST", "/v1/partitions/balance", _balance),
        )
    ]


# --- brokers


async def _brokers(metadata: MetadataClient, _: web.Request) -> dict[str, Any]:
    return await asyncio.to_thread(brokers_view, metadata.image)


async def _drain(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    """Start to move the broker's replicas to others, as many as one plan holds."""
    broker, body = _broker(metadata, request), await decode_body(request, Drain)
    plan = await asyncio.to_thread(drain, metadata.image, {broker.broker_id})
    return await _execute_plan(metadata, plan, dry_run=body.dry_run)


async def _stop(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    """Move the broker's leaderships away, and give it no new ones until its process starts again."""
    broker = _broker(metadata, request)
    command = StopBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    reply = await metadata.submit(command)
    _check(reply.error, reply.message)
    return {"id": broker.broker_id, "leads": reply.leads}


async def _unregister(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    """Remove a broker whose process has stopped, whether it still has replicas or not."""
    broker = _broker(metadata, request)
    reply = await metadata.submit(UnregisterBroker(broker_id=broker.broker_id))
    _check(reply.error, reply.message)
    return {"id": broker.broker_id}


# --- partitions


async def _partitions(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    """`?topic=…&condition=…&limit=…`; `unhealthy`: any condition that needs an operator."""
    topic, text = request.query.get("topic"), request.query.get("condition")
    if topic is not None and topic not in metadata.image.topic_ids:
        raise http_error(web.HTTPNotFound, f"there is no topic {topic!r}")
    try:
        limit = int(request.query["limit"]) if "limit" in request.query else None
    except ValueError:
        raise http_error(web.HTTPBadRequest, "limit must be a number") from None
    try:
        wanted = UNHEALTHY if text == "unhealthy" else frozenset({Condition(text)} if text else ())
    except ValueError:
        known = ", ".join(("unhealthy", *Condition))
        raise http_error(web.HTTPBadRequest, f"unknown condition {text!r}: use one of {known}") from None
    return await asyncio.to_thread(partitions_view, metadata.image, topic=topic, wanted=wanted, limit=limit)


async def _move(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    body = await decode_body(request, Moves)
    changes = tuple((move.topic, move.partition, move.replicas) for move in body.moves)
    reply = await metadata.submit(Reassign(changes=changes, throttle=body.throttle))
    return {"outcomes": _outcomes(reply.partitions)}


async def _unthrottle(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    body = await decode_body(request, Unthrottle)
    partitions = None if body.partitions is None else frozenset(body.partitions)
    return {"altered": await _alter_configs(metadata, unthrottle(metadata.image, partitions))}


async def _elect(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    body = await decode_body(request, Election)
    command = ElectLeaders(partitions=body.partitions, kind=ElectionKind[body.kind.upper()])
    return {"outcomes": _outcomes((await metadata.submit(command)).partitions)}


async def _balance(metadata: MetadataClient, request: web.Request) -> dict[str, Any]:
    """Elect preferred leaders, and move replicas so that the numbers of replicas per broker become more
    equal, as far as racks allow."""
    body = await decode_body(request, Balance)
    result: dict[str, Any] = {"elections": [], "moves": [], "outcomes": [], "more": False}
    if body.leaders:
        election = await asyncio.to_thread(rebalance, metadata.image, 0)
        if election is not None and election.partitions is not None:
            result["elections"] = [list(one) for one in election.partitions]
            result["more"] = len(election.partitions) == MAX_ELECTIONS
            if not body.dry_run:
                result["outcomes"] = _outcomes((await metadata.submit(election)).partitions)
    if body.replicas:
        plan = await asyncio.to_thread(spread, metadata.image)
        moved = await _execute_plan(metadata, plan, dry_run=body.dry_run)
        result["moves"] = moved["moves"]
        result["outcomes"] = result["outcomes"] + moved["outcomes"]
        result["more"] = result["more"] or moved["more"]
    return result


async def _execute_plan(metadata: MetadataClient, plan: MovePlan, *, dry_run: bool) -> dict[str, Any]:
    outcomes: list[dict[str, Any]] = []
    if plan.command.changes and not dry_run:
        outcomes = _outcomes((await metadata.submit(plan.command)).partitions)
    return {
        "moves": [
            {"topic": topic, "partition": number, "replicas": None if replicas is None else list(replicas)}
            for topic, number, replicas in plan.command.changes
        ],
        "stuck": [{"topic": topic, "partition": number} for topic, number in plan.stuck],
        "more": plan.more,
        "outcomes": outcomes,
    }


# --- shared by all routes


async def _alter_configs(metadata: MetadataClient, command: AlterConfigs) -> list[str]:
    """Names of the topics and brokers whose settings changed. Raises HTTPError if the controller
    rejects one."""
    if not command.resources:
        return []
    for outcome in (await metadata.submit(command)).resources:
        _check(outcome.error, outcome.message)
    return [resource.name for resource in command.resources]


def _route_handler(metadata: MetadataClient, operation: Operation) -> Callable[[web.Request], Any]:
    async def handle(request: web.Request) -> web.Response:
        try:
            return web.json_response(await operation(metadata, request))
        except MetadataUnavailable as unavailable:
            body = {"error": str(unavailable), "applied_unknown": unavailable.applied_unknown}
            return web.json_response(body, status=503)

    return handle


def _broker(metadata: MetadataClient, request: web.Request) -> BrokerImage:
    text = request.match_info["id"]
    broker = metadata.image.brokers.get(int(text)) if text.isdecimal() else None
    if broker is None:
        raise http_error(web.HTTPNotFound, f"broker {text} is not registered")
    return broker


def _outcomes(outcomes: Sequence[NamedOutcome]) -> list[dict[str, Any]]:
    return [
        {
            "topic": outcome.topic,
            "partition": outcome.partition,
            "error": None if outcome.error is ErrorCode.NONE else outcome.error.name,
            "message": outcome.message,
        }
        for outcome in outcomes
    ]


def _check(error: ErrorCode, message: str | None) -> None:
    if error is ErrorCode.BROKER_ID_NOT_REGISTERED:
        raise http_error(web.HTTPNotFound, message or error.name)
    if error is not ErrorCode.NONE:
        raise http_error(web.HTTPConflict, message or error.name)
