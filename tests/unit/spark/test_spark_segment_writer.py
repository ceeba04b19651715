"""Segment writer and reader: a copy of a broker's segment has the same bytes, and `audit` finds no damage."""

import uuid
from io import BytesIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from tier_node import ABORT, START_MS, TierNode, produce, write_transactional

from tierlog.base.leader_epochs import EpochEntry
from tierlog.metadata.records import RemoteSegment
from tierlog.records.batch import check_batch, read_header
from tierlog.records.codecs import Codec
from tierlog.records.errors import RecordsError
from tierlog.records.indexes import decode_txn_index
from tierlog.records.record import iter_records
from tierlog.records.rewrite import recompressed
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.bucket import DirectoryBucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_reader import SegmentReader
from tierlog.spark.history.segment_writer import SegmentEnd, SegmentWriter, put_segment
from tierlog.spark.jobs.rewriting import checked
from tierlog.spark.options import StoreAddress
from tierlog.tiering.format.bundle import decode_bundle
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import CorruptObject

NEW = uuid.UUID(int=77)


def copied(reader: SegmentReader, entry: RemoteSegment, file: BytesIO, codec: Codec | None = None):
    writer = SegmentWriter(file, entry.base_offset, 500)
    for batch, header in reader.batches():
        new = batch if codec is None else recompressed(batch, header, codec)
        writer.add(new, read_header(new))
    bundle = reader.bundle
    return writer.finish(
        SegmentEnd(
            uuid=NEW,
            leader_epoch=entry.leader_epoch,
            end_offset=entry.end_offset,
            leader_epochs=tuple(EpochEntry(*line) for line in bundle.leader_epochs),
            aborted=decode_txn_index(bundle.txn_index),
            producer_snapshot=bundle.producer_snapshot,
        )
    )


@pytest.mark.parametrize("codec", [None, Codec.GZIP, Codec.ZSTD])
async def test_copy_of_a_brokers_segment_has_the_same_bytes_and_no_damage(
    tmp_path: Path, codec: Codec | None
) -> None:
    root = tmp_path / "objects"
    async with TierNode(tmp_path / "node", LocalStore(root)) as node:
        replica = await node.create("t", segment_bytes="1000000")
        write_transactional(replica, [NewRecord(START_MS + 9, None, b"aborted")])
        produce(replica, 40)
        write_transactional(replica, ABORT, control=True)
        produce(replica, 40)
        await node.log_manager.flush("t")
        await node.finish_tiering()
        [entry] = node.remote(replica).entries
        source, bucket, keys = Source("t", *node.where(replica)), DirectoryBucket(root), node.keys
    reader, file = SegmentReader(bucket, keys, source, entry), BytesIO()
    made = copied(reader, entry, file, codec)
    if codec is None:
        assert file.getvalue() == bucket.read(keys.log(source.id, entry))
        index_crc32c = made.entry.index_crc32c  # the chunk table has the id
        assert made.entry == replace(entry, uuid=NEW, index_crc32c=index_crc32c)
        theirs, ours = reader.bundle, decode_bundle(made.bundle)
        assert theirs.chunk_table is not None and ours.chunk_table is not None
        assert len(theirs.offset_index) > 80 and len(theirs.time_index) > 100
        for name in ("offset_index", "time_index", "txn_index", "producer_snapshot", "leader_epochs"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.chunk_table.chunks == theirs.chunk_table.chunks
    put_segment(bucket, keys, source.id, file, made)
    found = checked(StoreAddress(path=str(root)), keys.cluster_id, source, made)
    assert found.failure == "" and found.entry == made.entry
    put_segment(bucket, keys, source.id, file, made)  # another attempt of the task has the same bytes
    other = replace(made.entry, log_crc32c=made.entry.log_crc32c ^ 1)
    with pytest.raises(CorruptObject):
        bucket.put_new(keys.log(source.id, other), b"other", 5, 0x1234)
    assert not list((root / ".tierlog").glob("*.tmp"))


def batch_of(codec: Codec, **fields: object) -> bytes:
    records = [NewRecord(START_MS + n, b"k%d" % n, b"value " * 20, (("h", b"x"),)) for n in range(30)]
    return bytes(encode_batch(records, codec=codec, **fields))


@pytest.mark.parametrize("new", list(Codec))
@pytest.mark.parametrize("old", list(Codec))
def test_another_codec_changes_nothing_else(old: Codec, new: Codec) -> None:
    batch = batch_of(old, producer_id=7, producer_epoch=2, base_sequence=40, transactional=True)
    header = read_header(batch)
    found = bytes(recompressed(batch, header, new))
    changed = check_batch(found)
    assert changed.codec is new
    same = {"batch_length": header.batch_length, "crc": header.crc, "attributes": header.attributes}
    assert changed._replace(**same) == header
    assert list(iter_records(found, max_bytes=1 << 20)) == list(iter_records(batch, max_bytes=1 << 20))
    assert (found is batch or found == batch) == (old is new)


def test_segments_without_batches_or_with_descending_offsets_are_refused() -> None:
    end = SegmentEnd(uuid=NEW, leader_epoch=0, end_offset=30, leader_epochs=(EpochEntry(0, 0),))
    with pytest.raises(RecordsError):
        SegmentWriter(BytesIO(), 0, 500).finish(end)
    writer, batch = SegmentWriter(BytesIO(), 0, 500), batch_of(Codec.NONE)
    writer.add(batch, read_header(batch))
    with pytest.raises(RecordsError):
        writer.add(batch, read_header(batch))
    with pytest.raises(RecordsError):
        writer.finish(SegmentEnd(uuid=NEW, leader_epoch=0, end_offset=29, leader_epochs=end.leader_epochs))
