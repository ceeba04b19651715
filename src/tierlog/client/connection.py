"""Connection to one broker: sends a request and returns its response.

Each request has the newest version that both sides support, except that versions which refer to topics by id
are not used unless the caller says so (`VERSIONS_BY_NAME`).
"""

import select
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tierlog.client.errors import (
    InvalidRequest,
    InvalidResponse,
    Silent,
    TimedOut,
    Unreachable,
    UnsupportedRequest,
)
from tierlog.protocol.api import BY_NAME, Api, decode_response, encode_request
from tierlog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

FRAME_MAX_BYTES = 256 << 20

VERSIONS_BY_NAME = {0: 12, 1: 12, 8: 9, 9: 9}
"""By API key (Produce, Fetch, OffsetCommit, OffsetFetch): the last version that refers to topics by name."""

Address = tuple[str, int]


OpenSocket = Callable[[Address, float], socket.socket]
"""Opens a connection to an address, within a time in seconds. Raises OSError and AuthenticationFailed."""


def open_socket(address: Address, timeout_s: float) -> socket.socket:
    """A plain TCP connection. Raises OSError."""
    opened = socket.create_connection(address, timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Settings of all connections of a client. `open_socket` may encrypt and authenticate
    (`client.security`). `on_slow(api, address, timeout_s)` is called when a
    response takes longer than `slow_s`."""

    client_id: str = "tierlog"
    max_versions: Mapping[int, int] = field(default_factory=lambda: VERSIONS_BY_NAME)
    open_socket: OpenSocket = open_socket
    slow_s: float = float("inf")
    on_slow: Callable[[str, str, float], None] | None = None


class Connection:
    """Connection to one broker, with the API versions that the broker supports. It belongs to one thread."""

    def __init__(
        self,
        address: Address,
        timeout_s: float,
        first_timeout_s: float | None = None,
        options: ConnectionOptions | None = None,
    ) -> None:
        """`timeout_s`: default time for a response. `first_timeout_s`: for each step until the broker has
        said what it supports; nothing has been asked of it by then. Raises Unreachable."""
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.options = options or ConnectionOptions()
        self._timeout_s = timeout_s
        self._correlation_id = 0
        try:
            self._socket = self.options.open_socket(address, first_timeout_s or timeout_s)
        except OSError as failure:
            raise Unreachable(self.name, failure.strerror or failure) from None
        request = ApiVersionsRequest()
        try:
            versions = cast(ApiVersionsResponse, self._exchange(api_of(request), 0, request))
        except TimedOut as silent:
            self._socket.close()
            raise Silent(self.name, f"it accepts connections, but {silent}") from None
        except Exception:
            self._socket.close()
            raise
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in versions.api_keys}
        self._socket.settimeout(timeout_s)

    def call(self, request: Any, timeout_s: float | None = None) -> Any:
        """Send the request and return its response. `timeout_s`: time for this response. After a failure
        other than UnsupportedRequest and InvalidRequest the connection is unusable and must be closed."""
        api = api_of(request)
        version = self.version(api.name)
        if version is None:
            raise UnsupportedRequest(self.name, api.name)
        self._socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
        return self._exchange(api, version, request)

    def supports(self, api: str) -> bool:
        """Whether the broker advertises the API."""
        return BY_NAME[api].key in self._versions

    def version(self, name: str) -> int | None:
        """The newest version of an API that both sides support. A field of a newer one is not sent."""
        api = BY_NAME[name]
        broker_min, broker_max = self._versions.get(api.key, (1, 0))
        version = min(broker_max, api.max_version, self.options.max_versions.get(api.key, api.max_version))
        return version if version >= max(broker_min, api.min_version) else None

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, api: Api, version: int, request: Any) -> Any:
        self._correlation_id += 1
        try:
            sent = encode_request(api, version, self._correlation_id, self.options.client_id, request)
        except ValueError as invalid:  # for example text that is not UTF-8
            raise InvalidRequest(f"invalid value in {api.name} request: {invalid}") from None
        timeout_s = self._socket.gettimeout() or 0.0
        try:
            self._socket.sendall(sent)
            self._wait(api, timeout_s)
            frame = self._read_frame()
        except TimeoutError:
            raise TimedOut(f"{self.name} did not respond to {api.name} within {timeout_s:g} s") from None
        except OSError as failure:
            raise Unreachable(self.name, failure) from None
        correlation_id, response = decode_response(api, version, frame)
        if correlation_id != self._correlation_id:
            raise InvalidResponse(
                self.name,
                f"{api.name}: response has correlation id {correlation_id}, expected {self._correlation_id}",
            )
        return response

    def _wait(self, api: Api, timeout_s: float) -> None:
        """Call `on_slow` if there is no response for `slow_s`, which counts as part of the time."""
        slow_s, on_slow = self.options.slow_s, self.options.on_slow
        if on_slow and timeout_s > slow_s and not select.select([self._socket], [], [], slow_s)[0]:
            on_slow(api.name, self.name, timeout_s)
            self._socket.settimeout(timeout_s - slow_s)

    def _read_frame(self) -> memoryview:
        size = struct.unpack(">i", self._read(4))[0]
        if not 0 < size <= FRAME_MAX_BYTES:
            raise InvalidResponse(
                self.name, f"{self.name} does not speak the Kafka protocol: invalid response size {size:,}"
            )
        return self._read(size)

    def _read(self, count: int) -> memoryview:
        view, received = memoryview(bytearray(count)), 0
        while received < count:
            size = self._socket.recv_into(view[received:])
            if not size:
                raise ConnectionError("the broker closed the connection")
            received += size
        return view


def api_of(request: Any) -> Api:
    return BY_NAME[type(request).__name__.removesuffix("Request")]
