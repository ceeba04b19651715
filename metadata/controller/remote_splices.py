"""Replacement of remote segments, and removal of expired pages: changes within the manifest's tree of pages.

A command names the nodes of the quorum that it replaces and what takes their place, so it is refused if the
manifest has changed in between. The controller does not read pages. It checks what their references say:
range of offsets, number of segments and bytes of the new page are those of the old one, without what leaves
and with what comes. Invariants: those of `remote`.
"""

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal, check_format, done
from tierlog.metadata.controller.remote import (
    check_announced_page,
    check_epoch,
    check_leader,
    count_segments,
    dropped_alone,
    dropped_segment,
    dropped_with_segments,
    find_run,
    is_tiered,
    partition_of,
)
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.protocol.errors import ErrorCode

MAX_REPLACED = 512  # segments that one command replaces; the record contains their ids


def replace_segments(
    image: ClusterImage, command: c.ReplaceSegments, now_ms: int
) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_leader(partition, command.broker_id, command.leader_epoch)
    check_format(image, 2)
    if not is_tiered(image, command.topic_id):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the topic is not tiered: nothing of it is replaced")
    remote = image.remote_partition(command.topic_id, command.partition)
    if _is_done(remote, command):
        return done()
    old, new, page = command.old, command.new, command.page
    if not 0 < len(old) <= MAX_REPLACED or not 0 < len(new) <= MAX_REPLACED:
        raise _refused(f"{len(old)} segments cannot be replaced by {len(new)}: at most {MAX_REPLACED}")
    if not (_is_contiguous(old) and _is_contiguous(new)) or _span(old) != _span(new):
        raise _refused("the new segments have another range of offsets than the old ones")
    for segment in new:
        _check_started(remote, segment, command.leader_epoch)
    if page is None:
        if command.replaced_page or command.inner_pages or command.old_inner_pages:
            raise _refused("pages, but no new page of the quorum")
        replaced = tuple(segment.uuid for segment in old)
        if find_run(remote, replaced) != old:
            raise _refused("the old segments are not as in the manifest")
        return done(_spliced(command, replaced, (), new, new, tuple(map(dropped_segment, old)), now_ms))
    known = _page(remote, command)
    _check_inner(image, remote, command, page)
    named = {node.uuid for node in remote.nodes}
    if any(segment.uuid in named for segment in old):
        raise _refused("an old segment is not in the page, but an entry of the quorum")
    if _span([page]) != _span([known]) or not _contains(known, old) or not _accounts(page, known, old, new):
        raise _refused(f"page {page.uuid} does not contain what page {known.uuid} did, with the new segments")
    dropped = (
        *map(dropped_segment, old),
        *map(dropped_alone, (*command.old_inner_pages, known)),
    )
    named_now: tuple[r.ManifestNode, ...] = (*new, *command.inner_pages, page)
    return done(_spliced(command, (known.uuid,), (page,), (), named_now, dropped, now_ms))


def trim_pages(image: ClusterImage, command: c.TrimPages, now_ms: int) -> Decision[c.Acknowledged]:
    partition = partition_of(image, command.topic_id, command.partition)
    check_epoch(partition, command.leader_epoch)
    check_format(image, 2)
    remote = image.remote_partition(command.topic_id, command.partition)
    page, gone = command.page, command.dropped
    if page in remote.pages:
        return done()
    known = _page(remote, command)
    _check_inner(image, remote, command, page)
    if known != remote.pages[0] or not known.level:
        raise _refused(f"page {known.uuid} is not the oldest one, or contains entries")
    gaps = not gone or not _is_contiguous((*gone, page)) or gone[0].base_offset != known.base_offset
    if gaps or page.last_offset != known.last_offset or gone[-1].last_offset >= remote.log_start_offset:
        raise _refused("what is dropped is not the part of the page below the log start")
    if not _accounts(page, known, gone, ()):
        raise _refused(f"page {page.uuid} does not contain the rest of page {known.uuid}")
    dropped = (
        *map(dropped_with_segments, gone),
        *map(dropped_alone, (*command.old_inner_pages, known)),
    )
    named_now = (*command.inner_pages, page)
    return done(_spliced(command, (known.uuid,), (page,), (), named_now, dropped, now_ms))


def _is_done(remote: RemotePartition, command: c.ReplaceSegments) -> bool:
    """Whether the command is a repetition."""
    if command.page is not None:
        return command.page in remote.pages
    return bool(command.new) and set(command.new) <= set(remote.entries)


def _check_started(remote: RemotePartition, segment: r.RemoteSegment, leader_epoch: int) -> None:
    started = next((copy for copy in remote.started if copy.uuid == segment.uuid), None)
    if started is None or not started.replaces:
        raise _refused(f"segment {segment.uuid} was not announced as a replacement, or was abandoned")
    if (started.base_offset, started.last_offset) != (segment.base_offset, segment.last_offset):
        raise _refused(f"segment {segment.uuid} was announced for other offsets")
    if segment.leader_epoch != leader_epoch or started.leader_epoch != leader_epoch:
        message = f"segment {segment.uuid} is of leader epoch {segment.leader_epoch}, not {leader_epoch}"
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, message)


def _page(remote: RemotePartition, command: c.ReplaceSegments | c.TrimPages) -> r.PageRef:
    """The page of the quorum that the command replaces."""
    known = next((page for page in remote.pages if page.uuid == command.replaced_page), None)
    if known is None:
        raise _refused(f"page {command.replaced_page} is not in the manifest")
    return known


def _check_inner(
    image: ClusterImage, remote: RemotePartition, command: c.ReplaceSegments | c.TrimPages, page: r.PageRef
) -> None:
    known, inner, old_inner = _page(remote, command), command.inner_pages, command.old_inner_pages
    for one in (page, *inner):
        check_announced_page(image, one)
    levels = [one.level for one in inner]
    if page.level != known.level or levels != [one.level for one in old_inner]:
        raise _refused("new pages must have the levels of the pages that they replace")
    if any(not 0 <= level < page.level for level in levels) or len(set(levels)) != len(levels):
        raise _refused("inner pages must be one of each level, below the page of the quorum")
    named = {node.uuid for node in remote.nodes}
    if any(one.uuid in named or not _contains(known, [one]) for one in old_inner):
        raise _refused(f"a replaced page is not below page {known.uuid}")


def _accounts(
    page: r.PageRef, known: r.PageRef, gone: Sequence[r.ManifestNode], come: Sequence[r.ManifestNode]
) -> bool:
    entries = known.entries - count_segments(gone) + count_segments(come)
    log_bytes = known.log_bytes - sum(one.log_bytes for one in gone) + sum(one.log_bytes for one in come)
    newest = max((one.max_timestamp for one in come), default=page.max_timestamp)
    return page.entries == entries and page.log_bytes == log_bytes and page.max_timestamp >= newest


def _spliced(
    command: c.ReplaceSegments | c.TrimPages,
    replaced: tuple[UUID, ...],
    pages: tuple[r.PageRef, ...],
    entries: tuple[r.RemoteSegment, ...],
    finished: tuple[r.ManifestNode, ...],
    dropped: tuple[r.DroppedObject, ...],
    now_ms: int,
) -> r.RemoteLogSpliced:
    return r.RemoteLogSpliced(
        topic_id=command.topic_id,
        partition=command.partition,
        replaced=replaced,
        pages=pages,
        entries=entries,
        finished=tuple(node.uuid for node in finished),
        dropped=dropped,
        at_ms=now_ms,
    )


def _contains(page: r.PageRef, nodes: Sequence[r.ManifestNode]) -> bool:
    base, last = _span(nodes)
    return page.base_offset <= base and last <= page.last_offset


def _span(nodes: Sequence[r.ManifestNode]) -> tuple[int, int]:
    return nodes[0].base_offset, nodes[-1].last_offset


def _is_contiguous(nodes: Sequence[r.ManifestNode]) -> bool:
    return all(one.base_offset <= one.last_offset for one in nodes) and all(
        two.base_offset == one.end_offset for one, two in pairwise(nodes)
    )


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
