"""HTTP server of the gateway: routes, checks before each of them, and a graceful stop.

In this order: the name in Host (a web page must not reach the gateway by DNS rebinding), the content type of
changes (which no page of another site can send without a CORS preflight, and none is granted), the login, the
body within its limits, and the route.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import structlog
from aiohttp import hdrs, web

from tierlog.base.addresses import host_port, is_ip_address
from tierlog.base.http_listener import Handler, HttpListener, Usage
from tierlog.base.types import InvariantViolation
from tierlog.client.errors import ClientError
from tierlog.rest.consuming import consuming_routes
from tierlog.rest.errors import (
    BAD_REQUEST,
    INTERNAL,
    JSON,
    MISDIRECTED,
    NOT_AUTHENTICATED,
    STOPPING,
    TIMED_OUT,
    TOO_LARGE,
    UNSUPPORTED_MEDIA,
    RestError,
    of_failure,
    response_of,
)
from tierlog.rest.gateway import Call, Gateway
from tierlog.rest.group_routes import group_routes
from tierlog.rest.metrics import METRICS_TYPE, exposition
from tierlog.rest.openapi import document
from tierlog.rest.openapi_page import HEADERS, page
from tierlog.rest.producing import producing_routes
from tierlog.rest.routes import Route
from tierlog.rest.topics import topic_routes

HEADER_BYTES_MAX = 32 << 10
_log = structlog.get_logger("tierlog.rest")


def all_routes() -> list[Route]:
    return [*producing_routes(), *consuming_routes(), *topic_routes(), *group_routes()]


class RestServer:
    """`tls`: None for plain HTTP."""

    def __init__(self, gateway: Gateway, tls: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self._tls = tls
        self._usage = Usage(gateway.limits.connections)
        routes = all_routes()
        self._openapi = document(routes)
        self._page = page(self._openapi)
        application = web.Application(middlewares=(self._usage.middleware, self._answered), client_max_size=0)
        for one in routes:
            # a stream writes its lines, which must not follow the headers that HEAD gets
            options = {"allow_head": not one.lines} if one.method == hdrs.METH_GET else {}
            application.add_routes([web.route(one.method, one.path, self._served(one), **options)])
        application.add_routes(
            [
                web.get("/", self._for_people),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/openapi.json", self._document),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=gateway.limits.stop_timeout_s,
            keepalive_timeout=gateway.limits.idle_timeout_s,
            max_field_size=HEADER_BYTES_MAX,
            max_line_size=HEADER_BYTES_MAX,
        )

    async def start(self, host: str, port: int) -> str:
        """Start to serve. Returns the URL. Raises OSError."""
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        await self._runner.setup()
        if self._runner.server is None:
            raise InvariantViolation("the runner has no server after its setup")
        self._gateway.listener = HttpListener(listening, self._runner.server, self._tls, self._usage)
        host, port = listening.getsockname()[:2]
        return f"{'http' if self._tls is None else 'https'}://{host_port(host, port)}"

    async def close(self) -> None:
        """Accept no more connections, end the streams with their last line, and let requests finish."""
        self._gateway.stopping.set()
        if self._gateway.listener is not None:
            self._gateway.listener.close()
        await self._runner.cleanup()

    # ---- open to all

    async def _health(self, _: web.Request) -> web.Response:
        is_stopping = self._gateway.stopping.is_set()
        state = "stopping" if is_stopping else "serving"
        return web.json_response({"status": state}, status=503 if is_stopping else 200)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=exposition(self._gateway), headers={"Content-Type": METRICS_TYPE})

    async def _document(self, _: web.Request) -> web.Response:
        return web.Response(body=self._openapi, content_type=JSON)

    async def _for_people(self, _: web.Request) -> web.Response:
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=HEADERS)

    # ---- checks

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Turn failures into responses, and count."""
        began = time.monotonic()
        try:
            check_host(request, self._gateway)
            response = await handler(request)
        except RestError as failure:
            response = self._refused(failure)
        except ClientError as failure:
            response = self._refused(of_failure(failure))
        except web.HTTPException as failure:  # no such path, or no such method
            response = response_of(RestError(failure.status, failure.reason))
            if "Allow" in failure.headers:
                response.headers["Allow"] = failure.headers["Allow"]
        except web.RequestPayloadError as wrong:  # such as a body that is not in its Content-Encoding
            response = self._refused(RestError(BAD_REQUEST, f"the body cannot be read: {wrong}"))
            response.force_close()
        except ConnectionError:  # the client is gone, or takes nothing
            if request.transport is not None:
                request.transport.abort()
            response = web.Response(status=499)
        except Exception as bug:
            _log.error("rest.request.failed", method=request.method, path=request.path, exc_info=bug)
            response = self._refused(RestError(INTERNAL, "the gateway has failed; its log says why"))
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        self._gateway.counts.requests[request.method, path, response.status] += 1
        self._gateway.counts.seconds.observe(time.monotonic() - began)
        return response

    def _refused(self, failure: RestError) -> web.Response:
        response = response_of(failure)
        if failure.code == NOT_AUTHENTICATED:
            for challenge in self._gateway.sessions.challenges():
                response.headers.add(hdrs.WWW_AUTHENTICATE, challenge)
        if failure.code in (TOO_LARGE, TIMED_OUT, STOPPING):  # the body was not read to its end
            response.force_close()
        return response

    def _served(self, route: Route) -> Handler:
        gateway = self._gateway

        async def serve(request: web.Request) -> web.StreamResponse:
            if gateway.stopping.is_set():
                raise RestError(STOPPING, "the gateway stops", retry_after_s=1)
            if route.body is not None and request.content_type != JSON:
                raise RestError(UNSUPPORTED_MEDIA, f"the body needs the header Content-Type: {JSON}")
            _check_origin(request)
            login = gateway.sessions.login_of(request.headers.get(hdrs.AUTHORIZATION))
            async with gateway.sessions.session(login) as session:
                self._usage.know(request)
                if route.streams_in:
                    return await route.handler(Call(gateway=gateway, request=request, session=session))
                async with _received(request, gateway) as body:
                    call = Call(gateway=gateway, request=request, session=session, body=body)
                    return await route.handler(call)

        return serve


@asynccontextmanager
async def _received(request: web.Request, gateway: Gateway) -> AsyncIterator[bytes]:
    """The body, whose bytes are reserved as they come: a client that sends slowly holds no more than it has
    sent. A body that is too long for the space of now is refused at once. Raises RestError."""
    limits, budget, parts = gateway.limits, gateway.budget, []
    too_long = RestError(
        TOO_LARGE, f"the body is longer than {limits.body_bytes} bytes: send several requests"
    )
    length = request.content_length or 0
    if length > limits.body_bytes:
        raise too_long
    if length:
        budget.check(length)
    held = 0
    try:
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                async for part in request.content.iter_any():
                    if held + len(part) > limits.body_bytes:
                        raise too_long
                    budget.reserve_now(len(part), beside=held)
                    held += len(part)
                    parts.append(part)
        except TimeoutError:
            limit = limits.body_timeout_s
            raise RestError(TIMED_OUT, f"the body did not arrive within {limit:g} s") from None
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        budget.release(held)


def check_host(request: web.Request, gateway: Gateway) -> None:
    """A request without Host is accepted: it comes from an HTTP/1.0 health check, not from a browser."""
    host = request.headers.get(hdrs.HOST)
    if host is None or request.path == "/health":
        return
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".").lower()
    except ValueError:  # such as `[`
        name = ""
    is_own = name == "localhost" or name.endswith(".localhost") or name in gateway.hosts
    if not is_own and not is_ip_address(name):
        raise RestError(
            MISDIRECTED,
            f"the gateway is not known as {name[:80]!r}: use its address, or give it --allowed-host",
        )


def _check_origin(request: web.Request) -> None:
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST):
        raise RestError(
            BAD_REQUEST, f"a page of another site must not use the gateway (Origin: {origin[:100]})"
        )


def server_tls(certificate: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """TLS of the listener. `client_ca`: clients need a certificate of it, besides their login. Raises OSError
    and ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def allowed_hosts(host: str, names: Sequence[str]) -> set[str]:
    """Names by which clients may know the gateway."""
    return {name.rstrip(".").lower() for name in (host, socket.gethostname(), *names)}
