"""Bulk loads: a job outside of the brokers writes the next segments of a partition (ADR 0044).

The leader says where the partition ends (`begin`), announces each object before it is put (`announce`),
verifies the objects, and commits them all with one LoadSegments, which its leader epoch fences. They are
assigned the offsets from the log end on. So nothing else may be appended: a record that a client writes
before the commit makes the load fail, and the client notices nothing. From the moment before the commit on,
appends are refused with a retriable error, until one of the two is certain:

- the load is committed: each leader of the next leader epoch, also this broker, first moves its log to the
  end of the load (`replica_loader.advance_to_remote_end`);
- the load cannot be committed any more: in an image, one of its segments is abandoned.

The job holds a lease, which is in this process's memory alone. Once it has ended, the planner abandons the
copies, so that their objects are deleted after the grace. The same holds after a restart and for a new
leader. Called by the admin API; owned by `tiering`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import EpochEntry, earliest_starts
from tierlog.base.safeguards import safeguard
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.remote_log_manager import CommandRejected, RemoteLogManager
from tierlog.broker.remote.replacements import TierBusy, check_tags, verify_announced
from tierlog.broker.remote.tier_views import TierConflict, TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller.commands import AbandonCopy, LoadSegments, StartCopy
from tierlog.metadata.controller.remote import MAX_ENTRIES, MAX_LOADING, is_tiered
from tierlog.metadata.controller.remote_loads import MAX_LOADED
from tierlog.metadata.image import ClusterImage, Load, RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.copier import Attempt
from tierlog.tiering.format.bundle import HEAD_BYTES, BundleError, decode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.segment_index import LARGEST_INDEX_BYTES, index_of_head

LEASE_MS = 60_000
"""Default time that a lease lasts after its last renewal."""

VERIFIED_AT_ONCE = 4
CHECK_S = 1.0
ROOT_TIMEOUT_S = 20.0
"""How long a commit waits until the bucket's manifest lists the segments."""

SEGMENT_BYTES_MAX = (1 << 31) - 1  # positions in the offset index have 32 bits

_log = structlog.get_logger("tierlog.tiering")


@dataclass(slots=True, eq=False)
class LoadLease:
    """A load that was begun. `base_offset`: its first. `leader_epochs`, `producer_snapshot`: those that each
    of its segments has in its index bundle. `until_ms`: monotonic. `copies`: the announced segments, with
    their first and last offsets. `sent`: the segments of each LoadSegments, which is refused once one of them
    is abandoned. `committing`: a commit is in progress, and the lease lasts until its end."""

    partition: TopicIdPartition
    load_id: UUID
    leader_epoch: int
    base_offset: int
    leader_epochs: tuple[EpochEntry, ...]
    producer_snapshot: bytes
    lease_ms: int
    until_ms: int
    copies: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    sent: list[frozenset[UUID]] = field(default_factory=list)
    verified: set[RemoteSegment] = field(default_factory=set)
    committing: bool = False


class Loads:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        log_manager: RemoteLogManager,
        store: ObjectStore,
        keys: Keys,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._log_manager = log_manager
        self._editor = log_manager.editor
        self._store = store
        self._keys = keys
        self._clock = clock
        self._tasks = tasks
        self._leases: dict[TopicIdPartition, LoadLease] = {}
        self._closed: dict[TopicIdPartition, tuple[Replica, LoadLease]] = {}
        """Partitions for which LoadSegments was sent, until its outcome is known."""
        self._verifying = asyncio.Semaphore(VERIFIED_AT_ONCE)
        self.committed = self.expired = 0

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("leases of bulk loads", self._turn)

    async def _turn(self) -> None:
        await asyncio.sleep(CHECK_S)
        self.end_expired()

    def end_expired(self) -> None:
        """End the leases that were not renewed in time, or whose partition this broker does not lead in their
        leader epoch any more."""
        now_ms = self._clock.monotonic_ms()
        ended = [
            one
            for one in self._leases.values()
            if not one.committing and (one.until_ms <= now_ms or not self._leads(one))
        ]
        self.expired += len(ended)
        for lease in ended:
            _log.info("bulk_load.ended", partition=str(lease.partition))
            self._end(lease)

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """The replica manager has applied the image: reopen the partitions whose load cannot be committed any
        more. A later leader epoch opens a partition by itself."""
        if old.remote is new.remote:
            return
        for where in list(self._closed):
            self._reopen_if_over(where, new)

    def _reopen_if_over(self, where: TopicIdPartition, image: ClusterImage) -> None:
        replica, lease = self._closed[where]
        if replica.leader_epoch != lease.leader_epoch or replica.failed is not None:
            del self._closed[where]
        elif image.remote_partition(*where).load_of(lease.load_id) is None and not self._sent(lease, image):
            replica.as_leader.reopen()
            del self._closed[where]

    def _sent(self, lease: LoadLease, image: ClusterImage) -> list[frozenset[UUID]]:
        """The segments of each LoadSegments that can still be committed."""
        started = {copy.uuid for copy in image.remote_partition(*lease.partition).started}
        return [sent for sent in lease.sent if sent <= started]

    # -- requests of the job --

    def begin(
        self, where: TopicIdPartition, load_id: UUID, lease_ms: int = LEASE_MS
    ) -> tuple[Replica, Load | LoadLease]:
        """Begin a load, or continue one with the same id, also after its commit. Raises TierRefused or
        TierConflict if the partition cannot be loaded into, or TierBusy, until everything before the load is
        in the bucket."""
        replica = self._led(where)
        remote = self._metadata.image.remote_partition(*where)
        if (known := known_load(remote, load_id)) is not None:
            return replica, known
        lease = self._leases.get(where)
        if lease is not None and self._leads(lease):
            if lease.load_id != load_id or lease.committing:
                raise TierBusy(f"{replica.name}: another bulk load is in progress")
            if replica.log_end_offset == lease.base_offset:
                self.renew(where, load_id)
                return replica, lease
            self._end(lease)
        if where in self._closed:  # the leader epoch may have changed without a change of the image
            self._reopen_if_over(where, self._metadata.image)
        if where in self._closed:
            raise TierBusy(f"{replica.name}: the outcome of a bulk load is not known yet")
        _require_loadable(replica)
        self._require_tiered(replica, remote)
        base, epoch = replica.log_end_offset, replica.leader_epoch
        epochs = earliest_starts(replica.log.epochs.covering(0, base), [(epoch, base)])
        until_ms = self._clock.monotonic_ms() + lease_ms
        snapshot = replica.log.producers.encode()
        lease = LoadLease(where, load_id, epoch, base, epochs, snapshot, lease_ms, until_ms)
        self._leases[where] = lease
        return replica, lease

    async def announce(
        self, where: TopicIdPartition, load_id: UUID, base_offset: int, last_offset: int
    ) -> Attempt:
        """Announce the objects of one segment, which may be of a repeated or speculative task. Raises
        TierConflict, CommandRejected or MetadataUnavailable."""
        lease = self._lease(self._led(where), load_id)
        if not lease.base_offset <= base_offset <= last_offset:
            raise TierConflict(f"{where}: the load begins at offset {lease.base_offset}")
        if len(lease.copies) >= MAX_LOADING:
            raise TierConflict(f"{where}: {MAX_LOADING} segments of the load were announced: use larger ones")
        attempt = Attempt(where, self._editor.new_id(), lease.leader_epoch)
        lease.copies[attempt.uuid] = base_offset, last_offset
        self._editor.copies.add(attempt.uuid)
        command = StartCopy(
            topic_id=where.topic_id,
            partition=where.partition,
            broker_id=self._broker_id,
            leader_epoch=lease.leader_epoch,
            uuid=attempt.uuid,
            base_offset=base_offset,
            last_offset=last_offset,
            loads=True,
        )
        try:
            await self._submit(command)
        except BaseException:
            lease.copies.pop(attempt.uuid, None)
            self._editor.copies.discard(attempt.uuid)
            raise
        if self._leases.get(where) is not lease:
            raise TierConflict(f"{where}: the lease has ended")
        self.renew(where, load_id)
        return attempt

    def renew(self, where: TopicIdPartition, load_id: UUID) -> bool:
        """Renew a lease. Returns whether it still exists."""
        lease = self._leases.get(where)
        if lease is None or lease.load_id != load_id:
            return False
        lease.until_ms = self._clock.monotonic_ms() + lease.lease_ms
        return True

    def cancel(self, where: TopicIdPartition, load_id: UUID) -> None:
        """End a lease: the copies are abandoned, and their objects deleted after the grace."""
        lease = self._leases.get(where)
        if lease is not None and lease.load_id == load_id and not lease.committing:
            self._end(lease)

    async def commit(self, where: TopicIdPartition, load_id: UUID, segments: Sequence[RemoteSegment]) -> Load:
        """Add the segments, whose objects the job has written and verified. Verifies them, too. Returns once
        the bucket's manifest lists them. May be repeated. Raises TierConflict if that is not possible any
        more, or CorruptObject if the objects are not as the entries say; then the lease ends. Raises
        TierBusy, another ObjectStoreError or MetadataUnavailable if the same request may succeed later."""
        replica = self._led(where)
        known = known_load(self._metadata.image.remote_partition(*where), load_id)
        if known is not None:
            await self._await_root(replica, known)
            return known
        lease = self._lease(replica, load_id)
        if lease.committing:
            raise TierBusy("the load is being committed")
        lease.committing, is_over = True, True
        try:
            load = await self._commit(replica, lease, tuple(segments))
        except CorruptObject:
            raise
        except (TierBusy, ObjectStoreError, MetadataUnavailable):
            is_over = False  # the job repeats the request
            raise
        finally:
            lease.committing = False
            now_ms = self._clock.monotonic_ms()
            if where in self._closed:  # producers wait; a job that lives renews the lease
                lease.until_ms = now_ms + min(lease.lease_ms, LEASE_MS)
            else:
                lease.until_ms = max(lease.until_ms, now_ms + lease.lease_ms)
            if is_over:
                self._end(lease)
        await self._await_root(replica, load)
        return load

    # -- the commit --

    async def _commit(self, replica: Replica, lease: LoadLease, segments: tuple[RemoteSegment, ...]) -> Load:
        _check_segments(lease, segments)
        where = lease.partition
        if len(self._metadata.image.remote_partition(*where).entries) + len(segments) > MAX_ENTRIES:
            raise TierBusy(f"{replica.name}: its manifest entries have not been moved to a page yet")
        unverified = [segment for segment in segments if segment not in lease.verified]
        await asyncio.gather(*(self._verify(lease, segment) for segment in unverified))
        self._close(replica, lease, frozenset(segment.uuid for segment in segments))
        command = LoadSegments(
            topic_id=where.topic_id,
            partition=where.partition,
            broker_id=self._broker_id,
            leader_epoch=lease.leader_epoch,
            load_id=lease.load_id,
            segments=segments,
        )
        try:
            await self._submit(command)
        except CommandRejected as refused:
            raise TierConflict(f"{replica.name}: {refused}") from None
        self.committed += 1
        end = segments[-1].end_offset
        _log.info("bulk_load.committed", partition=str(replica.name), from_offset=lease.base_offset, to=end)
        return Load(
            load_id=lease.load_id,
            base_offset=lease.base_offset,
            end_offset=end,
            leader_epoch=lease.leader_epoch,
        )

    def _close(self, replica: Replica, lease: LoadLease, sent: frozenset[UUID]) -> None:
        """Nothing is awaited between the checks here and the end of appends. All segments that are `sent` can
        be committed in the present image: only a later one reopens the partition."""
        if not self._leads(lease) or self._leases.get(lease.partition) is not lease:
            raise TierConflict(f"{replica.name}: the lease has ended, or the leader has changed")
        if replica.log_end_offset != lease.base_offset:
            raise TierConflict(
                f"{replica.name}: records were written to it since the load began, up to offset "
                f"{replica.log_end_offset - 1}. Stop its producers, and start the load again"
            )
        _require_loadable(replica)  # settings may have changed
        remote = self._metadata.image.remote_partition(*lease.partition)
        self._require_tiered(replica, remote)
        if not sent <= {copy.uuid for copy in remote.started}:
            raise TierConflict(f"{replica.name}: a segment of the load was abandoned")
        if not replica.as_leader.close_for_load(lease.base_offset):
            raise TierBusy(
                f"{replica.name}: not all in-sync replicas are at offset {lease.base_offset}, fewer than "
                "min.insync.replicas are in sync, or a transaction is open"
            )
        self._closed[lease.partition] = replica, lease
        lease.sent.append(sent)

    async def _verify(self, lease: LoadLease, segment: RemoteSegment) -> None:
        """Compare the objects of a segment with its entry. Raises CorruptObject, or TierConflict."""
        where = lease.partition
        async with self._verifying:
            try:
                bundle = await verify_announced(self._store, self._keys, where, segment)
            except ObjectNotFound as failure:
                raise TierConflict(f"{where}: {failure}") from failure
            try:
                await asyncio.to_thread(partial(_check_bundle, lease, segment, bundle))
            except ValueError as error:
                raise CorruptObject(f"{self._keys.index(where, segment)}: {error}") from error
        lease.verified.add(segment)

    async def _await_root(self, replica: Replica, load: Load) -> None:
        try:
            async with asyncio.timeout(ROOT_TIMEOUT_S):
                await self._log_manager.await_tiered(replica, load.end_offset)
        except TimeoutError:
            raise TierBusy(
                f"{replica.name}: the load is committed, but not in the bucket's manifest yet"
            ) from None

    # -- helpers --

    def _end(self, lease: LoadLease) -> None:
        if self._leases.get(lease.partition) is lease:
            del self._leases[lease.partition]
        self._editor.copies.difference_update(lease.copies)
        self._log_manager.wake(lease.partition)  # abandons the copies that were not committed
        if self._closed.get(lease.partition, (None, None))[1] is lease:
            self._tasks.spawn(f"end of a bulk load of {lease.partition}", self._abandon_sent(lease))

    async def _abandon_sent(self, lease: LoadLease) -> None:
        """Producers wait for this. The planner, which would do it, may be waiting for the object store."""
        where = lease.partition
        for sent in self._sent(lease, self._metadata.image):
            command = AbandonCopy(
                topic_id=where.topic_id,
                partition=where.partition,
                leader_epoch=lease.leader_epoch,
                uuid=next(iter(sent)),
            )
            with suppress(CommandRejected, MetadataUnavailable):  # the planner tries it again
                await self._submit(command)

    def _leads(self, lease: LoadLease) -> bool:
        replica = self._log_manager.led(lease.partition)
        return replica is not None and replica.leader_epoch == lease.leader_epoch

    def _lease(self, replica: Replica, load_id: UUID) -> LoadLease:
        lease = self._leases.get(replica.id)
        if lease is None or lease.load_id != load_id or lease.leader_epoch != replica.leader_epoch:
            raise TierConflict(
                f"{replica.name}: the lease has ended: the load was not continued, or the leader changed"
            )
        return lease

    def _led(self, where: TopicIdPartition) -> Replica:
        replica = self._log_manager.led(where)
        if replica is None:
            topic = self._metadata.image.topics.get(where.topic_id)
            if topic is None:
                raise TierRefused(f"there is no topic {where.topic_id}")
            if not is_tiered(self._metadata.image, where.topic_id):
                raise TierConflict(f"{topic.name} is not tiered: set remote.storage.enable=true")
            raise TierBusy(
                f"broker {self._broker_id} does not lead partition {where.partition} of {topic.name}"
            )
        if self._metadata.image.format_version < 2:
            raise TierConflict(
                "the cluster has format version 1: see tierlog.format in docs/reference/settings.md"
            )
        return replica

    def _require_tiered(self, replica: Replica, remote: RemotePartition) -> None:
        """Everything before the load must be readable without any local log. Raises TierBusy."""
        end = replica.log_end_offset
        expected = remote.next_load_offset
        is_listed = remote.end_offset is None or self._log_manager.bucket_end(replica.id) >= end
        if expected == end and is_listed:
            return
        if not any(one.rolled and one.end_offset > expected for one in replica.segments):
            self._log_manager.roll(replica)  # else the upload of the last roll is in progress
        raise TierBusy(
            f"{replica.name}: offsets up to {end - 1} are not in the bucket yet. Stop the producers of this "
            "partition, or the upload never catches up"
        )

    async def _submit(self, command: AbandonCopy | StartCopy | LoadSegments) -> None:
        reply = await self._metadata.submit(command)
        if reply.error is not ErrorCode.NONE:
            raise CommandRejected(reply.message or reply.error.name)


@safeguard("a leader knows the loads that were committed")
def known_load(remote: RemotePartition, load_id: UUID) -> Load | None:
    """The load with this id, if it was committed."""
    return remote.load_of(load_id)


def _require_loadable(replica: Replica) -> None:
    """Raises TierConflict, or TierBusy while a transaction is open."""
    config, name = replica.config, replica.name
    if config.remote_log_copy_disable:
        raise TierConflict(f"{name}: remote.log.copy.disable is set")
    if "compact" in config.cleanup_policy:
        raise TierConflict(f"{name}: cleanup.policy is compact, which loads do not support")
    if name.topic.startswith("__"):
        raise TierConflict(f"{name}: internal topics are not loaded into")
    if replica.log.producers.first_unstable_offset() is not None:
        raise TierBusy(f"{name}: a transaction is open")


def _check_segments(lease: LoadLease, segments: Sequence[RemoteSegment]) -> None:
    """Raises TierConflict unless these entries can be those of this lease."""
    if not 0 < len(segments) <= MAX_LOADED:
        raise TierConflict(f"{len(segments)} segments in a load: at most {MAX_LOADED}. Use larger segments")
    gaps = any(two.base_offset != one.end_offset for one, two in pairwise(segments))
    if segments[0].base_offset != lease.base_offset or gaps:
        raise TierConflict(f"the segments are not successive from offset {lease.base_offset}")
    for one in segments:
        if lease.copies.get(one.uuid) != (one.base_offset, one.last_offset):
            raise TierConflict(f"segment {one.uuid} was not announced with these offsets")
        if one.leader_epoch != lease.leader_epoch or one.leader_epochs != (tuple(lease.leader_epochs[-1]),):
            raise TierConflict(f"segment {one.uuid} has another leader epoch")
        if one.has_transactions or one.has_aborts or one.control_records or one.key_id is not None:
            raise TierConflict(f"segment {one.uuid} has transactions or a key")
        if one.records != one.end_offset - one.base_offset:
            raise TierConflict(f"segment {one.uuid} does not have one record for each of its offsets")
        if not 0 < one.log_bytes <= SEGMENT_BYTES_MAX or one.index_bytes > LARGEST_INDEX_BYTES:
            raise TierConflict(f"segment {one.uuid} is empty or too large")
        check_tags(one)


def _check_bundle(lease: LoadLease, entry: RemoteSegment, bundle: bytes) -> None:
    decoded = decode_bundle(bundle)
    if index_of_head(lease.partition, entry, bundle[:HEAD_BYTES]) is None:
        raise BundleError("index bundle: no chunk table")
    if decoded.txn_index or decoded.leader_epochs != lease.leader_epochs:
        raise BundleError("the index bundle contradicts its manifest entry, or has other leader epochs")
    if decoded.producer_snapshot != lease.producer_snapshot:
        raise BundleError("the index bundle has another producer state than the log end")
