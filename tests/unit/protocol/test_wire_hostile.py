"""Invalid bytes raise MalformedFrame, before anything is allocated."""

import contextlib
import struct
import tracemalloc
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST
from tierlog.protocol.api import (
    APIS,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from tierlog.protocol.codec import decode, encode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tierlog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.list_groups import ListGroupsRequest
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tierlog.protocol.messages.offset_fetch import OffsetFetchRequest
from tierlog.protocol.primitives import MalformedFrame, TooManyElements, read_uvarint, uvarint

FETCH = FetchRequest(
    cluster_id="c",
    replica_state=ReplicaState(replica_id=3, replica_epoch=4),
    topics=[FetchTopic(topic="täpic", partitions=[FetchPartition(fetch_offset=7, high_watermark=9)])],
    rack_id="rack",
)
CREATE = CreateTopicsRequest(
    topics=[CreatableTopic(name="t", configs=[CreatableTopicConfig(name="a", value=None)])]
)


def samples() -> Iterator[tuple[type, int, bytes]]:
    for message, versions in ((FETCH, range(4, 19)), (CREATE, range(2, 8))):
        for version in versions:
            yield type(message), version, encode(message, version)


@pytest.mark.parametrize(("kind", "version", "frame"), list(samples()))
def test_truncated_or_overlong_frame_is_malformed(kind: type, version: int, frame: bytes) -> None:
    for length in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode(kind, version, frame, 0, length)
    with pytest.raises(MalformedFrame, match="left over"):
        decode(kind, version, frame + b"\0")


@settings(max_examples=300, deadline=None, database=None)
@given(st.sampled_from(sorted(APIS)), st.data())
def test_any_bytes_decode_or_are_malformed(key: int, data: st.DataObject) -> None:
    api = APIS[key]
    version = data.draw(st.integers(api.min_version, api.max_version))
    frame = data.draw(st.binary(max_size=64))
    for kind in (api.request, api.response):
        try:
            message = decode(kind, version, frame)
        except MalformedFrame:
            continue
        again = encode(message, version)
        assert encode(decode(kind, version, again), version) == again


@settings(max_examples=200, deadline=None, database=None)
@given(st.sampled_from(list(samples())), st.integers(0, 10_000), st.integers(0, 255))
def test_one_byte_changed(sample: tuple[type, int, bytes], at: int, value: int) -> None:
    kind, version, frame = sample
    changed = bytearray(frame)
    changed[at % len(frame)] = value
    with contextlib.suppress(MalformedFrame):
        decode(kind, version, changed)


@pytest.mark.parametrize("count", [2**31 - 1, 2**30, 1_000_000, -2, -(2**31)])
def test_a_count_is_refused_before_anything_is_allocated(count: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame):
            decode(MetadataRequest, 1, struct.pack(">i", count) + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("version", "frame"),
    [
        (9, b"\xff\xff\xff\xff\xff\x01"),  # a varint of six bytes
        (9, b"\xff\xff\xff\xff\x7f"),  # a varint of five bytes, but over 32 bits
        (9, b"\xff\xff\xff\xff\x0f"),  # a count of 2^32 - 2
        (9, b"\x80\x80\x80\x80"),  # cut
    ],
)
def test_varint_bombs(version: int, frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode(MetadataRequest, version, frame)


def test_elements_are_limited_over_the_whole_message() -> None:
    many = MetadataRequest(topics=[MetadataRequestTopic(name="") for _ in range(70_000)])
    frame = encode(many, 9)
    with pytest.raises(TooManyElements, match="too many"):
        decode(MetadataRequest, 9, frame)
    assert len((decode(MetadataRequest, 9, frame, elements_max=100_000)).topics or ()) == 70_000


@pytest.mark.parametrize("version", [4, 8, 9, 17])
def test_partitions_of_fetch_count_as_two_elements_in_every_version(version: int) -> None:
    partitions = [FetchPartition(partition=number) for number in range(35_000)]
    topic = FetchTopic(topic="t", topic_id=uuid.UUID(int=1), partitions=partitions)
    frame = encode(FetchRequest(topics=[topic]), version)
    with pytest.raises(TooManyElements):
        decode(FetchRequest, version, frame)
    assert len(decode(FetchRequest, version, frame, elements_max=80_000).topics[0].partitions) == 35_000


def reassignment(partitions: int, replicas: int) -> bytes:
    """Each partition of another topic."""
    one = ReassignablePartition(replicas=list(range(replicas)))
    topics = [ReassignableTopic(name="t", partitions=[one]) for _ in range(partitions)]
    return encode(AlterPartitionReassignmentsRequest(topics=topics), 0)


def test_largest_allowed_reassignment_is_decoded() -> None:
    moved = decode(AlterPartitionReassignmentsRequest, 0, reassignment(MAX_RECORDS_PER_REQUEST, 16))
    assert len(moved.topics) == MAX_RECORDS_PER_REQUEST
    with pytest.raises(TooManyElements):
        decode(AlterPartitionReassignmentsRequest, 0, reassignment(MAX_RECORDS_PER_REQUEST, 32))


def test_null_where_not_nullable() -> None:
    with pytest.raises(MalformedFrame, match="null"):
        decode(HeartbeatRequest, 3, b"\xff\xff")
    with pytest.raises(MalformedFrame, match="null"):
        decode(HeartbeatRequest, 4, b"\0")
    with pytest.raises(MalformedFrame, match="null"):
        decode(OffsetFetchRequest, 1, struct.pack(">h1si", 1, b"g", -1))


def test_lengths_below_minus_one() -> None:
    with pytest.raises(MalformedFrame, match="below -1"):
        decode(HeartbeatRequest, 3, struct.pack(">hihh", 0, 0, 0, -2))


def test_invalid_utf8() -> None:
    with pytest.raises(MalformedFrame):
        decode(HeartbeatRequest, 4, b"\x03\xff\xfe" + bytes(10))


@pytest.mark.parametrize(
    ("tags", "fault"),
    [
        (b"\x01\x63\x05ab", "2 left"),  # value past the end
        (b"\x02\x01\x01a\x01\x01a", "after tag"),  # twice the same
        (b"\x02\x05\x01a\x04\x01a", "after tag"),  # descending
        (b"\x7f\x01", "tagged"),  # more tags than bytes
        (b"\x01\x80\x80", "out of bounds"),  # cut in the head
    ],
)
def test_bad_tag_sections(tags: bytes, fault: str) -> None:
    good = encode(ListGroupsRequest(), 3)
    with pytest.raises(MalformedFrame, match=fault):
        decode(ListGroupsRequest, 3, good[:-1] + tags)


def test_unknown_tags_are_skipped() -> None:
    good = encode(ListGroupsRequest(), 3)
    assert decode(ListGroupsRequest, 3, good[:-1] + b"\x02\x05\x03abc\x63\x00") == ListGroupsRequest()


def test_a_known_tag_must_fill_its_size() -> None:
    with pytest.raises(MalformedFrame, match="another size"):
        decode(FetchRequest, 12, encode(FetchRequest(), 12)[:-1] + b"\x01\x00\x05\x02cxyz")


@given(st.integers(0, 2**32 - 1))
def test_varints_round_trip(value: int) -> None:
    raw = uvarint(value)
    assert read_uvarint(memoryview(raw), 0) == (value, len(raw))


def test_a_value_that_does_not_fit_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="v9 cannot be encoded"):
        encode(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 9)
    with pytest.raises(ValueError, match="no version 99"):
        encode(MetadataRequest(), 99)


@pytest.mark.parametrize(("version", "client_id"), [(3, "me"), (3, None), (9, "me"), (9, None), (12, "")])
def test_request_envelope(version: int, client_id: str | None) -> None:
    api = APIS[3]
    frame = encode_request(api, version, 77, client_id, MetadataRequest(topics=None))
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    header = decode_request_header(frame, 4, len(frame))
    assert header[:4] == (3, version, 77, client_id)
    assert decode(api.request, version, frame, header.body_at, len(frame)) == MetadataRequest(topics=None)
    for end in range(4, header.body_at):
        with pytest.raises(MalformedFrame):
            decode_request_header(frame, 4, end)


@pytest.mark.parametrize(("key", "version"), [(18, 0), (18, 3), (18, 4), (3, 0), (3, 12), (22, 6), (47, 0)])
def test_response_envelope(key: int, version: int) -> None:
    api = APIS[key]
    message = api.response()
    frame = b"".join(encode_response(api, version, -5, message))
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    assert decode_response(api, version, frame, 4) == (-5, message)


def test_an_unknown_key_or_version_still_has_a_correlation_id() -> None:
    for key, version in ((18, 99), (999, 0), (3, -1)):
        frame = struct.pack(">hhih", key, version, 5, -1)
        assert decode_request_header(frame, 0, len(frame)) == (key, version, 5, None, -1)


@pytest.mark.parametrize("version", [3, 4])  # the int16 of version 3 cannot say more
def test_the_longest_string(version: int) -> None:
    message = HeartbeatRequest(group_id="g" * 32_767, generation_id=1, member_id="m")
    assert decode(HeartbeatRequest, version, encode(message, version)) == message
    message.group_id += "g"
    with pytest.raises(ValueError, match=r"too long|cannot be encoded"):
        encode(message, version)


def test_a_compact_string_longer_than_a_classic_one_is_refused() -> None:
    frame = encode(HeartbeatRequest(group_id="stand-in", generation_id=1, member_id="m"), 4)
    longer = frame.replace(uvarint(9) + b"stand-in", uvarint(32_769) + b"g" * 32_768)
    with pytest.raises(MalformedFrame, match="group_id has an invalid length"):
        decode(HeartbeatRequest, 4, longer)


@pytest.mark.parametrize("version", [4, 5])
def test_error_message_is_truncated_to_the_longest_string(version: int) -> None:
    result = CreatableTopicResult(
        name="t", error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, error_message="ü" * 20_000
    )
    response = CreateTopicsResponse(topics=[result])
    decoded = decode(CreateTopicsResponse, version, encode(response, version))
    assert decoded.topics[0].error_message == "ü" * 16_383
