"""Request guard: every route, against requests that a web page can make a browser send. A new route needs a
row here."""

import asyncio
import socket
from collections.abc import AsyncIterator
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from tierlog.base.clock import SystemClock
from tierlog.broker.gateway import request_guard
from tierlog.broker.gateway.admin import AdminServer, admin_routes
from tierlog.broker.gateway.request_guard import known_names
from tierlog.broker.gateway.roles import CHANGES, Role, role_needed
from tierlog.broker.gateway.web.pages import web_routes
from tierlog.config.sources import settings_from
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.member_address import InvalidMemberUrl, MemberResolver, check_resolved, check_url
from tierlog.metadata.quorum.api import quorum_routes, raft_routes


class Guard(Enum):
    OPEN = auto()  # any Host: says nothing of the cluster
    READ = auto()  # for a Host that is this cluster's
    CHANGE = auto()  # and sent by no page of another site
    SIGNED = auto()  # by another node; the guard leaves it alone


ROUTES = {
    ("GET", "/health"): Guard.OPEN,
    ("GET", "/metrics"): Guard.READ,
    ("GET", "/v1/cluster"): Guard.READ,
    ("GET", "/v1/events"): Guard.READ,
    ("GET", "/v1/log"): Guard.READ,
    ("GET", "/v1/brokers"): Guard.READ,
    ("POST", "/v1/brokers/{id}/drain"): Guard.CHANGE,
    ("POST", "/v1/brokers/{id}/stop"): Guard.CHANGE,
    ("DELETE", "/v1/brokers/{id}"): Guard.CHANGE,
    ("GET", "/v1/partitions"): Guard.READ,
    ("POST", "/v1/partitions/move"): Guard.CHANGE,
    ("POST", "/v1/partitions/unthrottle"): Guard.CHANGE,
    ("POST", "/v1/partitions/elect"): Guard.CHANGE,
    ("POST", "/v1/partitions/balance"): Guard.CHANGE,
    ("POST", "/v1/partitions/balance/load"): Guard.CHANGE,
    ("GET", "/v1/offsets"): Guard.READ,
    ("GET", "/v1/groups"): Guard.READ,
    ("GET", "/v1/directories"): Guard.READ,
    ("POST", "/v1/directories/move"): Guard.CHANGE,
    ("GET", "/v1/scrub"): Guard.READ,
    ("POST", "/v1/scrub"): Guard.CHANGE,
    ("POST", "/v1/self-test"): Guard.CHANGE,
    ("GET", "/v1/certificates"): Guard.READ,
    ("GET", "/v1/tier/status"): Guard.READ,
    ("GET", "/v1/tier/behind"): Guard.READ,
    ("GET", "/v1/tier/unread"): Guard.READ,
    ("GET", "/v1/tier/uploads"): Guard.READ,
    ("GET", "/v1/tier/damaged"): Guard.READ,
    ("GET", "/v1/tier/store"): Guard.READ,
    **{
        ("POST", f"/v1/tier/loads/{name}"): Guard.CHANGE
        for name in ("begin", "announce", "renew", "cancel", "commit")
    },
    ("GET", "/v1/tier/replacements"): Guard.READ,
    ("POST", "/v1/tier/replacements/begin"): Guard.CHANGE,
    ("POST", "/v1/tier/replacements/renew"): Guard.CHANGE,
    ("POST", "/v1/tier/replacements/cancel"): Guard.CHANGE,
    ("POST", "/v1/tier/replacements/commit"): Guard.CHANGE,
    ("GET", "/v1/tier/scrub"): Guard.READ,
    ("POST", "/v1/tier/scrub"): Guard.CHANGE,
    ("GET", "/v1/tier/segments"): Guard.READ,
    ("POST", "/v1/tier/verify"): Guard.CHANGE,
    ("POST", "/v1/tier/roots"): Guard.CHANGE,
    ("POST", "/v1/tier/documents"): Guard.CHANGE,
    ("GET", "/v1/tier/audit"): Guard.READ,
    ("GET", "/v1/tier/snapshots"): Guard.READ,
    ("POST", "/v1/tier/snapshots"): Guard.CHANGE,
    ("DELETE", "/v1/tier/snapshots/{id}"): Guard.CHANGE,
    ("POST", "/v1/tier/flush"): Guard.CHANGE,
    ("GET", "/v1/tier/explain"): Guard.READ,
    ("GET", "/v1/versions"): Guard.READ,
    ("POST", "/v1/versions/finalize"): Guard.CHANGE,
    ("GET", "/v1/quorum"): Guard.READ,
    ("POST", "/v1/quorum/voters"): Guard.CHANGE,
    ("DELETE", "/v1/quorum/voters/{id}"): Guard.CHANGE,
    ("GET", "/"): Guard.READ,
    ("GET", "/ui/topics"): Guard.READ,
    ("GET", "/ui/topic"): Guard.READ,
    ("GET", "/ui/groups"): Guard.READ,
    ("GET", "/ui/group"): Guard.READ,
    ("GET", "/ui/tiering"): Guard.READ,
    ("GET", "/ui/quorum"): Guard.READ,
    ("GET", "/ui/static/{file}"): Guard.READ,
    ("POST", "/raft/v1/step"): Guard.SIGNED,
    ("POST", "/raft/v1/submit"): Guard.SIGNED,
    ("GET", "/raft/v1/status"): Guard.SIGNED,
    ("POST", "/metadata/v1/heartbeat"): Guard.SIGNED,
    ("POST", "/metadata/v1/end"): Guard.SIGNED,
    ("GET", "/metadata/v1/log"): Guard.SIGNED,
    ("GET", "/metadata/v1/snapshot"): Guard.SIGNED,
    **{
        (method, f"/{part}/v{{version}}/{{request}}"): Guard.SIGNED
        for part in ("raft", "metadata")
        for method in ("GET", "POST")
    },
}
REBOUND, OWN = {"Host": "evil.example"}, {"Host": "broker-1.internal:9644"}
JSON = {"Content-Type": "application/json"}
PASSED = 200
FOREIGN = [
    {**JSON, "Origin": "http://evil.example"},
    {**JSON, "Origin": "null"},
    {**JSON, "Origin": "http://broker-1.internal"},  # another port is another origin
    {**JSON, "Sec-Fetch-Site": "cross-site"},
    {**JSON, "Sec-Fetch-Site": "same-site"},
]


def routes_of_a_node() -> list[Any]:
    unused: Any = SimpleNamespace(metadata=None, clock=SystemClock(), is_broker=True)
    api = [*admin_routes(unused), *quorum_routes(unused)]
    return [*api, *web_routes(unused, api, None), *raft_routes(unused, b"")]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """The routes of a node, each of which answers 200 if the guard lets the request pass."""

    async def passed(request: web.Request) -> web.Response:
        return web.Response(status=PASSED, text=await request.text())

    routes = [web.route(route.method, route.path, passed) for route in routes_of_a_node()]
    server = AdminServer(routes, names=lambda: ["broker-1.internal"])
    url = await server.start("127.0.0.1", 0)
    async with aiohttp.ClientSession(url) as session:
        yield session
    await server.close()


async def status(session: aiohttp.ClientSession, route: tuple[str, str], headers: dict[str, str]) -> int:
    method, path = route
    for parameter, value in {"{id}": "1", "{version}": "9", "{request}": "step", "{file}": "app.css"}.items():
        path = path.replace(parameter, value)
    async with session.request(method, path, headers=headers) as answer:
        return answer.status


def test_every_route_is_in_the_table() -> None:
    assert sorted((route.method, route.path) for route in routes_of_a_node()) == sorted(ROUTES)


def test_every_change_needs_a_role_that_the_table_names() -> None:
    """A route that it does not name needs an admin; that has to be a decision, too."""
    assert {route for route, guard in ROUTES.items() if guard is Guard.CHANGE} == set(CHANGES)
    for (method, path), guard in ROUTES.items():
        if guard is not Guard.SIGNED:
            reads = Role.NONE if guard is Guard.OPEN else Role.VIEWER
            assert role_needed(method, path) == (CHANGES.get((method, path)) or reads)


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_route_refuses_requests_of_web_pages(
    session: aiohttp.ClientSession, route: tuple[str, str]
) -> None:
    guard = ROUTES[route]
    refused = PASSED if guard in (Guard.OPEN, Guard.SIGNED) else 421
    assert await status(session, route, {**REBOUND, **JSON}) == refused
    refused = 403 if guard is Guard.CHANGE else PASSED
    assert {await status(session, route, {**OWN, **headers}) for headers in FOREIGN} == {refused}
    refused = 415 if guard is Guard.CHANGE else PASSED
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "text/plain; application/json"):
        assert await status(session, route, {**OWN, "Content-Type": content_type}) == refused
    assert await status(session, route, OWN) == refused


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_a_route_serves_operators_and_health_checks(
    session: aiohttp.ClientSession, route: tuple[str, str]
) -> None:
    hosts = ["broker-1.internal", "BROKER-1.internal.:80", "localhost:1", "10.1.2.3:9644", "[fd00::1]:9644"]
    for host in hosts:
        assert await status(session, route, {"Host": host, **JSON}) == PASSED
    pages = [{"Origin": "http://broker-1.internal:9644"}, {"Sec-Fetch-Site": "same-origin"}]
    for page in [*pages, {"Sec-Fetch-Site": "none"}]:
        assert await status(session, route, {**OWN, **JSON, **page}) == PASSED


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", "broker-1@evil", ""])
async def test_unknown_host_names_are_refused(session: aiohttp.ClientSession, host: str) -> None:
    async with session.get("/metrics", headers={"Host": host}) as answer:
        assert answer.status in (400, 421)


async def test_request_body_is_limited_in_size_and_time(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_ending() -> AsyncIterator[bytes]:
        while True:
            yield b"{"
            await session_closed.wait()

    session_closed = asyncio.Event()
    async with session.post("/v1/partitions/move", data=b" " * (2 << 20), headers=JSON) as answer:
        assert answer.status == 413
    monkeypatch.setattr(request_guard, "BODY_TIMEOUT_S", 0.05)
    async with session.post("/v1/partitions/move", data=never_ending(), headers=JSON) as answer:
        assert answer.status == 408
    session_closed.set()


def test_names_of_the_cluster_are_known() -> None:
    settings = settings_from(
        {
            "admin.allowed.hosts": "Admin.example",
            "advertised.listeners": "PLAINTEXT://kafka.example:9092",
            "controller.quorum.secret": "secret",
            "controller.quorum.voters": "1@one.internal:9644,2@two.internal:9644",
        }
    )
    names = known_names(settings, ClusterImage(cluster_id="c"), ["http://three.internal:9644"])
    wanted = {"admin.example", "kafka.example", "one.internal", "two.internal", "three.internal"}
    assert wanted <= names


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://node:1",
        "http://node",
        "http://user@node:1",
        "http://node:1/path",
        "http://node:1?query",
        "http://node:1#part",
        "http://node:99999",
        "http://[::1:1",
        "http://169.254.169.254:80",
        "http://[::ffff:169.254.169.254]:80",
        "http://[fe80::1]:80",
        "http://0.0.0.0:1",
        "http://127.0.0.1:1",
        "http://[::1]:1",
        "http://localhost:1",
        "http://2130706433:1",
        "http://127.1:1",
        "http://0x7f.0x1:1",
        "http://224.0.0.1:1",
        "http://255.255.255.255:1",
    ],
)
def test_invalid_voter_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidMemberUrl):
        check_url(url, ["http://10.0.0.1:9644"])


@pytest.mark.parametrize("url", ["http://node-4:9644", "https://10.0.0.4:9644/", "http://[fd00::4]:9644"])
def test_addresses_of_voters(url: str) -> None:
    check_url(url, ["http://10.0.0.1:9644"])


def test_voters_of_a_quorum_on_one_machine_have_loopback_addresses() -> None:
    for url in ("http://127.0.0.1:9645", "http://localhost:9645"):
        check_url(url, ["http://127.0.0.1:9644"])


class Names(AbstractResolver):
    """The addresses of each name."""

    def __init__(self, **addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host not in self._addresses:
            raise OSError(f"{host} is not known")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0)
            for address in self._addresses[host]
        ]

    async def close(self) -> None:
        """Nothing is open."""


NAMES = Names(
    node=("10.0.0.4",), metadata=("169.254.169.254",), mapped=("::ffff:169.254.169.254", "fe80::1%eth0"),
    both=("169.254.1.1", "10.0.0.4"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["metadata", "mapped"])
async def test_a_voters_name_must_not_resolve_to_a_link_local_address(name: str) -> None:
    with pytest.raises(InvalidMemberUrl, match="resolves to"):
        await check_resolved(f"http://{name}:80", NAMES)


@pytest.mark.parametrize("name", ["node", "both", "one-that-is-not-known-yet"])
async def test_names_of_voters(name: str) -> None:
    await check_resolved(f"http://{name}:9644", NAMES)


async def test_requests_to_members_never_go_to_a_link_local_address() -> None:
    """A name may resolve to another address once its voter was added."""
    assert [each["host"] for each in await MemberResolver(NAMES).resolve("both", 80)] == ["10.0.0.4"]
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=MemberResolver(NAMES))
    ) as session:
        with pytest.raises(aiohttp.ClientConnectorDNSError, match="no member can have"):
            await session.get("http://metadata:80/latest")
