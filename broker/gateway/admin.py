"""Admin HTTP server, and the table of its routes: health, metrics, an event stream, and an API in JSON.

It starts before the metadata node, whose peers connect to it, and answers 503 for parts that have not
started.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from tierlog.base.addresses import host_port
from tierlog.base.http_listener import IDLE_TIMEOUT_S, Handler, HttpListener, Usage
from tierlog.base.types import InvariantViolation
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.audited import audited
from tierlog.broker.gateway.authentication import PRINCIPAL, AdminAccess, is_still_valid
from tierlog.broker.gateway.cluster_views import cluster_view
from tierlog.broker.gateway.directories import directory_routes
from tierlog.broker.gateway.group_views import group_routes
from tierlog.broker.gateway.load_balance import load_balance_routes
from tierlog.broker.gateway.loads import load_routes
from tierlog.broker.gateway.metrics import render
from tierlog.broker.gateway.node import Node, Serving
from tierlog.broker.gateway.offset_views import offset_routes
from tierlog.broker.gateway.operations import operation_routes
from tierlog.broker.gateway.replacements import replacement_routes
from tierlog.broker.gateway.request_guard import BODY_BYTES_MAX, receive_body, request_guard
from tierlog.broker.gateway.requests import http_error
from tierlog.broker.gateway.self_test import self_test_routes
from tierlog.broker.gateway.snapshots import snapshot_routes
from tierlog.broker.gateway.tier_checks import tier_check_routes
from tierlog.broker.gateway.tier_status import tier_status_routes
from tierlog.broker.gateway.versions import version_routes
from tierlog.broker.log_output import last_lines
from tierlog.config.node import NodeSettings
from tierlog.metadata.quorum.tls import SIGNED_PREFIXES, TlsFiles, reload_on_change, require_certificate

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

CONNECTIONS_MAX = 1_000
"""Nodes keep a few each. Browsers, Prometheus and commands need a few more."""

SECONDS_PER_DAY = 86_400
LOGIN_CHECK_S = 1.0
"""Between two checks of the login of a stream of events, which cost up to a tenth of a millisecond."""


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
        self._usage = Usage(CONNECTIONS_MAX)
        checks = () if tls is None else (require_certificate,)
        middlewares = (
            self._usage.middleware,
            request_guard(names),
            *(checks if access is None else (access.middleware,)),
            self._known_senders,
            receive_body,
            *(() if audit is None else (audited(audit),)),
        )
        application = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
        application.add_routes(routes)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=IDLE_TIMEOUT_S
        )
        self._listener: HttpListener | None = None

    async def start(self, host: str, port: int) -> str:
        """Start to serve. Returns the server's URL."""
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, reuse_port=False
        )
        await self._runner.setup()
        if self._runner.server is None:
            raise InvariantViolation("the runner has no server after its setup")
        self._listener = HttpListener(listening, self._runner.server, self._tls, self._usage)
        host, port = listening.getsockname()[:2]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{host_port(host, port)}"

    @web.middleware
    async def _known_senders(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Users are known before their request, which may be a stream without an end. A request between nodes
        proves its sender by the response."""
        if PRINCIPAL in request:
            self._usage.know(request)
        response = await handler(request)
        if request.path.startswith(SIGNED_PREFIXES) and response.status < 400:
            self._usage.know(request)
        return response

    async def keep_certificates(self) -> None:
        """Reload certificates when their files change, until cancelled."""
        if self._tls_files is not None and self._tls is not None:
            await reload_on_change(self._tls_files, self._tls)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
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

    async def log(_: web.Request) -> web.Response:
        return web.json_response({"lines": last_lines()})

    routes = [
        web.get("/health", health),
        web.get("/metrics", metrics),
        web.get("/v1/cluster", cluster),
        web.get("/v1/events", events),
        web.get("/v1/log", log),
        *operation_routes(node.metadata),
        *version_routes(node.metadata, node.clock),
        *self_test_routes(node),
    ]
    if not node.is_broker:
        return [*routes, *_refused_by_controller(node.settings.node_id)]

    def current() -> Serving:
        return _serving(node)

    return [
        *routes,
        *directory_routes(current, node.metadata),
        *offset_routes(current, node.metadata),
        *group_routes(current),
        *_scrub_routes(current),
        *_certificate_routes(current),
        *tier_status_routes(current),
        *tier_check_routes(current, node.metadata),
        *snapshot_routes(current),
        *replacement_routes(current),
        *load_routes(current),
        *load_balance_routes(current, node.metadata),
    ]


def _serving(node: Node) -> Serving:
    if node.serving is None:
        raise http_error(web.HTTPServiceUnavailable, "this node is still starting")
    return node.serving


def _scrub_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    """This node's scrubber: progress, damage found, and starting a pass."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response(_scrub_view(current()))

    async def begin(_: web.Request) -> web.Response:
        serving = current()
        serving.scrubber.begin()
        return web.json_response(_scrub_view(serving))

    return [web.get("/v1/scrub", status), web.post("/v1/scrub", begin)]


def _certificate_routes(current: Callable[[], Serving]) -> list[web.AbstractRouteDef]:
    """Certificates of this node's TLS listeners, and when they expire."""

    async def show(_: web.Request) -> web.Response:
        serving = current()
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
        message = f"node {node_id} is a controller and not a broker: send this to a broker (GET /v1/brokers)"
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


async def _stream(request: web.Request, node: Node) -> web.StreamResponse:
    """Server-sent events: one for each committed change and each change of a partition's tiers. The stream
    ends with the login that it began with."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    events, next_check, time = node.follow(), 0.0, asyncio.get_running_loop().time
    try:
        await _send(response, {"image_index": node.metadata.image.index, "changed": []})
        while (event := await events.get()) is not None:
            if time() >= next_check:
                if not await is_still_valid(request):
                    break
                next_check = time() + LOGIN_CHECK_S
            await _send(response, event)
    except ConnectionError:
        pass  # the client went away
    finally:
        node.leave(events)
    return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"id: {event['image_index']}\ndata: {json.dumps(event)}\n\n".encode())
