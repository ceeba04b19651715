"""Replica roles: a replica as leader, as follower, or without a leader.

The controller assigns the role with a leader epoch; older epochs are ignored. A leader appends records of
clients and records the fetch offsets of its followers. A follower appends the leader's batches unchanged, and
truncates its log where the two diverge. Both keep their high watermark over changes of role and over
restarts. One owner: the event loop. Called by the replica manager and the replica fetchers.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.types import NO_EPOCH, NO_LEADER, require
from tierlog.broker.replication.core.fetched_batches import check_replicated
from tierlog.broker.replication.core.follower import (
    Append,
    Fetched,
    FetchPosition,
    FollowerCore,
    Retry,
    StartAt,
    Step,
    Truncate,
)
from tierlog.broker.replication.core.leader import ALL_IN_SYNC, Follower, IsrProposal, LeaderCore
from tierlog.broker.storage.core.batch_validation import FAULT_CODES
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import BatchAt, CorruptLog
from tierlog.protocol.errors import ErrorCode
from tierlog.records.errors import RecordsError


class LogDirState(Protocol):
    """State of a replica's log directory, as appends and flushes need it."""

    @property
    def refusal(self) -> str | None:
        """Why appends are refused: the directory is full or offline."""

    @property
    def threads(self) -> Executor | None:
        """The threads for blocking operations on its disk."""

    def mark_hung(self, timeout_s: float) -> None:
        """No operation in the directory has ended for `timeout_s`."""


class ReplicaRoles(ABC):
    """The part of a replica that deals with other replicas. `Replica` is the complete class."""

    log: PartitionLog
    failed: str | None
    log_dir: LogDirState
    suspect: Callable[[int, str], None]
    _core: LeaderCore
    _follower: FollowerCore
    _failed_end: int
    _opened_at: int
    is_fetching_paused = False
    """Set while the log is damaged and about to be truncated: a fetch would promise its log end to the
    leader."""

    # -- state --

    @property
    def leader_epoch(self) -> int:
        return self._core.leader_epoch

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
        """What the leader knows of its followers; empty unless it is the leader."""
        return self._core.followers

    @property
    def high_watermark(self) -> int:
        return self._core.high_watermark

    @property
    def offset_lag(self) -> int:
        """A follower's missing committed offsets, by the leader's high watermark in its last response."""
        return self._core.lag

    @property
    def checkpoint(self) -> tuple[int, int, int | None]:
        """Recovery point, log start offset and high watermark, for a restart. The high watermark is None if
        no other broker has a replica; then it is the log end.

        It is at most the recovery point: a power failure can undo a truncation and the appends after it, and
        then uncommitted records are back at these offsets.
        """
        log, core = self.log, self._core
        known = min(core.high_watermark, log.recovery_point) if core.has_peers else None
        return log.recovery_point, log.log_start_offset, known

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the recovery point on disk is too high, since the log was truncated. If it is not lowered
        before a segment is rolled, the roll waits for the disk.
        """
        return self.log.flusher.checkpointed_recovery_point > 0

    def on_checkpoint_written(self, truncations: int) -> None:
        """`checkpoint` is on disk, as it was after this number of truncations (`log.flusher.truncations`)."""
        if self.log.flusher.on_checkpointed(truncations):
            self._notify()

    @property
    def high_watermark_is_current(self) -> bool:
        """False just after an election: more may be committed than this leader knows (KIP-207)."""
        core = self._core
        return core.is_leader and core.high_watermark >= core.epoch_start_offset

    # -- roles --

    def become_leader(
        self,
        leader_epoch: int,
        partition_epoch: int,
        in_sync: Collection[int],
        replicas: Collection[int] | None = None,
        now_ms: int = 0,
        *,
        min_in_sync: int | None = None,
        full: Collection[int] = (),
        emptied: Collection[int] = (),
    ) -> None:
        """Become leader in that epoch, with this in-sync set and these replicas (default: the in-sync set).

        `now_ms` is monotonic. `min_in_sync`: min.insync.replicas of the same image, if the current settings
        may differ; the controller relies on nothing being committed below it. `full`: replicas on full disks.
        `emptied`: replicas which lost their records.
        """
        core, log = self._core, self.log
        least = log.config.min_insync_replicas if min_in_sync is None else min_in_sync
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        if core.is_leader and (leader_epoch, partition_epoch) == (core.leader_epoch, core.partition_epoch):
            if core.set_min_in_sync(least):
                self._on_high_watermark_moved()
            return  # unchanged: another partition of the topic has changed
        began = leader_epoch > core.leader_epoch
        require(began or core.is_leader, f"leader epoch {leader_epoch} has another leader")
        self._follower.follow(NO_LEADER, leader_epoch)
        moved = core.become_leader(
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
        if began:
            log.assign_epoch(leader_epoch, log.log_end_offset)
        (self._on_high_watermark_moved if moved else self._notify)()

    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int) -> None:
        """Follow another broker in that epoch. The log is truncated only after a fetch finds it to
        diverge."""
        core = self._core
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        led = core.is_leader
        require(leader_epoch > core.leader_epoch or not led, f"leader epoch {leader_epoch} is this broker's")
        is_new = not self._follower.is_follower or leader_epoch > self._follower.leader_epoch
        self._follower.follow(leader, leader_epoch)
        if is_new:
            core.resign(leader_epoch, partition_epoch)
            self.log.drop_empty_epochs()
        if led:
            self._notify()  # requests which wait for an acknowledgement

    def stand_by(self, leader_epoch: int, partition_epoch: int) -> None:
        """The partition has no leader."""
        self.become_follower(NO_LEADER, leader_epoch, partition_epoch)

    # -- as leader --

    def acknowledgement(
        self, end_offset: int, acks: int = ALL_IN_SYNC, leader_epoch: int | None = None
    ) -> ErrorCode | None:
        """NONE if a batch that ends at `end_offset`, appended in that leader epoch, is acknowledged, an error
        if it has failed, None while that is undecided. Listeners are called when that may have changed.
        """
        core = self._core
        known = core.acknowledgement(end_offset, acks, leader_epoch)
        if known is not None:
            return known
        reached = core.high_watermark if acks == ALL_IN_SYNC else core.log_end_offset
        refused = self.failed is not None or reached < end_offset <= self._failed_end
        return ErrorCode.KAFKA_STORAGE_ERROR if refused else None

    def follower_fetched(
        self, follower: int, broker_epoch: int, offset: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """Record a fetch for which `read_for_follower` found no divergence: the follower has everything below
        `offset`. Returns whether the in-sync set may have to change: then call `isr_proposal`. `now_ms` is
        monotonic.
        """
        core = self._core
        known, reported = core.followers.get(follower), (broker_epoch, log_start_offset)
        is_news = known is not None and reported != (known.broker_epoch, known.log_start_offset)
        if core.follower_fetched(follower, broker_epoch, offset, now_ms, log_start_offset):
            self._on_high_watermark_moved()
        elif not core.may_commit or is_news:
            # Requests may wait for a record that too few in-sync replicas have, or DeleteRecords for the log
            # start of a live process.
            self._notify()
        if core.repeated_fetch_offset is not None:
            at, core.repeated_fetch_offset = core.repeated_fetch_offset, None
            self.suspect(at, f"broker {follower} fetches it again and again")
        return core.isr_due

    @property
    def low_watermark(self) -> int:
        """A leader's low watermark: no later leader serves a record below it. Listeners are called when it
        rises."""
        return self._core.low_watermark(self.log.log_start_offset)

    def has_no_more_than(self, offset: int, last_epoch: int) -> bool:
        """Whether `read_for_follower` has nothing for a follower at `offset`, neither records nor divergence.
        A quick check: it may return False although that is so.
        """
        log = self.log
        if offset != log.log_end_offset or not self.is_leader:
            return False
        latest = log.epochs.latest
        return last_epoch == NO_EPOCH or (latest is not None and latest.epoch == last_epoch)

    def knows_follower(self, follower: int, broker_epoch: int) -> bool:
        return self._core.knows(follower, broker_epoch)

    def set_live(self, live: Mapping[int, int]) -> None:
        """Set the brokers which may be in sync: broker id to broker epoch."""
        before = self.low_watermark
        if self._core.set_live(live):
            self._on_high_watermark_moved()
        elif self.low_watermark > before:
            self._notify()

    def isr_proposal(self, now_ms: int, lag_max_ms: int, live: Mapping[int, int]) -> IsrProposal | None:
        before = self._core.high_watermark
        proposal = self._core.isr_proposal(now_ms, lag_max_ms, live)
        if self._core.high_watermark > before:
            self._on_high_watermark_moved()
        return proposal

    def on_isr_response(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        leader_epoch: int = NO_EPOCH,
        partition_epoch: int = NO_EPOCH,
        in_sync: Collection[int] = (),
    ) -> None:
        """`in_sync`: the controller's current set; it counts only when an image has it."""
        if self._core.on_isr_response(proposal, error, leader_epoch, partition_epoch):
            self._on_high_watermark_moved()

    def on_isr_failure(self, proposal: IsrProposal) -> None:
        if self._core.on_isr_failure(proposal):
            self._on_high_watermark_moved()

    # -- as follower --

    def fetch_position(self) -> FetchPosition | None:
        """Where to fetch next. None if there is no leader, if the replica has failed, while fetching is
        paused, or while its log is less durable than flush.messages requires, as a fetch offset promises
        that. Listeners are called when one of the last two ends.
        """
        waits = self._core.log_end_offset < self.log.log_end_offset or self.is_fetching_paused
        if waits or self.failed is not None or not self._follower.is_follower:
            return None
        return self._follower.position(self.log)

    def take_fetched(
        self, requested: FetchPosition, fetched: Fetched, records: memoryview, now_ms: int
    ) -> Step:
        """Process the response to a fetch of `requested`. Returns the step that was done, or `Retry` if it
        cannot be done now. `StartFromTier` is left to the caller.
        """
        step = self._follower.on_fetched(requested, fetched, self.log)
        try:
            match step:
                case Append():
                    error = self.append_replicated(
                        records,
                        leader_epoch=requested.leader_epoch,
                        high_watermark=fetched.high_watermark,
                        log_start_offset=fetched.log_start_offset,
                        now_ms=now_ms,
                    )
                    return Retry(error) if error else step
                case Truncate(offset):
                    self.truncate_to(offset, now_ms)
                case StartAt(offset):
                    self.start_at(offset, now_ms)
        except OSError:
            return Retry(ErrorCode.KAFKA_STORAGE_ERROR)
        except CorruptLog as damage:  # the position to truncate at cannot be found
            self.suspect(step.offset if isinstance(step, Truncate) else requested.offset, str(damage))
            return Retry(ErrorCode.CORRUPT_MESSAGE)
        if (
            step == Retry(ErrorCode.OFFSET_OUT_OF_RANGE)
            and requested.last_fetched_epoch > requested.leader_epoch
        ):
            self._drop_last_epoch()
        return step

    def _drop_last_epoch(self) -> None:
        """The last records have a leader epoch that has not begun, so they are damaged. Recovery after a
        crash could not detect that, and took the epoch's entry from them.
        """
        latest = self.log.epochs.latest
        if latest is not None:
            self.log.epochs.truncate_from_end(latest.start_offset)
            self.suspect(latest.start_offset, f"its leader does not know leader epoch {latest.epoch}")

    def append_replicated(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> ErrorCode:
        """Append complete batches as the leader wrote them, and take over its high watermark and log start,
        up to the local log end. After an error some of the batches may have been appended.
        """
        core, log = self._core, self.log
        if core.is_leader or leader_epoch != core.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.log_dir.refusal is not None:
            if core.on_leader_high_watermark(high_watermark):
                self._on_high_watermark_moved()
            self.raise_log_start(log_start_offset)  # even without space: deleted records free some
            return ErrorCode.KAFKA_STORAGE_ERROR
        if records:
            latest = log.epochs.latest
            last_epoch = NO_EPOCH if latest is None else latest.epoch
            try:
                found = check_replicated(records, log.log_end_offset, last_epoch, leader_epoch)
            except RecordsError as error:
                return FAULT_CODES[error.fault]
            batches = [BatchAt(*batch) for batch in found]
            if batches[0].header.base_offset < log.log_end_offset > log.log_start_offset:
                return ErrorCode.CORRUPT_MESSAGE
            try:
                self._append_run(records, batches, now_ms)
            except OSError:
                self._after_append()  # some batches may have been appended
                return ErrorCode.KAFKA_STORAGE_ERROR
        moved = core.on_leader_high_watermark(high_watermark)
        if records:
            self._after_append(moved)
        elif moved:
            self._on_high_watermark_moved()
        if log_start_offset > log.log_start_offset:
            self.raise_log_start(log_start_offset)
        return ErrorCode.NONE

    def _append_run(self, records: memoryview, batches: Sequence[BatchAt], now_ms: int) -> None:
        log, first = self.log, batches[0].header.base_offset
        if first < log.log_end_offset:
            # The log is empty, and the leader's log start lies within its first batch.
            self.start_at(first, now_ms)
        if log.cleaned_to is None:
            offsets = batches[-1].header.next_offset - log.log_end_offset
            if offsets > sum(batch.header.last_offset_delta + 1 for batch in batches):
                # Gaps: the leader's log was compacted, whatever the cleanup policy is now.
                log.cleaned_to = log.log_start_offset
        log.append_run(records, batches, now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate the log, its producer state and its leader epochs at `offset`. Durable with the next
        flush; after a crash before it, the logs' leader epochs show the divergence again. Raises OSError, in
        particular BlockingIOError during a flush, when nothing was done.
        """
        core, log = self._core, self.log
        require(not core.is_leader, "a leader's log is never truncated")
        with _no_flush(log):
            try:
                log.truncate_to(offset, now_ms)
            finally:
                core.truncated(log.log_end_offset)
        self._failed_end = min(self._failed_end, log.log_end_offset)
        self._on_high_watermark_moved()

    def start_at(
        self,
        offset: int,
        now_ms: int,
        *,
        log_start_offset: int | None = None,
        epochs: Sequence[EpochEntry] = (),
        producer_snapshot: bytes = b"",
    ) -> None:
        """Truncate the local log fully and start at an offset. Not while it is the leader. Raises OSError as
        `truncate_to` does.

        The other arguments are for a log whose beginning is remote (KIP-405): the leader's log start offset,
        and leader epochs and producer state as of `offset`. Raises MalformedSnapshot, when nothing was done.
        With them, the caller flushes in a thread, and then creates the segment file.
        """
        core, log = self._core, self.log
        require(not core.is_leader, "a leader's log is never truncated")
        if producer_snapshot:
            ProducerStateManager.decode(producer_snapshot)
        before = log.active
        with _no_flush(log):
            try:
                log.truncate_fully_and_start_at(offset, now_ms, epochs, producer_snapshot)
            finally:
                if log.active is not before:  # otherwise it failed before any change
                    self._opened_at, self._failed_end = offset, 0
                    core.started_at(offset)
            if log_start_offset is not None:
                log.log_start_offset = min(log_start_offset, offset)
        self._on_high_watermark_moved()

    # -- implemented by Replica --

    @abstractmethod
    def raise_log_start(self, offset: int) -> None: ...

    @abstractmethod
    def _after_append(self, moved: bool = False) -> None: ...

    @abstractmethod
    def _on_high_watermark_moved(self) -> None: ...

    @abstractmethod
    def _notify(self) -> None: ...


@contextmanager
def _no_flush(log: PartitionLog) -> Iterator[None]:
    with log.flusher.held() as held:
        if not held:
            raise BlockingIOError(errno.EAGAIN, "a flush is in progress")
        yield
