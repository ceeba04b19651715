"""Partitions that a classic group has assigned to a consumer (ConsumerProtocolAssignment)."""

from tierlog.base.types import TopicPartition
from tierlog.protocol.codec import decode_from
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Int32, Message, String, Struct, struct, versions


@struct
class _AssignedTopic(Struct):
    topic: String = versions(0, 0)
    partitions: list[Int32] = versions(0, 0)


@struct
class _ConsumerAssignment(Message):
    """The beginning of ConsumerProtocolAssignment, after the version. All its versions begin like this."""

    VERSIONS = (0, 0)

    topics: list[_AssignedTopic] = versions(0, 0)


def assigned_partitions(assignment: bytes | memoryview) -> list[TopicPartition]:
    """The partitions in a member's assignment; none if the bytes are not a consumer's."""
    try:
        found = decode_from(_ConsumerAssignment, 0, bytes(assignment), 2)[0]
    except MalformedFrame:
        return []
    return sorted(
        TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions
    )
