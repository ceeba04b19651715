"""Admin routes for tiering: status, flush, explain."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from aiohttp import web

from tierlog.broker.gateway.requests import refused
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.tier_views import PartitionTier, TierRefused
from tierlog.tiering.object_store import ObjectStoreError


def tier_routes(current: Callable[[], RemoteLogManager]) -> list[web.AbstractRouteDef]:
    async def status(request: web.Request) -> web.Response:
        return _response(current().status(request.query.get("topic")))

    async def flush(request: web.Request) -> web.Response:
        """Respond when the manifests in the bucket cover the log ends. A client that disconnects ends the
        wait."""
        manager = current()
        with _translate_errors():
            body = await request.json()
            return _response(await manager.flush(str(body["topic"])))

    async def explain(request: web.Request) -> web.Response:
        manager, query = current(), request.query
        with _translate_errors():
            place = await manager.explain(query["topic"], int(query["partition"]), int(query["offset"]))
            return web.json_response(asdict(place))

    return [
        web.get("/v1/tier/status", status),
        web.post("/v1/tier/flush", flush),
        web.get("/v1/tier/explain", explain),
    ]


def _response(found: Iterable[PartitionTier]) -> web.Response:
    return web.json_response({"partitions": [asdict(one) for one in found]})


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except TierRefused as why:
        raise refused(web.HTTPNotFound, str(why)) from None
    except (KeyError, TypeError, ValueError) as wrong:
        raise refused(web.HTTPBadRequest, f"bad or missing parameter: {wrong}") from None
    except (ObjectStoreError, OSError) as failure:
        raise refused(web.HTTPServiceUnavailable, str(failure)) from None
