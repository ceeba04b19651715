"""Table of APIs, and the framing of requests and responses: size, header, body.

`APIS` has every API that tierlog serves. Message classes are imported when an API is first used. Servers use
`decode_request_header` and `encode_response`, clients `encode_request` and `decode_response`. A header is
flexible (v2 of requests, v1 of responses) if the body is, except that ApiVersions responses always have the
old header: the client does not know their version yet (KIP-511).
"""

import importlib
import struct
from typing import Any, NamedTuple

from tierlog.base.files import Part
from tierlog.protocol.codec import decode, encode, encode_parts
from tierlog.protocol.messages import INDEX
from tierlog.protocol.primitives import MalformedFrame, skip_tags
from tierlog.protocol.schema import Buffer, Message

PRODUCE_KEY, FETCH_KEY = 0, 1
API_VERSIONS_KEY = 18
CLIENT_ELEMENTS_MAX = 50_000_000
"""Clients trust brokers more than brokers trust clients: Metadata of 100,000 partitions is legal."""


class Api:
    """An API: key, name, supported versions of its messages, and the first flexible version."""

    def __init__(
        self, key: int, name: str, module: str, versions: tuple[int, int], flexible: int | None
    ) -> None:
        self.key = key
        self.name = name
        self.min_version, self.max_version = versions
        self.flexible_from = flexible
        self._module = module
        self._request: type[Message] | None = None
        self._response: type[Message] | None = None

    def __repr__(self) -> str:
        return f"{self.name}({self.key}, v{self.min_version}-{self.max_version})"

    @property
    def request(self) -> type[Message]:
        """The class of its requests."""
        if self._request is None:
            self._request = self._load("Request")
        return self._request

    @property
    def response(self) -> type[Message]:
        """The class of its responses."""
        if self._response is None:
            self._response = self._load("Response")
        return self._response

    def supports(self, version: int) -> bool:
        """Whether the messages support the version."""
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether lengths are compact and structs end in tags at this version (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from

    def _load(self, suffix: str) -> type[Message]:
        module = importlib.import_module(f"tierlog.protocol.messages.{self._module}")
        found: type[Message] = getattr(module, self.name + suffix)
        return found


APIS: dict[int, Api] = {key: Api(key, *row) for key, row in INDEX.items()}
BY_NAME: dict[str, Api] = {api.name: api for api in APIS.values()}


class RequestHeader(NamedTuple):
    """`body_at`: start of the body; -1 if the key or the version is unknown: then the header's end is too."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def decode_request_header(buffer: Buffer, at: int, end: int) -> RequestHeader:
    """The header of the request in buffer[at:end], the frame without its size. Raises MalformedFrame."""
    if end - at < _FIXED_SIZE:
        raise MalformedFrame("a frame shorter than a request header")
    key, version, correlation_id, length = _FIXED(buffer, at)
    at += _FIXED_SIZE
    client_id = None
    if length >= 0:
        if length > end - at:
            raise MalformedFrame("client id past the frame")
        try:
            client_id = str(memoryview(buffer)[at : at + length], "utf-8") if length else ""
        except UnicodeDecodeError as fault:
            raise MalformedFrame(f"client id: {fault}") from None
        at += length
    elif length < -1:
        raise MalformedFrame("client id length below -1")
    api = APIS.get(key)
    if api is None or not api.supports(version):
        return RequestHeader(key, version, correlation_id, client_id, -1)
    if api.is_flexible(version):
        try:
            at = at + 1 if buffer[at] == 0 else skip_tags(memoryview(buffer)[:end], at, end)
        except IndexError:
            at = end + 1
    if at > end:
        raise MalformedFrame("request header past the frame")
    return RequestHeader(key, version, correlation_id, client_id, at)


def response_head(api: Api, version: int, correlation_id: int, body_size: int) -> bytes:
    """Size prefix and header of a response; the body follows."""
    if api.is_flexible(version) and api.key != API_VERSIONS_KEY:
        return _HEAD_1(5 + body_size, correlation_id, 0)
    return _HEAD_0(4 + body_size, correlation_id)


def encode_response(api: Api, version: int, correlation_id: int, message: Message) -> list[Part]:
    """A whole response frame, size prefix included; records stay slices. Raises ValueError."""
    if api.key == FETCH_KEY:
        parts = encode_parts(message, version)
        return [response_head(api, version, correlation_id, sum(map(len, parts))), *parts]
    body = encode(message, version)
    return [response_head(api, version, correlation_id, len(body)) + body]


def encode_request(
    api: Api, version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """A whole request frame, size prefix included."""
    name = b"" if client_id is None else client_id.encode()
    header = _FIXED_PACK(api.key, version, correlation_id, -1 if client_id is None else len(name)) + name
    if api.is_flexible(version):
        header += b"\0"
    body = encode(message, version)
    return b"".join((struct.pack(">i", len(header) + len(body)), header, body))


def decode_response(
    api: Api, version: int, buffer: Buffer, at: int = 0, end: int | None = None
) -> tuple[int, Any]:
    """(correlation id, message) of the response in buffer[at:end], the frame without its size."""
    end = len(buffer) if end is None else end
    if end - at < 5:
        raise MalformedFrame("a frame shorter than a response header")
    (correlation_id,) = struct.unpack_from(">i", buffer, at)
    at += 4
    if api.is_flexible(version) and api.key != API_VERSIONS_KEY:
        try:
            at = skip_tags(memoryview(buffer)[:end], at, end)
        except IndexError:
            raise MalformedFrame("response header past the frame") from None
    return correlation_id, decode(api.response, version, buffer, at, end, elements_max=CLIENT_ELEMENTS_MAX)


_FIXED = struct.Struct(">hhih").unpack_from
_FIXED_PACK = struct.Struct(">hhih").pack
_FIXED_SIZE = 10
_HEAD_0 = struct.Struct(">ii").pack
_HEAD_1 = struct.Struct(">iiB").pack
