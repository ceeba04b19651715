"""Remote repair: uploads a segment again whose object is damaged or missing, from intact copies of its
records.

The quarantine knows the damaged ranges. For those of a partition that it leads, the broker reads the same
records from its own local log, or else from another replica that still has them, over the Fetch API, as log
repair does (docs/adr/0015). The rest comes from the damaged object. A chunk is used only if it has the size
and checksum that the index says. So the new object, which replaces the old one in the manifest, has the same
bytes. A damaged index is built again if a local segment has the same offsets. Otherwise the range stays in
quarantine, and repair is tried again, less often each time. Called on the event loop; owned by `tiering`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import structlog
from msgspec.structs import replace

from tierlog.base.clock import Clock
from tierlog.base.files import FileSlice
from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.base.slices import LogSlice
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.remote.manifest_editor import AnnouncedBody
from tierlog.broker.remote.remote_log_manager import CommandRejected, RemoteLogManager
from tierlog.broker.remote.upload_check import checked_segment
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.records.errors import RecordsError
from tierlog.tiering.chunk_cache import ChunkKey
from tierlog.tiering.copier import Attempt, NotUploadable, SegmentBody
from tierlog.tiering.download import read_chunk, verify_chunk
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierManager
from tierlog.tiering.merged_segment import MergedSegment
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.quarantine import DamagedRange
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.segment_index import SegmentIndex

FIRST_RETRY_MS = 10_000
RETRY_MAX_MS = 600_000
"""As the quarantine reads the object itself again."""

_log = structlog.get_logger("tierlog.tiering")

FAILURES = (
    ObjectStoreError,
    CommandRejected,
    MetadataUnavailable,
    NotUploadable,
    RecordsError,
    CorruptLog,
    OSError,
)


@dataclass(slots=True)
class _Retry:
    backoff_ms: int
    due_ms: int  # monotonic


class RemoteRepair:
    def __init__(
        self,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        log_manager: RemoteLogManager,
        manager: TierManager,
        remote_log: RemoteLog,
        store: ObjectStore,
        keys: Keys,
        clock: Clock,
        tasks: TaskGroup,
        log_repair: LogRepair,
        interval_ms: int,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._log_manager = log_manager
        self._manager = manager
        self._remote_log = remote_log
        self._store = store
        self._keys = keys
        self._clock = clock
        self._tasks = tasks
        self._log_repair = log_repair
        self._interval_s = interval_ms / 1000
        self._retries: dict[str, _Retry] = {}  # by object
        self.restored = 0

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("restore remote objects", self._turn)

    async def _turn(self) -> None:
        await asyncio.sleep(self._interval_s)
        await self.repair_all()

    async def repair_all(self) -> None:
        """One pass over the objects in quarantine, of partitions that this broker leads."""
        damaged = self._remote_log.quarantine.damaged
        known = {one.place.key for one in damaged}
        self._retries = {key: retry for key, retry in self._retries.items() if key in known}
        if not damaged or self._metadata.image.format_version < 2:
            return
        led = {replica.id: replica for replica in self._log_manager.tiered}
        for key in sorted(known):
            first = next(one for one in damaged if one.place.key == key)
            replica, retry = led.get(first.place.partition), self._retries.get(key)
            is_due = retry is None or retry.due_ms <= self._clock.monotonic_ms()
            if replica is not None and is_due and not replica.config.remote_log_copy_disable:
                await self._try(replica, first)

    async def _try(self, replica: Replica, damaged: DamagedRange) -> None:
        key = damaged.place.key
        try:
            if await self._repair(replica, damaged):
                self.restored += 1
                self._retries.pop(key, None)
                _log.warning("remote_object.restored", partition=str(replica.name), object=key)
                return
        except FAILURES as failure:
            if key not in self._retries:
                _log.warning(
                    "remote_object.restore_failed",
                    partition=str(replica.name),
                    object=key,
                    error=str(failure),
                )
        before = self._retries.get(key)
        backoff_ms = FIRST_RETRY_MS if before is None else min(2 * before.backoff_ms, RETRY_MAX_MS)
        self._retries[key] = _Retry(backoff_ms, self._clock.monotonic_ms() + backoff_ms)

    async def _repair(self, replica: Replica, damaged: DamagedRange) -> bool:
        """Returns False if the object is no segment or index of the newest manifest."""
        where, place = replica.id, damaged.place
        entry = await self._remote_log.entry(where, max(place.first_offset, replica.log_start_offset))
        objects = self._keys.log(where, entry), self._keys.index(where, entry)
        if place.key not in objects:
            return False
        body = self._local_segment(replica, entry)
        if body is None and place.key == objects[1]:
            raise ObjectNotFound(f"{place.key}: no local segment has the offsets of this index")
        if body is None:
            await self._probe(replica, entry, damaged)
        await self._replace(replica, entry, body or self._mended(replica, entry))
        return True

    async def _replace(self, replica: Replica, old: RemoteSegment, body: SegmentBody) -> None:
        where, leader_epoch = replica.id, replica.leader_epoch
        resolve = partial(self._resolve, replica)

        async def upload(attempt: Attempt, base: int, last: int) -> RemoteSegment:
            new = await self._manager.upload(AnnouncedBody(body, attempt, resolve), attempt)
            if (new.log_bytes, new.log_crc32c) != (old.log_bytes, old.log_crc32c):
                raise CorruptObject(f"{replica.name}: the local segment from {base} has other batches")
            return replace(new, tags=old.tags)

        await self._manager.copy_rate.take(old.log_bytes)
        await self._log_manager.editor.replace(
            where, leader_epoch, resolve, (old,), (old.end_offset,), upload
        )

    def _resolve(self, replica: Replica) -> RemotePartition:
        return self._metadata.image.remote_partition(*replica.id)

    def _local_segment(self, replica: Replica, entry: RemoteSegment) -> SegmentBody | None:
        """The rolled local segment with exactly the entry's offsets and size, if there is one."""
        for segment in replica.segments:
            is_same = (segment.base_offset, segment.end_offset) == (entry.base_offset, entry.end_offset)
            if is_same and segment.rolled and segment.size_bytes == entry.log_bytes:
                is_current = lambda: replica.is_leader and self._replicas.holds(replica)  # noqa: E731
                emit, check_s = self._replicas.emit, self._manager.check_s
                return checked_segment(replica, entry.base_offset, emit, is_current, check_s)
        return None

    def _mended(self, replica: Replica, entry: RemoteSegment) -> SegmentBody:
        """The segment with the intact chunks of its object, and the others from replicas."""
        log = self._remote_log
        read = partial(self._read, replica)
        return MergedSegment(self._store, self._keys, log.indexes, log.quarantine, replica.id, [entry], read)

    async def _probe(self, replica: Replica, entry: RemoteSegment, damaged: DamagedRange) -> None:
        """Raise an error before anything is announced, if the range has no intact copy."""
        index = await self._remote_log.indexes.index(replica.id, entry)
        await self._read(replica, index, index.chunk_at(damaged.place.position))

    async def _read(self, replica: Replica, index: SegmentIndex, chunk: ChunkKey) -> bytes:
        """A verified chunk: of the object, the local log, or another replica. Raises the error of the
        object."""
        name = self._keys.log(replica.id, index.entry)
        try:
            return await read_chunk(self._store, name, index, chunk, self._remote_log.quarantine)
        except (CorruptObject, ObjectNotFound):
            async with aclosing(self._copies(replica, index, chunk)) as copies:
                async for content in copies:
                    try:
                        await asyncio.to_thread(verify_chunk, name, index, chunk, content)
                    except CorruptObject:
                        continue  # other batches, or a damaged disk
                    return content
            raise

    async def _copies(self, replica: Replica, index: SegmentIndex, chunk: ChunkKey) -> AsyncGenerator[bytes]:
        """The bytes that replicas have in place of the chunk, perhaps other ones; the local log's first."""
        first, end = index.offsets_of(chunk)
        yield await self._read_local(replica, first, chunk.size)
        epochs = LeaderEpochs(index.entry.leader_epochs)
        rules = HeaderRules(gaps=True, epochs=epochs, end_offset=end)
        async for content in self._log_repair.read_elsewhere(replica, first, end, rules, chunk.size):
            yield bytes(content)

    async def _read_local(self, replica: Replica, offset: int, size: int) -> bytes:
        """Committed batches of the local log, at least `size` bytes if it has them."""
        found = bytearray()
        while len(found) < size and offset >= replica.local_log_start_offset:
            result = replica.read(offset, size - len(found))
            if result.error is not ErrorCode.NONE or result.slice is None or not result.slice.size:
                break
            part = partial(_content, result.slice)
            found += await asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, part)
            offset = result.slice.end_offset
        return bytes(found)


def _content(found: LogSlice) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in found.parts)
