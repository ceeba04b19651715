"""ConsumerProtocolSubscription, as consumers put it into group messages. Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bytes, Int32, Message, String, Struct, struct, wire


@struct
class TopicPartition(Struct):
    topic: String = wire(1, 3)
    partitions: list[Int32] = wire(1, 3)


@struct
class ConsumerProtocolSubscription(Message):
    VERSIONS = (0, 3)

    topics: list[String] = wire(0, 3)
    user_data: Bytes | None = wire(0, 3, default=None)
    owned_partitions: list[TopicPartition] = wire(1, 3)
    generation_id: Int32 = wire(2, 3, default=-1)
    rack_id: String | None = wire(3, 3, default=None)
