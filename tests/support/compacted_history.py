"""A tiered topic that is compacted in S3: its records, and what every reader must find."""

from uploaded_segments import upload_segments

from tierlog.testing import TierlogBroker

TOPIC = "accounts"
SEGMENTS, RECORDS, KEYS = 30, 20, 23
END_OFFSET = SEGMENTS * RECORDS
SETTINGS = {"remote.log.manager.task.interval.ms": 200, "remote.log.delete.grace.ms": 500}
CONFIG = {
    "remote.storage.enable": "true",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}

Record = tuple[int, bytes, bytes | None]
"""Offset, key and value."""


def record(offset: int) -> Record:
    """Every ninth record is a tombstone."""
    value = None if offset % 9 == 0 else b"value %06d " % offset * 20
    return offset, b"%d" % (offset % KEYS), value


def fill(broker: TierlogBroker) -> None:
    """Write all records, in as many small segments, and upload them."""
    ranges = (range(first, first + RECORDS) for first in range(0, END_OFFSET, RECORDS))
    upload_segments(broker, TOPIC, CONFIG, ((record(offset)[1:] for offset in offsets) for offsets in ranges))


def check_compacted(found: list[Record]) -> None:
    """A valid compacted log: records that were written, in order, and the last one of each key."""
    assert found == [record(offset) for offset, _, _ in found]
    assert sorted({offset for offset, _, _ in found}) == [offset for offset, _, _ in found]
    assert found[-KEYS:] == last_records()


def last_records() -> list[Record]:
    """All that is left at the end."""
    return [record(offset) for offset in range(END_OFFSET - KEYS, END_OFFSET)]
