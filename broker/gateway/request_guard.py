"""Request guard of the admin HTTP server: refuses what a web page can make a browser send.

Without mutual TLS there is no authentication, so any page that an operator visits could send requests to the
admin API of a node that the browser reaches. Two rules stop that:

- Host must name this cluster. This stops DNS rebinding: a page of `evil.example`, whose name suddenly
  resolves to this node, still sends `Host: evil.example`. An IP address is always accepted, since no page but
  one that this node serves has it as its name. So health checks by address need no setting.
- A change (any method but GET, HEAD and OPTIONS) needs `Content-Type: application/json`, and neither an
  Origin of another host nor a Sec-Fetch-Site other than same-origin. A browser asks before it sends such a
  request (a CORS preflight), and nothing here grants it.

Routes between nodes are left to their signatures (metadata.auth), which no page can make. Every other route
is guarded unless it is named here. tests/unit/gateway/test_request_guard.py lists all routes.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from tierlog.config.node import NodeSettings
from tierlog.metadata.image import ClusterImage

ANY_HOST_PATHS = frozenset({"/health"})  # says nothing but whether the node serves
SIGNED_PREFIXES = ("/raft/", "/metadata/")
READS = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
OWN_SITES = frozenset({"same-origin", "none"})  # none: typed or bookmarked by the operator
JSON = "application/json"
BODY_TIMEOUT_S = 10.0
"""A change is a few kilobytes; a client that sends it more slowly only holds a connection."""
BODY_BYTES_MAX = 1 << 20
"""10,000 moves of one request (POST /v1/partitions/move) take some 600 KB."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


def request_guard(names: Callable[[], Iterable[str]]) -> Middleware:
    """`names`: of the hosts that this node is reached by; asked for each request, as the cluster changes."""

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
            refusal = _check_change(request) or await _receive(request)
        return await handler(request) if refusal is None else refusal

    return guard


def known_names(settings: NodeSettings, image: ClusterImage, members: Iterable[str]) -> set[str]:
    """Names by which this cluster is reached: those of the settings, of registered brokers, and of the
    quorum's members (URLs)."""
    names = {*settings.admin_allowed_hosts, settings.admin[0], socket.gethostname()}
    names.update(urlsplit(url).hostname or "" for url in (*settings.voters.values(), *members))
    if settings.advertised is not None:
        names.add(settings.advertised[0])
    for broker in image.brokers.values():
        names.add(broker.host)
        names.add(urlsplit(broker.admin_url).hostname or "")
    return {_plain(name) for name in names}


def _check_host(host: str | None, names: Callable[[], Iterable[str]]) -> web.Response | None:
    """No Host at all is no browser: health checks of HTTP/1.0 send none."""
    if host is None:
        return None
    try:
        name = _plain(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        name = ""
    if _is_address(name) or name == "localhost" or name.endswith(".localhost") or name in names():
        return None
    return _refused(
        421, f"this node is not known as {name!r}: use its address, or add the name to admin.allowed.hosts"
    )


def _check_change(request: web.Request) -> web.Response | None:
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get(hdrs.ORIGIN)
    if site is not None and site not in OWN_SITES:
        return _refused(403, f"a page of another site may change nothing (Sec-Fetch-Site: {site})")
    if origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST):
        return _refused(403, f"a page of another site may change nothing (Origin: {origin})")
    if request.content_type != JSON:
        return _refused(415, f"changes need the header Content-Type: {JSON}, also without a body")
    return None


async def _receive(request: web.Request) -> web.Response | None:
    """Reads the body, which the request keeps; in time and up to a bound."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            await request.read()
    except TimeoutError:
        return _refused(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s")
    except web.HTTPRequestEntityTooLarge:
        return _refused(413, f"the body is longer than {BODY_BYTES_MAX} bytes: split the request")
    return None


def _plain(name: str) -> str:
    return name.rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _refused(status: int, message: str) -> web.Response:
    """The connection ends: whatever follows on it may be a body that nobody reads."""
    response = web.json_response({"error": message}, status=status)
    response.force_close()
    return response
