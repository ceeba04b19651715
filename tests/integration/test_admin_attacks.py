"""Raw HTTP requests to an admin API that wants passwords: none gets in without one, by odd paths, methods,
headers or bodies."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from controller_and_broker import controller_and_broker

from tierlog.broker.app import Broker
from tierlog.broker.gateway import authentication

SETTINGS = {
    "admin.authentication": "basic",
    "admin.viewers": "User:vera",
    "super.users": "User:root",
}
HOST = "Host: localhost\r\nConnection: close\r\n\r\n"
WAITS_S = 2.0
"""After this time, a node that has not closed the connection waits for the rest of a request."""

WRONG = f"Authorization: Basic {b64encode(b'root:wrong').decode()}\r\n"


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(authentication, "FAILURE_DELAY_S", 0.0)
    controller, broker = controller_and_broker(tmp_path, SETTINGS)
    await controller.start()
    await broker.start()
    yield broker
    await broker.stop()
    await controller.stop()


async def send(broker: Broker, request: bytes, within_s: float = 60) -> bytes:
    """Everything that the node answers until it closes the connection, or for so long."""
    address = urlsplit(broker.admin_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request)
    received = b""
    try:
        async with asyncio.timeout(within_s):
            while part := await reader.read(65_536):
                received += part
    except (TimeoutError, ConnectionResetError):
        pass
    writer.close()
    return received


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", answer, re.MULTILINE)]


PATHS = [
    "/v1/cluster", "//v1/cluster", "/./v1/cluster", "/v1/./cluster", "/%76%31/cluster", "/v1%2fcluster",
    "/health/../v1/cluster", "/health%2f..%2fv1%2fcluster", "/health/%2e%2e/v1/cluster", "/v1/cluster/",
    "/v1/cluster?/health", "/v1/cluster#/health", "/health/v1/cluster", "/V1/Cluster", "/v1/cluster;/health",
    "/raft/../v1/cluster", "/metadata/../v1/cluster", "/metadata/%2e%2e/v1/cluster", "\\v1\\cluster",
    "http://localhost/v1/cluster", "http://localhost/health/../v1/cluster", "/metrics", "/metrics/health",
    "/v1/brokers/../cluster", "/%2e/v1/cluster", "/v1/cluster%00", "/v1/cluster%20", "*", "/v1/quorum",
]  # fmt: skip


METHODS = ("GET", "HEAD", "OPTIONS", "TRACE", "get", "POST", "DELETE", "PROPFIND")


async def test_odd_paths_and_methods_show_nothing(broker: Broker) -> None:
    assert statuses(await send(broker, f"GET /health HTTP/1.1\r\n{HOST}".encode())) == [200]
    for method, path, header in product(METHODS, PATHS, ("", WRONG)):
        answer = await send(broker, f"{method} {path} HTTP/1.1\r\n{header}{HOST}".encode())
        [status] = statuses(answer)
        assert status >= 400, (method, path, answer)
        assert b"cluster_id" not in answer and b"# HELP" not in answer


HEADERS = [
    "X-HTTP-Method-Override: GET", "X-Forwarded-User: root", "X-Original-URL: /health", "X-Remote-User: root",
    "Authorization: Basic", "Authorization: Basic =", "Authorization: Basic Og==", "Authorization: Bearer x",
    "Authorization: Negotiate x", "Authorization: basic cm9vdDo=", f"{WRONG.strip()}\r\n{WRONG.strip()}",
    "Authorization:\tBasic cm9vdDp4", "Authorization : Basic cm9vdDp4", "authorization: BASIC cm9vdAA6eA==",
    "Authorization: Basic " + "A" * 7000, "Authorization: Basic " + b64encode(b"\xff:\xff").decode(),
    "Authorization: Basic " + b64encode("röot:ü".encode()).decode(), "Cookie: user=root", "Upgrade: h2c",
    "Proxy-Authorization: Basic cm9vdDp4", "Expect: 100-continue",
]  # fmt: skip


async def test_odd_headers_do_not_log_in(broker: Broker) -> None:
    for header in HEADERS:
        answer = await send(broker, f"GET /v1/cluster HTTP/1.1\r\n{header}\r\n{HOST}".encode())
        assert not any(200 <= status < 400 for status in statuses(answer)), (header, answer)
        assert b"cluster_id" not in answer


SMUGGLED = f"GET /v1/cluster HTTP/1.1\r\n{HOST}".encode()
BODIES = {
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an odd encoding": b"Transfer-Encoding: xchunked\r\n\r\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a folded header": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length with a sign": b"Content-Length: +5\r\n\r\n",
    "a bare line feed": b"X: y\nContent-Length: 0\n\n",
    "a space before the colon": b"Content-Length : 0\r\n\r\n",
    "a huge chunk": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "a chunk with an extension": b"Transfer-Encoding: chunked\r\n\r\n0;x=\n\r\n\r\n",
    "a NUL": b"X: \0\r\n\r\n",
}


async def test_request_behind_another_is_checked_too(broker: Broker) -> None:
    """Whether the second part is a body or a request, it shows nothing."""
    for what, body in BODIES.items():
        answer = await send(broker, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + body + SMUGGLED, WAITS_S)
        assert b"cluster_id" not in answer, what
        assert all(status >= 400 for status in statuses(answer)[1:]), (what, answer)
