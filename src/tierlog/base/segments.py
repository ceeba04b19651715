"""Segment descriptions without files. Built by the log; read by the rules of retention and tiering."""

from dataclasses import dataclass
from pathlib import PurePath

from tierlog.base.leader_epochs import EpochEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
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
    path_log: PurePath
    damaged_end: int = -1
    """End of known damage, exclusive; -1: none."""

    @property
    def newest_ms(self) -> int:
        """Time for retention: the largest timestamp of a record, or the last write if no record has one, as
        in Kafka. 0 counts as none: librdkafka writes it if it has no time, and earlier versions stored it.
        """
        return self.max_timestamp if self.max_timestamp > 0 else self.last_modified_ms

    @property
    def records(self) -> int:
        """Number of records. Offsets have no gaps: compacted logs are never tiered (KIP-405)."""
        return self.end_offset - self.base_offset
