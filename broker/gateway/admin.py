"""Admin HTTP server: health, metrics, an event stream, and the admin API as JSON (cluster, operations,
directories, scrubber, tiering).

It starts before the metadata node, whose peers connect to it, and answers 503 for parts that have not
started.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from heapq import nsmallest
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from tierlog.base.addresses import host_port
from tierlog.base.tasks import TaskGroup
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.audited import audited
from tierlog.broker.gateway.authentication import AdminAccess
from tierlog.broker.gateway.directories import directory_routes
from tierlog.broker.gateway.group_views import group_routes
from tierlog.broker.gateway.load_balance import load_balance_routes
from tierlog.broker.gateway.loads import load_routes
from tierlog.broker.gateway.metrics import render
from tierlog.broker.gateway.node import Node, Serving
from tierlog.broker.gateway.offset_views import offset_routes
from tierlog.broker.gateway.operations import operation_routes
from tierlog.broker.gateway.replacements import replacement_routes
from tierlog.broker.gateway.request_guard import BODY_BYTES_MAX, request_guard
from tierlog.broker.gateway.requests import http_error, parsing_parameters
from tierlog.broker.gateway.self_test import self_test_routes
from tierlog.broker.gateway.snapshots import snapshot_routes
from tierlog.broker.gateway.tier_checks import tier_check_routes
from tierlog.broker.gateway.versions import version_routes
from tierlog.broker.remote.tier_views import PartitionTierStatus, TierConflict, TierRefused
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.tls import TlsFiles, reload_on_change, require_certificate
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.quarantine import DamagedRange

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS_PER_DAY = 86_400

STATUSES_PER_TURN = 200
"""Statuses of tiered partitions that are written in one turn of the event loop: a millisecond."""

UPLOADS_MAX = 50
"""Partitions that GET /v1/tier/uploads lists."""

UPLOADS_KEPT_S = 4.0
"""How long its answer is kept, so that several open pages cost no more than one."""

DISCONNECT_CHECK_S = 1.0
"""Time between two checks whether the client of a long request is still connected."""

T = TypeVar("T")


class AdminServer:
    """The HTTP server of a node."""

    def __init__(
        self,
        routes: Sequence[web.AbstractRouteDef],
        tls: TlsFiles | None = None,
        names: Callable[[], Iterable[str]] = tuple,
        access: AdminAccess | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`tls`: all routes but health and metrics require a client certificate. Raises OSError if it cannot
        be loaded. `names`: host names that requests may use, besides addresses and localhost. `access`:
        authenticates users; None: everyone may use all routes, with a certificate if there is TLS. `audit`:
        gets an entry for each change."""
        self._tls_files, self._tls = tls, None if tls is None else tls.server()
        checks = () if tls is None else (require_certificate,)
        middlewares = (
            request_guard(names),
            *(checks if access is None else (access.middleware,)),
            *(() if audit is None else (audited(audit),)),
        )
        application = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
        application.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> str:
        """Start to serve. Returns the server's URL."""
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, reuse_port=False
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listening, ssl_context=self._tls).start()
        host, port = listening.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{host_port(host, port)}"

    async def keep_certificates(self) -> None:
        """Reload certificates when their files change, until cancelled."""
        if self._tls_files is not None and self._tls is not None:
            await reload_on_change(self._tls_files, self._tls)

    async def close(self) -> None:
        await self._runner.cleanup()


def url_for_others(url: str, settings: NodeSettings) -> str:
    """URL of this node's admin server for other nodes: the one in controller.quorum.voters if this node is a
    voter. A server that listens on all addresses is reached at the advertised host of the Kafka listener."""
    if known := settings.voters.get(settings.node_id):
        return known
    bound = urlsplit(url)
    if settings.advertised is None or bound.hostname not in ("0.0.0.0", "::"):
        return url
    return f"{bound.scheme}://{host_port(settings.advertised[0], bound.port or 0)}"


def admin_routes(node: Node) -> list[web.AbstractRouteDef]:
    async def health(_: web.Request) -> web.Response:
        state = "serving" if node.serves else "starting"
        return web.json_response({"status": state}, status=200 if node.serves else 503)

    async def cluster(_: web.Request) -> web.Response:
        return web.json_response(cluster_view(node.metadata.image, node.settings.node_id))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=await render(node), headers={"Content-Type": METRICS_TYPE})

    async def events(request: web.Request) -> web.StreamResponse:
        return await _stream(request, node)

    routes = [
        web.get("/health", health),
        web.get("/metrics", metrics),
        web.get("/v1/cluster", cluster),
        web.get("/v1/events", events),
        *operation_routes(node.metadata),
        *version_routes(node.metadata),
        *self_test_routes(node),
    ]
    if not node.is_broker:
        return [*routes, *_refused_by_controller(node.settings.node_id)]
    return [
        *routes,
        *directory_routes(lambda: _serving(node), node.metadata),
        *offset_routes(lambda: _serving(node), node.metadata),
        *group_routes(lambda: _serving(node)),
        *_scrub_routes(node),
        *_certificate_routes(node),
        *_tier_routes(lambda: _serving(node)),
        *tier_check_routes(lambda: _serving(node), node.metadata),
        *snapshot_routes(lambda: _serving(node)),
        *replacement_routes(lambda: _serving(node)),
        *load_routes(lambda: _serving(node)),
        *load_balance_routes(lambda: _serving(node), node.metadata),
    ]


def _serving(node: Node) -> Serving:
    if node.serving is None:
        raise http_error(web.HTTPServiceUnavailable, "this node is still starting")
    return node.serving


def _scrub_routes(node: Node) -> list[web.AbstractRouteDef]:
    """This node's scrubber: progress, damage found, and starting a pass."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response(_scrub_view(_serving(node)))

    async def begin(_: web.Request) -> web.Response:
        serving = _serving(node)
        serving.scrubber.begin()
        return web.json_response(_scrub_view(serving))

    return [web.get("/v1/scrub", status), web.post("/v1/scrub", begin)]


def _certificate_routes(node: Node) -> list[web.AbstractRouteDef]:
    """Certificates of this node's TLS listeners, and when they expire."""

    async def show(_: web.Request) -> web.Response:
        serving = _serving(node)
        listeners = [] if serving.tls is None else serving.tls.by_name.values()
        now_s = serving.clock.now_ms() // 1000
        rows = [
            {
                "listener": listener.name,
                "expires_at_ms": listener.expires_at_s * 1000,
                "days_left": (listener.expires_at_s - now_s) // SECONDS_PER_DAY,
                "reload_error": listener.reload_error or None,
            }
            for listener in listeners
        ]
        return web.json_response({"certificates": rows})

    return [web.get("/v1/certificates", show)]


def _scrub_view(serving: Serving) -> dict[str, Any]:
    return {
        "progress": serving.scrubber.progress,
        "passes": serving.scrubber.passes,
        "read_bytes": serving.scrubber.bytes_read,
        "found": serving.repair.found_count,
        "repaired": serving.repair.repaired_count,
        "damaged": [
            {
                "topic": replica.name.topic,
                "partition": replica.name.partition,
                "first_offset": damage.start_offset,
                "end_offset": damage.end_offset,
            }
            for replica in serving.repair.damaged
            for damage in replica.log.damage_in_reach
        ],
    }


def _refused_by_controller(node_id: int) -> list[web.AbstractRouteDef]:
    """Routes that only brokers serve. They respond with 409, because 503 would invite the client to retry."""

    async def refuse(_: web.Request) -> web.Response:
        message = f"node {node_id} is a controller and no broker: send this to a broker (GET /v1/brokers)"
        raise http_error(web.HTTPConflict, message)

    broker_paths = (
        "/v1/directories{rest:.*}",
        "/v1/offsets",
        "/v1/partitions/balance/load",
        "/v1/groups",
        "/v1/scrub",
        "/v1/certificates",
        "/v1/tier/{rest:.*}",
    )
    return [web.route("*", path, refuse) for path in broker_paths]


def cluster_view(image: ClusterImage, node_id: int) -> dict[str, Any]:
    """The cluster as JSON: brokers, topics, partitions."""
    return {
        "cluster_id": image.cluster_id,
        "node_id": node_id,
        "image_index": image.index,
        "brokers": [
            {
                "id": broker.broker_id,
                "host": broker.host,
                "port": broker.port,
                "admin_url": broker.admin_url,
                "rack": broker.rack,
                "fenced": broker.fenced,
            }
            for _, broker in sorted(image.brokers.items())
        ],
        "topics": [
            {
                "name": topic.name,
                "id": str(topic.topic_id),
                "configs": dict(sorted(image.topic_overrides(topic.name).items())),
                "partitions": [
                    {
                        "partition": number,
                        "leader": partition.leader,
                        "leader_epoch": partition.leader_epoch,
                        "replicas": list(partition.replicas),
                        "in_sync": list(partition.in_sync),
                    }
                    for number, partition in enumerate(topic.partitions)
                ],
            }
            for topic in sorted(image.topics.values(), key=lambda topic: topic.name)
        ],
    }


async def _stream(request: web.Request, node: Node) -> web.StreamResponse:
    """Server-sent events: one for each committed change and each change of a partition's tiers."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    events = node.follow()
    try:
        await _send(response, {"image_index": node.metadata.image.index, "changed": []})
        while (event := await events.get()) is not None:
            await _send(response, event)
    except ConnectionError:
        pass  # the client went away
    finally:
        node.leave(events)
    return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"id: {event['image_index']}\ndata: {json.dumps(event)}\n\n".encode())


# --- tiering: status, flush, explain


def _tier_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    collecting = asyncio.Lock()
    kept: dict[str, Any] = {"until": -1.0, "view": {}}

    async def status(request: web.Request) -> web.Response:
        return await status_response("partitions", await current().tiering.status(request.query.get("topic")))

    async def uploads(_: web.Request) -> web.Response:
        """Sums over the tiered partitions that this node leads, and those whose uploads fail or wait."""
        serving, loop = current(), asyncio.get_running_loop()
        async with collecting:
            if loop.time() >= kept["until"]:
                kept["view"] = _uploads_view(await serving.tiering.status())
                kept["until"] = loop.time() + UPLOADS_KEPT_S
            return web.json_response(kept["view"])

    async def damaged(_: web.Request) -> web.Response:
        """Ranges of remote objects that this node does not serve."""
        rows = [_damaged_view(one) for one in current().remote.log.quarantine.damaged]
        return web.json_response({"damaged": rows})

    async def behind(_: web.Request) -> web.Response:
        """Partitions led by this node with a record that was not uploaded within
        remote.log.copy.max.lag.ms."""
        return await status_response("behind", await current().tiering.behind())

    async def unread(_: web.Request) -> web.Response:
        """Partitions that this node cannot lead until it has read their manifest in the bucket, after the
        quorum was recovered."""
        errors = current().manifest_recovery.errors
        rows = [
            {"topic": name.topic, "partition": name.partition, "error": errors[name]}
            for name in sorted(errors)
        ]
        return web.json_response({"unread": rows})

    async def flush(request: web.Request) -> web.Response:
        """Respond once the manifests in the bucket cover the log ends. A client that disconnects ends the
        wait."""
        manager = current().tiering
        with parsing_parameters():
            topic = str((await request.json())["topic"])
        with _translate_errors():
            return await status_response("partitions", await _while_connected(request, manager.flush(topic)))

    async def explain(request: web.Request) -> web.Response:
        manager, query = current().tiering, request.query
        with parsing_parameters():
            topic, partition, offset = query["topic"], int(query["partition"]), int(query["offset"])
        with _translate_errors():
            location = await manager.explain(topic, partition, offset)
            return web.json_response(asdict(location))

    return [
        web.get("/v1/tier/status", status),
        web.get("/v1/tier/uploads", uploads),
        web.get("/v1/tier/damaged", damaged),
        web.get("/v1/tier/behind", behind),
        web.get("/v1/tier/unread", unread),
        web.post("/v1/tier/flush", flush),
        web.get("/v1/tier/explain", explain),
    ]


def _uploads_view(found: Sequence[PartitionTierStatus]) -> dict[str, Any]:
    """`rows`: at most UPLOADS_MAX, failures first, then those that wait for the most bytes."""
    waiting = [one for one in found if one.pending_segments or one.last_error is not None]
    rows = nsmallest(UPLOADS_MAX, waiting, key=lambda one: (one.last_error is None, -one.pending_bytes))
    return {
        "partitions": len(found),
        "uploading": sum(one.uploading for one in found),
        "pending_bytes": sum(one.pending_bytes for one in found),
        "oldest_ms": max((one.pending_age_ms for one in waiting), default=0),
        "failing": sum(one.last_error is not None for one in found),
        "rows": [asdict(one) for one in rows],
    }


def _damaged_view(damaged: DamagedRange) -> dict[str, Any]:
    return {
        "topic": damaged.name.topic,
        "partition": damaged.name.partition,
        "first_offset": damaged.place.first_offset,
        "end_offset": damaged.place.end_offset,
        "object": damaged.place.key,
        "error": damaged.error,
        "missing": damaged.is_missing,
    }


async def status_response(name: str, found: Sequence[PartitionTierStatus]) -> web.Response:
    """An object with one list, written in several turns of the event loop."""
    rows: list[bytes] = []
    for at in range(0, len(found), STATUSES_PER_TURN):
        rows += map(msgspec.json.encode, found[at : at + STATUSES_PER_TURN])
        await asyncio.sleep(0)
    body = b'{"%s":[%s]}' % (name.encode(), b",".join(rows))
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def _while_connected(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. The work is cancelled if the client disconnects: aiohttp lets handlers run on."""
    tasks = TaskGroup(lambda name, failure: None)  # raised to the caller
    task = tasks.spawn("admin request", work)
    try:
        while not task.done():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client has disconnected")
            await asyncio.wait((task,), timeout=DISCONNECT_CHECK_S)
    finally:
        await tasks.close()
    return task.result()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except TierConflict as why:
        raise http_error(web.HTTPConflict, str(why)) from None
    except TierRefused as why:
        raise http_error(web.HTTPNotFound, str(why)) from None
    except (ObjectStoreError, OSError) as failure:
        raise http_error(web.HTTPServiceUnavailable, str(failure)) from None
