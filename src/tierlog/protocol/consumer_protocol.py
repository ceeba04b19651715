"""Consumer protocol: the subscriptions and assignments that classic consumers exchange through their group.

Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3; later ones begin with
the fields of version 3. Each is encoded behind its version (int16). The coordinator of a group with members
of both protocols reads and writes them, and clients show the partitions of a member.
"""

from typing import TypeVar

from tierlog.base import types
from tierlog.protocol.codec import decode_from
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Bytes, Int32, Message, String, Struct, struct, versions

PROTOCOL_TYPE = "consumer"
VERSION_MAX = 3
VERSION_BYTES = 2


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


def decode_consumer(kind: type[M], data: bytes | memoryview) -> M:
    """Raises MalformedFrame."""
    if len(data) < VERSION_BYTES:
        raise MalformedFrame(f"{len(data)} bytes are too few for a version")
    version = min(int.from_bytes(data[:VERSION_BYTES], "big", signed=True), VERSION_MAX)
    if version < 0:
        raise MalformedFrame(f"{kind.__name__}: version {version} is not known")
    return decode_from(kind, version, data, VERSION_BYTES, elements_max=len(data))[0]


def assigned_partitions(assignment: bytes | bytearray | memoryview) -> list[types.TopicPartition]:
    """The partitions in a member's assignment; none if the bytes are not a consumer's."""
    try:
        found = decode_consumer(Assignment, bytes(assignment)).assigned_partitions
    except MalformedFrame:
        return []
    return sorted(types.TopicPartition(topic.topic, number) for topic in found for number in topic.partitions)
