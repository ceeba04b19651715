"""HTTP/1.1 connections to an object store: blocking requests in I/O threads of their own.

Bodies are not copied: a response is received into the caller's buffer, and a request is sent from it, a part
with each system call, since a thread needs the interpreter lock after each. A small body is sent together
with its headers. A call that is cancelled shuts its connection down, and ends once the thread no longer uses
the buffer. There are at most as many connections as threads; idle ones are kept. Called by the S3 client.
"""

import asyncio
import base64
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from tierlog.base.daemon_threads import DaemonThreads

T = TypeVar("T")

PIECE_BYTES = 8 << 20  # sent or received with one system call, which ends early if nothing moves for `read_s`
JOINED_BYTES = 64 << 10
"""A body up to this size is copied behind its headers: a second system call, which wakes the server again,
takes longer than the copy."""

ERROR_BODY_BYTES = 1 << 20  # read of an error response; the connection is then closed
_DEFAULT_PORTS = {"http": 80, "https": 443}


class TransferCancelled(Exception):
    """The call has been cancelled: its thread stops."""


class UnsupportedProxy(ValueError):
    """The environment names a proxy to which no connection is possible; the message says what to set."""


class Transfer:
    """One call in an I/O thread. The event loop calls `cancel` and `until_released`, the thread the rest."""

    def __init__(self, into: memoryview | None) -> None:
        self.into = into
        """Buffer for the body of a successful response to a range request."""
        self._lock = threading.Lock()
        self._cancelled = False
        self._socket: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._released = self._loop.create_future()

    @contextmanager
    def using(self, connected: socket.socket) -> Iterator[None]:
        """Use a connection, which `cancel` shuts down. Raises TransferCancelled."""
        with self._lock:
            if self._cancelled:
                raise TransferCancelled
            self._socket = connected
        try:
            yield
        finally:
            with self._lock:
                self._socket = None
                cancelled = self._cancelled
            if cancelled:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._release)
                raise TransferCancelled

    def _release(self) -> None:
        if not self._released.done():
            self._released.set_result(None)

    def cancel(self) -> None:
        """Shut the connection down, so that the thread stops soon (`until_released`)."""
        with self._lock:
            self._cancelled = True
            if self._socket is None:
                self._release()
                return
            with suppress(OSError):  # not SSLSocket.shutdown, which changes what the thread uses
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    async def until_released(self) -> None:
        """Wait until the thread uses neither the buffer nor the connection, even if the caller is cancelled
        again."""
        while not self._released.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._released])


class IoThreads:
    """A bounded number of threads, which begin as they are needed."""

    def __init__(self, count: int) -> None:
        self._pool = DaemonThreads("tierlog-store", count)
        self._local = threading.local()

    @property
    def transfer(self) -> Transfer:
        """The call that runs in this thread."""
        current: Transfer = self._local.transfer
        return current

    async def run(self, work: Callable[[], T], into: memoryview | None = None) -> T:
        """Run a call in a thread. If it is cancelled, nothing is written to `into` after it has ended."""
        transfer = Transfer(into)

        def call() -> T:
            self._local.transfer = transfer
            try:
                return work()
            finally:
                transfer.into = None  # a failure that is kept must not keep the buffer
                del self._local.transfer

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except asyncio.CancelledError:
            transfer.cancel()
            await transfer.until_released()
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Response:
    """`body`: empty if it went to the transfer's buffer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnections:
    """Idle connections by origin. Thread-safe."""

    def __init__(
        self, *, connect_s: float, read_s: float, tls: Callable[[], ssl.SSLContext], proxy: str | None = None
    ) -> None:
        """`read_s`: between two bytes. `proxy`: URL of an HTTP proxy; also `host:port`. Raises
        UnsupportedProxy."""
        self._connect_s = connect_s
        self._read_s = read_s
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._proxy = _proxy_at(proxy) if proxy else None
        self._idle: dict[tuple[str, str, int], list[HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def request(
        self, transfer: Transfer, method: str, url: str, headers: Mapping[str, str], body: bytes | memoryview
    ) -> Response:
        """Send a request and receive its response. Raises OSError (also TimeoutError), HTTPException and
        TransferCancelled; then the connection is closed."""
        parts = urlsplit(url)
        origin = (parts.scheme, parts.hostname or "", parts.port or _DEFAULT_PORTS[parts.scheme])
        target = url[url.index("/", len(parts.scheme) + 3) :] if parts.path else f"/?{parts.query}"
        if self._proxy and parts.scheme == "http":
            target = url
            headers = {**headers, **_proxy_authorization(self._proxy)}
        connection = self._take(origin) or self._connect(transfer, origin)
        keep = False
        try:
            with transfer.using(connection.sock):
                _send(connection.sock, method, target, {"Host": _host(parts), **headers}, body, self._read_s)
                response, keep = _receive(connection.sock, method, transfer.into, self._read_s)
        except BaseException:
            keep = False
            raise
        finally:
            self._give_back(origin, connection, keep)
        return response

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _take(self, origin: tuple[str, str, int]) -> HTTPConnection | None:
        """The connection that was used last, since the server closes those that are idle for long."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                if not idle:
                    return None
                connection = idle.pop()
            if not _is_readable(connection.sock):
                return connection
            connection.close()  # by the server, too

    def _give_back(self, origin: tuple[str, str, int], connection: HTTPConnection, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed:
                self._idle.setdefault(origin, []).append(connection)
                return
        connection.close()

    def _connect(self, transfer: Transfer, origin: tuple[str, str, int]) -> HTTPConnection:
        scheme, host, port = origin
        via = (host, port)
        if self._proxy is not None:
            via = (self._proxy.hostname or "", self._proxy.port or 80)
        connection = HTTPConnection(*via, timeout=self._connect_s)
        if self._proxy is not None and scheme == "https":
            connection.set_tunnel(host, port, _proxy_authorization(self._proxy))
        try:
            connection.connect()
            plain = connection.sock
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if scheme == "https":
                if self._tls is None:
                    self._tls = self._make_tls()
                secured = self._tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
                connection.sock = secured
                with transfer.using(secured):
                    secured.do_handshake()
            connection.sock.settimeout(self._read_s)
        except BaseException:
            connection.close()
            raise
        return connection


def _host(url: SplitResult) -> str:
    """The Host header as botocore has signed it: without the scheme's default port."""
    host = url.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if url.port in (None, _DEFAULT_PORTS[url.scheme]) else f"{host}:{url.port}"


def _proxy_at(url: str) -> SplitResult:
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise UnsupportedProxy(
            f"the environment's proxy {proxy.scheme}://{proxy.hostname or ''} cannot be used for the object "
            "store: set HTTPS_PROXY or HTTP_PROXY to http://host:port, or add the store to NO_PROXY"
        )
    return proxy


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    """The header with the credentials of a proxy's URL, if it has some (RFC 7617)."""
    if proxy.username is None:
        return {}
    credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials).decode()}"}


def _is_readable(idle: socket.socket) -> bool:
    """An idle connection can be read from only if it is closed, or out of step."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def _send(
    connected: socket.socket,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | memoryview,
    timeout_s: float,
) -> None:
    head = _head(method, target, headers)
    view = memoryview(body)
    if len(view) <= JOINED_BYTES:
        connected.sendall(head + view)
        return
    connected.sendall(head)
    # perhaps there is a response, which says why
    with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError), _blocking(connected, timeout_s):
        for at in range(0, len(view), PIECE_BYTES):
            connected.sendall(view[at : at + PIECE_BYTES])


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Raises ValueError for a line break within a header."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of a request has a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _receive(
    connected: socket.socket, method: str, into: memoryview | None, timeout_s: float
) -> tuple[Response, bool]:
    """The response, and whether the connection can be used again."""
    response = HTTPResponse(connected, method=method)
    try:
        response.begin()
        headers = dict(response.headers.items())
        if into is not None and response.status in (200, 206):
            if response.length != len(into):
                return Response(response.status, headers, b""), False
            _fill(connected, response, into, timeout_s)
            body = b""
        elif response.status < 300:
            body = response.read()
        else:
            body = response.read(ERROR_BODY_BYTES)
        return Response(response.status, headers, body), response.isclosed() and not response.will_close
    finally:
        response.close()


def _fill(connected: socket.socket, response: HTTPResponse, into: memoryview, timeout_s: float) -> None:
    """Receive a body of the buffer's size. The response's reader may have received its beginning."""
    at = response.fp.readinto1(into)
    with _blocking(connected, timeout_s) as flags:
        while at < len(into):
            received = connected.recv_into(into[at : at + PIECE_BYTES], 0, flags)
            if not received:
                raise IncompleteRead(b"", len(into) - at)
            at += received
    response.length = 0
    response.read()  # nothing; ends the response


@contextmanager
def _blocking(connected: socket.socket, timeout_s: float) -> Iterator[int]:
    """Let the kernel wait until a piece is complete, for bodies: a socket with a timeout of Python's would be
    asked for each packet that has arrived. Gives the flags for `recv_into`. TLS has records of 16 KiB, and
    remains as it is."""
    if isinstance(connected, ssl.SSLSocket):
        yield 0
        return
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    connected.settimeout(None)
    try:
        yield socket.MSG_WAITALL
    except BlockingIOError:
        raise TimeoutError("timed out") from None
    finally:
        connected.settimeout(timeout_s)
