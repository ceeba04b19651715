"""Kafka's on-disk formats, byte for byte. They never change."""

import random
import uuid
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.storage import checkpoints
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import HEADER_SIZE, BatchHeader, assign, check_batch, read_header
from tierlog.records.rewrite import emptied, rewritten, spans
from tierlog.records.writer import NewRecord, encode_batch

FILES = OsFiles()
TOPIC_ID = uuid.UUID("00010203-0405-0607-0809-fbfcfdfeff7f")


def test_producer_snapshot() -> None:
    state = ProducerStateManager()
    state.apply(BatchHeader(0, 100, 0, 2, 0, 0, 4, 900, 1000, 258, 3, 10, 5), 77)
    kafkas = bytes.fromhex(
        "0001 68c5bed9 00000001"  # version, crc32c of what follows, entries
        "0000000000000102 0003 0000000e 0000000000000051 00000004 00000000000003e8 ffffffff ffffffffffffffff"
    )
    read = ProducerStateManager.decode(kafkas)
    assert not read.has_all_batches
    assert read.encode() == kafkas
    assert state.encode()[6:] == kafkas[6:] + bytes.fromhex(
        "544c5042 0001 00 0000000000000000 00000000000003e8"
    )


def test_producer_snapshot_with_earlier_batches() -> None:
    state = ProducerStateManager()
    for sequence, offset in ((8, 60), (10, 77)):
        state.apply(BatchHeader(0, 100, 0, 2, 0, 0, 1, 900, 1000, 258, 3, sequence, 2), offset)
    state.expire(5, 10)
    state.expire(12, 10)
    assert state.encode() == bytes.fromhex(
        "0001 b7d81345 00000001"
        "0000000000000102 0003 0000000b 000000000000004e 00000001 00000000000003e8 ffffffff ffffffffffffffff"
        "544c5042 0001"  # magic, version
        "01 0000000000000007 00000000000003e8"  # one batch before the last one, idle for 7 ms
        "00000009 000000000000003d 00000001 00000000000003e8"
    )


def test_empty_producer_snapshot() -> None:
    assert ProducerStateManager().encode() == bytes.fromhex("0001 48674bc7 00000000")


def test_segment_files(tmp_path: Path) -> None:
    config = TopicConfig(index_interval_bytes=0)
    log = PartitionLog.open(tmp_path, config, FILES, 5, clean=False, rng=random.Random(1), log_start_offset=7)
    for at in (1000, 3000, 2000):
        batch = memoryview(encode_batch([NewRecord(at, b"k", b"v", ()), NewRecord(at + 1, b"k", b"v", ())]))
        assign(batch, 0, log.log_end_offset, 6)
        log.append(batch, read_header(batch), log.log_end_offset, 6, 5)
    assert len(batch) == 79
    log.roll(5)
    log.close(clean=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000000000000000007.index",
        "00000000000000000007.log",
        "00000000000000000007.timeindex",
        "00000000000000000013.index",
        "00000000000000000013.log",
        "00000000000000000013.snapshot",
        "00000000000000000013.timeindex",
        "leader-epoch-checkpoint",
    ]
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n6 7\n"
    index = (tmp_path / "00000000000000000007.index").read_bytes()
    assert index == bytes.fromhex("00000003 0000004f 00000005 0000009e")
    times = (tmp_path / "00000000000000000007.timeindex").read_bytes()
    assert times == bytes.fromhex("0000000000000bb9 00000003")


def test_offset_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.RECOVERY_POINTS
    offsets = {TopicPartition("b.c-d", 1): 9, TopicPartition("a", 10): 2**40}
    checkpoints.write_offsets(FILES, path, offsets)
    assert path.read_bytes() == b"0\n2\na 10 1099511627776\nb.c-d 1 9\n"
    assert checkpoints.read_offsets(FILES, path) == offsets
    assert checkpoints.read_offsets(FILES, tmp_path / "none") == {}


def test_the_cleaner_checkpoint_has_the_same_format(tmp_path: Path) -> None:
    path = tmp_path / checkpoints.CLEANER_OFFSETS
    assert path.name == "cleaner-offset-checkpoint"
    checkpoints.write_offsets(FILES, path, {TopicPartition("__consumer_offsets", 12): 345})
    assert path.read_bytes() == b"0\n1\n__consumer_offsets 12 345\n"


def test_a_batch_with_a_delete_horizon() -> None:
    """KIP-534: attribute bit 6, the horizon in the place of the base timestamp, deltas counted from it."""
    batch = bytes(
        encode_batch([NewRecord(1000, b"k", None)], producer_id=7, producer_epoch=1, base_sequence=2)
    )
    header = read_header(batch)
    assert batch[HEADER_SIZE:].hex() == "0e000000026b0100"
    plain = batch[HEADER_SIZE:]
    marked = rewritten(header, plain, list(spans(plain, header)), 5000)
    assert marked[:17] == batch[:8] + bytes.fromhex("0000003a ffffffff 02")
    assert marked[21:23].hex() == "0040"
    assert marked[27:43] == (5000).to_bytes(8, "big") + (1000).to_bytes(8, "big")
    assert marked[43:61] == batch[43:61]
    assert marked[HEADER_SIZE:].hex() == "1000bf3e00026b0100"
    assert check_batch(marked).delete_horizon_ms == 5000


def test_a_batch_without_records() -> None:
    batch = encode_batch([NewRecord(1000, b"k", b"v")] * 2, producer_id=7, producer_epoch=1, base_sequence=2)
    empty = emptied(read_header(batch))
    assert len(empty) == HEADER_SIZE
    assert empty[:17] == bytes(8) + bytes.fromhex("00000031 ffffffff 02")
    assert empty[21:].hex() == (
        "0000 00000001 ffffffffffffffff 00000000000003e8 0000000000000007 0001 00000002 00000000"
    ).replace(" ", "")
    assert check_batch(empty).next_offset == 2


@pytest.mark.parametrize(
    "text", [b"", b"0\n", b"1\n0\n", b"0\n2\na 1 1\n", b"0\n1\na 1\n", b"0\n1\na x 1\n", b"\xff\n"]
)
def test_a_malformed_offset_checkpoint_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(text)
    with pytest.raises(checkpoints.MalformedCheckpoint):
        checkpoints.read_offsets(FILES, path)


def test_partition_metadata(tmp_path: Path) -> None:
    checkpoints.write_partition_metadata(FILES, tmp_path, TOPIC_ID)
    assert (tmp_path / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: AAECAwQFBgcICfv8_f7_fw"
    assert checkpoints.read_partition_metadata(FILES, tmp_path) == TOPIC_ID
    (tmp_path / "partition.metadata").write_bytes(b"version: 0\ntopic_id: ???")
    with pytest.raises(checkpoints.MalformedCheckpoint):
        checkpoints.read_partition_metadata(FILES, tmp_path)


def test_meta_properties(tmp_path: Path) -> None:
    assert checkpoints.read_meta_properties(FILES, tmp_path) == {}
    checkpoints.write_meta_properties(FILES, tmp_path, "c1", 3, TOPIC_ID)
    assert checkpoints.read_meta_properties(FILES, tmp_path) == {
        "cluster.id": "c1",
        "node.id": "3",
        "directory.id": "AAECAwQFBgcICfv8_f7_fw",
        "version": "1",
    }


def test_the_clean_shutdown_marker_is_taken_once(tmp_path: Path) -> None:
    assert not checkpoints.take_clean_shutdown(FILES, tmp_path)
    checkpoints.mark_clean_shutdown(FILES, tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert checkpoints.take_clean_shutdown(FILES, tmp_path)
    assert not checkpoints.take_clean_shutdown(FILES, tmp_path)
