"""The hot path of Produce: requests with one topic and one partition, and their responses, without the codec.

Clients batch per partition, so under load nearly every Produce holds one partition. Anything else, and
anything that looks wrong, goes to the codec, which judges it. Records are views into the frame, writable if
the buffer is.
"""

import struct

from tierlog.broker.wire.codec import decode, encode
from tierlog.broker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tierlog.broker.wire.primitives import read_uuid, read_uvarint, uvarint
from tierlog.broker.wire.schema import Buffer

FLEXIBLE_FROM = 9
TOPIC_ID_FROM = 13


def decode_produce_request(version: int, buffer: Buffer, at: int, end: int) -> ProduceRequest:
    """The ProduceRequest in buffer[at:end]; raises MalformedFrame."""
    view = memoryview(buffer)
    try:
        quick = (_quick_flexible if version >= FLEXIBLE_FROM else _quick_classic)(version, view, at, end)
    except (struct.error, IndexError, UnicodeDecodeError):
        quick = None
    return decode(ProduceRequest, version, view, at, end) if quick is None else quick


def encode_produce_response(version: int, response: ProduceResponse) -> bytes:
    """The body of a ProduceResponse."""
    if len(response.responses) == 1 and len(response.responses[0].partition_responses) == 1:
        topic = response.responses[0]
        partition = topic.partition_responses[0]
        special = partition.error_code or partition.error_message is not None or partition.record_errors
        leader = partition.current_leader
        if not (special or response.node_endpoints) and leader.leader_id == leader.leader_epoch == -1:
            return _encode_success(version, topic, partition, response.throttle_time_ms)
    return encode(response, version)


def _quick_classic(version: int, view: memoryview, at: int, end: int) -> ProduceRequest | None:
    transactional_id = None
    (length,) = _I16(view, at)
    at += 2
    if length >= 0:
        transactional_id = str(view[at : at + length], "utf-8")
        at += length
    elif length < -1:
        return None
    acks, timeout_ms, topics, length = _CLASSIC_HEAD(view, at)
    at += 12
    name_at = at
    at += length
    partitions, index, size = _CLASSIC_PARTITION(view, at)
    at += 12
    if topics != 1 or partitions != 1 or length < 0 or size < 0 or at + size != end:
        return None
    return _request(
        transactional_id, acks, timeout_ms,
        TopicProduceData(name=str(view[name_at : name_at + length], "utf-8")), index, view[at:end],
    )  # fmt: skip


def _quick_flexible(version: int, view: memoryview, at: int, end: int) -> ProduceRequest | None:
    transactional_id = None
    length, at = read_uvarint(view, at)
    if length:
        transactional_id = str(view[at : at + length - 1], "utf-8")
        at += length - 1
    acks, timeout_ms, topics = _FLEXIBLE_HEAD(view, at)
    at += 7
    if version >= TOPIC_ID_FROM:
        topic = TopicProduceData(topic_id=read_uuid(bytes(view[at : at + 16])))
        at += 16
    else:
        length, at = read_uvarint(view, at)
        if not length:
            return None
        topic = TopicProduceData(name=str(view[at : at + length - 1], "utf-8"))
        at += length - 1
    partitions, index = _FLEXIBLE_PARTITION(view, at)
    size, at = read_uvarint(view, at + 5)
    stop = at + size - 1
    # the three empty tag sections of partition, topic and request are all that may follow
    if topics != 2 or partitions != 2 or not size or stop + 3 != end or bytes(view[stop:end]) != b"\0\0\0":
        return None
    return _request(transactional_id, acks, timeout_ms, topic, index, view[at:stop])


def _request(
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topic: TopicProduceData,
    index: int,
    records: memoryview,
) -> ProduceRequest:
    topic.partition_data = [PartitionProduceData(index=index, records=records)]
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[topic]
    )


def _encode_success(
    version: int, topic: TopicProduceResponse, partition: PartitionProduceResponse, throttle_time_ms: int
) -> bytes:
    offsets = partition.base_offset, partition.log_append_time_ms, partition.log_start_offset
    if version >= FLEXIBLE_FROM:
        if version >= TOPIC_ID_FROM:
            name = topic.topic_id.bytes
        else:
            raw = topic.name.encode()
            name = uvarint(len(raw) + 1) + raw
        return (
            b"\2"
            + name
            + _FLEXIBLE_RESPONSE(2, partition.index, 0, *offsets, 1, 0, 0, 0, throttle_time_ms, 0)
        )
    raw = topic.name.encode()
    head = _CLASSIC_TOPIC(1, len(raw)) + raw
    if version >= 8:
        return head + _RESPONSE_8(1, partition.index, 0, *offsets, 0, -1, throttle_time_ms)
    if version >= 5:
        return head + _RESPONSE_5(1, partition.index, 0, *offsets, throttle_time_ms)
    return head + _RESPONSE_3(1, partition.index, 0, *offsets[:2], throttle_time_ms)


_I16 = struct.Struct(">h").unpack_from
_CLASSIC_HEAD = struct.Struct(">hiih").unpack_from
_CLASSIC_PARTITION = struct.Struct(">iii").unpack_from
_FLEXIBLE_HEAD = struct.Struct(">hiB").unpack_from
_FLEXIBLE_PARTITION = struct.Struct(">Bi").unpack_from
_CLASSIC_TOPIC = struct.Struct(">ih").pack
_RESPONSE_3 = struct.Struct(">iihqqi").pack
_RESPONSE_5 = struct.Struct(">iihqqqi").pack
_RESPONSE_8 = struct.Struct(">iihqqqihi").pack
_FLEXIBLE_RESPONSE = struct.Struct(">BihqqqBBBBiB").pack
