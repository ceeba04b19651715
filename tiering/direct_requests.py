"""Direct requests: builds the S3 requests that tiering repeats for each segment, and reads their responses.

botocore's client takes 0.9 ms of CPU time for each call besides its signature: it resolves the endpoint,
validates parameters, emits events and parses the response. This module learns from a call of botocore where
requests to the bucket go, and how they are signed, and then builds calls of the same operation itself:
headers by botocore's model of the operation, the signature by botocore's signer. An operation is learned only
if this module builds the same request as botocore did. A response that is not a plain success goes back to
botocore, which raises its error or follows its redirect. Called by the S3 client, in I/O threads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

OPERATIONS = frozenset({"get_object", "head_object", "put_object", "upload_part"})

_SCOPE = re.compile(r"AWS4-HMAC-SHA256 Credential=[^,]*/(?P<region>[^/,]+)/(?P<service>[^/,]+)/aws4_request,")
_NOT_COMPARED = frozenset(
    {"authorization", "x-amz-date", "expect", "amz-sdk-invocation-id", "amz-sdk-request"}
)
"""Headers that differ in each request, that the store does not read, or that are not sent."""


class DirectRequest(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Learned:
    """Address and signature of an operation's requests. `base`: the URL up to the key."""

    base: str
    region: str
    service: str
    user_agent: str


@dataclass(slots=True)
class _Signable:
    """A request as botocore's signer reads it."""

    method: str
    url: str
    headers: dict[str, str]
    context: dict[str, Any]
    params: None = None
    body: None = None


class _Operation:
    """An operation by botocore's model."""

    def __init__(self, model: Any) -> None:
        self.method: str = model.http["method"]
        self.inputs = {name: _place(shape) for name, shape in model.input_shape.members.items()}
        self.outputs = {
            wire.lower(): (name, int if shape.type_name in ("integer", "long") else str)
            for name, shape in model.output_shape.members.items()
            for location, wire in [_place(shape)]
            if location == "header" and shape.type_name in ("string", "integer", "long")
        }
        self.has_body: bool = model.has_streaming_output
        self.learned: _Learned | None = None


class DirectRequests:
    """Requests to one bucket. Thread-safe: learning twice does no harm."""

    def __init__(self, api: Any, credentials: Any) -> None:
        """`api`: botocore's client. `credentials`: botocore's, those of the client; None if it has none."""
        self._credentials = credentials
        self._context = {"client_config": api.meta.config}
        self._operations = {
            name: _Operation(api.meta.service_model.operation_model(api.meta.method_to_api_mapping[name]))
            for name in OPERATIONS
        }

    def build(self, name: str, arguments: Mapping[str, Any]) -> DirectRequest | None:
        """A signed request; None if the operation has not been learned."""
        operation = self._operations.get(name)
        learned = None if operation is None else operation.learned  # another thread may forget it
        if operation is None or learned is None:
            return None
        credentials = self._credentials.get_frozen_credentials()
        return _signed(operation, learned, arguments, self._context, credentials)

    def learn(self, name: str, arguments: Mapping[str, Any], url: str, headers: Mapping[str, str]) -> None:
        """Learn from a request of botocore's that has succeeded. Asks no issuer for credentials."""
        from botocore.credentials import Credentials

        operation = self._operations.get(name)
        if operation is None or self._credentials is None:
            return
        sent = {name.lower(): value for name, value in headers.items()}
        scope, key = _SCOPE.match(sent.get("authorization", "")), _quoted(arguments["Key"])
        path = url.partition("?")[0]
        if scope is None or not path.endswith(f"/{key}"):
            return  # another kind of signature or address
        learned = _Learned(path[: -len(key)], scope["region"], scope["service"], sent.get("user-agent", ""))
        token = sent.get("x-amz-security-token")
        request = _signed(operation, learned, arguments, self._context, Credentials("key", "secret", token))
        if request is not None and _comparable(request.url, request.headers) == _comparable(url, sent):
            operation.learned = learned

    def forget(self) -> None:
        """Learn all operations again, as after a redirect."""
        for operation in self._operations.values():
            operation.learned = None

    def result(
        self, name: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> dict[str, Any] | None:
        """The result as botocore returns it, without its body; None if it is not a plain success. Raises
        ValueError."""
        operation = self._operations[name]
        if status not in (200, 206) or (body and not operation.has_body):
            return None
        found = ((operation.outputs.get(header.lower()), value) for header, value in headers.items())
        return {each[0]: each[1](value) for each, value in found if each is not None}


def _place(shape: Any) -> tuple[str | None, str]:
    """The place of a member in its request or response ("header", "querystring", "uri"; None: the body), and
    its name there."""
    return shape.serialization.get("location"), shape.serialization.get("name", "")


def _signed(
    operation: _Operation,
    learned: _Learned,
    arguments: Mapping[str, Any],
    context: Mapping[str, Any],
    credentials: Any,
) -> DirectRequest | None:
    """None if an argument has a place or type that this module does not know."""
    from botocore.auth import S3SigV4Auth

    request = _unsigned(operation, learned.base, arguments)
    if request is None:
        return None
    signer = S3SigV4Auth(credentials, learned.service, learned.region)
    signer.add_auth(_Signable(request.method, request.url, request.headers, {**context}))
    request.headers["User-Agent"] = learned.user_agent
    if "Body" in arguments:
        request.headers["Content-Length"] = str(len(arguments["Body"]))
    return request


def _unsigned(operation: _Operation, base: str, arguments: Mapping[str, Any]) -> DirectRequest | None:
    headers: dict[str, str] = {}
    query: list[str] = []
    for name, value in arguments.items():
        if name in ("Bucket", "Key", "Body"):
            continue
        location, wire = operation.inputs[name]
        if not isinstance(value, str | int) or isinstance(value, bool):
            return None
        if location == "header":
            headers[wire] = str(value)
        elif location == "querystring":
            query.append(f"{wire}={quote(str(value), safe='-_.~')}")
        else:
            return None
    url = base + _quoted(arguments["Key"])
    return DirectRequest(operation.method, f"{url}?{'&'.join(query)}" if query else url, headers)


def _quoted(key: str) -> str:
    return quote(key, safe="/-_.~")


def _comparable(url: str, headers: Mapping[str, str]) -> tuple[Any, ...]:
    parts = urlsplit(url)
    kept = {name.lower(): value for name, value in headers.items() if name.lower() not in _NOT_COMPARED}
    return parts.scheme, parts.netloc, parts.path, sorted(parse_qsl(parts.query)), kept
