"""Follower role of a replica: appends the leader's batches unchanged, and truncates the log where it
diverges.

The follower core decides what to fetch and what a response means. The high watermark is kept when the leader
changes. Runs on the event loop. Called by the replica fetchers, the tier state machine, log
repair and the replica loader.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH, require
from tierlog.broker.replication.core.follower import (
    Append,
    Fetched,
    FetchPosition,
    FollowerCore,
    Retry,
    StartAt,
    Step,
    Truncate,
    check_replicated,
)
from tierlog.broker.replication.core.leader import LeaderCore
from tierlog.broker.replication.replica_state import ReplicaState
from tierlog.broker.storage.core.batch_validation import (
    FAULT_CODES,
)
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.segment import BatchAt, CorruptLog
from tierlog.protocol.errors import ErrorCode
from tierlog.records.errors import RecordsError


class FollowerRole:
    __slots__ = ("_agreed_epoch", "_core", "_follower", "_log", "_replica", "is_fetching_paused")

    def __init__(self, replica: ReplicaState, core: LeaderCore, follower: FollowerCore) -> None:
        self._replica = replica
        self._log = replica.log
        self._core = core
        self._follower = follower
        self._agreed_epoch: int = NO_EPOCH  # the newest leader epoch in which a fetch found equal logs
        self.is_fetching_paused = False
        """Set while the log is damaged and about to be truncated: a fetch would tell the leader that this
        replica has everything up to its log end."""

    def fetch_position(self) -> FetchPosition | None:
        """The next fetch position, or None.

        None if there is no leader, if the replica has failed, while fetching is paused, or while the log is
        less durable than flush.messages requires: a fetch offset promises that everything below it is that
        durable. Listeners are called when either of the last two ends.
        """
        waits = self.is_fetching_paused or not self._is_flushed()
        if waits or self._replica.failed is not None or not self._follower.is_follower:
            return None
        return self._follower.position(self._log)

    @property
    def agrees_with_leader(self) -> bool:
        """Whether it has fetched in the current leader epoch, and the leader's log was equal up to there."""
        follower = self._follower
        return follower.is_follower and self._agreed_epoch == follower.leader_epoch

    def _is_flushed(self) -> bool:
        return self._core.log_end_offset >= self._log.log_end_offset

    def take_fetched(
        self, requested: FetchPosition, fetched: Fetched, records: memoryview, now_ms: int
    ) -> Step:
        """Process the response to a fetch at `requested`.

        Returns the step that was taken, or `Retry` if it must be taken later. The caller takes
        `StartFromTier`.
        """
        step = self._follower.on_fetched(requested, fetched, self._log)
        try:
            match step:
                case Append():
                    self._agreed_epoch = requested.leader_epoch
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
            self._replica.suspect(
                step.offset if isinstance(step, Truncate) else requested.offset, str(damage)
            )
            return Retry(ErrorCode.CORRUPT_MESSAGE)
        if (
            step == Retry(ErrorCode.OFFSET_OUT_OF_RANGE)
            and requested.last_fetched_epoch > requested.leader_epoch
        ):
            self._drop_last_epoch()
        return step

    def _drop_last_epoch(self) -> None:
        """Drop the last epoch, which the leader does not know: the records that have it are damaged.

        Recovery after a crash cannot detect such records, and adds their epoch to the leader epochs.
        """
        latest = self._log.epochs.latest
        if latest is not None:
            self._log.epochs.truncate_from_end(latest.start_offset)
            self._replica.suspect(
                latest.start_offset, f"its leader does not know leader epoch {latest.epoch}"
            )

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
        core, log = self._core, self._log
        if core.is_leader or leader_epoch != core.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._replica.failed is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._replica.log_dir.refusal is not None:
            if core.on_leader_high_watermark(high_watermark):
                self._replica.notify()
            self._replica.raise_log_start(log_start_offset)  # deleted records free space on a full disk
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
                self._replica.after_append()  # some batches may have been appended
                return ErrorCode.KAFKA_STORAGE_ERROR
        moved = core.on_leader_high_watermark(high_watermark)
        if records:
            self._replica.after_append()
        elif moved:
            self._replica.notify()
        if log_start_offset > log.log_start_offset:
            self._replica.raise_log_start(log_start_offset)
        return ErrorCode.NONE

    def _append_run(self, records: memoryview, batches: Sequence[BatchAt], now_ms: int) -> None:
        log, first = self._log, batches[0].header.base_offset
        if first < log.log_end_offset:
            # The log is empty, and the leader's log start is within its first batch.
            self.start_at(first, now_ms)
        if log.cleaned_to is None:
            offsets = batches[-1].header.next_offset - log.log_end_offset
            if offsets > sum(batch.header.last_offset_delta + 1 for batch in batches):
                # Gaps: the leader's log was compacted, whatever the cleanup policy is now.
                log.cleaned_to = log.log_start_offset
        log.append_run(records, batches, now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate the log, its producer state and its leader epochs at `offset`.

        The truncation is durable after the next flush. If the broker crashes before, the next fetch detects
        the divergence again. Raises OSError. During a flush it raises BlockingIOError and changes nothing.
        """
        core, log = self._core, self._log
        require(not core.is_leader, "a leader's log is never truncated")
        with _flushes_held_off(log):
            try:
                log.truncate_to(offset, now_ms)
            finally:
                core.truncated(log.log_end_offset)
        self._replica.failed_end = min(self._replica.failed_end, log.log_end_offset)
        self._replica.notify()

    def start_at(
        self,
        offset: int,
        now_ms: int,
        *,
        log_start_offset: int | None = None,
        epochs: Sequence[EpochEntry] = (),
        producer_snapshot: bytes = b"",
    ) -> None:
        """Truncate the local log fully and start at an offset. Raises OSError as `truncate_to` does.

        The other arguments are for a log whose beginning is remote (KIP-405): the leader's log start offset,
        and leader epochs and producer state as of `offset`. Afterwards the caller flushes the log in a thread
        and creates the segment file. Raises MalformedSnapshot, and then changes nothing.
        """
        core, log = self._core, self._log
        require(not core.is_leader, "a leader's log is never truncated")
        if producer_snapshot:
            ProducerStateManager.decode(producer_snapshot)
        before = log.active
        with _flushes_held_off(log):
            try:
                log.truncate_fully_and_start_at(offset, now_ms, epochs, producer_snapshot)
            finally:
                if log.active is not before:  # otherwise it failed before any change
                    self._replica.on_restarted(offset)
                    core.started_at(offset)
            if log_start_offset is not None:
                log.log_start_offset = min(log_start_offset, offset)
        self._replica.notify()


safeguard("a follower fetches from its flushed offset")(FollowerRole._is_flushed)
safeguard("a follower adopts the leader's log start offset")(FollowerRole.append_replicated)


@contextmanager
def _flushes_held_off(log: PartitionLog) -> Iterator[None]:
    with log.flusher.held() as held:
        if not held:
            raise BlockingIOError(errno.EAGAIN, "a flush is in progress")
        yield
