"""Remote reader: the interface of the remote log to handlers and followers. `tiering.remote_log` implements
it."""

import uuid
from collections.abc import Sequence
from typing import Protocol

from tierlog.base.slices import LogSlice
from tierlog.metadata.image import RemotePartition
from tierlog.tiering.remote_log import RemoteHistory


class RemoteReader(Protocol):
    """Reads a partition's remote segments. All methods raise ObjectStoreError."""

    async def read(
        self,
        topic_id: uuid.UUID,
        partition: int,
        remote: RemotePartition,
        offset: int,
        max_bytes: int,
        *,
        min_one: bool,
    ) -> LogSlice:
        """Complete batches from the one with the offset. Empty if the first exceeds `max_bytes` and not
        `min_one`."""

    async def offset_for_timestamp(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, timestamp: int
    ) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after the timestamp."""

    async def aborted(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, start_offset: int, end_offset: int
    ) -> Sequence[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end)."""


class HistoryReader(Protocol):
    """Reads the state from which a follower starts after the remote segments."""

    async def history(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, offset: int
    ) -> RemoteHistory:
        """The state as of the end of the segment with the offset. Raises ObjectStoreError."""
