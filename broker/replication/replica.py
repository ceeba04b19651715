"""Replica: one partition's replica on this broker; connects the leader core to the log.

Every produce and fetch of the partition passes through it. The core decides, the log writes, and listeners
are called when the high watermark has moved or a flush has failed. Errors are Kafka's codes; an OSError
becomes KAFKA_STORAGE_ERROR and leaves the log unchanged. If flush.messages requires an fsync, `append`
returns before it, but the high watermark and the acknowledgement of acks=1 wait for it (`acknowledgement`).
Runs on the event loop; only `flush` may run in a thread. Owned by the replica manager; called by the handlers
and the fetchers.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd
from tierlog.base.safeguards import safeguard
from tierlog.base.segments import DescribedSegments, SegmentDescriptor
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.base.types import NO_EPOCH, NO_LEADER, TopicIdPartition, TopicPartition, require
from tierlog.broker.replication.core.follower import FollowerCore
from tierlog.broker.replication.core.in_sync import Follower
from tierlog.broker.replication.core.leader import LeaderCore
from tierlog.broker.replication.follower_role import FollowerRole
from tierlog.broker.replication.leader_role import LeaderRole
from tierlog.broker.replication.replica_state import LogDirState
from tierlog.broker.storage.core.producer_state import ActiveProducer
from tierlog.broker.storage.core.retention import count_expired
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.log_flusher import SyncFailed
from tierlog.broker.storage.lookups import TimestampSearch, described
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode


class ReadResult(NamedTuple):
    """`remote`: the offset is below the local log start, so it must be read from the remote log."""

    error: ErrorCode
    slice: LogSlice | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    remote: bool = False
    diverging: EpochEnd = UNKNOWN_END
    """For a follower: where its log diverges from this one."""


class Traffic(NamedTuple):
    """Traffic of partitions since they were opened."""

    bytes_in: int
    records_in: int
    bytes_out: int

    def __add__(self, other: "Traffic") -> "Traffic":  # type: ignore[override]
        return Traffic(*map(sum, zip(self, other, strict=True)))


NO_TRAFFIC = Traffic(0, 0, 0)


class _NoLogDir:
    refusal: str | None = None
    threads: Executor | None = None

    def mark_hung(self, timeout_s: float) -> None:
        return


def _ignore_suspicion(offset: int, why: str) -> None:
    return


def flush_at_once(replica: "Replica") -> None:
    """A flusher without threads: the caller waits for the disk."""
    try:
        replica.flush()
    except OSError as failure:
        replica.flushed(failure)
    else:
        replica.flushed()


class Replica:
    def __init__(
        self,
        name: TopicPartition,
        topic_id: uuid.UUID,
        broker_id: int,
        log: PartitionLog,
        high_watermark: int = 0,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.id = TopicIdPartition(topic_id, name.partition)
        self.log = log
        self.listeners: list[Callable[[Replica], None]] = []
        self.log_dir: LogDirState = _NoLogDir()
        self.flusher: Callable[[Replica], None] = flush_at_once
        """Requests a flush: `flush` is called, and then `flushed` on the event loop."""
        self.suspect: Callable[[int, str], None] = _ignore_suspicion
        """Called with an offset at which the log may be damaged, and the reason; the scrubber then checks
        it."""
        self.lower_checkpoint: Callable[[], None] = lambda: None
        """Arranges for the checkpoint of a truncated log (`needs_checkpoint`) to be written soon."""
        self.failed: str | None = None
        """Why the replica can no longer be used: a failed fsync, or it is closed."""
        self._core = LeaderCore(
            broker_id,
            log.log_end_offset,
            max(log.local_log_start_offset, min(high_watermark, log.log_end_offset)),
            min_in_sync=log.config.min_insync_replicas,
        )
        self._follower = FollowerCore(broker_id)
        self.bytes_in = 0
        self.bytes_out = 0
        """Bytes sent to consumers, from both tiers; counted by the Fetch handler."""
        self._opened_at = log.log_end_offset
        log.producers.on_high_watermark_updated(self._core.high_watermark)
        self.failed_end = 0
        """Unflushed batches that end at or below this offset have failed, because their flush failed."""
        self.as_leader = LeaderRole(self, self._core)
        self.as_follower = FollowerRole(self, self._core, self._follower)

    # -- state --

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    @property
    def last_stable_offset(self) -> int:
        """The first record of an open transaction, at most the high watermark. If DeleteRecords or retention
        has passed that record, the log start offset."""
        return max(self._core.last_stable_offset(self.log.producers), self.log.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below it is as durable here as flush.messages requires: acks=1 waits for it."""
        return self._core.log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def local_log_start_offset(self) -> int:
        return self.log.local_log_start_offset

    @property
    def segments(self) -> tuple[SegmentDescriptor, ...]:
        return self.log.segments

    @property
    def described_segments(self) -> DescribedSegments:
        """`segments`, for callers that need only some of them."""
        return described(self.log.segment_files, self.log.epochs)

    @property
    def is_tiered(self) -> bool:
        """Whether the remote log manager applies retention: also after tiering was switched off."""
        return self.config.remote_storage_enable or self.log.has_been_tiered

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.bytes_in, self.log_end_offset - self._opened_at, self.bytes_out)

    def update_config(self, config: TopicConfig) -> None:
        self.log.update_config(config)
        if self._core.set_min_in_sync(config.min_insync_replicas):
            self.notify()

    @property
    def leader_epoch(self) -> int:
        return self._core.leader_epoch

    @property
    def leads_since_ms(self) -> int:
        """When this broker became the leader of the leader epoch. Monotonic."""
        return self._core.leads_since_ms

    @property
    def partition_epoch(self) -> int:
        return self._core.partition_epoch

    @property
    def is_leader(self) -> bool:
        return self._core.is_leader and self.failed is None

    @property
    def is_elected(self) -> bool:
        """Whether it was elected leader, even if it has failed since."""
        return self._core.is_leader

    @property
    def leader(self) -> int:
        """The broker it fetches from; -1 while it is the leader or there is none."""
        return self._follower.leader

    @property
    def is_follower(self) -> bool:
        return self._follower.is_follower and self.failed is None

    @property
    def in_sync(self) -> frozenset[int]:
        return self._core.in_sync

    @property
    def followers(self) -> Mapping[int, Follower]:
        """State of each follower by broker id; empty unless this replica is the leader."""
        return self._core.followers

    @property
    def high_watermark(self) -> int:
        return self._core.high_watermark

    @property
    def offset_lag(self) -> int:
        """Number of committed offsets that a follower lacks, by the high watermark in the leader's last
        response."""
        return self._core.lag

    @property
    def checkpoint(self) -> tuple[int, int, int | None]:
        """Recovery point, log start offset and high watermark, for a restart. The high watermark is None if
        no other broker has a replica; then it is the log end.
        """
        return self.log.recovery_point, self.log.log_start_offset, self._checkpointed_high_watermark()

    def _checkpointed_high_watermark(self) -> int | None:
        """The high watermark, at most the recovery point: a power failure may lose everything above it.

        A power failure can also undo a truncation, so that uncommitted records are back at these offsets.
        """
        core = self._core
        return min(core.high_watermark, self.log.recovery_point) if core.has_peers else None

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the recovery point on disk is too high, because the log was truncated.

        If it is not lowered before the next segment is rolled, the roll waits for the disk.
        """
        return self.log.flusher.checkpointed_recovery_point > 0

    def on_checkpoint_written(self, truncations: int) -> None:
        """Record that the checkpoint is on disk. `truncations`: `log.flusher.truncations` when it was
        taken."""
        if self.log.flusher.on_checkpointed(truncations):
            self.notify()

    @property
    def high_watermark_is_current(self) -> bool:
        """False just after an election: more may be committed than this leader knows (KIP-207)."""
        core = self._core
        return core.is_leader and core.high_watermark >= core.epoch_start_offset

    def active_producers(self) -> Iterator[ActiveProducer]:
        """The producers that have not expired (DescribeProducers). There may be many: iterate in turns."""
        return self.log.producers.active()

    # -- roles --

    def become_leader(
        self,
        leader_epoch: int,
        partition_epoch: int,
        in_sync: Collection[int],
        replicas: Collection[int] | None = None,
        now_ms: int = 0,
        *,
        full: Collection[int] = (),
        emptied: Collection[int] = (),
    ) -> None:
        """Become leader in that epoch, with this in-sync set and these replicas (default: the in-sync set).

        `now_ms` is monotonic. `full`: replicas on full disks. `emptied`: replicas which lost their records.
        """
        core, log = self._core, self.log
        least = log.config.min_insync_replicas
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        if core.is_leader and (leader_epoch, partition_epoch) == (core.leader_epoch, core.partition_epoch):
            if core.set_min_in_sync(least):
                self.notify()
            return  # unchanged: another partition of the topic has changed
        is_new_epoch = leader_epoch > core.leader_epoch
        require(is_new_epoch or core.is_leader, f"leader epoch {leader_epoch} has another leader")
        self._follower.follow(NO_LEADER, leader_epoch)
        core.become_leader(
            leader_epoch,
            partition_epoch,
            in_sync if replicas is None else replicas,
            in_sync,
            now_ms,
            min_in_sync=least,
            epoch_start_offset=log.log_end_offset,
            full=full,
            emptied=emptied,
        )
        if is_new_epoch:
            log.assign_epoch(leader_epoch, log.log_end_offset)
        self.notify()

    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int) -> None:
        """Follow the leader of that epoch, or none (NO_LEADER).

        The log is truncated only after a fetch has shown that it diverges from the leader's.
        """
        core = self._core
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        was_leader = core.is_leader
        require(
            leader_epoch > core.leader_epoch or not was_leader,
            f"leader epoch {leader_epoch} is this broker's",
        )
        is_new = not self._follower.is_follower or leader_epoch > self._follower.leader_epoch
        self._follower.follow(leader, leader_epoch)
        if is_new:
            core.resign(leader_epoch, partition_epoch)
            self.log.drop_empty_epochs()
        if was_leader:
            self.log.producers.drop_verifications()
            self.notify()  # requests wait for an acknowledgement, which now fails

    def resign(self) -> None:
        """Stop leading before a later leader epoch in which it may lead again: its log changes before."""
        core = self._core
        self._follower.follow(NO_LEADER, core.leader_epoch)
        core.resign(core.leader_epoch, core.partition_epoch)
        self.log.producers.drop_verifications()
        self.notify()

    # -- appends --

    def after_append(self) -> None:
        """Request an fsync if flush.messages requires it, and otherwise advance the high watermark."""
        if not self.wants_flush():
            self._core.appended(self.log.log_end_offset)
            self.notify()
            return
        self.failed_end = 0
        self.flusher(self)
        if self._core.is_leader and self._core.has_peers:
            self.notify()  # followers fetch and flush the batch during the flush here

    # -- fetch --

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        committed_only: bool = False,
        min_one: bool = True,
        max_offset: int | None = None,
    ) -> ReadResult:
        """Read complete batches, from the one that contains `offset` up to the high watermark.

        With `committed_only` the last stable offset is the limit. `max_offset` can only lower the limit.
        """
        log = self.log
        if self.failed is not None:
            return self._read_result(ErrorCode.KAFKA_STORAGE_ERROR, None)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return self._read_result(ErrorCode.OFFSET_OUT_OF_RANGE, None)
        if offset < log.local_log_start_offset:
            return self._read_result(ErrorCode.NONE, None, remote=True)
        end = self.last_stable_offset if committed_only else self._core.high_watermark
        if max_offset is not None:
            end = min(end, max_offset)
        try:
            found = log.read(offset, max_bytes, end, min_one=min_one) if offset < end else empty_slice(offset)
            aborted = log.aborted(offset, found.end_offset) if committed_only and found.parts else []
        except OSError:
            return self._read_result(ErrorCode.KAFKA_STORAGE_ERROR, None)
        except CorruptLog as damage:
            self.suspect(offset, str(damage))
            return self._read_result(ErrorCode.CORRUPT_MESSAGE, None)
        return self._read_result(
            ErrorCode.NONE, found, aborted=[(entry.producer_id, entry.first_offset) for entry in aborted]
        )

    def _read_result(
        self,
        error: ErrorCode,
        found: LogSlice | None,
        *,
        aborted: list[tuple[int, int]] | None = None,
        remote: bool = False,
        diverging: EpochEnd = UNKNOWN_END,
    ) -> ReadResult:
        high, stable, start = self._core.high_watermark, self.last_stable_offset, self.log.log_start_offset
        return ReadResult(error, found, high, stable, start, aborted or [], remote, diverging)

    def read_for_follower(
        self, offset: int, max_bytes: int, *, last_fetched_epoch: int = NO_EPOCH, min_one: bool = True
    ) -> ReadResult:
        """As `read`, up to the log end, for a follower whose last record before `offset` has that leader
        epoch.

        If the logs diverge, the result has no records but `diverging` (KIP-595). If the offset is remote, the
        error is OFFSET_MOVED_TO_TIERED_STORAGE. The headers of committed batches are checked, because these
        batches may have been on disk for a long time: a follower cannot tell a wrong base offset from a gap
        that compaction left, nor a wrong leader epoch from the right one.
        """
        log = self.log
        if not self.is_leader:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER if self.failed is None else ErrorCode.KAFKA_STORAGE_ERROR
            return self._read_result(error, None)
        if offset < log.log_start_offset:
            return self._read_result(ErrorCode.OFFSET_OUT_OF_RANGE, None)
        if last_fetched_epoch != NO_EPOCH:
            end = log.epochs.end_offset_for(last_fetched_epoch, log.log_end_offset)
            if end != UNKNOWN_END and (end.epoch < last_fetched_epoch or end.end_offset < offset):
                return self._read_result(ErrorCode.NONE, None, diverging=end)
            if end == UNKNOWN_END:
                return self._read_result(ErrorCode.OFFSET_OUT_OF_RANGE, None)
        if offset > log.log_end_offset:
            return self._read_result(ErrorCode.OFFSET_OUT_OF_RANGE, None)
        if offset < log.local_log_start_offset:
            return self._read_result(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, None)
        try:
            catches_up = offset < self._core.high_watermark
            found = log.read(offset, max_bytes, log.log_end_offset, min_one=min_one, checked=catches_up)
        except OSError:
            return self._read_result(ErrorCode.KAFKA_STORAGE_ERROR, None)
        except CorruptLog as damage:
            self.suspect(offset, str(damage))
            return self._read_result(ErrorCode.CORRUPT_MESSAGE, None)
        return self._read_result(ErrorCode.NONE, found)

    def offset_for_timestamp(self, timestamp: int, *, committed_only: bool = False) -> TimestampSearch:
        """Find the first local record at or after a timestamp which a consumer may read."""
        end = self.last_stable_offset if committed_only else self._core.high_watermark
        return self.log.offset_for_timestamp(timestamp, end)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        return self.log.epochs.end_offset_for(epoch, self.log_end_offset)

    # -- retention and tiering --

    def raise_log_start(self, offset: int) -> None:
        if self.log.raise_log_start(min(offset, self.high_watermark)):
            self.notify()

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments which retention.ms, retention.bytes and the log start allow; returns their
        number."""
        log = self.log
        segments = self.described_segments
        count = count_expired(segments, log.config, log.log_start_offset, self.high_watermark, now_ms)
        if count == len(segments):
            try:
                log.roll(now_ms)
            except OSError:
                count -= 1  # no space for a new segment before the older ones are deleted
        if not count:
            return 0
        return self.delete_local_before(log.segment_files[count].base_offset, now_ms)

    def delete_local_before(self, offset: int, now_ms: int) -> int:
        """Delete rolled segments which end at or below an offset; the local log start is raised first."""
        count = self.log.delete_local_before(offset, now_ms)
        if count:
            self.notify()
        return count

    # -- durability --

    def wants_flush(self) -> bool:
        """Whether flush.messages has been reached."""
        return self.log_end_offset - self.log.recovery_point >= self.config.flush_messages

    def flush(self) -> int:
        """fsync the log; returns the recovery point. Raises OSError. After SyncFailed the replica has
        failed."""
        try:
            return self.log.flush()
        except SyncFailed as error:
            self.failed = f"{self.name}: fsync failed: {error.strerror}"
            raise

    def flushed(self, failure: BaseException | None = None) -> None:
        """Called on the event loop when a flush has ended.

        If it failed, all waiting appends fail. The next append requests another flush.
        """
        if failure is not None:
            self.failed_end = self.log.log_end_offset
            self.notify()
        elif self.failed is None:
            end = self.log.recovery_point if self.wants_flush() else self.log.log_end_offset
            self._core.appended(max(end, self._core.log_end_offset))
            self.notify()

    def close(self, *, clean: bool) -> None:
        """Close the log; every later call returns KAFKA_STORAGE_ERROR. Raises OSError if a clean close
        fails."""
        self.listeners.clear()
        self.failed = self.failed or f"{self.name} is closed"
        self.log.close(clean=clean)

    def check(self) -> None:
        self.log.check()
        self._core.check()

    def on_restarted(self, offset: int) -> None:
        """Record that the log was truncated fully and starts at `offset`."""
        self._opened_at, self.failed_end = offset, 0

    def notify(self) -> None:
        """Call the listeners: the high watermark, or something else that requests wait for, has changed."""
        self.log.producers.on_high_watermark_updated(self._core.high_watermark)
        for listener in self.listeners:
            listener(self)


safeguard("the high watermark is written to a checkpoint")(Replica._checkpointed_high_watermark)
safeguard("followers keep producer state")(Replica.become_leader)
safeguard("consumers read only up to the high watermark")(Replica.read)
safeguard("flush.messages syncs before the acknowledgement")(Replica.wants_flush)
