"""`tierlog log` on damaged files: it reports the damage, without a crash and without trusting a length."""

import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import CorruptLog
from tierlog.broker.storage_tools.dumping import Wanted, dump
from tierlog.broker.storage_tools.offline import find_partitions
from tierlog.broker.storage_tools.reindexing import rebuild_indexes
from tierlog.broker.storage_tools.verifying import Totals, Verification
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import HEADER_SIZE, assign, read_header
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=100)


def files_of_a_log(directory: Path) -> dict[str, bytes]:
    """Three segments, two codecs, a transaction that is open and one that was aborted."""
    log = PartitionLog.open(directory, CONFIG, OsFiles(), NOW, clean=False, rng=random.Random(1))
    abort = [NewRecord(NOW, struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 5))]
    for number in range(12):
        kind = {"transactional": True, "producer_id": 7 + number % 2, "base_sequence": number}
        records = [NewRecord(NOW + number, b"k", b"v" * 40, (("h", None),))]
        if number == 9:
            records, kind = abort, {**kind, "control": True, "base_sequence": -1}
        codec = Codec.ZSTD if number % 3 == 0 else Codec.NONE
        batch = memoryview(encode_batch(records, codec=codec, producer_epoch=0, **kind))  # type: ignore[arg-type]
        base = log.log_end_offset
        assign(batch, 0, base, 0)
        log.append(batch, read_header(batch), base, 0, NOW)
    log.close(clean=True)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files_of_a_log(tmp_path_factory.mktemp("sound") / "t-0")


def with_right_crcs(log: bytearray) -> None:
    """Repair the CRCs, so that the checks after them are reached."""
    at = 0
    while at + HEADER_SIZE <= len(log):
        size = read_header(log, at).size
        if not HEADER_SIZE <= size <= len(log) - at:
            return
        struct.pack_into(">I", log, at + 17, crc32c(memoryview(log)[at + 21 : at + size]))
        at += size


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_log_tools_report_any_damage(sound: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, content in sound.items():
        (directory / name).write_bytes(content)
    for _ in range(data.draw(st.integers(1, 4))):
        path = directory / data.draw(st.sampled_from(sorted(sound)))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        if path.suffix == ".log" and data.draw(st.booleans()):
            with_right_crcs(content)
        path.write_bytes(content)
    list(dump(directory, Wanted(records=True)))
    (partition,) = find_partitions(directory)
    problems = list(Verification(partition, Totals(), records=True).problems())
    try:
        list(rebuild_indexes(partition, CONFIG.index_interval_bytes))
    except CorruptLog:
        assert any(problem.damage for problem in problems)
