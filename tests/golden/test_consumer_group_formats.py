"""Bytes of consumer groups' records in `__consumer_offsets`, which must never change: Kafka reads them.

groups/kafka-4.3.1.bin has batches as that version wrote them: a group with the uniform assignor whose four
members come and leave (`uniform`), one with the range assignor, static members and racks (`range`), a regular
expression (`regex`), and a classic group during its upgrade (`mixed`).
"""

import contextlib
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.groups.core.consumer.formats import (
    ConsumerGroupMetadata,
    ConsumerGroupMetadataKey,
    CurrentMemberAssignment,
    CurrentMemberAssignmentKey,
    MemberMetadata,
    MemberMetadataKey,
    PartitionMetadataKey,
    RegularExpression,
    RegularExpressionKey,
    TargetAssignmentMember,
    TargetAssignmentMemberKey,
    TargetAssignmentMetadata,
    TargetAssignmentMetadataKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records

BATCHES = (Path(__file__).parent / "groups" / "kafka-4.3.1.bin").read_bytes()
RECORDS = [
    (bytes(record.key or b""), record.value)
    for at, _ in iter_batches(BATCHES)
    for record in iter_records(BATCHES, at, max_bytes=1 << 20)
]
ORDERS, AUDIT = UUID("22f63eed-92f5-47d6-b7ed-e8b845e2ed33"), UUID("fd7c245d-cbfe-4e15-b89c-d1f8f5b51a09")


def values(kind, group_id: str) -> list:
    """The values of one kind of key in a group, without tombstones."""
    keys = [(decode_key(key), value) for key, value in RECORDS]
    return [
        decode_value(key, value)
        for key, value in keys
        if isinstance(key, kind) and key.group_id == group_id and value is not None
    ]


def test_all_records_of_kafka_are_encoded_byte_for_byte():
    kinds = Counter()
    for data, value in RECORDS:
        key = decode_key(data)
        if key is None:
            continue
        assert encode_key(key) == data
        if value is not None:
            kinds[type(key)] += 1
            assert encode_value(decode_value(key, value)) == bytes(value)
    assert kinds == {
        ConsumerGroupMetadataKey: 21,
        MemberMetadataKey: 11,
        TargetAssignmentMetadataKey: 12,
        TargetAssignmentMemberKey: 23,
        CurrentMemberAssignmentKey: 46,
        RegularExpressionKey: 2,
    }


def test_static_member_with_rack_and_assignor():
    assert values(MemberMetadataKey, "range")[0] == MemberMetadata(
        instance_id="i-2",
        rack_id="r1",
        client_id="golden",
        client_host="/127.0.0.1",
        subscribed_topic_names=("audit", "orders"),
        rebalance_timeout_ms=300_000,
        server_assignor="range",
    )


def test_member_of_the_classic_protocol_during_an_upgrade():
    classic, consumer = values(MemberMetadataKey, "mixed")
    assert classic.classic_member_metadata.session_timeout_ms == 45_000
    names = [each.name for each in classic.classic_member_metadata.supported_protocols]
    assert names == ["range", "roundrobin"]
    assert consumer.classic_member_metadata is None


def test_group_epochs_and_hashes():
    first, *_, last = values(ConsumerGroupMetadataKey, "uniform")
    assert first == ConsumerGroupMetadata(epoch=2, metadata_hash=-4676985889415927302)
    assert last == ConsumerGroupMetadata(epoch=9, metadata_hash=0)


def test_target_assignment():
    assert values(TargetAssignmentMetadataKey, "uniform")[0] == TargetAssignmentMetadata(
        assignment_epoch=2, assignment_timestamp=1795864267305
    )
    assert [each.partitions for each in values(TargetAssignmentMemberKey, "range")[1:3]] == [
        {ORDERS: {3, 4, 5}, AUDIT: {2}},
        {ORDERS: {0, 1, 2}, AUDIT: {0, 1}},
    ]


def test_current_assignment_has_the_epoch_of_each_partition():
    assert values(CurrentMemberAssignmentKey, "range")[2] == CurrentMemberAssignment(
        member_epoch=2,
        previous_member_epoch=2,
        state=1,
        assigned_partitions={AUDIT: {2: 2}, ORDERS: {3: 2, 4: 2, 5: 2}},
        partitions_pending_revocation={AUDIT: {0: 2, 1: 2}, ORDERS: {0: 2, 1: 2, 2: 2}},
    )


def test_regular_expression():
    keys = {decode_key(key) for key, _ in RECORDS}
    assert RegularExpressionKey("regex", "(^ord.*)") in keys
    assert values(RegularExpressionKey, "regex") == [
        RegularExpression(topics=["orders"], version=835, timestamp=1795864425873),
        RegularExpression(topics=["orders", "ordinary"], version=868, timestamp=1795864440839),
    ]


def test_assignment_without_epochs_takes_the_members():
    """Kafka before 4.3 wrote no assignment epochs."""
    data = bytes.fromhex("0000 00000005 00000004 00 02") + ORDERS.bytes
    data += bytes.fromhex("03 00000001 00000002 00 01 00")
    key = CurrentMemberAssignmentKey("g", "m")
    assert decode_value(key, data).assigned_partitions == {ORDERS: {1: 5, 2: 5}}
    left = data.replace(bytes.fromhex("00000005"), bytes.fromhex("fffffffe"), 1)
    assert decode_value(key, left).assigned_partitions == {ORDERS: {1: 0, 2: 0}}


def test_partition_metadata_of_kafka_4_0_is_read():
    data = bytes.fromhex("0000 02") + ORDERS.bytes + bytes.fromhex("076f7264657273 00000006")
    data += bytes.fromhex("02 00000003 02 037231 00 00 00")
    [topic] = decode_value(PartitionMetadataKey("g"), data).topics
    assert (topic.topic_id, topic.topic_name, topic.num_partitions) == (ORDERS, "orders", 6)
    assert [(each.partition, each.racks) for each in topic.partition_metadata] == [(3, ["r1"])]
    assert encode_key(PartitionMetadataKey("g")) == bytes.fromhex("0004 0001 67")


def test_absent_classic_metadata_is_none():
    """Its default is an empty struct, which no classic member has."""
    data = bytes.fromhex("0000 00 00 0161 0161 01 01 00000001 00 00").replace(b"\x01a", b"\x02a")
    assert decode_value(MemberMetadataKey("g", "m"), data) == MemberMetadata(
        client_id="a", client_host="a", rebalance_timeout_ms=1
    )


@pytest.mark.parametrize("kind", [0, 1, 2, 9, 10, 15, 17])
def test_other_key_types_are_left_to_others(kind):
    assert decode_key(kind.to_bytes(2, "big") + bytes.fromhex("0001 67 0001 67")) is None


def test_bytes_of_a_member_are_no_views_of_the_record():
    data = encode_value(values(MemberMetadataKey, "mixed")[0])
    member = decode_value(MemberMetadataKey("g", "m"), data)
    for protocol in member.classic_member_metadata.supported_protocols:
        assert isinstance(protocol.metadata, bytes)


@given(st.sampled_from([(key, value) for key, value in RECORDS if value]), st.data())
def test_damaged_records_raise_format_errors_only(record, data):
    key, value = record
    cut = data.draw(st.integers(0, len(value) - 1))
    damaged = bytearray(value)
    damaged[cut] ^= data.draw(st.integers(1, 255))
    decoded = decode_key(key)
    for each in (value[:cut], bytes(damaged)):
        with contextlib.suppress(FormatError):
            decode_value(decoded, each)
    with contextlib.suppress(FormatError):
        decode_key(key[: data.draw(st.integers(0, len(key)))])


def test_target_partitions_are_written_in_order():
    value = TargetAssignmentMember(partitions={ORDERS: frozenset({40, 3, 17})})
    expected = bytes.fromhex("0000 02") + ORDERS.bytes + bytes.fromhex("04 00000003 00000011 00000028 00 00")
    assert encode_value(value) == expected
