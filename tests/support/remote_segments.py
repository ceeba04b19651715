"""Remote and local segments for tests that need only a few of their fields."""

import uuid
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tierlog.base.segments import SegmentDescriptor
from tierlog.metadata.records import RemoteSegment


def remote_segment(base_offset: int, last_offset: int, **changes: Any) -> RemoteSegment:
    """A segment of epoch 0 without transactions, with a record at each offset whose timestamp is its offset.
    The segment id is the base offset plus one.
    """
    entry = RemoteSegment(
        uuid=uuid.UUID(int=base_offset + 1),
        base_offset=base_offset,
        last_offset=last_offset,
        leader_epochs=((0, 0),),
        log_bytes=1000,
        index_bytes=10,
        records=last_offset - base_offset + 1,
        first_timestamp=base_offset,
        max_timestamp=last_offset,
        has_transactions=False,
        has_aborts=False,
        log_crc32c=1,
        index_crc32c=2,
        leader_epoch=0,
    )
    return replace(entry, **changes)


def local_segment(
    base: int, end: int, *, size: int, at: int, rolled: bool, damaged_end: int = -1
) -> SegmentDescriptor:
    """A segment on local disk, `at` being the time of its records; -1: it has none."""
    return SegmentDescriptor(
        base_offset=base,
        end_offset=end,
        size_bytes=size,
        first_timestamp=at,
        max_timestamp=at,
        last_modified_ms=at,
        rolled=rolled,
        has_transactions=False,
        has_aborts=False,
        leader_epochs=(),
        directory=Path("unused"),
        file_name="unused",
        damaged_end=damaged_end,
    )
