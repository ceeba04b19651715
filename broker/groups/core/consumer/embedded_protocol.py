"""Embedded protocol: the subscriptions and assignments that classic consumers exchange through their group.

The coordinator of a classic group does not read them, except for the topics. A consumer group with classic
members does: it reads their subscriptions, and writes their assignments. Kafka's ConsumerProtocolSubscription
and ConsumerProtocolAssignment, versions 0 to 3; later ones begin with the fields of version 3.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tierlog.broker.coordinators.core.stored import FormatError, encode_stored, stored_version
from tierlog.protocol.codec import decode_from
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Bytes, Int32, Message, String, Struct, struct, versions

PROTOCOL_TYPE = "consumer"
VERSION_MAX = 3


@struct
class TopicPartition(Struct):
    topic: String = versions(0, 3)
    partitions: list[Int32] = versions(0, 3)


@struct
class Subscription(Message):
    """`owned_partitions`: empty if the member gives up all partitions before it joins."""

    VERSIONS = (0, 3)

    topics: list[String] = versions(0, 3)
    user_data: Bytes | None = versions(0, 3, default=None)
    owned_partitions: list[TopicPartition] = versions(1, 3)
    generation_id: Int32 = versions(2, 3, default=-1)
    rack_id: String | None = versions(3, 3, default=None)


@struct
class Assignment(Message):
    VERSIONS = (0, 3)

    assigned_partitions: list[TopicPartition] = versions(0, 3)
    user_data: Bytes | None = versions(0, 3, default=None)


M = TypeVar("M", Subscription, Assignment)


def decode_subscription(data: bytes) -> Subscription:
    """Raises FormatError."""
    return _decode(Subscription, data)


def decode_assignment(data: bytes) -> Assignment:
    """Raises FormatError. A member without an assignment has no bytes."""
    return _decode(Assignment, data) if data else Assignment()


def encode_assignment(partitions: Mapping[str, Sequence[int]], subscription: bytes) -> bytes:
    """In the version of the member's subscription; 0 if that is too short to have one. A classic group checks
    no subscription, and only that of its selected protocol was decoded when it was converted."""
    version = stored_version(subscription) if len(subscription) >= 2 else 0
    assignment = Assignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=sorted(numbers)) for name, numbers in partitions.items()
        ]
    )
    return encode_stored(assignment, min(max(version, 0), VERSION_MAX))


def _decode(kind: type[M], data: bytes) -> M:
    version = min(stored_version(data), VERSION_MAX)
    if version < 0:
        raise FormatError(f"{kind.__name__}: version {version} is not known")
    try:
        return decode_from(kind, version, data, 2, elements_max=len(data))[0]
    except MalformedFrame as fault:
        raise FormatError(str(fault)) from None
