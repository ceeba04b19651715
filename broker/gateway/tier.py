"""/v1/tier: where the offsets of tiered topics lie, and moving them to the object store now."""

from typing import Any

from aiohttp import web

from tierlog.broker.gateway.node import Node
from tierlog.broker.runtime.tier_driver import PartitionTier, TierDriver, TierRefused
from tierlog.tiering.object_store import ObjectStoreError


def tier_routes(node: Node) -> list[web.RouteDef]:
    async def status(request: web.Request) -> web.Response:
        lines = _driver(node).status(request.query.get("topic"))
        return web.json_response({"partitions": [partition_view(line) for line in lines]})

    async def flush(request: web.Request) -> web.Response:
        topic = await _topic_of(request)
        try:
            lines = await _driver(node).flush(topic)
        except TierRefused as refused:
            raise problem(409, str(refused)) from None
        return web.json_response({"partitions": [partition_view(line) for line in lines]})

    async def explain(request: web.Request) -> web.Response:
        query = request.query
        try:
            topic, partition, offset = query["topic"], int(query["partition"]), int(query["offset"])
        except (KeyError, ValueError):
            raise problem(400, "topic, partition and offset are needed, the latter two as numbers") from None
        try:
            place = await _driver(node).explain(topic, partition, offset)
        except TierRefused as refused:
            raise problem(404, str(refused)) from None
        except ObjectStoreError as failure:
            raise problem(503, str(failure)) from None
        return web.json_response(
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "tier": place.tier,
                "location": place.location,
                "position": place.position,
                "batch_bytes": place.batch_bytes,
                "base_offset": place.base_offset,
                "last_offset": place.last_offset,
                "also_remote": place.also_remote,
            }
        )

    return [
        web.get("/v1/tier/status", status),
        web.post("/v1/tier/flush", flush),
        web.get("/v1/tier/explain", explain),
    ]


def partition_view(line: PartitionTier) -> dict[str, Any]:
    """One partition as JSON, under Kafka's nouns; ends exclusive, null where there is nothing remote."""
    return {
        "topic": line.topic,
        "partition": line.partition,
        "log_start_offset": line.log_start,
        "high_watermark": line.high_watermark,
        "local_log_start_offset": line.local_start,
        "log_end_offset": line.local_end,
        "remote_start_offset": None if line.remote_end < 0 else line.remote_start,
        "remote_end_offset": None if line.remote_end < 0 else line.remote_end,
        "local_bytes": line.local_bytes,
        "remote_bytes": line.remote_bytes,
        "local_segments": line.segments,
        "remote_segments": line.remote_segments,
        "uploading": line.uploading,
        "pending_bytes": line.pending_bytes,
        "last_error": line.last_error,
    }


def problem(status: int, message: str) -> web.HTTPException:
    """An error whose body says why, as JSON."""
    reason = web.json_response({"error": message})
    return _CLASSES[status](body=reason.body, content_type="application/json")


_CLASSES: dict[int, type[web.HTTPException]] = {
    400: web.HTTPBadRequest,
    404: web.HTTPNotFound,
    409: web.HTTPConflict,
    503: web.HTTPServiceUnavailable,
}


def _driver(node: Node) -> TierDriver:
    if node.tiering is None:
        raise problem(503, "this node does not serve yet")
    return node.tiering


async def _topic_of(request: web.Request) -> str:
    try:
        topic = (await request.json())["topic"]
    except (ValueError, KeyError, TypeError):
        topic = None
    if not isinstance(topic, str):
        raise problem(400, 'the body must be {"topic": name}')
    return topic
