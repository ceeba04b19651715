"""When a segment is rolled and which segments are deleted: the rules alone, over values.

Called by the replica on append and by the periodic retention loop.
"""

from collections.abc import Sequence
from typing import Protocol

from tierlog.base.segments import SegmentInfo
from tierlog.base.types import NO_TIMESTAMP, Rng
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import BatchHeader

LARGEST_RELATIVE_OFFSET = 2**31 - 1
"""Index entries hold offsets relative to the segment's base in 32 bits."""

NO_LIMIT = -1


class Fill(Protocol):
    """How full the active segment is: the segment itself, read where it stands, since every append asks.

    `first_timestamp` is that of the first batch, -1 while empty.
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
    fill: Fill,
    config: TopicConfig,
    size: int,
    last_offset: int,
    max_timestamp: int,
    now_ms: int,
    age_limit_ms: int,
) -> bool:
    """Whether a batch of `size` bytes that ends at `last_offset` belongs into a new segment (Kafka's
    LogSegment).
    """
    if fill.size == 0:
        return last_offset - fill.base_offset > LARGEST_RELATIVE_OFFSET
    return (
        fill.size + size > config.segment_bytes
        or last_offset - fill.base_offset > LARGEST_RELATIVE_OFFSET
        or fill.index_entries >= config.segment_index_bytes // 8
        or fill.time_entries >= config.segment_index_bytes // 12
        or _age_ms(fill, max_timestamp, now_ms) > age_limit_ms
    )


def count_fitting(
    fill: Fill, config: TopicConfig, batches: Sequence[tuple[int, BatchHeader]], age_limit_ms: int
) -> int:
    """How many of the batches certainly belong into the same segment as the first: they are written at once.
    Of the next one `must_roll` decides.
    """
    size, first = fill.size, batches[0][1]
    oldest = fill.first_timestamp if fill.size else first.first_timestamp
    entries = max(fill.index_entries * 8, fill.time_entries * 12)
    count = 0
    for _, header in batches:
        size += header.size
        entries += 12
        fits = (
            size <= config.segment_bytes
            and header.last_offset - fill.base_offset <= LARGEST_RELATIVE_OFFSET
            and entries <= config.segment_index_bytes
            and NO_TIMESTAMP not in (oldest, header.max_timestamp)
            and header.max_timestamp - oldest <= age_limit_ms
        )
        if count and not fits:
            break
        count += 1
    return count


def age_limit_ms(config: TopicConfig) -> int:
    """How old the active segment of a topic may be: what is compacted must be rolled first (KIP-354)."""
    compacts = "compact" in config.cleanup_policy
    return min(config.segment_ms, config.max_compaction_lag_ms) if compacts else config.segment_ms


def draw_age_limit_ms(config: TopicConfig, rng: Rng) -> int:
    """How old the next active segment may be, less a random part, so that not all are rolled at once."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return age_limit_ms(config) - (rng.randrange(most) if most > 0 else 0)


def idle_must_roll(fill: Fill, now_ms: int, age_limit_ms: int) -> bool:
    """Whether an active segment that nobody appends to is rolled, so that its records can be tiered."""
    return fill.size > 0 and now_ms - fill.created_ms > age_limit_ms


def expired(
    segments: Sequence[SegmentInfo],
    config: TopicConfig,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """How many of the oldest segments retention deletes. The last one may be among them: roll it first.

    A tiered partition loses here only what lies below its log start: the rest is the tiering planner's, which
    knows what has been uploaded.
    """
    policy_deletes = "delete" in config.cleanup_policy and not config.remote_storage_enable
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        below_start = segment.end_offset <= log_start_offset and segment.rolled
        too_old = (
            policy_deletes
            and config.retention_ms != NO_LIMIT
            and _too_old(segment, config.retention_ms, now_ms)
        )
        too_much = (
            policy_deletes
            and config.retention_bytes != NO_LIMIT
            and segment.rolled
            and excess >= segment.size_bytes
        )
        if segment.end_offset > high_watermark or not (below_start or too_old or too_much):
            break
        if segment.size_bytes == 0 and not segment.rolled:
            break
        excess -= segment.size_bytes
        count += 1
    return count


def _age_ms(fill: Fill, max_timestamp: int, now_ms: int) -> int:
    """By the records' own clock where they have one, so that replayed history is cut as it was first."""
    if fill.first_timestamp != NO_TIMESTAMP and max_timestamp != NO_TIMESTAMP:
        return max_timestamp - fill.first_timestamp
    return now_ms - fill.created_ms


def _too_old(segment: SegmentInfo, retention_ms: int, now_ms: int) -> bool:
    return now_ms - segment.newest_ms > retention_ms
