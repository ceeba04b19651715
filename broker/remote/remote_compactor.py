"""Remote compactor: compacts the history of a tiered topic in the object store.

The log cleaner leaves tiered topics alone. Segments that have left the leader's local log are compacted here
by the same rules: the keys of the dirty range are read into an offset map. Then every segment below its end
is downloaded to a scratch directory, filtered, and replaced if anything changes. Segments are replaced one by
one, in the order of offsets, so readers see a valid compacted log at any time, and an interrupted pass loses
nothing. A segment says in its manifest entry up to where it has been compacted. Called by the segment
merger, the only other part that replaces segments.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from tierlog.base.clock import Clock
from tierlog.base.files import Files
from tierlog.base.leader_epochs import EpochEntry, LeaderEpochs, earliest_starts
from tierlog.base.segments import SegmentDescriptor, SegmentExport
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.manifest_editor import AnnouncedBody
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.cleaner import Cleaner, CleanerThrottler, CleaningJob
from tierlog.broker.storage.core.compaction import LogToClean, last_records_of_producers
from tierlog.broker.storage.log_suffix import index_file, require_space
from tierlog.broker.storage.segment import Segment
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.records import ManifestNode, RemoteSegment, codec_tags, compaction_tags
from tierlog.records.chunks import ChunkBuilder
from tierlog.records.indexes import AbortedTxn, decode_txn_index, encode_txn_index
from tierlog.tiering.copier import Attempt, SegmentFile
from tierlog.tiering.download import read_chunk
from tierlog.tiering.format.bundle import IndexBundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierManager
from tierlog.tiering.object_store import ObjectStore
from tierlog.tiering.rate_limit import RateLimit
from tierlog.tiering.remote_log import RemoteLog

_log = structlog.get_logger("tierlog.tiering")


def can_be_compacted(entry: RemoteSegment, config: TopicConfig, local_start: int, now_ms: int) -> bool:
    """Whether a segment is below the local log, and older than min.compaction.lag.ms. Consumers of the local
    log see every record, and after one that was deleted they need delete.retention.ms to reach its tombstone.
    """
    lag_ms = config.min_compaction_lag_ms
    return entry.end_offset <= local_start and (lag_ms <= 0 or entry.max_timestamp <= now_ms - lag_ms)


def _bytes_below(offset: int, node: ManifestNode) -> int:
    """Bytes of a segment or page below an offset, estimated by the share of its offsets."""
    offsets = node.end_offset - node.base_offset
    return node.log_bytes * min(max(offset - node.base_offset, 0), offsets) // offsets


class RemoteCompactor:
    """`scratch`: a directory of its own, for one segment before and after its compaction."""

    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        log_manager: RemoteLogManager,
        manager: TierManager,
        remote_log: RemoteLog,
        store: ObjectStore,
        keys: Keys,
        files: Files,
        clock: Clock,
        scratch: Path,
        rate: RateLimit,
    ) -> None:
        self.settings = settings
        self._metadata = metadata
        self._log_manager = log_manager
        self._manager = manager
        self._remote_log = remote_log
        self._store = store
        self._keys = keys
        self._files = files
        self._clock = clock
        self._scratch = scratch
        self._rate = rate
        self._clean_to: dict[TopicIdPartition, tuple[int, int]] = {}
        """Leader epoch, and where the dirty part of the partition begins at the earliest."""
        self._logged_malformed: dict[TopicIdPartition, set[int]] = {}  # base offsets of malformed batches
        self.compactions = self.segments = self.bytes_read = self.bytes_written = 0

    def forget_all_but(self, led: set[TopicIdPartition]) -> None:
        """Forget partitions that this broker no longer leads."""
        for where in self._clean_to.keys() - led:
            del self._clean_to[where]
        for where in self._logged_malformed.keys() - led:
            del self._logged_malformed[where]

    async def compact(self, replica: Replica) -> None:
        """Compact a partition if it is dirty enough. Raises ObjectStoreError, CommandRejected,
        MetadataUnavailable, NotUploadable, OSError of the scratch directory, RecordsError or CorruptLog; what
        was replaced before stays."""
        if "compact" not in replica.config.cleanup_policy or replica.config.remote_log_copy_disable:
            self._clean_to.pop(replica.id, None)
            return
        dirty = await self._dirty(replica)
        if dirty.needs_cleaning(replica.config):
            await self._clean(replica, dirty)

    async def _dirty(self, replica: Replica) -> LogToClean:
        """Reads the entries from the first dirty one to the first that cannot be compacted yet."""
        where, config, now_ms = replica.id, replica.config, self._clock.now_ms()
        remote, leader_epoch = self._resolve(where), replica.leader_epoch
        start = max(remote.log_start_offset, remote.first_offset or 0)
        known_epoch, begin = self._clean_to.get(where, (leader_epoch, 0))
        begin = max(begin, start) if known_epoch == leader_epoch else start
        first, end, dirty_bytes, oldest = None, begin, 0, None
        if remote.first_offset is not None:
            async for entry in self._remote_log.entries(where, begin):
                if first is None and entry.compacted_to >= entry.end_offset:
                    begin = end = entry.end_offset
                    continue
                if not can_be_compacted(entry, config, replica.local_log_start_offset, now_ms):
                    break
                if first is None:
                    first = max(start, entry.base_offset, entry.compacted_to)
                end, dirty_bytes = entry.end_offset, dirty_bytes + entry.log_bytes
                if entry.first_timestamp > 0:
                    oldest = min(oldest or entry.first_timestamp, entry.first_timestamp)
        self._clean_to[where] = leader_epoch, begin
        clean_bytes = max(0, sum(_bytes_below(end, node) for node in remote.nodes) - dirty_bytes)
        is_overdue = oldest is not None and oldest < now_ms - config.max_compaction_lag_ms
        return LogToClean(begin if first is None else first, end, clean_bytes, dirty_bytes, is_overdue)

    async def _clean(self, replica: Replica, dirty: LogToClean) -> None:
        where, leader_epoch = replica.id, replica.leader_epoch
        await asyncio.to_thread(self._clear_scratch)
        stop = threading.Event()
        throttler = CleanerThrottler(
            self._clock, stop, lambda: self.settings.log_cleaner_io_max_bytes_per_second
        )
        settings = self.settings
        cleaner = Cleaner(
            await self._job(replica, dirty),
            throttler,
            settings.log_cleaner_dedupe_buffer_size,
            settings.log_cleaner_io_buffer_load_factor,
        )
        replaced = 0
        try:
            async for entry in self._remote_log.entries(where, dirty.first_offset):
                if entry.end_offset > dirty.end_offset:
                    break
                async with self._downloaded(where, entry) as segment:
                    if not await asyncio.to_thread(cleaner.add_keys, segment):
                        break
            offset = 0
            while (first := self._resolve(where).first_offset) is not None:
                offset = max(offset, first)  # retention continues
                if offset >= cleaner.cleaned_to:
                    break
                if not replica.is_leader or replica.leader_epoch != leader_epoch:
                    return  # an unclean election may have removed segments whose keys were read
                entry = await self._remote_log.entry(where, offset)
                replaced += await self._clean_segment(replica, leader_epoch, entry, cleaner, throttler.rest)
                offset = entry.end_offset
        finally:
            stop.set()
            self.bytes_read += cleaner.bytes_read
            self.bytes_written += cleaner.bytes_written
            cleaner.log_malformed(replica.name, self._logged_malformed.setdefault(where, set()))
        self.compactions += 1
        _log.info(
            "remote_compaction.ended",
            partition=str(replica.name),
            to_offset=cleaner.cleaned_to,
            replaced_segments=replaced,
            read_bytes=cleaner.bytes_read,
            kept_bytes=cleaner.bytes_written,
            keys=cleaner.keys,
        )

    async def _job(self, replica: Replica, dirty: LogToClean) -> CleaningJob:
        """Reads all entries for their leader epochs, and the transaction indexes of those with aborts."""
        where, epochs, aborted = replica.id, tuple[EpochEntry, ...](), set[AbortedTxn]()
        async for entry in self._remote_log.entries(where):
            epochs = earliest_starts(epochs, entry.leader_epochs)
            if entry.has_aborts:
                index = await self._remote_log.indexes.index(where, entry)
                aborted.update(decode_txn_index(await self._remote_log.indexes.txn_index(index)))
        return CleaningJob(
            self._files,
            self._scratch,
            replica.config,
            (),
            dirty.first_offset,
            dirty.end_offset,
            sorted(aborted, key=lambda one: (one.last_offset, one.producer_id)),
            last_records_of_producers(replica.log.producers),
            LeaderEpochs(epochs),
            self._clock.now_ms(),
        )

    async def _clean_segment(
        self,
        replica: Replica,
        leader_epoch: int,
        entry: RemoteSegment,
        cleaner: Cleaner,
        rest: Callable[[], None],
    ) -> int:
        """Returns the number of replaced segments, 0 or 1."""
        where = replica.id
        if not entry.records and entry.compacted_to >= entry.end_offset:
            return 0  # nothing is left to remove
        async with self._downloaded(where, entry) as source:
            swap = await asyncio.to_thread(cleaner.clean, (source,))
            end_offset = min(cleaner.cleaned_to, entry.end_offset)
            has_aborts = bool(cleaner.aborted)
            if swap is None and entry.compacted_to >= end_offset and entry.has_aborts == has_aborts:
                return 0
            cleaned = source if swap is None else swap.cleaned
            bundle = await self._remote_log.indexes.bundle(where, entry)
            interval_bytes = replica.config.index_interval_bytes
            export = partial(_export, cleaned, entry, bundle, interval_bytes, rest, tuple(cleaner.aborted))
            await self._replace(where, leader_epoch, entry, await asyncio.to_thread(export), end_offset)
        self.segments += 1
        return 1

    async def _replace(
        self,
        where: TopicIdPartition,
        leader_epoch: int,
        old: RemoteSegment,
        exported: tuple[SegmentExport, ChunkBuilder],
        compacted_to: int,
    ) -> None:
        compacted_at = max(self._clock.now_ms(), old.compacted_at + 1)
        tags = compaction_tags(compacted_to, compacted_at) + codec_tags((old,))
        resolve = partial(self._resolve, where)

        async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
            body = AnnouncedBody(SegmentFile(*exported), attempt, resolve)
            return replace(await self._manager.upload(body, attempt), tags=tags)

        await self._log_manager.editor.replace(
            where, leader_epoch, resolve, (old,), (old.end_offset,), upload
        )

    def _resolve(self, where: TopicIdPartition) -> RemotePartition:
        return self._metadata.image.remote_partition(*where)

    # -- scratch files --

    @asynccontextmanager
    async def _downloaded(self, where: TopicIdPartition, entry: RemoteSegment) -> AsyncIterator[Segment]:
        """The verified bytes of a segment, as a file. It and what was made of it are removed at the end."""
        await self._rate.take(entry.log_bytes)
        segment = Segment(self._files, self._scratch, entry.base_offset, 0)
        segment.end_offset, segment.last_modified_ms = entry.end_offset, entry.max_timestamp
        segment.rolled = True
        index = await self._remote_log.indexes.index(where, entry)
        key = self._keys.log(where, entry)
        try:
            await asyncio.to_thread(self._create, segment, entry.log_bytes)
            for chunk in index.chunks_from(entry.base_offset):
                content = await read_chunk(self._store, key, index, chunk, self._remote_log.quarantine)
                await asyncio.to_thread(self._append, segment, content)
            yield segment
        finally:
            segment.close()
            await asyncio.to_thread(self._clear_scratch)

    def _create(self, segment: Segment, size: int) -> None:
        require_space(self._files, size, segment)
        self._files.close(self._files.open(segment.path(), create=True, exclusive=True))

    def _append(self, segment: Segment, content: bytes) -> None:
        fd = self._files.open(segment.path())
        try:
            self._files.writev_at(fd, (content,), segment.size)
        finally:
            self._files.close(fd)
        segment.size += len(content)

    def _clear_scratch(self) -> None:
        self._files.make_directory(self._scratch)
        for name in self._files.list_directory(self._scratch):
            self._files.unlink(self._scratch / name, missing_ok=True)


def _export(
    cleaned: Segment,
    old: RemoteSegment,
    bundle: IndexBundle,
    interval_bytes: int,
    rest: Callable[[], None],
    aborted: Sequence[AbortedTxn],
) -> tuple[SegmentExport, ChunkBuilder]:
    """Indexes and chunks of a file. Epochs and producer state at its end are those of the old segment. Its
    transaction index has only the markers that are in it: no aborted records are left, and a reader would
    wait without end for a marker behind it that compaction has removed."""
    txn_index = encode_txn_index(sorted(aborted, key=lambda one: (one.last_offset, one.producer_id)))
    # a bundle lacks early offsets if the log start had moved before it was written
    epochs = earliest_starts(old.leader_epochs, bundle.leader_epochs)
    cleaned.reset_indexes()
    chunks = index_file(cleaned, interval_bytes, epochs, rest)
    descriptor = SegmentDescriptor(
        base_offset=old.base_offset,
        end_offset=old.end_offset,
        size_bytes=cleaned.size,
        first_timestamp=cleaned.first_timestamp,
        max_timestamp=cleaned.max_timestamp,
        last_modified_ms=old.max_timestamp,
        rolled=True,
        has_transactions=bool(cleaned.has_transactions),
        has_aborts=bool(txn_index),
        leader_epochs=epochs,
        directory=cleaned.directory,
        file_name=cleaned.path().name,
    )
    export = SegmentExport(
        descriptor=descriptor,
        offset_index=bytes(cleaned.offset_index),
        time_index=bytes(cleaned.time_index),
        txn_index=txn_index,
        producer_snapshot=bundle.producer_snapshot,
        leader_epochs=epochs,
    )
    return export, chunks
