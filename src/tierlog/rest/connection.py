"""Connection to one broker for asyncio: requests are pipelined, and responses arrive in their order.

The framing, versions and failures are those of the blocking client (`tierlog.client.connection`). Many
requests share a connection, except those that wait at the broker, such as Fetch: a reader opens its own.
"""

import asyncio
import ssl
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from tierlog.base.tasks import TaskGroup
from tierlog.client.connection import FRAME_MAX_BYTES, VERSIONS_BY_NAME, Address, api_of
from tierlog.client.errors import (
    AuthenticationFailed,
    ClientError,
    InvalidRequest,
    InvalidResponse,
    TimedOut,
    Unreachable,
    UnsupportedRequest,
)
from tierlog.client.security import ANSWER_MAX_BYTES
from tierlog.protocol.api import BY_NAME, Api, decode_response, encode_request
from tierlog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.sasl.client_login import HANDSHAKE_VERSION, LoginRefused, login_requests

CLIENT_ID = "tierlog-rest"
AUTHENTICATE_VERSION = 1
"""The first version whose response says how long the login is valid (KIP-368)."""

CONNECT_TIMEOUT_S = 10.0
RESPONSE_TIMEOUT_S = 40.0
"""For a response, unless the caller says otherwise. Longer than the timeouts within the requests (30 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Credentials of one caller. `mechanism`: "" for none. `password`: the token of OAUTHBEARER."""

    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)


ANONYMOUS = Login()


class _Call(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    response: "asyncio.Future[Any]"


class Connection:
    """An open connection that has logged in. Made by `connect`."""

    def __init__(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: TaskGroup
    ) -> None:
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.login_ms = 0
        """For how many ms the login is valid; 0: for as long as the connection is open."""
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0
        self._calls: deque[_Call] = deque()
        self._failure: ClientError | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._tasks = tasks

    async def begin(self, login: Login) -> None:
        """Log in, and learn the broker's versions. Raises ClientError."""
        try:
            if login.mechanism:
                await self._log_in(login)
            api = BY_NAME["ApiVersions"]
            frame = await self._exchange(api, 0, ApiVersionsRequest(), ANSWER_MAX_BYTES)
        except (OSError, EOFError) as failure:
            raise Unreachable(self.name, failure or "the broker closed the connection") from None
        response = cast(ApiVersionsResponse, frame)
        self._versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        self._tasks.spawn(f"responses of {self.name}", self._receive())

    @property
    def is_open(self) -> bool:
        return self._failure is None and not self._writer.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no call waits for its response."""
        return not self._calls

    def version(self, name: str) -> int | None:
        """The newest version of an API that both sides support."""
        api = BY_NAME[name]
        broker_min, broker_max = self._versions.get(api.key, (1, 0))
        version = min(broker_max, api.max_version, VERSIONS_BY_NAME.get(api.key, api.max_version))
        return version if version >= max(broker_min, api.min_version) else None

    async def call(self, request: Any, timeout_s: float = RESPONSE_TIMEOUT_S) -> Any:
        """Send a request and return its response. Raises ClientError; after TimedOut and Unreachable the
        request may have been executed."""
        api = api_of(request)
        version = self.version(api.name)
        if version is None:
            raise UnsupportedRequest(self.name, api.name)
        if self._failure is not None:
            raise self._failure
        self._correlation_id += 1
        try:
            frame = encode_request(api, version, self._correlation_id, CLIENT_ID, request)
        except ValueError as invalid:  # for example a number that is too large for its field
            raise InvalidRequest(f"invalid value in {api.name} request: {invalid}") from None
        call = _Call(self._correlation_id, api, version, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(frame)
                await self._writer.drain()
                return await call.response
        except TimeoutError:
            failure = TimedOut(f"{self.name} did not respond to {api.name} within {timeout_s:g} s")
            self._fail(failure)
            raise failure from None
        except OSError as failure:
            raise Unreachable(self.name, failure) from None

    def close(self) -> None:
        self._fail(Unreachable(self.name, "the connection was closed"))

    async def _receive(self) -> None:
        try:
            while True:
                frame = await self._frame(FRAME_MAX_BYTES)
                if not self._calls:
                    raise InvalidResponse(self.name, f"{self.name} sent a response without a request")
                call = self._calls.popleft()
                try:
                    correlation_id, response = decode_response(call.api, call.version, frame)
                except MalformedFrame as fault:
                    self._calls.appendleft(call)
                    raise InvalidResponse(self.name, f"{call.api.name}: {fault}") from None
                if correlation_id != call.correlation_id:
                    self._calls.appendleft(call)
                    raise InvalidResponse(self.name, f"{self.name} responded out of order")
                if not call.response.done():  # the caller may have been cancelled
                    call.response.set_result(response)
        except ClientError as failure:
            self._fail(failure)
        except (OSError, EOFError) as failure:
            self._fail(Unreachable(self.name, failure or "the broker closed the connection"))

    def _fail(self, failure: ClientError) -> None:
        if self._failure is None:
            self._failure = failure
        self._writer.transport.abort()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.response.done():
                call.response.set_exception(failure)
                call.response.exception()  # retrieved, in case that the caller has timed out

    async def _log_in(self, login: Login) -> None:
        requests = login_requests(login.mechanism, login.user, login.password)
        try:
            request = next(requests)
            while True:
                is_handshake = isinstance(request, SaslHandshakeRequest)
                api = BY_NAME["SaslHandshake" if is_handshake else "SaslAuthenticate"]
                version = HANDSHAKE_VERSION if is_handshake else AUTHENTICATE_VERSION
                response = await self._exchange(api, version, request, ANSWER_MAX_BYTES)
                # in a thread, because the hash of a password takes milliseconds
                outcome = await asyncio.to_thread(_advance, requests, response)
                if isinstance(outcome, int):
                    self.login_ms = outcome
                    return
                request = outcome
        except LoginRefused as refusal:
            raise AuthenticationFailed(f"{self.name} {refusal}") from None

    async def _exchange(self, api: Api, version: int, request: Any, most: int) -> Any:
        try:
            self._writer.write(encode_request(api, version, 0, CLIENT_ID, request))
        except ValueError as invalid:
            raise InvalidRequest(f"invalid value in {api.name} request: {invalid}") from None
        await self._writer.drain()
        try:
            return decode_response(api, version, await self._frame(most))[1]
        except MalformedFrame as fault:
            raise InvalidResponse(self.name, f"{api.name}: {fault}") from None

    async def _frame(self, most: int) -> memoryview:
        size = struct.unpack(">i", await self._reader.readexactly(4))[0]
        if not 0 < size <= most:
            raise InvalidResponse(
                self.name, f"{self.name} does not speak the Kafka protocol: invalid response size {size:,}"
            )
        return memoryview(await self._reader.readexactly(size))


def _advance(requests: Any, response: Any) -> Any:
    """The next request of a login, or for how many ms it is valid. (StopIteration cannot leave a thread.)"""
    try:
        return requests.send(response)
    except StopIteration as end:
        return int(end.value or 0)


async def connect(address: Address, login: Login, tls: ssl.SSLContext | None, tasks: TaskGroup) -> Connection:
    """A connection that has logged in. Raises Unreachable and AuthenticationFailed."""
    name = f"{address[0]}:{address[1]}"
    host = address[0] if tls is not None else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname=host)
            connection = Connection(address, reader, writer, tasks)
            try:
                await connection.begin(login)
            except BaseException:
                writer.transport.abort()
                raise
    except TimeoutError:
        raise Unreachable(name, f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
    except OSError as failure:
        raise Unreachable(name, failure.strerror or failure) from None
    return connection
