"""Formats of the bucket: stored bytes stay readable forever, with the same meaning.

To add a format, run this file as a program. It never overwrites an existing golden file.
"""

import uuid
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import zstandard

from tierlog.metadata.records import RemoteSegment
from tierlog.records.chunks import ChunkEntry
from tierlog.tiering.format import bundle, manifest

FOLDER = Path(__file__).parent / "remote"
TOPIC = uuid.UUID("7d3f4c1e-0f5a-4b51-9a4e-2b6f5f0c9d11")


def entry(base: int, last: int) -> RemoteSegment:
    return RemoteSegment(
        uuid=uuid.UUID(int=0x5EED << 64 | base, version=4),
        base_offset=base,
        last_offset=last,
        leader_epochs=((0, 0), (3, 40)),
        log_bytes=1 << 20,
        index_bytes=2_345,
        records=last - base + 1,
        first_timestamp=1_357_016_400_000,
        max_timestamp=1_388_552_340_000,
        has_transactions=base == 40,
        has_aborts=base == 40,
        log_crc32c=0xDEADBEEF,
        index_crc32c=0x01020304,
        leader_epoch=3,
    )


PAGE = manifest.ManifestPage(topic_id=TOPIC, partition=2, entries=(entry(0, 19), entry(20, 39)))
PAGE_REF = manifest.PageRef(
    uuid=uuid.UUID(int=0xFACE, version=4),
    base_offset=0,
    last_offset=39,
    entries=2,
    log_bytes=2 << 20,
    max_timestamp=1_388_552_340_000,
    crc32c=0x11223344,
)
ROOT = manifest.ManifestRoot(
    topic_id=TOPIC,
    partition=2,
    version=12,
    metadata_index=345,
    leader_epoch=3,
    log_start_offset=7,
    pages=(PAGE_REF,),
    entries=(entry(40, 59), entry(60, 60)),
)
SEALED = msgspec.structs.replace(
    entry(20, 39), control_records=2, min_timestamp=1_357_016_400_001, key_id="vault/2026", tags=(("a", "b"),)
)
PAGE_2 = manifest.ManifestPage(topic_id=TOPIC, partition=2, entries=(entry(0, 19), SEALED))
PAGE_OF_PAGES = manifest.ManifestPage(topic_id=TOPIC, partition=2, pages=(PAGE_REF,))
ROOT_2 = msgspec.structs.replace(ROOT, pages=(msgspec.structs.replace(PAGE_REF, level=1, children=1),))
TOPIC_DOCUMENT = manifest.TopicDocument(
    topic_id=TOPIC, name="flights", partitions=4, configs={"retention.ms": "-1"}
)
CLUSTER = manifest.ClusterDocument(cluster_id="demo-cluster")
BUNDLE = bundle.IndexBundle(
    offset_index=bytes(range(32)),
    time_index=bytes(range(24)),
    txn_index=bytes(34),
    producer_snapshot=b"producer state",
    leader_epochs=((0, 0), (3, 40)),
)
CHUNK_TABLE = bundle.ChunkTable(
    entry(40, 59).uuid,
    9_000_000,
    0x11223344,
    (ChunkEntry(0, 41, 1_388_552_340_000, 0x55667788), ChunkEntry(8_388_000, 55, -1, 0x99AABBCC)),
)

FORMATS = {
    "root-v1.zst": (manifest.encode_root, manifest.decode_root, ROOT),
    "root-v2.zst": (manifest.encode_root, manifest.decode_root, ROOT_2),
    "page-v2.zst": (manifest.encode_page, manifest.decode_page, PAGE_2),
    "page-v2-of-pages.zst": (manifest.encode_page, manifest.decode_page, PAGE_OF_PAGES),
    "page-v1.zst": (manifest.encode_page, manifest.decode_page, PAGE),
    "topic-v1.json": (manifest.encode_topic, manifest.decode_topic, TOPIC_DOCUMENT),
    "cluster-v1.json": (manifest.encode_cluster, manifest.decode_cluster, CLUSTER),
    "bundle-v1.idx": (bundle.encode_bundle, bundle.decode_bundle, BUNDLE),
    "bundle-v1-chunk-table.idx": (
        bundle.encode_bundle,
        bundle.decode_bundle,
        replace(BUNDLE, chunk_table=CHUNK_TABLE),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_golden_bytes_decode_to_the_same_values(name):
    _, decode, value = FORMATS[name]
    assert decode((FOLDER / name).read_bytes()) == value


@pytest.mark.parametrize("name", FORMATS)
def test_we_still_write_the_same_bytes(name):
    encode, _, value = FORMATS[name]
    written, golden = encode(value), (FOLDER / name).read_bytes()
    if name.endswith(".zst"):  # another release of zstd may pack tighter; the document inside is ours
        written, golden = (zstandard.ZstdDecompressor().decompress(data) for data in (written, golden))
    assert written == golden


if __name__ == "__main__":
    for file_name, (encoder, _, content) in FORMATS.items():
        if not (FOLDER / file_name).exists():
            (FOLDER / file_name).write_bytes(encoder(content))
