"""ConsumerProtocolAssignment, as consumers put it into group messages. Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int32, Message, String, Struct, struct, wire


@struct
class TopicPartition(Struct):
    topic: String = wire(0, 3)
    partitions: list[Int32] = wire(0, 3)


@struct
class ConsumerProtocolAssignment(Message):
    VERSIONS = (0, 3)

    assigned_partitions: list[TopicPartition] = wire(0, 3)
    user_data: Bytes | None = wire(0, 3, default=None)
