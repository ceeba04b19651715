"""Admin routes for tiering: status, flush, explain. Errors are `{"error": …}` with a message for
operators."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.tier_views import PartitionTier, TierRefused
from tierlog.tiering.object_store import ObjectStoreError


def tier_routes(current: Callable[[], RemoteLogManager]) -> list[web.AbstractRouteDef]:
    async def status(request: web.Request) -> web.Response:
        return await _answer(current(), lambda driver: _status(driver, request))

    async def flush(request: web.Request) -> web.Response:
        return await _answer(current(), lambda driver: _flush(driver, request))

    async def explain(request: web.Request) -> web.Response:
        return await _answer(current(), lambda driver: _explain(driver, request))

    return [
        web.get("/v1/tier/status", status),
        web.post("/v1/tier/flush", flush),
        web.get("/v1/tier/explain", explain),
    ]


def partition_view(line: PartitionTier) -> dict[str, Any]:
    """One partition as JSON, with Kafka's nouns; ends are exclusive, null without remote data."""
    is_remote = line.remote_end >= 0
    return {
        "topic": line.topic,
        "partition": line.partition,
        "log_start_offset": line.log_start,
        "high_watermark": line.high_watermark,
        "local_log_start_offset": line.local_start,
        "log_end_offset": line.local_end,
        "remote_start_offset": line.remote_start if is_remote else None,
        "remote_end_offset": line.remote_end if is_remote else None,
        "local_bytes": line.local_bytes,
        "remote_bytes": line.remote_bytes,
        "local_segments": line.segments,
        "remote_segments": line.remote_segments,
        "uploading": line.uploading,
        "pending_bytes": line.pending_bytes,
        "last_error": line.last_error,
    }


async def _answer(
    driver: RemoteLogManager, work: Callable[[RemoteLogManager], Awaitable[web.Response]]
) -> web.Response:
    try:
        return await work(driver)
    except TierRefused as refused:
        return _error(404, str(refused))
    except (KeyError, TypeError, ValueError) as wrong:
        return _error(400, f"bad or missing parameter: {wrong}")
    except (ObjectStoreError, OSError) as failure:
        return _error(503, str(failure))


async def _status(driver: RemoteLogManager, request: web.Request) -> web.Response:
    lines = driver.status(request.query.get("topic"))
    return web.json_response({"partitions": [partition_view(line) for line in lines]})


async def _flush(driver: RemoteLogManager, request: web.Request) -> web.Response:
    """Respond when the manifests in the bucket cover the log ends. A client that disconnects ends the
    wait."""
    body = await request.json()
    lines = await driver.flush(str(body["topic"]))
    return web.json_response({"partitions": [partition_view(line) for line in lines]})


async def _explain(driver: RemoteLogManager, request: web.Request) -> web.Response:
    query = request.query
    place = await driver.explain(query["topic"], int(query["partition"]), int(query["offset"]))
    return web.json_response(asdict(place))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
