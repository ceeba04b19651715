"""Segment merger: replaces runs of small remote segments by one, in the background.

A topic that rolls often has many small segments, and each costs an entry of the manifest, two objects, and
requests of every reader. The leader of a partition looks for runs in the quorum's entries and in each
manifest page. It reads a run from the object store, uploads one segment with the same batches, and commits
ReplaceSegments, which the leader epoch fences. Readers finish on the old objects, which are deleted after the
grace. If a merge is interrupted, the planner abandons its copy; once a copy is abandoned, its merge ends.
Each broker runs one merge at a time, of each partition in turn, within
`remote.log.merge.max.bytes.per.second`. After its runs, a partition of a compacted topic is compacted
(`remote_compactor`), so they never change a partition at once. Owned by `tiering`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_editor import AnnouncedBody
from tierlog.broker.remote.remote_compactor import RemoteCompactor
from tierlog.broker.remote.remote_log_manager import CommandRejected, RemoteLogManager
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.node import NodeSettings
from tierlog.config.topic import MAX_LONG, TopicConfig
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import ManifestNode, RemoteSegment, merged_tags
from tierlog.records.errors import RecordsError
from tierlog.tiering.copier import Attempt, NotUploadable
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierManager
from tierlog.tiering.merged_segment import MergedSegment
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.page_tree import index_of
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.segment_index import LARGEST_INDEX_BYTES
from tierlog.tiering.store_health import BreakerOpen
from tierlog.tiering.store_probe import UnsuitableStore

LARGEST_SHARE = 4
"""The largest segment of a run has at most a quarter of its bytes. So each merge makes the segment of a
record at least four times as large, and a record is written again only a few times."""

RETENTION_SHARE = 8
"""A merged segment has at most 1/RETENTION_SHARE of the time and bytes that retention keeps, because it is
deleted as a whole."""

OFFSETS_MAX = (1 << 31) - 1  # indexes have relative offsets of 32 bits
PAGES_PER_PASS = 16  # a long history is searched in several passes
QUEUED_DELETES_MAX = 50_000
"""Deletions in the queue above which nothing is merged: for the grace, every broker and voter keeps each of
them in memory, 370 bytes."""
PASSES_SKIPPED_MAX = 128  # after failures

_log = structlog.get_logger("tierlog.tiering")


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """`segments_min`: of a run. `bytes_max`, `span_ms_max`: of a merged segment; `span_ms_max` is None if its
    time is not limited. `index_bytes_max`: of its index bundle, which is not larger than those of the run."""

    segments_min: int
    bytes_max: int
    span_ms_max: int | None = None
    index_bytes_max: int = LARGEST_INDEX_BYTES


def limits_of(config: TopicConfig, segments_min: int, segment_bytes: int | None = None) -> MergeLimits:
    """`segment_bytes`: instead of the topic's."""
    bytes_max, spans_ms = config.segment_bytes if segment_bytes is None else segment_bytes, list[int]()
    if "delete" in config.cleanup_policy:
        if config.retention_bytes >= 0:
            bytes_max = min(bytes_max, config.retention_bytes // RETENTION_SHARE)
        if config.retention_ms >= 0:
            spans_ms.append(config.retention_ms // RETENTION_SHARE)
    if "compact" in config.cleanup_policy and config.max_compaction_lag_ms < MAX_LONG:
        # a segment is compacted once its newest record may be; its oldest one must not be overdue then
        slack_ms = max(config.max_compaction_lag_ms - config.min_compaction_lag_ms, 0)
        spans_ms.append(slack_ms // RETENTION_SHARE)
    return MergeLimits(segments_min, bytes_max, min(spans_ms, default=None))


def run_to_merge(entries: Sequence[RemoteSegment], limits: MergeLimits) -> Sequence[RemoteSegment]:
    """The first run of successive segments to merge, as long as the limits allow; empty if there is none."""
    for first in range(len(entries) - limits.segments_min + 1):
        if entries[first].log_bytes * LARGEST_SHARE <= limits.bytes_max:  # else it is not small
            count = _run_length(entries, first, limits)
            if count:
                return entries[first : first + count]
    return ()


def _run_length(entries: Sequence[RemoteSegment], first: int, limits: MergeLimits) -> int:
    size = index_bytes = largest = longest = 0
    newest = oldest = entries[first].max_timestamp
    for count, entry in enumerate(entries[first:], start=1):
        size, largest = size + entry.log_bytes, max(largest, entry.log_bytes)
        index_bytes += entry.index_bytes
        newest, oldest = max(newest, entry.max_timestamp), min(oldest, entry.max_timestamp)
        is_long = limits.span_ms_max is not None and newest - oldest > limits.span_ms_max
        is_large = size > limits.bytes_max or index_bytes > limits.index_bytes_max
        if is_large or is_long or entry.last_offset - entries[first].base_offset > OFFSETS_MAX:
            break
        if count >= limits.segments_min and largest * LARGEST_SHARE <= size:
            longest = count
    return longest


class SegmentMerger:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        log_manager: RemoteLogManager,
        manager: TierManager,
        remote_log: RemoteLog,
        store: ObjectStore,
        keys: Keys,
        tasks: TaskGroup,
        rate: RateLimit,
        compactor: RemoteCompactor,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._log_manager = log_manager
        self._manager = manager
        self._remote_log = remote_log
        self._store = store
        self._keys = keys
        self._tasks = tasks
        self._searched: dict[TopicIdPartition, tuple[int, MergeLimits]] = {}
        """End of the pages of each partition in which no run is left, and the limits of that search."""
        self._finished: dict[TopicIdPartition, tuple[RemotePartition, MergeLimits]] = {}
        """The remote state of each partition in which no run is left, and the limits of that search."""
        self._failed: Counter[TopicIdPartition] = Counter()  # merges in a row
        self._skipped: Counter[TopicIdPartition] = Counter()  # passes that are left to skip
        self._rate = rate
        self.compactor = compactor
        self.merges = self.segments = self.bytes = self.errors = 0

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("merge segments", self._turn)

    def configure(self, settings: NodeSettings) -> None:
        """Apply changed settings."""
        self._settings = self.compactor.settings = settings
        self._rate.change(settings.remote_log_merge_max_bytes_per_second)

    async def _turn(self) -> None:
        await asyncio.sleep(self._settings.remote_log_manager_task_interval_ms / 1000)
        await self.merge_all()

    async def merge_all(self) -> None:
        """One pass over the partitions that this broker leads: one run of each in turn, until none has more.
        Ends early if the store is unavailable."""
        if self._metadata.image.format_version < 2:
            return
        led = self._log_manager.tiered
        self._forget_all_but({replica.id for replica in led})
        left = [replica for replica in led if not self._is_skipped(replica.id)]
        try:
            while left:
                left = [replica for replica in left if await self._visit(replica)]
        except (BreakerOpen, UnsuitableStore, MetadataUnavailable):
            return  # reported elsewhere; the next pass tries again

    def _is_skipped(self, where: TopicIdPartition) -> bool:
        is_skipped = self._skipped[where] > 0
        self._skipped[where] -= is_skipped
        return is_skipped

    async def _visit(self, replica: Replica) -> bool:
        """Merge one run, or compact if there is none. Returns whether more runs may be left."""
        where = replica.id
        await asyncio.sleep(0)  # a partition without runs does not wait
        if where in self._log_manager.editor.leased:
            return False  # a job replaces segments
        try:
            if await self._merge_run(replica):
                return True
            await self.compactor.compact(replica)
        except (BreakerOpen, UnsuitableStore, MetadataUnavailable):
            raise
        except NotUploadable as reason:
            _log.info("merge.ended", partition=str(replica.name), reason=str(reason))
        except (ObjectStoreError, CommandRejected, RecordsError, OSError, CorruptLog) as failure:
            self.errors += 1
            self._failed[where] += 1
            self._skipped[where] = min(2 ** self._failed[where], PASSES_SKIPPED_MAX)
            _log.warning("merge.failed", partition=str(replica.name), error=str(failure))
        else:
            self._failed[where] = 0
        return False

    def _forget_all_but(self, led: set[TopicIdPartition]) -> None:
        for states in (self._searched, self._finished, self._failed, self._skipped):
            for where in states.keys() - led:
                del states[where]
        self.compactor.forget_all_but(led)

    async def _merge_run(self, replica: Replica) -> bool:
        """Merge the first run. Returns False if there is none, or if it was not found in PAGES_PER_PASS."""
        where = replica.id
        if not self._settings.remote_log_merge_min_segments:
            return False
        limits = limits_of(replica.config, self._settings.remote_log_merge_min_segments)
        pages = 0
        while replica.is_leader and not replica.config.remote_log_copy_disable and pages < PAGES_PER_PASS:
            image = self._metadata.image
            remote = image.remote_partition(*where)
            if self._finished.get(where) == (remote, limits) or len(image.delete_queue) > QUEUED_DELETES_MAX:
                return False
            searched, searched_by = self._searched.get(where, (0, limits))
            start = max(remote.log_start_offset, remote.first_offset or 0)
            offset = max(searched, start) if searched_by == limits else start
            try:
                entries, is_page = await self._entries_at(where, remote, offset)
            except (CorruptObject, ObjectNotFound):
                at = index_of(remote.nodes, offset)
                if at is None or remote is not self._metadata.image.remote_partition(*where):
                    raise
                # the page is in quarantine; what it lists is not merged
                self._searched[where] = remote.nodes[at].end_offset, limits
                pages += 1
                continue
            parts = self._readable(where, entries, remote.log_start_offset)
            run = next((found for part in parts if (found := run_to_merge(part, limits))), ())
            if run:
                await self.merge(replica, run)
                return True
            if not is_page:
                if len(parts) == 1:  # else the rest may be merged once it is readable
                    self._finished[where] = remote, limits
                return False
            self._searched[where] = entries[-1].end_offset, limits
            pages += 1
        return False

    def _readable(
        self, where: TopicIdPartition, entries: Sequence[RemoteSegment], log_start: int
    ) -> Sequence[Sequence[RemoteSegment]]:
        """The entries above the log start, in parts between those with an object in quarantine."""
        parts: list[list[RemoteSegment]] = [[]]
        damaged = self._remote_log.quarantine.keys
        for entry in entries:
            if damaged and not damaged.isdisjoint(
                (self._keys.log(where, entry), self._keys.index(where, entry))
            ):
                parts.append([])
            elif entry.end_offset > log_start:
                parts[-1].append(entry)
        return parts

    async def _entries_at(
        self, where: TopicIdPartition, remote: RemotePartition, offset: int
    ) -> tuple[Sequence[RemoteSegment], bool]:
        """The entries of the page that contains an offset, or else those of the quorum; and whether they are
        a page's."""
        loaded = await self._remote_log.pages_to(where, remote.nodes, offset)
        nodes: Sequence[ManifestNode] = list(loaded.values())[-1] if loaded else remote.entries
        return list(_segments(nodes)), bool(loaded)

    async def merge(self, replica: Replica, old: Sequence[RemoteSegment]) -> None:
        """Replace successive segments of one page, or of the quorum, by one. Raises ObjectStoreError,
        CommandRejected, MetadataUnavailable, or RecordsError of an index; then the manifest keeps the old
        ones. Raises NotUploadable once the quorum does not know the copy any more: its objects are deleted
        after the grace, and none may be put later."""
        where, log = replica.id, self._remote_log
        resolve = lambda: self._metadata.image.remote_partition(*where)  # noqa: E731
        size = sum(entry.log_bytes for entry in old)
        await self._rate.take(size)

        async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
            merged = MergedSegment(self._store, self._keys, log.indexes, log.quarantine, where, old)
            body = AnnouncedBody(merged, attempt, resolve)
            return replace(await self._manager.upload(body, attempt), tags=merged_tags(old))

        await self._log_manager.editor.replace(
            where,
            replica.leader_epoch,
            resolve,
            old,
            (old[-1].end_offset,),
            upload,
        )
        self.merges, self.segments, self.bytes = self.merges + 1, self.segments + len(old), self.bytes + size
        _log.info("merge.segments", partition=str(replica.name), segments=len(old), bytes=size)


def _segments(nodes: Sequence[ManifestNode]) -> Iterator[RemoteSegment]:
    return (node for node in nodes if isinstance(node, RemoteSegment))
