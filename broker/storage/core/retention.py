"""Segment rolling and retention: pure rules for when a segment is rolled and which segments are deleted.

Called by the replica on append and by the periodic retention task.
"""

from collections.abc import Sequence
from typing import Protocol

from tierlog.base.segments import SegmentDescriptor
from tierlog.base.types import NO_TIMESTAMP, Rng
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader
from tierlog.records.indexes import OFFSET_ENTRY, TIME_ENTRY

LARGEST_RELATIVE_OFFSET = 2**31 - 1
"""Index entries hold 32-bit offsets relative to the segment's base offset."""

NO_LIMIT = -1


class ActiveSegment(Protocol):
    """The fields of the active segment that the roll rules read. The segment itself implements it, because
    copying them for every append would be slow.

    `first_timestamp` is that of the first batch, or NO_TIMESTAMP while the segment is empty.
    """

    base_offset: int
    size: int
    first_timestamp: int
    created_ms: int

    @property
    def index_entries(self) -> int: ...
    @property
    def time_entries(self) -> int: ...


def must_roll(
    active: ActiveSegment,
    config: TopicConfig,
    size: int,
    last_offset: int,
    max_timestamp: int,
    now_ms: int,
    age_limit_ms: int,
) -> bool:
    """Whether a batch of `size` bytes ending at `last_offset` belongs in a new segment (Kafka's
    LogSegment.shouldRoll).
    """
    if active.size == 0:
        return last_offset - active.base_offset > LARGEST_RELATIVE_OFFSET
    return (
        active.size + size > config.segment_bytes
        or last_offset - active.base_offset > LARGEST_RELATIVE_OFFSET
        or active.index_entries >= config.segment_index_bytes // OFFSET_ENTRY.size
        or active.time_entries >= config.segment_index_bytes // TIME_ENTRY.size
        or _age_ms(active, max_timestamp, now_ms) > age_limit_ms
    )


def count_for_segment(
    active: ActiveSegment, config: TopicConfig, batches: Sequence[tuple[int, BatchHeader]], age_limit_ms: int
) -> int:
    """How many of the batches belong in the same segment as the first one, and can be written together.
    `must_roll` decides about the next one.
    """
    size, first = active.size, batches[0][1]
    oldest = active.first_timestamp if active.size else first.first_timestamp
    index_bytes = max(active.index_entries * OFFSET_ENTRY.size, active.time_entries * TIME_ENTRY.size)
    count = 0
    for _, header in batches:
        size += header.size
        index_bytes += TIME_ENTRY.size
        fits = (
            size <= config.segment_bytes
            and header.last_offset - active.base_offset <= LARGEST_RELATIVE_OFFSET
            and index_bytes <= config.segment_index_bytes
            and NO_TIMESTAMP not in (oldest, header.max_timestamp)
            and header.max_timestamp - oldest <= age_limit_ms
        )
        if count and not fits:
            break
        count += 1
    return count


def age_limit_ms(config: TopicConfig) -> int:
    """Maximum age of the active segment. Compaction needs rolled segments, so max.compaction.lag.ms applies
    too (KIP-354).
    """
    compacts = "compact" in config.cleanup_policy
    return min(config.segment_ms, config.max_compaction_lag_ms) if compacts else config.segment_ms


def draw_age_limit_ms(config: TopicConfig, rng: Rng) -> int:
    """The age limit for the next active segment, minus a random part (segment.jitter.ms), so that segments do
    not all roll at once.
    """
    jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
    return age_limit_ms(config) - (rng.randrange(jitter_ms) if jitter_ms > 0 else 0)


def must_roll_idle(active: ActiveSegment, now_ms: int, age_limit_ms: int) -> bool:
    """Whether an active segment without appends must be rolled, so that its records can be tiered."""
    return active.size > 0 and now_ms - active.created_ms > age_limit_ms


def count_expired(
    segments: Sequence[SegmentDescriptor],
    config: TopicConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments retention deletes. This may include the active segment, which must be
    rolled first.

    In a tiered partition only segments below the log start offset are deleted here. The tiering planner,
    which knows what has been uploaded, decides about the rest.
    """
    policy_deletes = "delete" in config.cleanup_policy and not config.remote_storage_enable
    is_limited = policy_deletes and config.retention_bytes != NO_LIMIT
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes if is_limited else 0
    count = 0
    for segment in segments:
        below_start = segment.end_offset <= log_start_offset and segment.rolled
        too_old = (
            policy_deletes
            and config.retention_ms != NO_LIMIT
            and _too_old(segment, config.retention_ms, now_ms)
        )
        too_large = is_limited and segment.rolled and excess >= segment.size_bytes
        if segment.end_offset > high_watermark or not (below_start or too_old or too_large):
            break
        if segment.size_bytes == 0 and not segment.rolled:
            break
        excess -= segment.size_bytes
        count += 1
    return count


def _age_ms(active: ActiveSegment, max_timestamp: int, now_ms: int) -> int:
    """Age by record timestamps if there are any, so that a copy of old records rolls at the same offsets as
    the original.
    """
    if active.first_timestamp != NO_TIMESTAMP and max_timestamp != NO_TIMESTAMP:
        return max_timestamp - active.first_timestamp
    return now_ms - active.created_ms


def _too_old(segment: SegmentDescriptor, retention_ms: int, now_ms: int) -> bool:
    return now_ms - segment.newest_ms > retention_ms
