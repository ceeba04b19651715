"""HTTP connections to an object store: headers of requests, bodies, errors of TLS."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPResponse
from typing import Any

import pytest

from tierlog.tiering.http_connections import (
    JOINED_BYTES,
    PIECE_BYTES,
    HttpConnections,
    Transfer,
    _blocking,
    _fill,
    _send,
)
from tierlog.tiering.object_store import ObjectStoreUnavailable
from tierlog.tiering.s3_client import is_transient, translate


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[int, list[str]]]:
    """A server's port, and the request lines and headers that it receives."""
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.extend((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], lines


async def request(url: str, proxy: str) -> None:
    connections = HttpConnections(connect_s=30, read_s=30, tls=ssl.create_default_context, proxy=proxy)
    transfer = Transfer(None)
    try:
        await asyncio.to_thread(connections.request, transfer, "GET", url, {}, b"")
    except OSError:
        assert url.startswith("https:")
    connections.close()


async def test_host_header_has_no_default_port_as_botocore_signs_it() -> None:
    for address, host in (("minio:80", "minio"), ("minio:9000", "minio:9000"), ("[::1]:80", "[::1]")):
        async with recorded() as (port, lines):
            await request(f"http://{address}/bucket/key", f"http://127.0.0.1:{port}")
        assert lines[0] == f"GET http://{address}/bucket/key HTTP/1.1"
        assert f"Host: {host}" in lines


async def test_credentials_of_a_proxy_are_sent() -> None:
    for url in ("http://minio/key", "https://minio/key"):
        async with recorded() as (port, lines):
            await request(url, f"http://user:p%40ss@127.0.0.1:{port}")
        assert "Proxy-Authorization: Basic dXNlcjpwQHNz" in lines


def test_certificate_that_is_not_valid_means_that_the_store_is_not_reached() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate has expired")
    assert isinstance(translate("k", error), ObjectStoreUnavailable)
    assert not is_transient(error)


class CountingSocket(socket.socket):
    """Counts the system calls that receive."""

    calls = 0

    def recv_into(self, *arguments: Any) -> int:
        self.calls += 1
        return super().recv_into(*arguments)


@contextmanager
def responding(size: int, body: bytes) -> Iterator[tuple[CountingSocket, HTTPResponse]]:
    """A response with a body of `size`, of which a thread sends `body` in small pieces."""
    near, far = socket.socketpair()
    receiving = CountingSocket(fileno=near.detach())
    receiving.settimeout(30)

    def serve() -> None:
        far.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % size)
        for at in range(0, len(body), 10_000):
            far.sendall(body[at : at + 10_000])

    sender = threading.Thread(target=serve)
    sender.start()
    response = HTTPResponse(receiving)
    response.begin()
    with receiving, far:
        yield receiving, response
        sender.join()


def test_body_is_received_with_a_system_call_for_each_piece() -> None:
    body = bytes(range(256)) * (5 * PIECE_BYTES // 512)
    buffer = bytearray(len(body))
    with responding(len(body), body) as (receiving, response):
        begun = receiving.calls
        _fill(receiving, response, memoryview(buffer), 30)
        assert bytes(buffer) == body
        assert response.isclosed() and receiving.gettimeout() == 30  # ready for the next request
        assert receiving.calls - begun <= 1 + -(-len(body) // PIECE_BYTES)


def test_body_that_stalls_ends_with_a_timeout() -> None:
    with responding(200_000, bytes(100_000)) as (receiving, response), pytest.raises(TimeoutError):
        _fill(receiving, response, memoryview(bytearray(200_000)), 0.2)


def test_send_that_stalls_ends_with_a_timeout() -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(TimeoutError), _blocking(near, 0.2):
        near.sendall(bytes(8 * PIECE_BYTES))  # more than the socket's buffer


class CountingSender(socket.socket):
    """Counts the system calls that send."""

    calls = 0

    def sendall(self, *arguments: Any) -> None:
        self.calls += 1
        super().sendall(*arguments)


def test_small_body_is_sent_with_its_headers() -> None:
    near, far = socket.socketpair()
    with CountingSender(fileno=near.detach()) as sending, far:
        sending.settimeout(30)
        for size, calls in ((0, 1), (JOINED_BYTES, 1), (JOINED_BYTES + 1, 2)):
            sending.calls = 0
            body = bytes(size)
            _send(sending, "PUT", "/bucket/key", {"Content-Length": str(size)}, memoryview(body), 30)
            head = f"PUT /bucket/key HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode()
            received = bytearray()
            while len(received) < len(head) + size:
                received += far.recv(1 << 20)
            assert received == head + body
            assert sending.calls == calls


def test_line_break_in_a_header_is_refused() -> None:
    near, far = socket.socketpair()
    with near, far, pytest.raises(ValueError, match="line break"):
        _send(near, "GET", "/", {"Range": "bytes=0-1\r\nX-Other: 1"}, b"", 30)
