"""Admin routes for this node's scrubber: progress, damage found, and starting a pass.

Other nodes serve their own scrubbers.
"""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.maintenance.scrubber import Scrubber


def scrub_routes(current: Callable[[], tuple[Scrubber, LogRepair] | None]) -> list[web.AbstractRouteDef]:
    """503 while `current` returns None."""

    async def status(_: web.Request) -> web.Response:
        parts = current()
        return _not_yet() if parts is None else web.json_response(_view(*parts))

    async def begin(_: web.Request) -> web.Response:
        parts = current()
        if parts is None:
            return _not_yet()
        parts[0].begin()
        return web.json_response(_view(*parts))

    return [web.get("/v1/scrub", status), web.post("/v1/scrub", begin)]


def _view(scrubber: Scrubber, repair: LogRepair) -> dict[str, Any]:
    return {
        "progress": scrubber.progress,
        "passes": scrubber.passes,
        "read_bytes": scrubber.bytes_read,
        "found": repair.found_count,
        "repaired": repair.repaired,
        "damaged": [
            {
                "topic": replica.name.topic,
                "partition": replica.name.partition,
                "first_offset": damage.start_offset,
                "end_offset": damage.end_offset,
            }
            for replica in repair.damaged
            for damage in replica.log.damage_in_reach
        ],
    }


def _not_yet() -> web.Response:
    return web.json_response({"error": "this node is still starting"}, status=503)
