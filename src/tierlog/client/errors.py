"""Failures of requests to a cluster. A caller that acts differently for one has a type to catch."""

from collections.abc import Iterable

from tierlog.base.text import listed
from tierlog.base.types import TopicPartition
from tierlog.protocol.errors import ErrorCode

UNKNOWN_END_REMEDY = (
    "A new leader learns the end from in-sync replicas, of which too few may run: "
    "see `tierlog partition list --below-min`."
)
"""The hint for OFFSET_NOT_AVAILABLE that lasts (KIP-207)."""


def unknown_ends(partitions: Iterable[TopicPartition]) -> str:
    """The part of a message that names partitions with this error."""
    names = listed([str(one) for one in partitions])
    return f"no end is known of {names} ({ErrorCode.OFFSET_NOT_AVAILABLE.name})"


class ClientError(Exception):
    """Any failure of a request."""


class InvalidAddress(ClientError):
    """A bootstrap address is not HOST:PORT, or there is none."""


class Unreachable(ClientError):
    """No connection to a broker, or the connection broke. The request may have been executed in the second
    case."""

    def __init__(self, address: str, reason: object) -> None:
        super().__init__(f"cannot reach {address}: {reason}")
        self.address = address
        self.reason = reason


class Silent(Unreachable):
    """The broker accepts connections and does not respond, as a paused process does. It got no request."""


class TimedOut(ClientError):
    """The broker received the request and did not respond: it may still execute it."""


class UnsupportedRequest(ClientError):
    """The broker and this client have no version of the API in common."""

    def __init__(self, address: str, api: str) -> None:
        super().__init__(f"the broker at {address} supports no version of {api} that this client supports")
        self.address = address
        self.api = api


class InvalidRequest(ClientError):
    """A value of the request cannot be encoded, for example text that is not UTF-8."""


class InvalidResponse(ClientError):
    """The response does not follow the Kafka protocol."""

    def __init__(self, address: str, message: str) -> None:
        super().__init__(message)
        self.address = address


class AuthenticationFailed(ClientError):
    """The broker refuses the login, or does not know the password's verifier. Trying again is useless."""


class ErrorResponse(ClientError):
    """The broker responded with an error code. `subject`: what the request was about."""

    def __init__(self, code: int, message: str | None, subject: str) -> None:
        super().__init__(f"{subject}: {message or error_name(code)}")
        self.code = code
        self.message = message
        self.subject = subject


class UnknownTopic(ClientError):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist")
        self.topic = topic


class UnknownPartition(ClientError):
    """`count`: number of partitions of the topic."""

    def __init__(self, topic: str, partition: int, count: int) -> None:
        super().__init__(f"topic {topic} has no partition {partition}: it has {count} partitions")
        self.topic = topic
        self.partition = partition
        self.count = count


class NotAvailable(ClientError):
    """The deadline passed while a partition had no leader, or a group or transaction no coordinator."""


def is_retriable(code: int) -> bool:
    """Whether it is an error that may end by itself. False for codes of newer brokers."""
    return code in ErrorCode.__members__.values() and ErrorCode(code).retriable


def error_name(code: int) -> str:
    """Kafka's name of an error code, or its number if a newer broker sent it."""
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"


def raise_for(code: int, message: str | None, subject: str) -> None:
    """Raise ErrorResponse unless the code is NONE."""
    if code:
        raise ErrorResponse(code, message, subject)
