"""Request guard of the admin HTTP server: rejects requests that a web page can make a browser send.

A page that an operator visits could send requests to the admin API of a node that the browser can reach, with
the login or certificate that the browser has for it. Two rules prevent that:

- Host must be a name of this cluster. This stops DNS rebinding: a page of `evil.example`, whose name now
  resolves to this node, still sends `Host: evil.example`. IP addresses are always accepted: only a page that
  this node served has its address as host name.
- A change (any method but GET, HEAD and OPTIONS) must have `Content-Type: application/json`, and must not
  have an Origin of another host or a Sec-Fetch-Site other than `same-origin` or `none`. A browser sends a
  CORS preflight before such a request, which this server does not grant.

Requests between nodes are signed (metadata.quorum.auth), which no page can do. The guard skips these routes
(SIGNED_PREFIXES). ANY_HOST_PATHS skip only the check of Host.
tests/unit/gateway/test_request_guard.py lists all routes.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from tierlog.base.addresses import is_ip_address
from tierlog.broker.gateway.requests import refused
from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.tls import SIGNED_PREFIXES

ANY_HOST_PATHS = frozenset({"/health"})  # says only whether the node serves
READS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
OWN_SITES = frozenset({"same-origin", "none"})  # none: typed or bookmarked by the operator
JSON = "application/json"
BODY_TIMEOUT_S = 10.0
"""For the body of a change, usually a few kilobytes. A slower client only occupies a connection."""
BODY_BYTES_MAX = 1 << 20
"""A request with 10,000 moves (POST /v1/partitions/move) has about 600 KB."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def request_guard(names: Callable[[], Iterable[str]]) -> Middleware:
    """`names`: host names of this node; called for each request, as the cluster changes."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if path.startswith(SIGNED_PREFIXES):
            return await handler(request)
        refusal = None
        if path not in ANY_HOST_PATHS:
            refusal = _check_host(request.headers.get(hdrs.HOST), names)
        if refusal is None and request.method not in READS:
            refusal = _check_change(request)
        return await handler(request) if refusal is None else refusal

    return guard


@web.middleware
async def receive_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Receive the body of a change. Behind the check of the login, so that strangers fill no memory."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical
    if request.method in READS or path.startswith(SIGNED_PREFIXES):
        return await handler(request)
    return await _receive(request) or await handler(request)


def known_names(settings: NodeSettings, image: ClusterImage, members: Iterable[str]) -> set[str]:
    """Host names of this cluster: from the settings, registered brokers, and the quorum's members (URLs)."""
    names = {*settings.admin_allowed_hosts, settings.admin[0], socket.gethostname()}
    names.update(urlsplit(url).hostname or "" for url in (*settings.voters.values(), *members))
    if settings.advertised is not None:
        names.add(settings.advertised[0])
    for broker in image.brokers.values():
        names.add(broker.host)
        names.add(urlsplit(broker.admin_url).hostname or "")
    return {_normalized(name) for name in names}


def _check_host(host: str | None, names: Callable[[], Iterable[str]]) -> web.Response | None:
    """A request without Host is accepted: it comes from an HTTP/1.0 health check, not from a browser."""
    if host is None:
        return None
    try:
        name = _normalized(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        name = ""
    if is_ip_address(name) or name == "localhost" or name.endswith(".localhost") or name in names():
        return None
    return refused(
        421, f"this node is not known as {name!r}: use its address, or add the name to admin.allowed.hosts"
    )


def _check_change(request: web.Request) -> web.Response | None:
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get(hdrs.ORIGIN)
    if site is not None and site not in OWN_SITES:
        return refused(403, f"a page of another site must not make changes (Sec-Fetch-Site: {site})")
    if origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST):
        return refused(403, f"a page of another site must not make changes (Origin: {origin})")
    if request.content_type != JSON:
        return refused(415, f"changes need the header Content-Type: {JSON}, also without a body")
    return None


async def _receive(request: web.Request) -> web.Response | None:
    """Read the body, within time and size limits; the request keeps it."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            await request.read()
    except TimeoutError:
        return refused(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")
    except web.HTTPRequestEntityTooLarge:
        return refused(413, f"the body is longer than {BODY_BYTES_MAX} bytes: split the request")
    return None


def _normalized(name: str) -> str:
    return name.rstrip(".").lower()
