"""What to copy, drop and forget of one partition: image + local segments + policy -> actions (DESIGN 6).

What holds of every plan: copies come in offset order, without gaps, of rolled segments wholly below the high
watermark and the last stable offset, and of nothing that is known to be damaged; local data is dropped only
where a finished entry stands in the quorum and, by the leader, in the manifest in the bucket; the log start
never passes the high watermark. Retention counts disjoint ranges: pages, entries, then local segments above
them, so that it works with uploads failing too. Replicas roll their logs each for itself, so what is remote
may end within a segment of the leader of today. Called by the runtime; pure.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import RemoteSegment

SPILL_ABOVE_ENTRIES = 384
"""The quorum refuses a copy at 512 entries; spilling starts earlier, so that copies never wait for it."""

SPILL_ENTRIES = 256
"""Entries of one page: about 15 KB compressed, and what a reader of history fetches at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegment:
    """A segment on the leader's disk; `end_offset` exclusive, `max_timestamp` as retention counts it
    (`SegmentInfo.newest_ms`). Below `damaged_end` some of it is known to be damaged; -1 if none is.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp: int
    rolled: bool
    damaged_end: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """Limits in milliseconds and bytes, -1 for none; the local ones as they take effect."""

    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int = -1
    local_retention_bytes: int = -1
    copy: bool = True  # false: remote.log.copy.disable (KIP-950)
    delete: bool = True  # cleanup.policy contains delete


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """Where the leader stands. `bucket_end`: end offset of the manifest in the bucket, None if not known."""

    leader_epoch: int
    high_watermark: int
    last_stable_offset: int
    bucket_end: int | None
    running: frozenset[uuid.UUID] = frozenset()  # copies that this process is carrying out
    pages: Mapping[uuid.UUID, tuple[RemoteSegment, ...]] = field(default_factory=dict)  # those already read


@dataclass(frozen=True, slots=True)
class Copy:
    """Upload this segment, from an offset within it on if one is given: what comes before is remote. The
    manager carries out one per partition at a time, in the plan's order.
    """

    segment: LocalSegment
    start_offset: int | None = None


@dataclass(frozen=True, slots=True)
class DropLocal:
    """Raise the local log start, then unlink the segments below."""

    new_local_start: int


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Commit a higher log start; what lies wholly below leaves the manifest for the delete queue."""

    offset: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Write these oldest entries to a page, then let the quorum forget them."""

    entries: tuple[RemoteSegment, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """A copy that nobody carries out any more: of an older epoch, or cut off by a restart."""

    uuid: uuid.UUID


@dataclass(frozen=True, slots=True)
class Blocked:
    """Copying cannot go on; people have to know why."""

    reason: str


Action = Copy | DropLocal | MoveLogStart | Spill | Abandon | Blocked


def plan(
    remote: RemotePartition,
    segments: Sequence[LocalSegment],
    policy: TierPolicy,
    view: LeaderView,
    now_ms: int,
) -> list[Action]:
    """The actions, in the order in which to carry them out. `segments` oldest first, the last one active."""
    actions: list[Action] = [Abandon(copy.uuid) for copy in remote.started if copy.uuid not in view.running]
    start = remote.log_start_offset
    if policy.delete:
        start = max(start, _retained_from(remote, segments, policy, view, now_ms))
        if start > remote.log_start_offset:
            actions.append(MoveLogStart(start))
    # a leader that has just come may know less to be committed than those before it uploaded
    tiered = min(remote.end_offset or 0, view.bucket_end or 0, view.high_watermark)
    dropped = _droppable_end(segments, policy, tiered, min(start, view.high_watermark), now_ms)
    if segments and dropped > segments[0].base_offset:
        actions.append(DropLocal(dropped))
    if len(remote.entries) > SPILL_ABOVE_ENTRIES:
        actions.append(Spill(remote.entries[:SPILL_ENTRIES]))
    if policy.copy:
        actions += _copies(remote, segments, view, start)
    return actions


def follower_local_start(
    remote: RemotePartition,
    segments: Sequence[LocalSegment],
    policy: TierPolicy,
    log_start_offset: int,
    now_ms: int,
) -> int:
    """Below it a follower may drop what it has, which is remote or deleted; -1 if nothing. It uploads
    nothing, and need not know the bucket: what a committed entry names was verified.
    """
    return _droppable_end(segments, policy, remote.end_offset or 0, log_start_offset, now_ms)


def pending_bytes(remote: RemotePartition, segments: Sequence[LocalSegment]) -> int:
    """Bytes of rolled segments that are not in the object store yet: the upload lag."""
    end = _remote_end(remote)
    return sum(_bytes_above(end, segment) for segment in segments if segment.rolled)


def _copies(
    remote: RemotePartition, segments: Sequence[LocalSegment], view: LeaderView, log_start: int
) -> Iterator[Action]:
    limit = min(view.high_watermark, view.last_stable_offset)
    following = _next_base(remote)
    for segment in segments:
        if not segment.rolled or segment.end_offset > limit:
            return
        if segment.end_offset <= max(log_start, -1 if following is None else following):
            continue  # below the log start, or finished
        base = segment.base_offset
        if following is not None and base > following and not _bridged(remote, segment, log_start):
            yield Blocked(f"the next copy must start at {following}, the local segment starts at {base}")
            return
        start = following if following is not None and base < following else None
        if segment.damaged_end > (base if start is None else start):
            yield Blocked(f"the local segment from {base} is damaged")
            return
        yield Copy(segment, start)
        following = segment.end_offset


def _bridged(remote: RemotePartition, segment: LocalSegment, log_start: int) -> bool:
    """Nothing remote is left, and what is missing lies below the log start: no gap for a reader."""
    return remote.end_offset is None and segment.base_offset <= log_start


def _next_base(remote: RemotePartition) -> int | None:
    return remote.copied_end_offset if remote.end_offset is None else remote.end_offset


def _remote_end(remote: RemotePartition) -> int:
    """End of what is finished; segments that end above it count as local only."""
    return remote.end_offset or remote.copied_end_offset or 0


def _droppable_end(
    segments: Sequence[LocalSegment], policy: TierPolicy, tiered_end: int, log_start: int, now_ms: int
) -> int:
    """End of the local segments that may go: below the log start, or tiered and past local retention."""
    size = sum(segment.size_bytes for segment in segments)
    end = -1
    for segment in segments:
        below_start = segment.end_offset <= log_start
        past_time = _expired(segment.max_timestamp, policy.local_retention_ms, now_ms)
        past_size = 0 <= policy.local_retention_bytes <= size - segment.size_bytes
        if not segment.rolled or not (
            below_start or (segment.end_offset <= tiered_end and (past_time or past_size))
        ):
            break
        size -= segment.size_bytes
        end = segment.end_offset
    return end


@dataclass(frozen=True, slots=True)
class _Range:
    """A stretch of history that retention can only drop whole."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    closed: bool


def _retained_from(
    remote: RemotePartition,
    segments: Sequence[LocalSegment],
    policy: TierPolicy,
    view: LeaderView,
    now_ms: int,
) -> int:
    """First offset that retention keeps, counted as Kafka does: oldest first, whole segments."""
    ranges = [part for part in _ranges(remote, segments, view) if part.end_offset > remote.log_start_offset]
    size = sum(part.size_bytes for part in ranges)
    start = remote.log_start_offset
    for part in ranges:
        past_time = _expired(part.max_timestamp, policy.retention_ms, now_ms)
        past_size = 0 <= policy.retention_bytes <= size - part.size_bytes
        if not (past_time or past_size) or not part.closed or part.end_offset > view.high_watermark:
            break
        size -= part.size_bytes
        start = part.end_offset
    return start


def _ranges(remote: RemotePartition, segments: Sequence[LocalSegment], view: LeaderView) -> Iterator[_Range]:
    """Disjoint, oldest first. What is not known exactly makes ranges go later, never earlier: a page that was
    not read is one range, and a local segment whose beginning is remote counts no bytes (as in Kafka), since
    only its batches tell how many lie above."""
    for page in remote.pages:
        read = view.pages.get(page.uuid)
        if read is None:
            yield _Range(page.last_offset + 1, page.log_bytes, page.max_timestamp, True)
        else:
            yield from map(_entry_range, read)
    yield from map(_entry_range, remote.entries)
    end = _remote_end(remote)
    for segment in segments:
        if segment.end_offset > end:
            size = segment.size_bytes if segment.base_offset >= end else 0
            yield _Range(segment.end_offset, size, segment.max_timestamp, segment.rolled)


def _bytes_above(offset: int, segment: LocalSegment) -> int:
    """How much of a segment lies at or above an offset; by the share of its offsets if it lies within."""
    if segment.base_offset >= offset:
        return segment.size_bytes
    above = max(segment.end_offset - offset, 0)
    return segment.size_bytes * above // (segment.end_offset - segment.base_offset) if above else 0


def _entry_range(entry: RemoteSegment) -> _Range:
    return _Range(entry.end_offset, entry.log_bytes, entry.max_timestamp, True)


def _expired(max_timestamp: int, limit_ms: int, now_ms: int) -> bool:
    """A maximum of 0 or less is none (entries of earlier versions): such data does not expire by time."""
    return limit_ms >= 0 and max_timestamp > 0 and now_ms - max_timestamp > limit_ms
