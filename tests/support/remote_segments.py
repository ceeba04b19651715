"""Remote log segments for tests that need only a few of their fields."""

import uuid
from typing import Any

from msgspec.structs import replace

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
