"""Keys, manifests and index bundles: round trips and validation."""

import json
import struct
import uuid
from dataclasses import replace

import crc32c
import msgspec
import pytest
import zstandard
from remote_segments import remote_segment

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkEntry
from tierlog.tiering.format.bundle import (
    HEAD_BYTES,
    BundleError,
    ChunkTable,
    IndexBundle,
    Section,
    decode_bundle,
    decode_chunks,
    encode_bundle,
    read_places,
    section,
)
from tierlog.tiering.format.keys import (
    AttemptKey,
    InvalidKey,
    Keys,
    parse_attempt,
    parse_object,
    parse_page,
)
from tierlog.tiering.format.manifest import (
    ManifestError,
    ManifestPage,
    ManifestRoot,
    decode_page,
    decode_root,
    decode_topic,
    encode_page,
    encode_root,
    page_reference,
)

TOPIC = uuid.UUID("00000000-0000-4000-8000-000000000001")
ATTEMPT = uuid.UUID("00000000-0000-4000-8000-0000000000aa")
PARTITION = TopicIdPartition(TOPIC, 3)


def segment(base: int, last: int, **changes: object) -> RemoteSegment:
    """Epoch 2 begins with it."""
    return remote_segment(base, last, **{"leader_epochs": ((0, 0), (2, base)), "leader_epoch": 2, **changes})


def root(*entries: RemoteSegment) -> ManifestRoot:
    return ManifestRoot(
        topic_id=TOPIC,
        partition=3,
        version=7,
        metadata_index=99,
        leader_epoch=2,
        log_start_offset=5,
        pages=(),
        entries=entries,
    )


BUNDLE = IndexBundle(
    offset_index=b"o" * 16,
    time_index=b"t" * 12,
    txn_index=b"",
    producer_snapshot=b"snapshot",
    leader_epochs=((0, 0), (4, 2**40)),
    chunk_table=ChunkTable(
        ATTEMPT, 20_000_000, 0xDEADBEEF, (ChunkEntry(0, 5, 100, 1), ChunkEntry(9_000_000, 70, -1, 2))
    ),
)


def test_segment_keys_sort_by_offset_and_can_be_parsed():
    keys = Keys("cluster-1")
    log, index = keys.attempt(PARTITION, 5, 1_000, 7, ATTEMPT)
    assert log == f"{keys.data(PARTITION)}00000000000000000005-00000000000000001000-7-{ATTEMPT}.log"
    assert index == log.removesuffix("log") + "idx"
    assert parse_attempt(log) == AttemptKey(5, 1_000, 7, ATTEMPT, "log")
    assert (
        keys.log(PARTITION, segment(9, 10))
        < keys.log(PARTITION, segment(10, 11))
        < keys.log(PARTITION, segment(100, 101))
    )


def test_key_prefix_is_the_checksum_of_the_partition():
    spread = f"{crc32c.crc32c(f'{TOPIC}/3'.encode()):08x}"[:2]
    assert Keys("c").root(PARTITION) == f"c/manifests/{spread}/{TOPIC}/3/root"


def test_no_key_is_a_folder_of_another_and_components_are_short():
    keys = Keys("c" * 200)
    entry = segment(2**62, 2**62 + 1, leader_epoch=2**31 - 1)
    all_keys = [
        keys.cluster(),
        keys.topic(TOPIC),
        keys.root(PARTITION),
        keys.log(PARTITION, entry),
        keys.index(PARTITION, entry),
        keys.topic_name("t" * 249, TOPIC),
    ]
    all_keys.append(keys.page_of(PARTITION, 0, 2**62, ATTEMPT))
    for key in all_keys:
        assert not any(other.startswith(key + "/") for other in all_keys)
        assert max(map(len, key.split("/"))) <= 255


@pytest.mark.parametrize("cluster_id", ["", "..", "a/b", "x" * 201, "ü"])
def test_a_cluster_id_that_cannot_be_a_folder_is_refused(cluster_id):
    with pytest.raises(InvalidKey):
        Keys(cluster_id)


def test_other_keys_are_not_segments():
    with pytest.raises(InvalidKey):
        parse_attempt(Keys("c").root(PARTITION))


def test_name_with_a_malformed_uuid_is_no_key():
    """A foreign object must not stop the listing of a damaged page's objects."""
    stray = "0" * 36
    log, _ = Keys("c").attempt(PARTITION, 5, 1_000, 7, stray)
    page = Keys("c").page_of(PARTITION, 5, 1_000, stray)
    for parse, key in ((parse_attempt, log), (parse_object, log), (parse_page, page), (parse_object, page)):
        with pytest.raises(InvalidKey):
            parse(key)


def test_a_root_survives_the_round_trip():
    page = ManifestPage(topic_id=TOPIC, partition=3, entries=(segment(0, 9), segment(10, 19)))
    ref = page_reference(ATTEMPT, page, encode_page(page))
    before = msgspec.structs.replace(root(segment(20, 29), segment(30, 30)), pages=(ref,))
    assert decode_root(encode_root(before)) == before


def test_a_root_with_a_gap_is_refused():
    with pytest.raises(ManifestError, match="gap or overlap"):
        decode_root(encode_root(root(segment(0, 9), segment(11, 20))))


def test_changed_body_is_detected():
    document = zstandard.ZstdDecompressor().decompress(encode_root(root(segment(0, 9))))
    changed = zstandard.ZstdCompressor().compress(
        document.replace(b'"log_start_offset":5', b'"log_start_offset":6')
    )
    with pytest.raises(ManifestError, match="checksum"):
        decode_root(changed)


def test_a_newer_format_is_refused_by_name():
    document = json.loads(zstandard.ZstdDecompressor().decompress(encode_root(root())))
    newer = zstandard.ZstdCompressor().compress(json.dumps({**document, "format_version": 3}).encode())
    with pytest.raises(ManifestError, match="format version 3 is not supported"):
        decode_root(newer)


def test_a_page_is_not_a_root():
    page = ManifestPage(topic_id=TOPIC, partition=3, entries=(segment(0, 9),))
    with pytest.raises(ManifestError, match=r"expected format tierlog\.manifest\.root"):
        decode_root(encode_page(page))


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", zstandard.ZstdCompressor().compress(b"[1]")])
def test_invalid_document_is_refused(data):
    with pytest.raises(ManifestError):
        decode_root(data)
    with pytest.raises(ManifestError):
        decode_topic(data)


def test_oversized_document_is_refused_before_decompression():
    bomb = zstandard.ZstdCompressor().compress(bytes(65 << 20))
    with pytest.raises(ManifestError, match="exceeds the limit"):
        decode_root(bomb)


def test_page_that_differs_from_its_reference_is_refused():
    page = ManifestPage(topic_id=TOPIC, partition=3, entries=(segment(0, 9),))
    other = ManifestPage(topic_id=TOPIC, partition=3, entries=(segment(0, 8),))
    ref = page_reference(ATTEMPT, page, encode_page(page))
    assert decode_page(encode_page(page), ref) == page
    with pytest.raises(ManifestError, match="checksum differs"):
        decode_page(encode_page(other), ref)
    with pytest.raises(ManifestError, match="another range"):
        decode_page(
            encode_page(other), msgspec.structs.replace(ref, crc32c=crc32c.crc32c(encode_page(other)))
        )


def test_a_bundle_survives_the_round_trip():
    assert decode_bundle(encode_bundle(BUNDLE)) == BUNDLE


def test_first_bytes_of_a_bundle_are_enough_to_find_the_chunks():
    with_large_indexes = replace(BUNDLE, offset_index=bytes(1 << 20))
    head = encode_bundle(with_large_indexes)[:HEAD_BYTES]
    place = read_places(head)[Section.CHUNK_TABLE]
    assert decode_chunks(section(head, Section.CHUNK_TABLE, place)) == BUNDLE.chunk_table


def test_largest_chunk_table_fits_into_the_head():
    chunks = tuple(ChunkEntry(n << 22, n, n, n) for n in range(512))  # 2 GiB
    table = ChunkTable(ATTEMPT, 2 << 30, 1, chunks)
    place = read_places(encode_bundle(replace(BUNDLE, chunk_table=table)))[Section.CHUNK_TABLE]
    assert place.position + place.length <= HEAD_BYTES


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        (ChunkEntry(1, 0, 0, 0),),
        (ChunkEntry(0, 0, 0, 0), ChunkEntry(100, 9, 0, 0)),
        (ChunkEntry(0, 0, 0, 0), ChunkEntry(50, 0, 0, 0)),
        (ChunkEntry(0, 0, 0, 0), ChunkEntry(50, 9, 0, 0), ChunkEntry(40, 12, 0, 0)),
    ],
)
def test_chunks_that_do_not_divide_the_segment_are_refused(chunks):
    bundle = replace(BUNDLE, chunk_table=ChunkTable(ATTEMPT, 100, 1, chunks))
    with pytest.raises(BundleError, match="do not divide"):
        decode_bundle(encode_bundle(bundle))


def test_flipped_bit_in_a_bundle_is_detected_or_harmless():
    good = encode_bundle(BUNDLE)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 0x10
        with pytest.raises(BundleError):
            decode_bundle(bytes(damaged))


def test_truncated_bundle_is_refused():
    good = encode_bundle(BUNDLE)
    for end in range(len(good)):
        with pytest.raises(BundleError):
            decode_bundle(good[:end])


def test_a_newer_bundle_is_refused_by_name():
    newer = bytearray(encode_bundle(BUNDLE))
    struct.pack_into(">H", newer, 8, 9)
    with pytest.raises(BundleError, match="version 9 is not supported"):
        decode_bundle(bytes(newer))
