"""The roles of a replica: it leads, follows, or stands by while its partition has no leader.

Which of them is the controller's word, with a leader epoch; older epochs are ignored. A leader takes records
from clients and hears from followers how far they are; a follower takes the leader's batches as they are, and
cuts its own log where the two disagree. Both keep the high watermark that they know, over changes of role
and over restarts. One owner: the event loop. Called by the replica manager and the fetcher of followers.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Protocol

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.types import NO_EPOCH, require
from tierlog.broker.replication.core.fetched_batches import check_replicated
from tierlog.broker.replication.core.follower import (
    NO_LEADER,
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


class Room(Protocol):
    """The log directory of a replica, as far as appends and flushes ask."""

    @property
    def refusal(self) -> str | None:
        """Why nothing may be appended: it is full, or offline."""

    @property
    def threads(self) -> Executor | None:
        """Where to wait for its disk."""

    def mark_hung(self, timeout_s: float) -> None:
        """Nothing in it has ended for so long."""


class ReplicaRoles(ABC):
    """The part of a replica that knows other replicas; `Replica` is the whole."""

    log: PartitionLog
    failed: str | None
    room: Room
    suspect: Callable[[int, str], None]
    _core: LeaderCore
    _follower: FollowerCore
    _refused_end: int
    _opened_at: int
    holds_still = False
    """It must not tell its leader how far its log goes: that is damaged, and about to be cut."""

    # -- where it stands --

    @property
    def leader_epoch(self) -> int:
        return self._core.leader_epoch

    @property
    def partition_epoch(self) -> int:
        return self._core.partition_epoch

    @property
    def leads(self) -> bool:
        return self._core.leads and self.failed is None

    @property
    def is_elected(self) -> bool:
        """Whether it has taken the lead: also if it has failed since, and serves nobody."""
        return self._core.leads

    @property
    def leader(self) -> int:
        """Whom it follows; -1 while it leads or stands by."""
        return self._follower.leader

    @property
    def follows(self) -> bool:
        return self._follower.follows and self.failed is None

    @property
    def in_sync(self) -> frozenset[int]:
        return self._core.in_sync

    @property
    def followers(self) -> Mapping[int, Follower]:
        """What the leader knows of the others; empty unless it leads."""
        return self._core.followers

    @property
    def high_watermark(self) -> int:
        return self._core.high_watermark

    @property
    def offset_lag(self) -> int:
        """Of a follower: committed offsets that it does not have yet, as far as its leader has told."""
        return self._core.lag

    @property
    def checkpoint(self) -> tuple[int, int, int | None]:
        """What must be known after a restart: recovery point, log start and high watermark; of the last None
        if no other broker has a replica, and so the log end tells.

        Of the high watermark only what is on disk here: where a cut and what came after it are lost, what was
        cut off is back, and was never committed.
        """
        log, core = self.log, self._core
        known = min(core.high_watermark, log.recovery_point) if core.has_peers else None
        return log.recovery_point, log.log_start_offset, known

    @property
    def owes_checkpoint(self) -> bool:
        """Whether the checkpoint on disk calls durable what is not, as the log was cut since. Where that is
        not put right before a segment is rolled, the disk is waited for.
        """
        return self.log.flusher.checkpointed_recovery_point > 0

    def checkpointed(self, cuts: int) -> None:
        """`checkpoint` is on disk, as it was after so many cuts of the log (`log.flusher.truncations`)."""
        if self.log.flusher.on_checkpointed(cuts):
            self._tell()

    @property
    def high_watermark_is_current(self) -> bool:
        """Not so just after an election: more may be committed than this leader has heard of (KIP-207)."""
        core = self._core
        return core.leads and core.high_watermark >= core.epoch_start_offset

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
        """This broker leads in that epoch, with these replicas in sync, of these (those in sync, if none are
        given). `now_ms` is monotonic. `min_in_sync`: min.insync.replicas of the same image, if it may differ
        from that of the settings at hand: below it nothing is committed, which the controller relies upon.
        `full`: replicas without room; `emptied`: those that gave up what they had.
        """
        core, log = self._core, self.log
        least = log.config.min_insync_replicas if min_in_sync is None else min_in_sync
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        if core.leads and (leader_epoch, partition_epoch) == (core.leader_epoch, core.partition_epoch):
            if core.set_min_in_sync(least):
                self._moved()
            return  # as it was: another partition of the topic has changed
        began = leader_epoch > core.leader_epoch
        require(began or core.leads, f"leader epoch {leader_epoch} has another leader")
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
        (self._moved if moved else self._tell)()

    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int) -> None:
        """Another broker leads in that epoch. The log is cut only where a fetch says that it disagrees."""
        core = self._core
        if leader_epoch < core.leader_epoch or partition_epoch < core.partition_epoch:
            return
        led = core.leads
        require(leader_epoch > core.leader_epoch or not led, f"leader epoch {leader_epoch} is this broker's")
        is_new = not self._follower.follows or leader_epoch > self._follower.leader_epoch
        self._follower.follow(leader, leader_epoch)
        if is_new:
            core.resign(leader_epoch, partition_epoch)
            self.log.drop_empty_epochs()
        if led:
            self._tell()  # whoever waits for an acknowledgement

    def stand_by(self, leader_epoch: int, partition_epoch: int) -> None:
        """The partition has no leader for now."""
        self.become_follower(NO_LEADER, leader_epoch, partition_epoch)

    # -- as leader --

    def acknowledgement(
        self, end_offset: int, acks: int = ALL_IN_SYNC, leader_epoch: int | None = None
    ) -> ErrorCode | None:
        """NONE when a batch that ends there, appended in that leader epoch, may be acknowledged, an error if
        it may not be, None as long as neither is known; listeners hear when that changes.
        """
        core = self._core
        known = core.acknowledgement(end_offset, acks, leader_epoch)
        if known is not None:
            return known
        reached = core.high_watermark if acks == ALL_IN_SYNC else core.log_end_offset
        refused = self.failed is not None or reached < end_offset <= self._refused_end
        return ErrorCode.KAFKA_STORAGE_ERROR if refused else None

    def follower_fetched(
        self, follower: int, broker_epoch: int, offset: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """After `read_for_follower` found no divergence: that replica has everything below the offset. True
        if the in-sync set may have to change: ask `isr_proposal`. `now_ms` is monotonic.
        """
        core = self._core
        known, told = core.followers.get(follower), (broker_epoch, log_start_offset)
        is_news = known is not None and told != (known.broker_epoch, known.log_start_offset)
        if core.follower_fetched(follower, broker_epoch, offset, now_ms, log_start_offset):
            self._moved()
        elif not core.may_commit or is_news:
            # Too few are in sync, and they have what is waited for; or DeleteRecords waits for the log start
            # of a process that lives.
            self._tell()
        if core.asked_again is not None:
            at, core.asked_again = core.asked_again, None
            self.suspect(at, f"broker {follower} asks for it again and again")
        return core.isr_due

    @property
    def low_watermark(self) -> int:
        """Of a leader: no leader elected after it serves a record below. Listeners hear when it rises."""
        return self._core.low_watermark(self.log.log_start_offset)

    def has_no_more_than(self, offset: int, last_epoch: int) -> bool:
        """Whether a replica whose last record before that offset is of that epoch has all that is here:
        `read_for_follower` would neither find anything for it nor disagree. False also where that takes a
        closer look.
        """
        log = self.log
        if offset != log.log_end_offset or not self.leads:
            return False
        latest = log.epochs.latest
        return last_epoch == NO_EPOCH or (latest is not None and latest.epoch == last_epoch)

    def knows_follower(self, follower: int, broker_epoch: int) -> bool:
        return self._core.knows(follower, broker_epoch)

    def set_live(self, live: Mapping[int, int]) -> None:
        """Brokers came or went: broker id to epoch of those that may be in sync."""
        before = self.low_watermark
        if self._core.set_live(live):
            self._moved()
        elif self.low_watermark > before:
            self._tell()

    def isr_proposal(self, now_ms: int, lag_max_ms: int, live: Mapping[int, int]) -> IsrProposal | None:
        before = self._core.high_watermark
        proposal = self._core.isr_proposal(now_ms, lag_max_ms, live)
        if self._core.high_watermark > before:
            self._moved()
        return proposal

    def isr_answered(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        leader_epoch: int = NO_EPOCH,
        partition_epoch: int = NO_EPOCH,
        in_sync: Collection[int] = (),
    ) -> None:
        """`in_sync`: what is now; it counts once an image has it."""
        if self._core.isr_answered(proposal, error, leader_epoch, partition_epoch):
            self._moved()

    def isr_failed(self, proposal: IsrProposal) -> None:
        if self._core.isr_failed(proposal):
            self._moved()

    # -- as follower --

    def fetch_position(self) -> FetchPosition | None:
        """What to fetch next; None if nothing now: it follows nobody, has failed, holds still, or what it has
        is not yet as durable as flush.messages asks, which its fetch offset would claim. Listeners hear of
        the last two.
        """
        waits = self._core.log_end_offset < self.log.log_end_offset or self.holds_still
        if waits or self.failed is not None or not self._follower.follows:
            return None
        return self._follower.position(self.log)

    def take_fetched(self, asked: FetchPosition, answer: Fetched, records: memoryview, now_ms: int) -> Step:
        """Does what the answer to a fetch of `asked` means, and returns what that was; `Retry` if it cannot
        be done now. `StartFromTier` is left to the caller.
        """
        step = self._follower.on_fetched(asked, answer, self.log)
        try:
            match step:
                case Append():
                    error = self.append_replicated(
                        records,
                        leader_epoch=asked.leader_epoch,
                        high_watermark=answer.high_watermark,
                        log_start_offset=answer.log_start_offset,
                        now_ms=now_ms,
                    )
                    return Retry(error) if error else step
                case Truncate(offset):
                    self.truncate_to(offset, now_ms)
                case StartAt(offset):
                    self.start_at(offset, now_ms)
        except OSError:
            return Retry(ErrorCode.KAFKA_STORAGE_ERROR)
        except CorruptLog as damage:  # it hides where to cut
            self.suspect(step.offset if isinstance(step, Truncate) else asked.offset, str(damage))
            return Retry(ErrorCode.CORRUPT_MESSAGE)
        if step == Retry(ErrorCode.OFFSET_OUT_OF_RANGE) and asked.last_fetched_epoch > asked.leader_epoch:
            self._distrust_last_epoch()
        return step

    def _distrust_last_epoch(self) -> None:
        """The last records say that they are of a leader epoch that has not begun: a crash left nothing that
        could contradict it. What the log knows of that epoch came from them.
        """
        latest = self.log.epochs.latest
        if latest is not None:
            self.log.epochs.truncate_from_end(latest.start_offset)
            self.suspect(latest.start_offset, f"its leader has not heard of leader epoch {latest.epoch}")

    def append_replicated(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> ErrorCode:
        """Appends whole batches as the leader wrote them, and takes over its high watermark and log start as
        far as the log goes. With an error nothing of it counts, but a part may have been appended.
        """
        core, log = self._core, self.log
        if core.leads or leader_epoch != core.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.room.refusal is not None:
            if core.told(high_watermark):
                self._moved()
            self.raise_log_start(log_start_offset)  # without room too: what was deleted goes, and makes some
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
                self._settle()  # a part may have been appended
                return ErrorCode.KAFKA_STORAGE_ERROR
        moved = core.told(high_watermark)
        if records:
            self._settle(moved)
        elif moved:
            self._moved()
        if log_start_offset > log.log_start_offset:
            self.raise_log_start(log_start_offset)
        return ErrorCode.NONE

    def _append_run(self, records: memoryview, batches: Sequence[BatchAt], now_ms: int) -> None:
        log, first = self.log, batches[0].header.base_offset
        if first < log.log_end_offset:
            # The log is empty and begins within a batch of the leader, whose log start was moved into it.
            self.start_at(first, now_ms)
        if log.cleaned_to is None:
            offsets = batches[-1].header.next_offset - log.log_end_offset
            if offsets > sum(batch.header.last_offset_delta + 1 for batch in batches):
                log.cleaned_to = (
                    log.log_start_offset
                )  # gaps, as the leader's log was compacted: so they are whatever the policy
        log.append_run(records, batches, now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cuts the log where the leader's disagrees; producers and epochs go back with it. Durable with the
        next flush: after a crash before it, the leader's epochs tell again. Raises OSError, above all
        BlockingIOError while a flush is under way: then nothing was done.
        """
        core, log = self._core, self.log
        require(not core.leads, "a leader's log is never cut")
        with _no_flush(log):
            try:
                log.truncate_to(offset, now_ms)
            finally:
                core.truncated(log.log_end_offset)
        self._refused_end = min(self._refused_end, log.log_end_offset)
        self._moved()

    def start_at(
        self,
        offset: int,
        now_ms: int,
        *,
        log_start_offset: int | None = None,
        epochs: Sequence[EpochEntry] = (),
        producer_snapshot: bytes = b"",
    ) -> None:
        """Forgets the local log, which goes on at an offset; not while it leads. Raises OSError as
        `truncate_to`.

        The rest is for a log whose beginning is remote (KIP-405): where the leader's log starts, and leader
        epochs and producers as of `offset`. Raises MalformedSnapshot, and then nothing was done. With them
        the caller flushes, off the loop, and then makes the file of the segment.
        """
        core, log = self._core, self.log
        require(not core.leads, "a leader's log never begins anew")
        if producer_snapshot:
            ProducerStateManager.decode(producer_snapshot)
        before = log.active
        with _no_flush(log):
            try:
                log.truncate_fully_and_start_at(offset, now_ms, epochs, producer_snapshot)
            finally:
                if log.active is not before:  # else it failed before anything was changed
                    self._opened_at, self._refused_end = offset, 0
                    core.started_at(offset)
            if log_start_offset is not None:
                log.log_start_offset = min(log_start_offset, offset)
        self._moved()

    # -- what the whole replica does --

    @abstractmethod
    def raise_log_start(self, offset: int) -> None: ...

    @abstractmethod
    def _settle(self, moved: bool = False) -> None: ...

    @abstractmethod
    def _moved(self) -> None: ...

    @abstractmethod
    def _tell(self) -> None: ...


@contextmanager
def _no_flush(log: PartitionLog) -> Iterator[None]:
    with log.flusher.held() as held:
        if not held:
            raise BlockingIOError(errno.EAGAIN, "a flush is under way")
        yield
