"""Tiering planner: decides what to upload and what to delete for one partition. Pure.

`plan` takes the image's remote state, the local segments, the policy, the leader's view and the time, and
returns actions in order. Invariants:

- Copies are in offset order and without gaps. Only rolled segments are copied that end at or below the high
  watermark and the last stable offset, and that are not known to be damaged.
- Local data at or above the log start offset is deleted only if a finished entry is committed in the quorum
  and, on the leader, is in the bucket's manifest, and no damage of its remote copy is known.
- The log start offset never passes the high watermark.
- After tiering is switched off, one step deletes all remote data and moves the log start to the local log
  start. Until then remote data stays readable. Data that was never copied is not deleted.

Retention counts disjoint ranges (pages, entries, then local segments above them), so it also works while
uploads fail. Each replica rolls its own segments, so the remote part may end within a segment of the current
leader. A log may have thousands of segments, and most plans read only the oldest few that are not copied, and
as many of the newest as a limit of bytes keeps (`DescribedSegments`). Called by the remote log manager.
"""

import sys
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

from tierlog.base.safeguards import safeguard
from tierlog.base.segments import SegmentDescriptor
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.tiering.page_tree import (
    TREE_LIMITS_1,
    Pages,
    Spill,
    TreeLimits,
    Trimmed,
    path_to,
    spill_of,
    trimmed,
)

ROOT_SEGMENTS, ROOT_BYTES, ROOT_INTERVAL_MS = 16, 64 << 20, 1000
"""One write of a manifest root lists at most so many new segments and bytes, or all of so much time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """Effective retention limits in milliseconds and bytes; -1: none. Once tiering was switched off, the
    local ones have no effect (KIP-950)."""

    enabled: bool = True  # false: tiering was switched off
    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int = -1
    local_retention_bytes: int = -1
    copy: bool = True  # false: remote.log.copy.disable (KIP-950)
    delete: bool = True  # cleanup.policy contains delete


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderView:
    """State of the leader. `bucket_end`: end offset of the bucket's manifest, None if unknown.

    `log_start_offset`: of the local log. It is above the committed one if retention moved it before tiering
    was switched on, when each replica applied retention itself.
    """

    leader_epoch: int
    high_watermark: int
    last_stable_offset: int
    bucket_end: int | None
    damaged_from: int = sys.maxsize  # first offset of damaged remote ranges that are still on the local disk
    log_start_offset: int = 0
    running: frozenset[uuid.UUID] = frozenset()  # copies that this process is running
    pages: Pages = field(default_factory=dict)  # those that lead to the log start, if they are loaded
    limits: TreeLimits = TREE_LIMITS_1


@dataclass(frozen=True, slots=True)
class Copy:
    """Upload this segment, or its part from `start_offset` if the part before is already remote. The driver
    runs one copy per partition at a time, in the order of the plan."""

    segment: SegmentDescriptor
    start_offset: int | None = None


@dataclass(frozen=True, slots=True)
class DropLocal:
    """Raise the local log start offset, then delete the segments below."""

    new_local_start: int


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """Commit a higher log start offset. Entries completely below it move to the delete queue."""

    offset: int


@dataclass(frozen=True, slots=True)
class DropRemote:
    """Delete everything remote, since tiering was switched off. The log then starts at the local log
    start."""

    local_log_start: int


@dataclass(frozen=True, slots=True)
class TrimPages:
    """Write the oldest page of the quorum again, without pages below the log start."""

    page: PageRef
    new: Trimmed


@dataclass(frozen=True, slots=True)
class Abandon:
    """Abandon a started copy of an older epoch, or one that a restart interrupted."""

    uuid: uuid.UUID


@dataclass(frozen=True, slots=True)
class Blocked:
    """Copying cannot continue; the reason is reported to operators."""

    reason: str


@dataclass(frozen=True, slots=True)
class UploadLag:
    """Records above the log start offset that are not uploaded. `bytes`, `segments`: of rolled segments.
    `age_ms`: age of the oldest record, in a rolled or the active segment; 0 if there is none."""

    bytes: int
    segments: int
    age_ms: int


Action = Copy | DropLocal | MoveLogStart | DropRemote | Spill | TrimPages | Abandon | Blocked


def plan(
    remote: RemotePartition,
    segments: Sequence[SegmentDescriptor],
    policy: TierPolicy,
    view: LeaderView,
    now_ms: int,
) -> list[Action]:
    """Actions in the order in which they must run. `segments`: oldest first, the last one active."""
    return list(actions(remote, segments, policy, view, now_ms))


def actions(
    remote: RemotePartition,
    segments: Sequence[SegmentDescriptor],
    policy: TierPolicy,
    view: LeaderView,
    now_ms: int,
) -> Iterator[Action]:
    """`plan`, for a caller that needs only its first actions."""
    yield from _interrupted(remote, view)
    start = max(remote.log_start_offset, min(view.log_start_offset, view.high_watermark))
    if policy.delete:
        start = max(start, _retained_from(remote, segments, policy, view, now_ms))
    if start > remote.log_start_offset:
        yield MoveLogStart(start)
    if not policy.enabled:
        yield from _drop_of_remote(remote, segments, view, start)
    # a new leader's high watermark may be behind what previous leaders uploaded
    readable = min(_readable_end(remote, policy), view.damaged_from)
    tiered = min(readable, view.bucket_end or 0, view.high_watermark)
    dropped = _droppable_end(segments, policy, tiered, min(start, view.high_watermark), now_ms)
    if dropped > segments[0].base_offset:
        yield DropLocal(dropped)
    if policy.enabled:
        yield from _page_changes(remote, view)
    if policy.enabled and policy.copy:
        yield from _copies(remote, segments, view, start)


@safeguard("interrupted copies are abandoned")
def _interrupted(remote: RemotePartition, view: LeaderView) -> Iterator[Abandon]:
    return (Abandon(copy.uuid) for copy in remote.started if copy.uuid not in view.running)


@safeguard("what is remote is deleted once tiering is off")
def _drop_of_remote(
    remote: RemotePartition, segments: Sequence[SegmentDescriptor], view: LeaderView, log_start: int
) -> Iterator[DropRemote]:
    local_start = max(log_start, segments[0].base_offset)
    if local_start <= view.high_watermark and (remote.first_offset is not None or local_start > log_start):
        yield DropRemote(local_start)


@dataclass(frozen=True, slots=True)
class LogStartPages:
    """The numbers that retention needs from the pages that lead to the log start. The pages are loaded again
    only when their first remaining entry may expire."""

    page: uuid.UUID  # the oldest page of the quorum
    log_start_offset: int
    entry_bytes: int
    max_timestamp: int  # the first entry's
    page_bytes: int  # sum of the entries that remain in the page
    is_trimmed: bool  # no page below it ends below the log start

    def is_of(self, remote: RemotePartition) -> bool:
        first = remote.pages[0].uuid if remote.pages else None
        return self.page == first and self.log_start_offset == remote.log_start_offset


def summarize_log_start_pages(remote: RemotePartition, pages: Pages) -> LogStartPages | None:
    """None if the pages that lead to the log start are not all loaded."""
    if not remote.pages:
        return None
    first, start = remote.pages[0], remote.log_start_offset
    path = path_to(remote.nodes, max(start, first.base_offset), pages)
    if not path or path[-1][0].level:
        return None
    leaf, at = path[-1]
    entry = pages[leaf.uuid][at]
    size = sum(node.log_bytes for node in pages[leaf.uuid][at:])
    size += sum(node.log_bytes for page, index in path[:-1] for node in pages[page.uuid][index + 1 :])
    is_trimmed = trimmed(first, start, pages) is None
    return LogStartPages(first.uuid, start, entry.log_bytes, entry.max_timestamp, size, is_trimmed)


def needs_log_start_pages(
    remote: RemotePartition,
    segments: Sequence[SegmentDescriptor],
    policy: TierPolicy,
    known: LogStartPages | None,
    now_ms: int,
) -> bool:
    """Whether the next plan depends on the pages that lead to the log start."""
    if not remote.pages:
        return False
    is_limited = policy.delete and (policy.retention_ms >= 0 or policy.retention_bytes >= 0)
    if known is None or not known.is_of(remote):
        may_trim = remote.pages[0].level > 0 and remote.log_start_offset > remote.pages[0].base_offset
        return is_limited or may_trim
    if not known.is_trimmed:
        return True
    if not is_limited:
        return False
    if _expired(known.max_timestamp, policy.retention_ms, now_ms):
        return True
    if policy.retention_bytes < 0:
        return False
    size = known.page_bytes - known.entry_bytes + sum(node.log_bytes for node in remote.nodes[1:])
    end = _remote_end(remote)
    size += sum(part.size_bytes for part in _oldest_first(segments, _number_below(end, segments), end))
    return policy.retention_bytes <= size


def _page_changes(remote: RemotePartition, view: LeaderView) -> Iterator[Action]:
    spill = spill_of(remote, view.limits)
    if spill is not None:
        yield spill
    if remote.pages and view.limits.is_tree:
        new = trimmed(remote.pages[0], remote.log_start_offset, view.pages)
        if new is not None:
            yield TrimPages(remote.pages[0], new)


def follower_local_start(
    remote: RemotePartition,
    segments: Sequence[SegmentDescriptor],
    policy: TierPolicy,
    log_start_offset: int,
    now_ms: int,
    damaged_from: int = sys.maxsize,
) -> int:
    """Offset below which a follower may delete local data, because it is remote or deleted; -1 if none. A
    follower need not read the bucket's manifest: segments of committed entries are verified.
    `damaged_from`: as in LeaderView."""
    readable = min(_readable_end(remote, policy), damaged_from)
    return _droppable_end(segments, policy, readable, log_start_offset, now_ms)


def pending_bytes(remote: RemotePartition, segments: Sequence[SegmentDescriptor]) -> int:
    """Upload lag: bytes of rolled segments that are neither in the object store nor below the log start."""
    end = _done_end(remote)
    return sum(_bytes_above(end, segment) for segment in segments if segment.rolled)


def upload_lag(remote: RemotePartition, segments: Sequence[SegmentDescriptor], now_ms: int) -> UploadLag:
    """How far uploads are behind the local log."""
    end = _done_end(remote)
    pending = [segment for segment in segments if segment.end_offset > max(end, segment.base_offset)]
    return UploadLag(
        bytes=pending_bytes(remote, segments),
        segments=sum(segment.rolled for segment in pending),
        age_ms=max(0, now_ms - _oldest_ms(pending[0])) if pending else 0,
    )


class WrittenRoot(Protocol):
    """The remote state in the bucket's manifest root."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def pages(self) -> tuple[PageRef, ...]: ...
    @property
    def entries(self) -> tuple[RemoteSegment, ...]: ...


def unlisted_copies(root: WrittenRoot | None, remote: RemotePartition) -> tuple[RemoteSegment, ...]:
    """The finished copies after those that the root lists, if that is all in which it differs."""
    if root is None or (root.log_start_offset, root.pages) != (remote.log_start_offset, remote.pages):
        return ()
    listed = len(root.entries)
    return remote.entries[listed:] if remote.entries[:listed] == root.entries else ()


def root_may_wait(unlisted: Sequence[RemoteSegment], action: Action | None, age_ms: int) -> bool:
    """Whether the next action may begin before the root lists these copies: one write of the root serves
    several small segments, since with its verification it costs as much as a small copy. `age_ms`: time since
    the root was written."""
    if not unlisted or not isinstance(action, Copy):
        return False
    size = sum(entry.log_bytes for entry in unlisted) + action.segment.size_bytes
    return len(unlisted) < ROOT_SEGMENTS and size <= ROOT_BYTES and age_ms < ROOT_INTERVAL_MS


def _done_end(remote: RemotePartition) -> int:
    """End of the offsets that need no upload, because they are copied or deleted."""
    return max(_remote_end(remote), remote.log_start_offset)


def _copies(
    remote: RemotePartition, segments: Sequence[SegmentDescriptor], view: LeaderView, log_start: int
) -> Iterator[Action]:
    limit = _committed_end(view)
    next_offset, first = _next_base(remote), segments[0]
    if (
        next_offset is not None
        and first.base_offset > next_offset
        and not _gap_is_below_log_start(remote, first, log_start)
    ):
        yield Blocked(
            f"the next copy must start at {next_offset}, the local log starts at {first.base_offset}: elect "
            f"a replica that has the offsets between, or delete the records before {first.base_offset}"
        )
        return
    done_end = max(log_start, -1 if next_offset is None else next_offset)  # below the log start, or copied
    for at in range(_number_below(done_end, segments), len(segments)):
        segment = segments[at]
        if not segment.rolled or segment.end_offset > limit:
            return
        base = segment.base_offset
        start = next_offset if next_offset is not None and base < next_offset else None
        if segment.damaged_end > (base if start is None else start):
            yield Blocked(f"the local segment from {base} is damaged")
            return
        yield Copy(segment, start)
        next_offset = segment.end_offset


@safeguard("only committed records are uploaded")
def _committed_end(view: LeaderView) -> int:
    return min(view.high_watermark, view.last_stable_offset)


def _gap_is_below_log_start(remote: RemotePartition, segment: SegmentDescriptor, log_start: int) -> bool:
    """Whether nothing remote is left and all missing offsets are below the log start, so that readers see no
    gap."""
    return remote.end_offset is None and segment.base_offset <= log_start


def _next_base(remote: RemotePartition) -> int | None:
    return remote.copied_end_offset if remote.end_offset is None else remote.end_offset


def _readable_end(remote: RemotePartition, policy: TierPolicy) -> int:
    """End of the offsets that stay readable without the local log; 0 once tiering was switched off."""
    return remote.end_offset or 0 if policy.enabled else 0


@safeguard("retention.bytes counts a record in both tiers once")
def _remote_end(remote: RemotePartition) -> int:
    """End of the copied offsets. Segments that end above it count as local only."""
    return remote.used_end_offset


@safeguard("local segments stay until the remote copy is committed")
def _droppable_end(
    segments: Sequence[SegmentDescriptor], policy: TierPolicy, tiered_end: int, log_start: int, now_ms: int
) -> int:
    """End of the local segments that may be deleted: below the log start, or remote and past local
    retention."""
    past_sizes = 0
    if policy.local_retention_bytes >= 0:
        sizes = (segments[at].size_bytes for at in range(len(segments) - 1, -1, -1))
        past_sizes = len(segments) - _kept_by_size(sizes, policy.local_retention_bytes)
    end = -1
    for number, segment in enumerate(segments):
        below_start = segment.end_offset <= log_start
        past_time = _expired(segment.newest_ms, policy.local_retention_ms, now_ms)
        past_size = number < past_sizes
        if not segment.rolled or not (
            below_start or (segment.end_offset <= tiered_end and (past_time or past_size))
        ):
            break
        end = segment.end_offset
    return end


def _kept_by_size(newest_first: Iterable[int], limit: int) -> int:
    """How many of the newest sizes a limit of bytes keeps: those up to the limit, and the one that exceeds
    it."""
    kept, size = 0, 0
    for one in newest_first:
        if size >= limit:
            break
        kept, size = kept + 1, size + one
    return kept


class _Range(NamedTuple):
    """A range that retention can only delete completely."""

    end_offset: int
    size_bytes: int
    max_timestamp: int
    closed: bool


@safeguard("retention deletes only committed records")
def _retained_from(
    remote: RemotePartition,
    segments: Sequence[SegmentDescriptor],
    policy: TierPolicy,
    view: LeaderView,
    now_ms: int,
) -> int:
    """First offset that retention keeps: as in Kafka, complete segments are deleted, oldest first."""
    start, end = remote.log_start_offset, _remote_end(remote)
    nodes = _remote_ranges(remote.nodes, view.pages)
    remote_ranges: Iterable[_Range] = (part for part in nodes if part.end_offset > remote.log_start_offset)
    first_local = _number_below(max(start, end), segments)
    past_sizes = 0
    if policy.retention_bytes >= 0:
        remote_ranges = list(remote_ranges)
        newest_first = chain(_newest_first(segments, first_local, end), reversed(remote_ranges))
        kept = _kept_by_size((part.size_bytes for part in newest_first), policy.retention_bytes)
        past_sizes = len(remote_ranges) + len(segments) - first_local - kept
    for number, part in enumerate(chain(remote_ranges, _oldest_first(segments, first_local, end))):
        past_time = _expired(part.max_timestamp, policy.retention_ms, now_ms)
        past_size = number < past_sizes
        if not (past_time or past_size) or not part.closed or part.end_offset > view.high_watermark:
            break
        start = part.end_offset
    return start


# Retention counts disjoint ranges, oldest first. Inexact sizes may delay a deletion but never cause one
# early: a page that is not loaded is one range, and a local segment that starts in the remote part counts no
# bytes (as in Kafka), since only its batches show how many are above.


def _oldest_first(segments: Sequence[SegmentDescriptor], first: int, remote_end: int) -> Iterator[_Range]:
    return (_local_range(segments[at], remote_end) for at in range(first, len(segments)))


def _newest_first(segments: Sequence[SegmentDescriptor], first: int, remote_end: int) -> Iterator[_Range]:
    return (_local_range(segments[at], remote_end) for at in range(len(segments) - 1, first - 1, -1))


def _local_range(segment: SegmentDescriptor, remote_end: int) -> _Range:
    size = segment.size_bytes if segment.base_offset >= remote_end else 0
    return _Range(segment.end_offset, size, segment.newest_ms, segment.rolled)


def _number_below(offset: int, segments: Sequence[SegmentDescriptor]) -> int:
    """How many segments end at or below an offset."""
    return bisect_right(segments, offset, key=lambda segment: segment.end_offset)


def _oldest_ms(segment: SegmentDescriptor) -> int:
    """Timestamp of the first record, or the last write if it has none (see `newest_ms`)."""
    return segment.first_timestamp if segment.first_timestamp > 0 else segment.last_modified_ms


def _remote_ranges(nodes: Sequence[ManifestNode], pages: Pages) -> Iterator[_Range]:
    for node in nodes:
        if isinstance(node, PageRef) and node.uuid in pages:
            yield from _remote_ranges(pages[node.uuid], pages)
        else:
            yield _Range(node.end_offset, node.log_bytes, node.max_timestamp, True)


def _bytes_above(offset: int, segment: SegmentDescriptor) -> int:
    """Bytes of a segment at or above an offset, estimated by the share of its offsets."""
    if segment.base_offset >= offset:
        return segment.size_bytes
    above = max(segment.end_offset - offset, 0)
    return segment.size_bytes * above // (segment.end_offset - segment.base_offset) if above else 0


def _expired(max_timestamp: int, limit_ms: int, now_ms: int) -> bool:
    """A timestamp of 0 or less means none (entries of earlier versions), and does not expire."""
    return limit_ms >= 0 and max_timestamp > 0 and now_ms - max_timestamp > limit_ms
