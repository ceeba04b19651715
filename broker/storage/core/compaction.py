"""Cleanable range of a log, and groups of segments that are cleaned together.

These are pure functions over values; `broker/storage/cleaner.py` reads and writes the files.
`records/compaction.py` decides about the records of each batch.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tierlog.base.segments import SegmentDescriptor
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.core.retention import LARGEST_RELATIVE_OFFSET
from tierlog.config.topic import TopicConfig
from tierlog.records.compaction import LastRecord

# -- cleanable range --


class LogToClean(NamedTuple):
    """[first_offset, end_offset) has not been compacted yet and can be.

    `clean_bytes` and `dirty_bytes` are the sizes of the segments below and in that range.
    """

    first_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """A record in the range is older than max.compaction.lag.ms (KIP-354)."""

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def needs_cleaning(self, config: TopicConfig) -> bool:
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > config.min_cleanable_dirty_ratio)


def log_to_clean(
    segments: Sequence[SegmentDescriptor],
    config: TopicConfig,
    *,
    cleaned_to: int,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> LogToClean:
    """Find the cleanable range: rolled segments below the last stable offset (and so below the high
    watermark) that are older than min.compaction.lag.ms.
    """
    first = max(cleaned_to, log_start_offset)
    end, clean_bytes, dirty_bytes, oldest = first, 0, 0, None
    for segment in segments:
        if segment.end_offset <= first:
            clean_bytes += segment.size_bytes
            continue
        young = config.min_compaction_lag_ms > 0 and (
            segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        )
        if not segment.rolled or segment.end_offset > last_stable_offset or young:
            break
        end = segment.end_offset
        dirty_bytes += segment.size_bytes
        if segment.first_timestamp > 0:
            oldest = min(oldest or segment.first_timestamp, segment.first_timestamp)
    overdue = oldest is not None and oldest < now_ms - config.max_compaction_lag_ms
    return LogToClean(first, end, clean_bytes, dirty_bytes, overdue)


class SegmentSize(NamedTuple):
    base_offset: int
    end_offset: int
    log_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


def group_segments(segments: Iterable[SegmentSize], config: TopicConfig) -> list[list[SegmentSize]]:
    """Group neighbouring segments that together fit into one segment."""
    groups: list[list[SegmentSize]] = []
    for segment in segments:
        group = groups[-1] if groups else []
        together = [*group, segment]
        if (
            group
            and sum(one.log_bytes for one in together) <= config.segment_bytes
            and sum(one.offset_index_bytes for one in together) <= config.segment_index_bytes
            and sum(one.time_index_bytes for one in together) <= config.segment_index_bytes
            and segment.end_offset - 1 - group[0].base_offset <= LARGEST_RELATIVE_OFFSET
        ):
            group.append(segment)
        else:
            groups.append([segment])
    return groups


# -- retained batches --


def last_records_of_producers(state: ProducerStateManager) -> dict[int, LastRecord]:
    """The batches that hold each active producer's last sequence, or its epoch. They are kept, empty if
    necessary.
    """
    return {
        producer.producer_id: LastRecord(
            producer.epoch, producer.batches[-1].last_offset if producer.batches else -1
        )
        for producer in state
    }
