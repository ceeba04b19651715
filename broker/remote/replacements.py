"""Replacements: remote segments that a job outside of the broker replaces, as those of Spark do (ADR 0042).

The job writes the objects, and the leader of the partition does the rest of what the segment merger does: it
announces the new segment before its objects are put, verifies them, and commits ReplaceSegments. A leader of
an older epoch is refused. In between, the job holds a lease. Once a lease has ended, the planner abandons the
copy, so that its objects are deleted after the grace; it can never be committed. The same holds after a
restart and for a new leader, because they have no leases. While a job has a lease in a partition, the merger
leaves the partition alone, since each would make the other's commit fail. Called by the admin API; owned by
`tiering`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import earliest_starts
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.remote_compactor import can_be_compacted
from tierlog.broker.remote.remote_log_manager import CommandRejected, RemoteLogManager
from tierlog.broker.remote.segment_merger import QUEUED_DELETES_MAX, MergeLimits, limits_of
from tierlog.broker.remote.tier_views import TierConflict, TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import (
    CODEC,
    COMPACTED_AT,
    COMPACTED_TO,
    GROUPED_BYTES,
    RemoteSegment,
    merged_tags,
)
from tierlog.tiering.copier import Attempt, verify_object
from tierlog.tiering.format.bundle import HEAD_BYTES, BundleError, decode_bundle
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.object_store import CorruptObject, ObjectNotFound, ObjectStore, ObjectStoreError
from tierlog.tiering.page_tree import path_to
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.segment_index import LARGEST_INDEX_BYTES, index_of_head

LEASE_MS = 60_000
"""Default time that a lease lasts after its last renewal."""

LONGEST_MS = 3_600_000
"""No lease lasts longer than this after its announcement, so that a job that hangs does not stop merges and
compaction. No object is put so late."""

LEASES_MAX = 8
"""New segments of a partition that have a lease. The quorum refuses more than 16 copies, uploads among
them."""

OLD_MAX = 512  # old segments of one replacement, as in the quorum
VERIFIED_AT_ONCE = 4
"""New segments that are verified at a time: each takes the memory of two index bundles."""

CHECK_S = 1.0
TAGS = (COMPACTED_TO, COMPACTED_AT, CODEC, GROUPED_BYTES)
TAG_VALUE_MAX = 20  # characters; an offset or a time has at most 19
SEGMENT_BYTES_MAX = (1 << 31) - 1  # positions in the offset index have 32 bits

_log = structlog.get_logger("tierlog.tiering")


class TierBusy(TierRefused):
    """The request may succeed later."""


@dataclass(slots=True)
class ReplacementLease:
    """A new segment that was announced: its first and last offset. `begun_ms`, `until_ms`: monotonic.
    `compacts`: it may lack records of the old one. `request_id`: of the job, if it may repeat the request.
    `committing`: a commit is in progress, and the lease lasts until its end."""

    attempt: Attempt
    base_offset: int
    last_offset: int
    lease_ms: int
    begun_ms: int
    until_ms: int
    compacts: bool
    request_id: UUID | None
    is_announced: bool = False
    committing: bool = False


class Replacements:
    def __init__(
        self,
        metadata: MetadataClient,
        log_manager: RemoteLogManager,
        remote_log: RemoteLog,
        store: ObjectStore,
        keys: Keys,
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._metadata = metadata
        self._log_manager = log_manager
        self._editor = log_manager.editor
        self.remote_log = remote_log
        self._store = store
        self._keys = keys
        self._clock = clock
        self._tasks = tasks
        self._leases: dict[UUID, ReplacementLease] = {}
        self._verifying = asyncio.Semaphore(VERIFIED_AT_ONCE)
        self.committed = self.expired = 0

    def start(self) -> None:
        """Start the task."""
        self._tasks.repeat("leases of replacements", self._turn)

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
            if not one.committing and (one.until_ms <= now_ms or not self._leads(one.attempt))
        ]
        self.expired += len(ended)
        for lease in ended:
            _log.info("replacement.ended", partition=str(lease.attempt.partition))
        self._end(ended)

    def limits(self, where: TopicIdPartition) -> tuple[Replica, MergeLimits]:
        """Limits that retention sets for new segments of a partition. Raises TierRefused, as all methods do
        if this broker does not lead it."""
        replica = self._led(where)
        return replica, limits_of(replica.config, 1, SEGMENT_BYTES_MAX)

    async def begin(
        self,
        where: TopicIdPartition,
        base_offset: int,
        old: Sequence[UUID],
        ends: Sequence[int],
        lease_ms: int = LEASE_MS,
        *,
        compacts: bool = False,
        leader_epoch: int | None = None,
        request_id: UUID | None = None,
    ) -> ReplacementLease:
        """Announce a new segment, which ends at `ends` (exclusive), in place of the successive segments
        `old`, of which the first begins at `base_offset`. `compacts`: the new segment may lack records of the
        old one. `leader_epoch`: None allows any. A repeated request with the same `request_id` gets the same
        lease. Raises TierConflict if the manifest does not have them like
        this, TierBusy, ObjectStoreError, CommandRejected or MetadataUnavailable."""
        replica = self._led(where)
        if leader_epoch not in (None, replica.leader_epoch):
            raise TierConflict(
                f"{replica.name}: the leader epoch is {replica.leader_epoch}, not {leader_epoch}"
            )
        leader_epoch = replica.leader_epoch
        if request_id is not None and (known := self._begun(where, request_id)) is not None:
            return known
        if not 0 < len(old) <= OLD_MAX or len(ends) != 1:
            raise TierConflict(f"{len(old)} segments cannot be replaced by {len(ends)}")
        found = await self._run(where, base_offset, old)
        [end_offset] = ends
        if end_offset != found[-1].end_offset:
            raise TierConflict(f"the new segment does not end at {found[-1].end_offset}, as the old ones do")
        if compacts:
            self._require_compactable(replica, found)
        self._check_limits(where, base_offset, end_offset)
        now_ms = self._clock.monotonic_ms()
        attempt = Attempt(where, self._editor.new_id(), leader_epoch)
        lease = ReplacementLease(
            attempt, base_offset, end_offset - 1, lease_ms, now_ms, now_ms + lease_ms, compacts, request_id
        )
        # before the first await, so that other requests count it
        self._leases[attempt.uuid] = lease
        self._editor.copies.add(attempt.uuid)
        self._editor.leased.add(where)
        try:
            await self._editor.announce(attempt, base_offset, end_offset - 1)
        except BaseException:
            self._end([lease])
            raise
        lease.is_announced = True
        return lease

    def _begun(self, where: TopicIdPartition, request_id: UUID) -> ReplacementLease | None:
        """The lease of an earlier attempt of this request. Raises TierBusy."""
        for lease in self._leases.values():
            if lease.attempt.partition == where and lease.request_id == request_id:
                if not lease.is_announced:
                    raise TierBusy("the replacement is being announced")
                self.renew([lease.attempt.uuid])
                return lease
        return None

    def renew(self, ids: Sequence[UUID]) -> list[UUID]:
        """Renew leases. Returns those that still exist."""
        known = [uuid for uuid in ids if uuid in self._leases]
        for lease in (self._leases[uuid] for uuid in known):
            until_ms = self._clock.monotonic_ms() + lease.lease_ms
            lease.until_ms = min(until_ms, lease.begun_ms + LONGEST_MS)
        return known

    def cancel(self, ids: Sequence[UUID]) -> None:
        """End leases: the copies are abandoned, and their objects deleted after the grace."""
        leases = (self._leases[uuid] for uuid in ids if uuid in self._leases)
        self._end([lease for lease in leases if not lease.committing])

    async def commit(
        self, where: TopicIdPartition, old: Sequence[UUID], new: Sequence[RemoteSegment]
    ) -> None:
        """Replace segments by new ones, whose objects the job has written and verified. Verifies them, too.
        May be repeated. Raises TierConflict if that is not possible any more, or CorruptObject if the objects
        are not as the entries say; then the lease ends. Raises TierBusy, another ObjectStoreError or
        MetadataUnavailable if the same request may succeed later."""
        replica = self._led(where)
        if len(new) != 1:
            raise TierConflict(f"segments are replaced by one, not by {len(new)}")
        [entry] = new
        lease = self._leases.get(entry.uuid)
        if lease is None:
            if await self._has(where, entry):
                return  # the response to an earlier request was lost
            raise TierConflict(
                "the lease has ended: the replacement was not continued, or the leader changed"
            )
        if lease.committing:
            raise TierBusy("the replacement is being committed")
        lease.committing, is_over = True, True
        try:
            if not await self._has(where, entry):  # an earlier request may have succeeded without knowing it
                await self._replace(replica, lease, old, entry)
        except CorruptObject:
            raise
        except (TierBusy, ObjectStoreError, MetadataUnavailable):
            is_over = False  # the job repeats the request
            raise
        finally:
            lease.committing = False
            lease.until_ms = max(lease.until_ms, self._clock.monotonic_ms() + lease.lease_ms)
            if is_over:
                self._end([lease])

    async def _replace(
        self, replica: Replica, lease: ReplacementLease, old: Sequence[UUID], entry: RemoteSegment
    ) -> None:
        where, leader_epoch = lease.attempt.partition, lease.attempt.leader_epoch
        if replica.leader_epoch != leader_epoch:
            raise TierConflict(f"{replica.name}: the leader epoch was {leader_epoch}")
        found = await self._run(where, entry.base_offset, old)
        if lease.compacts:
            self._require_compactable(replica, found)
        _check_entry(lease, found, entry)
        try:
            async with self._verifying:
                await self._verify(where, found[-1], entry)
        except ObjectNotFound as failure:
            raise TierConflict(f"{replica.name}: {failure}") from failure
        try:
            await self._editor.commit(where, leader_epoch, self._resolve(where).nodes, found, [entry])
        except (ObjectNotFound, CommandRejected) as failure:
            if not await self._has(where, entry):
                await self._run(where, entry.base_offset, old)
                raise TierBusy(f"{replica.name}: its page was written at the same time: {failure}") from None
        self.committed += 1
        size = sum(one.log_bytes for one in found)
        _log.info("replacement.segments", partition=str(replica.name), segments=len(found), bytes=size)

    def _end(self, leases: Sequence[ReplacementLease]) -> None:
        for lease in leases:
            self._leases.pop(lease.attempt.uuid, None)
            self._editor.copies.discard(lease.attempt.uuid)
        for where in {lease.attempt.partition for lease in leases}:
            if all(lease.attempt.partition != where for lease in self._leases.values()):
                self._editor.leased.discard(where)
            self._log_manager.wake(where)  # abandons the copies that were not committed

    def _leads(self, attempt: Attempt) -> bool:
        replica = self._log_manager.led(attempt.partition)
        return replica is not None and replica.leader_epoch == attempt.leader_epoch

    def _led(self, where: TopicIdPartition) -> Replica:
        replica = self._log_manager.led(where)
        if replica is None:
            if where.topic_id not in self._metadata.image.topics:
                raise TierRefused(f"there is no topic {where.topic_id}")
            raise TierConflict(f"this broker does not lead {where}, or the topic is not tiered")
        if replica.config.remote_log_copy_disable:
            raise TierConflict(f"{replica.name}: remote.log.copy.disable is set")
        if self._metadata.image.format_version < 2:
            raise TierConflict(
                "the cluster has format version 1: see tierlog.format in docs/reference/settings.md"
            )
        return replica

    def _resolve(self, where: TopicIdPartition) -> RemotePartition:
        return self._metadata.image.remote_partition(*where)

    def _require_compactable(self, replica: Replica, old: Sequence[RemoteSegment]) -> None:
        """The rules of the remote compactor. They are checked at the commit, too: settings may change."""
        config, now_ms = replica.config, self._clock.now_ms()
        if "compact" not in config.cleanup_policy:
            raise TierConflict(f"{replica.name}: cleanup.policy is not compact")
        if len(old) != 1:
            raise TierConflict("segments are compacted one by one")
        if not can_be_compacted(old[0], config, replica.local_log_start_offset, now_ms):
            raise TierConflict(
                f"{replica.name}: offset {old[0].last_offset} is in the local log, or younger than "
                "min.compaction.lag.ms"
            )

    def _check_limits(self, where: TopicIdPartition, base_offset: int, end_offset: int) -> None:
        if len(self._metadata.image.delete_queue) > QUEUED_DELETES_MAX:
            raise TierBusy("too many deletions wait for their grace")
        if sum(one.attempt.partition == where for one in self._leases.values()) >= LEASES_MAX:
            raise TierBusy(f"{LEASES_MAX} replacements of the partition are in progress")
        for copy in self._resolve(where).started:
            overlaps = copy.base_offset < end_offset and base_offset <= copy.last_offset
            if copy.replaces and overlaps and copy.uuid in self._editor.copies:
                raise TierBusy(f"offsets {copy.base_offset} to {copy.last_offset} are being replaced")

    async def _run(
        self, where: TopicIdPartition, base_offset: int, ids: Sequence[UUID]
    ) -> tuple[RemoteSegment, ...]:
        """The successive segments with these ids. Raises TierConflict."""
        nodes = await self._leaf(where, base_offset)
        first = next((at for at, one in enumerate(nodes) if ids and one.uuid == ids[0]), len(nodes))
        found = nodes[first : first + len(ids)]
        if not found or [one.uuid for one in found] != list(ids) or found[0].base_offset != base_offset:
            raise TierConflict(
                f"{where}: the manifest has no longer these segments from offset {base_offset}"
            )
        return tuple(found)

    async def _has(self, where: TopicIdPartition, entry: RemoteSegment) -> bool:
        return entry in await self._leaf(where, entry.base_offset)

    async def _leaf(self, where: TopicIdPartition, offset: int) -> list[RemoteSegment]:
        """The segments of the page that contains an offset, or else those of the quorum."""
        nodes = self._resolve(where).nodes
        loaded = await self.remote_log.pages_to(where, nodes, offset)
        path = path_to(nodes, offset, loaded)
        leaf = loaded[path[-1][0].uuid] if path else nodes
        return [node for node in leaf if isinstance(node, RemoteSegment)]

    async def _verify(self, where: TopicIdPartition, last: RemoteSegment, entry: RemoteSegment) -> None:
        """Compare the objects of a segment with its entry, and its producer state with that of the last old
        segment. Raises CorruptObject, or ObjectNotFound."""
        old = await self._store.get(self._keys.index(where, last))
        bundle = await verify_announced(self._store, self._keys, where, entry)
        try:
            await asyncio.to_thread(partial(_check_bundle, where, old, entry, bundle))
        except ValueError as error:
            raise CorruptObject(f"{self._keys.index(where, entry)}: {error}") from error


async def verify_announced(
    store: ObjectStore, keys: Keys, where: TopicIdPartition, entry: RemoteSegment
) -> bytes:
    """Compare the objects of a segment with its entry. Returns its index bundle. Raises CorruptObject, or
    ObjectNotFound."""
    log_key, index_key = keys.log(where, entry), keys.index(where, entry)
    await verify_object(store, index_key, entry.index_bytes, entry.index_crc32c)
    await verify_object(store, log_key, entry.log_bytes, entry.log_crc32c)
    return await store.get(index_key)


def _check_bundle(where: TopicIdPartition, old: bytes, entry: RemoteSegment, bundle: bytes) -> None:
    decoded = decode_bundle(bundle)
    if index_of_head(where, entry, bundle[:HEAD_BYTES]) is None:
        raise BundleError("index bundle: no chunk table")
    if bool(decoded.txn_index) != entry.has_aborts or not set(entry.leader_epochs) <= set(
        decoded.leader_epochs
    ):
        raise BundleError("the index bundle contradicts its manifest entry")
    if decoded.producer_snapshot != decode_bundle(old).producer_snapshot:
        raise BundleError("the index bundle has another producer state than that of the last old segment")


def _check_entry(lease: ReplacementLease, old: Sequence[RemoteSegment], entry: RemoteSegment) -> None:
    """Raises TierConflict unless the entry can be of this lease, and of the records of the old ones."""
    if (lease.base_offset, lease.last_offset) != (entry.base_offset, entry.last_offset):
        raise TierConflict(f"segment {entry.uuid} was announced for other offsets")
    if entry.leader_epoch != lease.attempt.leader_epoch or entry.key_id is not None:
        raise TierConflict(f"segment {entry.uuid} has another leader epoch or a key")
    if not entry.leader_epochs or entry.leader_epochs[0][1] > entry.base_offset:
        raise TierConflict(f"segment {entry.uuid} does not say the leader epoch of its first offset")
    check_tags(entry)
    if not 0 < entry.log_bytes <= SEGMENT_BYTES_MAX or entry.index_bytes > LARGEST_INDEX_BYTES:
        raise TierConflict(f"segment {entry.uuid} is empty or too large")
    if _epochs(old) != _epochs([entry]):
        raise TierConflict(f"segment {entry.uuid} has other leader epochs than those that it replaces")
    if lease.compacts:
        _check_compacted(old[0], entry)
        return
    totals = [list(_totals(segments)) for segments in (old, [entry])]
    if totals[0] != totals[1]:
        raise TierConflict(f"the new segment has other records: {totals[1]} instead of {totals[0]}")


def check_tags(entry: RemoteSegment) -> None:
    """Raises TierConflict for tags that no job writes: they would stay in the quorum and in every root."""
    names = [name for name, _ in entry.tags]
    if not set(names) <= set(TAGS) or len(set(names)) < len(names):
        raise TierConflict(f"segment {entry.uuid} has tags that are not known, or twice: {sorted(names)[:9]}")
    for name, value in entry.tags:
        is_number = value.isdecimal() and value.isascii()
        if len(value) > TAG_VALUE_MAX or not (is_number or name == CODEC):
            raise TierConflict(f"segment {entry.uuid} has an invalid tag {name}")


def _check_compacted(old: RemoteSegment, new: RemoteSegment) -> None:
    """Raises TierConflict unless the entry can be that of a compacted segment."""
    is_subset = new.records <= old.records and new.max_timestamp <= old.max_timestamp
    if not is_subset or (new.has_aborts and not old.has_aborts):
        raise TierConflict(f"segment {new.uuid} has other records than the one that it compacts")
    if not old.compacted_to <= new.compacted_to <= old.end_offset or new.compacted_at <= old.compacted_at:
        raise TierConflict(f"segment {new.uuid} does not say how far it is compacted")


def _epochs(segments: Sequence[RemoteSegment]) -> list[tuple[int, int]]:
    """The leader epochs of successive segments, and their first offsets within them."""
    starts = earliest_starts(*(one.leader_epochs for one in segments))
    return [(epoch, max(start, segments[0].base_offset)) for epoch, start in starts]


def _totals(segments: Sequence[RemoteSegment]) -> Iterator[object]:
    """Totals that stay if the batches of segments move into others."""
    yield sum(one.records for one in segments)
    yield max(one.max_timestamp for one in segments)
    yield any(one.has_transactions for one in segments)
    yield any(one.has_aborts for one in segments)
    yield [tag for tag in merged_tags(segments) if tag[0] in (COMPACTED_TO, COMPACTED_AT)]
