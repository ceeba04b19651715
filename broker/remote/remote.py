"""The remote tier as the handlers see it: what tiering.remote_log.RemoteLog does."""

import uuid
from collections.abc import Sequence
from typing import Protocol

from tierlog.base.slices import LogSlice
from tierlog.metadata.image import RemotePartition
from tierlog.tiering.remote_log import RemoteHistory


class RemoteReader(Protocol):
    """Reads of one partition's remote range; they raise ObjectStoreError."""

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
        """Whole batches from the one that holds the offset; empty if it fits not and `min_one` is false."""

    async def offset_for_timestamp(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, timestamp: int
    ) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after the timestamp."""

    async def aborted(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, start_offset: int, end_offset: int
    ) -> Sequence[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, end)."""


class HistoryReader(Protocol):
    """What a replica whose log begins where others hold what came before asks of the same."""

    async def history(
        self, topic_id: uuid.UUID, partition: int, remote: RemotePartition, offset: int
    ) -> RemoteHistory:
        """As of the end of the segment that holds the offset. Raises ObjectStoreError."""
