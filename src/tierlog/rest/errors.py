"""Errors of the REST gateway: status of HTTP, Confluent's error code, and a message, in one JSON shape.

`error_code` begins with the status, as in Confluent's REST Proxy: 40403 is a topic or partition that does not
exist. Kafka's error codes and the failures of the client are mapped here alone.
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from tierlog.client.errors import (
    AuthenticationFailed,
    ClientError,
    ErrorResponse,
    InvalidRequest,
    UnknownPartition,
    UnknownTopic,
    UnsupportedRequest,
    error_name,
    is_retriable,
)
from tierlog.protocol.errors import ErrorCode

JSON = "application/json"
RETRY_AFTER_S = 1


class ErrorBody(msgspec.Struct, rename={"code": "error_code"}):
    """Body of each response that is an error, and last line of a stream that fails."""

    code: int
    message: str


class RestError(Exception):
    """Ends a request. `code`: its first three digits are the status. `retry_after_s`: when the client may try
    again; None if that is useless."""

    def __init__(self, code: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return int(str(self.code)[:3])

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(self.code, self.message)


BAD_REQUEST = 40002
INVALID_JSON = 40001
NOT_AUTHENTICATED = 40101
FORBIDDEN = 40301
NO_ROUTE, NO_CLUSTER, NO_TOPIC, NO_GROUP, NO_CONFIG, NO_CONSUMER, NO_SCHEMA = (
    404, 40401, 40403, 40404, 40405, 40406, 40407,
)  # fmt: skip
TOO_LARGE = 41301
UNSUPPORTED_MEDIA = 41501
OUT_OF_RANGE = 41601
MISDIRECTED = 42101
TOO_MANY = 42901
INTERNAL = 50001
REGISTRY_FAILED = 50201
UNAVAILABLE = 50301
STOPPING = 50302
OVERLOADED = 50303
TIMED_OUT = 50401

MEANINGS: Mapping[int, str] = {
    INVALID_JSON: "the body is not valid JSON, or has other fields than the schema",
    BAD_REQUEST: "a parameter is invalid, or the broker refuses the request",
    NOT_AUTHENTICATED: "no login, or the broker refuses it",
    FORBIDDEN: "an ACL of the cluster denies the operation to this principal",
    NO_ROUTE: "there is no such path",
    NO_CLUSTER: "there is no cluster with this id",
    NO_TOPIC: "the topic, partition or broker does not exist",
    NO_GROUP: "the consumer group does not exist",
    NO_CONFIG: "the setting does not exist",
    NO_CONSUMER: "the group has no such consumer, or has committed no offset for this partition",
    NO_SCHEMA: "the registry has no such schema",
    405: "the path has no such method",
    TOO_LARGE: "the request or a record is larger than a limit of the gateway or the topic",
    UNSUPPORTED_MEDIA: "the body needs `Content-Type: application/json`",
    OUT_OF_RANGE: "the offset does not exist (any more)",
    MISDIRECTED: "the gateway is not known under the name in Host (`--allowed-host`)",
    TOO_MANY: "too many logins or streams at a time, or a quota of the cluster: try again after Retry-After",
    INTERNAL: "a bug of the gateway, or an unexpected error of the broker",
    REGISTRY_FAILED: "the schema registry does not respond, or not with a schema",
    UNAVAILABLE: "no broker responds, or the partition has no leader: try again after Retry-After",
    STOPPING: "the gateway stops: try again, at another one",
    OVERLOADED: "the gateway holds as many bytes as it may: try again after Retry-After",
    TIMED_OUT: "the broker did not respond in time; records may have been written",
}
"""Error codes, as the reference page shows them."""

_CODES: Mapping[ErrorCode, int] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: FORBIDDEN,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: FORBIDDEN,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: FORBIDDEN,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: FORBIDDEN,
    ErrorCode.SASL_AUTHENTICATION_FAILED: NOT_AUTHENTICATED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: NO_TOPIC,
    ErrorCode.UNKNOWN_TOPIC_ID: NO_TOPIC,
    ErrorCode.GROUP_ID_NOT_FOUND: NO_GROUP,
    ErrorCode.MESSAGE_TOO_LARGE: TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: TOO_LARGE,
    ErrorCode.OFFSET_OUT_OF_RANGE: OUT_OF_RANGE,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: TOO_MANY,
    ErrorCode.REQUEST_TIMED_OUT: TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR: INTERNAL,
}


def of_code(code: int, message: str | None, subject: str) -> RestError:
    """The error for one of Kafka's error codes."""
    text = f"{subject}: {message or error_name(code)}"
    known = _CODES.get(ErrorCode(code)) if code in ErrorCode.__members__.values() else INTERNAL
    if known == TOO_MANY or (known is None and is_retriable(code)):
        return RestError(known or UNAVAILABLE, text, retry_after_s=RETRY_AFTER_S)
    return RestError(known or BAD_REQUEST, text)


def of_failure(failure: ClientError) -> RestError:
    """The error for a failure of a request to the cluster."""
    match failure:
        case ErrorResponse():
            return of_code(failure.code, failure.message, failure.subject)
        case AuthenticationFailed():
            return RestError(NOT_AUTHENTICATED, "the broker refuses the login")
        case UnknownTopic() | UnknownPartition():
            return RestError(NO_TOPIC, str(failure))
        case InvalidRequest():
            return RestError(BAD_REQUEST, str(failure))
        case UnsupportedRequest():
            return RestError(BAD_REQUEST, str(failure))
    return RestError(UNAVAILABLE, str(failure), retry_after_s=RETRY_AFTER_S)


def response_of(error: RestError) -> web.Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    body = msgspec.json.encode(error.body)
    return web.Response(status=error.status, body=body, content_type=JSON, headers=headers)
