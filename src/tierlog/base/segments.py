"""What the rules know of a segment, without its files. The log makes these values; retention and tiering
read them.
"""

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
    has_transactions: bool | None  # None: not known before its batches are read again (after a clean start)
    has_aborts: bool
    leader_epochs: tuple[EpochEntry, ...]
    path_log: PurePath
    damaged_end: int = -1
    """Below it, offsets are known to be damaged; -1 if none are."""

    @property
    def newest_ms(self) -> int:
        """What retention by time counts from: the largest timestamp of a record, or the last write if none
        has one, as in Kafka. A maximum of 0 counts as none: clients that know no time write it (librdkafka),
        and earlier versions stored it.
        """
        return self.max_timestamp if self.max_timestamp > 0 else self.last_modified_ms

    @property
    def records(self) -> int:
        """Offsets have no gaps in a log that is not compacted, and a compacted one is never tiered
        (KIP-405).
        """
        return self.end_offset - self.base_offset
