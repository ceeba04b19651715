"""Embedded protocol: the consumer protocol of classic members, as a consumer group with them reads it.

The coordinator of a classic group does not read subscriptions, except for the topics. A consumer group with
classic members does, and writes their assignments.
"""

from collections.abc import Mapping, Sequence

from tierlog.broker.coordinators.core.stored import FormatError, encode_stored, stored_version
from tierlog.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    VERSION_BYTES,
    VERSION_MAX,
    Assignment,
    M,
    Subscription,
    TopicPartition,
    decode_consumer,
)
from tierlog.protocol.primitives import MalformedFrame

__all__ = [
    "PROTOCOL_TYPE",
    "Assignment",
    "Subscription",
    "TopicPartition",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
]


def decode_subscription(data: bytes) -> Subscription:
    """Raises FormatError."""
    return _decode(Subscription, data)


def decode_assignment(data: bytes) -> Assignment:
    """Raises FormatError. A member without an assignment has no bytes."""
    return _decode(Assignment, data) if data else Assignment()


def encode_assignment(partitions: Mapping[str, Sequence[int]], subscription: bytes) -> bytes:
    """In the version of the member's subscription; 0 if that is too short to have one. A classic group checks
    no subscription, and only that of its selected protocol was decoded when it was converted."""
    version = stored_version(subscription) if len(subscription) >= VERSION_BYTES else 0
    assignment = Assignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=sorted(numbers)) for name, numbers in partitions.items()
        ]
    )
    return encode_stored(assignment, min(max(version, 0), VERSION_MAX))


def _decode(kind: type[M], data: bytes) -> M:
    try:
        return decode_consumer(kind, data)
    except MalformedFrame as fault:
        raise FormatError(str(fault)) from None
