"""S3 client: botocore builds, signs and parses requests; `http_connections` sends them.

botocore's own HTTP client copies bodies and cannot be cancelled. Its event `before-send` lets this module
send the signed request instead. The operations that are repeated for each segment are built without its
client after the first call (`direct_requests`). Credentials come from botocore's chain. Bodies are not
signed (UNSIGNED-PAYLOAD): each has a CRC-32C in a signed header, which the server verifies. botocore takes a
second to import, so it is imported in a thread at the first call. Called by the S3 store.
"""

import base64
import io
import ssl
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any

from crc32c import crc32c

from tierlog import __version__
from tierlog.tiering.direct_requests import DirectRequests
from tierlog.tiering.http_connections import HttpConnections, IoThreads, Response, UnsupportedProxy
from tierlog.tiering.object_store import (
    CorruptObject,
    ObjectNotFound,
    ObjectStoreError,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    PreconditionFailed,
)
from tierlog.tiering.s3_options import S3Options

DEFAULT_REGION = "us-east-1"

_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound"})
_PRECONDITION = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict"})
_DAMAGED = frozenset(
    {
        "BadDigest",
        "XAmzContentChecksumMismatch",
        "InvalidDigest",
        "XAmzContentSHA256Mismatch",
        "InvalidRange",  # the object ends before the first byte
    }
)
_TRANSIENT = frozenset({"SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling"})
_TRANSIENT_STATUS = frozenset({429, 500, 502, 503, 504})
_DELETED = b"DeleteResult"  # the root of DeleteObjects' response, also if it names only errors
_USUAL_FAILURES = frozenset({404, 412})
"""Statuses that say nothing about how the store is addressed."""


class SendBody:
    """A request's body in a buffer, as botocore accepts it. Sent without a copy."""

    def __init__(self, view: memoryview, checksum: int | None = None) -> None:
        """`checksum`: its CRC-32C, if it is known."""
        self.view = view
        self._checksum = checksum

    @property
    def checksum(self) -> int:
        """CRC-32C. Computed in the thread that sends the body, unless it is known."""
        if self._checksum is None:
            self._checksum = crc32c(self.view)
        return self._checksum

    def __len__(self) -> int:
        return len(self.view)

    def read(self, _size: int = -1) -> bytes:
        """Only for botocore, which would read it to sign the body."""
        return bytes(self.view)


class _Call(threading.local):
    """The call that runs in this thread: its operation and arguments, and the response that botocore is to
    read instead of sending its request."""

    operation = ""
    arguments: dict[str, Any] | None = None
    received: Response | None = None


class S3Client:
    """An open client of one bucket. `api`: botocore's. Calls run in `threads`."""

    def __init__(self, options: S3Options, threads: IoThreads) -> None:
        """Blocks for a second. Raises BotoCoreError or UnsupportedProxy."""
        import botocore.session
        from botocore.config import Config
        from botocore.utils import get_environ_proxies

        session = botocore.session.Session(profile=options.profile)
        self.api: Any = session.create_client(
            "s3",
            region_name=options.region or session.get_config_variable("region") or DEFAULT_REGION,
            endpoint_url=options.endpoint,
            aws_access_key_id=options.access_key,
            aws_secret_access_key=options.secret_key,
            aws_session_token=options.session_token,
            config=Config(
                user_agent=f"tierlog/{__version__}",  # botocore's own takes a fifth of a call's CPU time
                retries={"total_max_attempts": 1, "mode": "standard"},  # the store repeats calls itself
                s3={"addressing_style": options.addressing_style, "payload_signing_enabled": False},
                # the store sends CRC-32C itself; the default needs trailers, which some servers lack
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        self.endpoint = url = str(self.api.meta.endpoint_url)
        self._direct = DirectRequests(self.api, _credentials_of(options, session))
        self._call = _Call()
        ca_bundle = options.ca_bundle or session.get_config_variable("ca_bundle")
        proxies = get_environ_proxies(url)
        self._threads = threads
        self._connections = HttpConnections(
            connect_s=options.connect_timeout_ms / 1000,
            read_s=options.read_timeout_ms / 1000,
            tls=_tls_of(ca_bundle),
            proxy=proxies.get(url.split(":")[0]),
        )
        self.api.meta.events.register("before-send.s3", self._send)

    def close(self) -> None:
        self._connections.close()
        self.api.close()

    def call(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Run an operation by the name of botocore's method, with the checksum of its body. Raises what
        botocore raises, OSError, HTTPException and TransferCancelled."""
        body = arguments.get("Body")
        if isinstance(body, SendBody):
            arguments = {**arguments, "ChecksumCRC32C": base64_checksum(body.checksum)}
        request = self._direct.build(operation, arguments)
        call = self._call
        call.operation, call.arguments, call.received = operation, arguments, None
        try:
            if request is not None:
                received = self._request(request.method, request.url, request.headers, body)
                result = self._direct.result(operation, received.status, received.headers, received.body)
                if result is not None:
                    return {**result, "Body": _Received(received.body)}
                if received.status not in _USUAL_FAILURES:
                    self._direct.forget()
                call.received = received
            return getattr(self.api, operation)(**arguments)
        finally:
            call.arguments = call.received = None

    def _send(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        call = self._call
        response, call.received = call.received, None
        if response is None:
            headers = {name: _text(value) for name, value in request.headers.items()}
            response = self._request(request.method, request.url, headers, request.body)
            _require_result(call.operation, response)
            if call.arguments is not None and response.status < 300:
                self._direct.learn(call.operation, call.arguments, request.url, headers)
        return AWSResponse(request.url, response.status, response.headers, _Received(response.body))

    def _request(self, method: str, url: str, headers: dict[str, str], body: Any) -> Response:
        sent = {name: value for name, value in headers.items() if name.lower() != "expect"}
        content = body.view if isinstance(body, SendBody) else body or b""
        return self._connections.request(self._threads.transfer, method, url, sent, content)


def _require_result(operation: str, response: Response) -> None:
    """Raises HTTPException for a success of DeleteObjects that is none. botocore parses an empty body, or any
    other XML, as a response without errors."""
    if operation == "delete_objects" and response.status < 300 and _DELETED not in response.body:
        raise HTTPException(f"status {response.status} without a DeleteResult")


def _credentials_of(options: S3Options, session: Any) -> Any:
    """The credentials that the session's clients use."""
    from botocore.credentials import Credentials

    if options.access_key is not None and options.secret_key is not None:
        return Credentials(options.access_key, options.secret_key, options.session_token)
    return session.get_credentials()


class _Received(io.BytesIO):
    """A received body, as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def base64_checksum(checksum: int) -> str:
    """A CRC-32C as S3's requests have it."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _tls_of(ca_bundle: str | None) -> Callable[[], ssl.SSLContext]:
    def make() -> ssl.SSLContext:
        from botocore.httpsession import get_cert_path

        return ssl.create_default_context(cafile=ca_bundle or get_cert_path(True))

    return make


def is_transient(error: Exception) -> bool:
    """Whether another attempt may succeed soon."""
    from botocore.exceptions import ClientError, HTTPClientError
    from botocore.parsers import ResponseParserError

    if isinstance(error, ClientError):
        code, status = _code_of(error)
        return code in _TRANSIENT or status in _TRANSIENT_STATUS
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    return isinstance(error, (OSError, HTTPException, HTTPClientError, ResponseParserError))


def translate(what: str, error: Exception) -> ObjectStoreError | None:
    """The object store error for a client exception; None for a bug, and for what is such an error
    already."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    if isinstance(error, ClientError):
        return _translate_response(what, error)
    if isinstance(error, ssl.SSLCertVerificationError):  # no response: the store is not reached
        return ObjectStoreUnavailable(f"{what}: {type(error).__name__}: {error}")
    if isinstance(error, TimeoutError):
        return ObjectStoreTimeout(f"{what}: {type(error).__name__}: {error}")
    if is_transient(error):
        return ObjectStoreUnavailable(f"{what}: {type(error).__name__}: {error}")
    if isinstance(error, (BotoCoreError, ResponseParserError, HTTPException, OSError, UnsupportedProxy)):
        return ObjectStoreError(f"{what}: {type(error).__name__}: {error}")
    return None


def is_unknown_upload(error: BaseException | None) -> bool:
    """Whether a multipart upload does not exist, perhaps because it was completed or aborted."""
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError) and _code_of(error)[0] == "NoSuchUpload"


def _translate_response(what: str, error: Any) -> ObjectStoreError:
    code, status = _code_of(error)
    translated = _error_of(what, error, code, status)
    translated.code = code
    return translated


def _error_of(what: str, error: Any, code: str, status: int) -> ObjectStoreError:
    if code in _NOT_FOUND:
        return ObjectNotFound(what)
    if code in _PRECONDITION or status == 412:
        return PreconditionFailed(f"{what}: {code}")
    if code in _DAMAGED:
        return CorruptObject(f"{what}: {error}")
    if is_transient(error):
        return ObjectStoreUnavailable(f"{what}: {error}")
    return ObjectStoreError(f"{what}: {error}")


def _code_of(error: Any) -> tuple[str, int]:
    metadata = error.response.get("ResponseMetadata", {})
    return str(error.response.get("Error", {}).get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
