"""The part of a segment that is not remote yet, copied for its upload."""

import random
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_suffix import copy_suffix
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """One segment of batches with three records, in which compaction has removed offsets 6 to 11."""
    found = PartitionLog.open(tmp_path, TopicConfig(), OsFiles(), NOW, clean=False, rng=random.Random(1))
    for base in (0, 3, 12, 15):
        batch = memoryview(encode_batch([NewRecord(NOW, None, b"v")] * 3))
        assign(batch, 0, base, 0)
        found.append(batch, read_header(batch), base, 0, NOW)
    found.roll(NOW)
    return found


@pytest.mark.parametrize("offset", [3, 6, 8, 11, 12, 15])
def test_suffix_begins_at_any_border_also_within_a_gap(log: PartitionLog, offset: int) -> None:
    """The remote log ends where the segment of another replica did."""
    whole = log.export_segment(0)
    assert whole is not None
    suffix, chunks = copy_suffix(OsFiles(), whole, offset, 4096)
    assert (suffix.descriptor.base_offset, suffix.descriptor.end_offset) == (offset, 18)
    content = suffix.descriptor.path_log.read_bytes()
    bases = [header.base_offset for _, header in iter_batches(content)]
    assert bases == [base for base in (0, 3, 12, 15) if base >= offset]
    assert len(content) == suffix.descriptor.size_bytes and chunks is not None


@pytest.mark.parametrize("offset", [1, 13, 18])
def test_suffix_does_not_begin_within_a_batch(log: PartitionLog, tmp_path: Path, offset: int) -> None:
    whole = log.export_segment(0)
    assert whole is not None
    with pytest.raises(CorruptLog, match=f"no batch begins at offset {offset}"):
        copy_suffix(OsFiles(), whole, offset, 4096)
    assert not list(tmp_path.glob("*.tmp"))
