"""A proxy in front of an S3 server that puts a fault into the next requests that match a pattern."""

import asyncio
import http.client
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from s3_servers import S3Server

FAULTS = (
    "slow down",  # 503 with the code SlowDown
    "internal error",  # 500
    "reset before",  # the request is not carried out
    "timeout after success",  # it is, and its response is lost
    "stall",  # no response, and the connection stays open
    "short body",  # the connection ends before the response's last byte
    "trickle",  # in PIECES pieces
    "flipped byte",  # in the middle of the response's body
    "error body",  # 200 with the XML of an error
    "flipped request",  # in the middle of the request's body
    "no length",  # a chunked response
    "bad checksum",  # the response's header has no base64
)
ERROR = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>fault</Message></Error>'
PIECES, TRICKLE_S = 20, 0.01


@dataclass(slots=True)
class Request:
    method: str
    target: str
    head: bytes
    body: bytes


class FaultProxy:
    """`arm` a fault for the next `times` requests whose method and target match."""

    def __init__(self, server: S3Server) -> None:
        self.fired = 0
        self._server = server
        self._fault, self._times, self._pattern = "", 0, re.compile("")
        self._address = ""

    def url(self, prefix: str) -> str:
        return self._server.url(prefix).replace(self._server.address, self._address)

    def arm(self, fault: str, pattern: str, times: int = 1) -> None:
        """`pattern`: of "METHOD /target"."""
        self._fault, self._times, self._pattern = fault, times, re.compile(pattern)
        self.fired = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultProxy"]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        host, port = listening.sockets[0].getsockname()
        self._address = f"{host}:{port}"
        async with listening:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                while (request := await _read_request(reader)) is not None:
                    if not await self._answer(request, reader, writer):
                        break
            finally:
                writer.close()

    def _drawn(self, request: Request) -> str:
        if not self._times or not self._pattern.search(f"{request.method} {request.target}"):
            return ""
        self._times -= 1
        self.fired += 1
        return self._fault

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Returns whether the connection stays open."""
        fault = self._drawn(request)
        if fault == "slow down":
            return await _send(writer, b"503 Slow Down", ERROR % b"SlowDown")
        if fault == "internal error":
            return await _send(writer, b"500 Internal Server Error", ERROR % b"InternalError")
        if fault == "error body":
            return await _send(writer, b"200 OK", ERROR % b"InternalError")
        if fault == "reset before":
            writer.transport.abort()
            return False
        if fault == "flipped request":
            request.body = flipped(request.body)
        if fault == "stall":
            await reader.read()  # until the client gives up
            return False
        head, body = await asyncio.to_thread(self._forward, request)
        if fault == "timeout after success":
            await reader.read()
            return False
        if fault == "flipped byte":
            body = flipped(body)
        if fault == "bad checksum":
            head = re.sub(rb"(?i)(x-amz-checksum-crc32c): [^\r]*", rb"\1: !", head)
        if fault == "no length":
            is_head, is_chunked = request.method == "HEAD", b"Transfer-Encoding: chunked\r\n"
            head = re.sub(rb"Content-Length: \d+\r\n", b"" if is_head else is_chunked, head)
            body = b"" if is_head else b"%x\r\n%s\r\n" % (len(body), body) * bool(body) + b"0\r\n\r\n"
        if fault == "trickle":
            writer.write(head)
            size = max(1, len(body) // PIECES)
            for at in range(0, len(body), size):
                writer.write(body[at : at + size])
                await asyncio.sleep(TRICKLE_S)
                await writer.drain()
            return True
        writer.write(head + (body[: len(body) // 2] if fault == "short body" else body))
        await writer.drain()
        return fault != "short body"

    def _forward(self, request: Request) -> tuple[bytes, bytes]:
        """Head and body of the server's response."""
        connection = http.client.HTTPConnection(self._server.address, timeout=30)
        connection.connect()
        connection.sock.sendall(request.head + request.body)
        response = http.client.HTTPResponse(connection.sock, method=request.method)
        response.begin()
        body = response.read()
        lines = [f"HTTP/1.1 {response.status} {response.reason}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items() if name.lower() not in _OWN]
        length = response.headers.get("Content-Length") if request.method == "HEAD" else len(body)
        connection.close()
        return ("\r\n".join([*lines, f"Content-Length: {length or 0}", "", ""])).encode(), body


_OWN = ("content-length", "transfer-encoding", "connection", "keep-alive")


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x20]) + content[middle + 1 :] if content else content


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    found = re.search(rb"^content-length: (\d+)", head, re.MULTILINE | re.IGNORECASE)
    body = await reader.readexactly(int(found.group(1))) if found else b""
    return Request(method, target, head, body)


async def _send(writer: asyncio.StreamWriter, status: bytes, body: bytes) -> bool:
    writer.write(
        b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    )
    writer.write(body)
    await writer.drain()
    return True
