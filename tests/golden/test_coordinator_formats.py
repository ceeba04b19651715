"""Bytes of `__consumer_offsets` records, which must never change: Kafka's own tools read them."""

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.groups.core.formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
)
from tierlog.protocol.primitives import uvarint

OFFSET_KEY = "0001 0001 67 0006 666c69676874 00000003"
GROUP_KEY = "0002 0003 677270"
OFFSET_V3 = "0003 000000000000002a 00000007 0004 6e6f7465 0000018bcfe56800"
OFFSET_V1 = "0001 000000000000002a 0000 0000018bcfe56800 0000018bcfe56be8"
OFFSET_V0 = "0000 000000000000002a 0000 0000018bcfe56800"
OFFSET_V4 = (
    "0004 000000000000002a 00000007 05 6e6f7465 0000018bcfe56800 01 00 10 000102030405060708090a0b0c0d0e0f"
)
OFFSET_V4_WITHOUT_ID = "0004 000000000000002a 00000007 05 6e6f7465 0000018bcfe56800 00"
TOPIC_ID = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
GROUP_V3 = (
    "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0002 6d31 0000018bcfe56800 00000001"
    "0002 6d31 0001 69 0001 63 0002 2f68 00007530 00002710 00000002 aabb 00000001 cc"
)
GROUP_EMPTY = "0003 0008 636f6e73756d6572 00000006 ffff ffff 0000018bcfe56800 00000000"
GROUP_V0 = (
    "0000 0008 636f6e73756d6572 00000005 0005 72616e6765 0002 6d31 00000001"
    "0002 6d31 0001 63 0002 2f68 00002710 00000000 00000000"
)
GROUP_V4 = (
    "0004 09 636f6e73756d6572 00000005 06 72616e6765 03 6d31 0000018bcfe56800 02"
    "03 6d31 00 02 63 03 2f68 00007530 00002710 03 aabb 02 cc 00 00"
)


def named(kind: Any, *values: Any) -> Any:
    """A struct of records, by the order of its fields."""
    return kind(**{field.name: value for field, value in zip(kind.FIELDS, values, strict=True)})


NOW = 1_700_000_000_000
MEMBER = named(StoredMember, "m1", "i", "c", "/h", 30_000, 10_000, b"\xaa\xbb", b"\xcc")
GROUP = named(StoredGroup, "consumer", 5, "range", "m1", NOW, [MEMBER])


def test_keys():
    assert encode_key(OffsetKey("g", "flight", 3)) == bytes.fromhex(OFFSET_KEY)
    assert encode_key(GroupKey("grp")) == bytes.fromhex(GROUP_KEY)
    assert decode_key(bytes.fromhex(OFFSET_KEY)) == OffsetKey("g", "flight", 3)
    assert decode_key(bytes.fromhex(OFFSET_KEY.replace("0001", "0000", 1))) == OffsetKey("g", "flight", 3)
    assert decode_key(bytes.fromhex(GROUP_KEY)) == GroupKey("grp")
    assert decode_key(bytes.fromhex("0003 0001 67")) is None  # ConsumerGroupMetadata: a later kind
    for short in b"", b"\x03":
        with pytest.raises(FormatError):
            decode_key(short)


def test_offset_values():
    with_id = CommittedOffset(42, 7, "note", NOW, topic_id=TOPIC_ID)
    assert encode_offset(with_id) == bytes.fromhex(OFFSET_V4)
    assert encode_offset(CommittedOffset(42, 7, "note", NOW)) == bytes.fromhex(OFFSET_V4_WITHOUT_ID)
    assert encode_offset(CommittedOffset(42, -1, "", NOW, NOW + 1000)) == bytes.fromhex(OFFSET_V1)
    assert decode_offset(bytes.fromhex(OFFSET_V0)) == CommittedOffset(42, -1, "", NOW)
    assert decode_offset(bytes.fromhex(OFFSET_V1)) == CommittedOffset(42, -1, "", NOW, NOW + 1000)
    assert decode_offset(bytes.fromhex(OFFSET_V3)) == CommittedOffset(42, 7, "note", NOW)
    assert decode_offset(bytes.fromhex(OFFSET_V4)) == with_id
    assert decode_offset(bytes.fromhex(OFFSET_V4_WITHOUT_ID)) == CommittedOffset(42, 7, "note", NOW)


def test_group_values():
    assert encode_group(GROUP) == bytes.fromhex(GROUP_V3)
    assert decode_group(bytes.fromhex(GROUP_V3)) == GROUP
    empty = named(StoredGroup, "consumer", 6, None, None, NOW, [])
    assert encode_group(empty) == bytes.fromhex(GROUP_EMPTY)
    assert decode_group(bytes.fromhex(GROUP_EMPTY)) == empty
    old = named(StoredMember, "m1", None, "c", "/h", 10_000, 10_000, b"", b"")
    assert decode_group(bytes.fromhex(GROUP_V0)) == named(
        StoredGroup, "consumer", 5, "range", "m1", -1, [old]
    )
    flexible = named(StoredMember, "m1", None, "c", "/h", 30_000, 10_000, b"\xaa\xbb", b"\xcc")
    assert decode_group(bytes.fromhex(GROUP_V4)) == named(
        StoredGroup, "consumer", 5, "range", "m1", NOW, [flexible]
    )


@pytest.mark.parametrize("version", ["0005", "ffff"])
def test_unknown_versions_are_refused(version):
    with pytest.raises(FormatError, match="version"):
        decode_offset(bytes.fromhex(version) + bytes(40))


@given(st.binary(max_size=64), st.sampled_from([decode_key, decode_offset, decode_group]))
def test_any_bytes_decode_or_are_refused(data, decode):
    with contextlib.suppress(FormatError):
        decode(data)


@given(st.integers(0, len(bytes.fromhex(GROUP_V3)) - 1))
def test_a_cut_group_is_refused(end):
    with pytest.raises(FormatError):
        decode_group(bytes.fromhex(GROUP_V3)[:end])


def test_a_string_that_no_client_could_have_sent_is_refused():
    long = b"x" * 32_768
    data = bytes.fromhex("0004 000000000000002a 00000007") + uvarint(len(long) + 1) + long + bytes(9)
    with pytest.raises(FormatError, match="metadata has an invalid length"):
        decode_offset(data)
