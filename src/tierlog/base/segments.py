"""Segment descriptors: what retention, tiering and uploads know of a segment. Built by the log.

Read by the rules of retention, the tiering planner and the segment copier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import msgspec

from tierlog.base.leader_epochs import EpochEntry


class SegmentDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets [base_offset, end_offset); timestamps in milliseconds, -1 if no record has one."""

    base_offset: int
    end_offset: int
    size_bytes: int
    first_timestamp: int
    max_timestamp: int
    last_modified_ms: int
    rolled: bool
    has_transactions: bool | None  # None: unknown until its batches are read (after a clean start)
    has_aborts: bool
    leader_epochs: tuple[EpochEntry, ...]
    directory: Path
    file_name: str
    damaged_end: int = -1
    """End of known damage, exclusive; -1: none."""

    @property
    def path_log(self) -> Path:
        return self.directory / self.file_name

    @property
    def newest_ms(self) -> int:
        """Time for retention: the largest timestamp of a record, or the last write if no record has one, as
        in Kafka. 0 counts as none: librdkafka writes it if it has no time, and earlier versions stored it.
        """
        return self.max_timestamp if self.max_timestamp > 0 else self.last_modified_ms

    @property
    def records(self) -> int:
        """Number of offsets. A topic that was compacted earlier may have fewer records."""
        return self.end_offset - self.base_offset


@dataclass(frozen=True, slots=True)
class SegmentExport:
    """Everything that tiering uploads of a rolled segment. The producer snapshot is that of the next base
    offset.
    """

    descriptor: SegmentDescriptor
    offset_index: bytes
    time_index: bytes
    txn_index: bytes  # all aborted transactions that overlap it: a later marker may not be tiered yet
    producer_snapshot: bytes
    leader_epochs: tuple[
        EpochEntry, ...
    ]  # all up to its end: a replica that starts after it has no other source


class DescribedSegments(Sequence[SegmentDescriptor]):
    """The segments of a log at one moment, oldest first, each described when it is read first: a log may have
    thousands, of which retention and tiering need the oldest few and the newest."""

    def __init__(self, count: int, describe: Callable[[int], SegmentDescriptor]) -> None:
        self._describe = describe
        self._known: list[SegmentDescriptor | None] = [None] * count

    def __len__(self) -> int:
        return len(self._known)

    @overload
    def __getitem__(self, at: int) -> SegmentDescriptor: ...
    @overload
    def __getitem__(self, at: slice) -> list[SegmentDescriptor]: ...
    def __getitem__(self, at: int | slice) -> SegmentDescriptor | list[SegmentDescriptor]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        found = self._known[at]
        if found is None:
            found = self._known[at] = self._describe(at)
        return found
