"""Follower core: decides what one follower fetches next, and what a fetch response means; checks the batches.

A fetch names the leader epoch of the follower's last record. If the leader's log diverges below that, the
response says where this epoch, or the largest smaller epoch that the leader knows, ends. The follower
truncates there and fetches again, until both logs agree (KIP-595, with the rule of KIP-279 for epochs that
only one of them knows). It never truncates at its high watermark, which may be below the committed offset
(KIP-101).

A response counts only if the log is still at the position that was fetched; a late or repeated one is stale.
Called by the replica.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd, LeaderEpochs
from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH, NO_LEADER, NO_OFFSET
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError, RecordsFault


class FetchPosition(NamedTuple):
    """Fetch position of a follower: `offset`, in `leader_epoch`. `last_fetched_epoch` is the leader epoch of
    its last record (-1: none).
    """

    offset: int
    last_fetched_epoch: int
    leader_epoch: int


class Fetched(NamedTuple):
    """A leader's response for one partition, without the records. `diverging`: where the leader's log
    diverges, UNKNOWN_END if the logs agree.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: EpochEnd = UNKNOWN_END


@dataclass(frozen=True, slots=True)
class Append:
    """The logs agree: append the records, if any, and take over the leader's high watermark and log start."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log at `offset`, then fetch again: the logs may still diverge."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Truncate the log fully and start at the leader's log start offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartFromTier:
    """The next records are remote. Get from the leader where to start (ListOffsets EARLIEST_LOCAL, or
    EARLIEST_PENDING_UPLOAD), restore leader epochs and producer state as of there from the remote tier, and
    start at it (KIP-405, KIP-1023).
    """

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Fetch again later: the leader cannot serve now, or one of the two does not know the other's epoch
    yet."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Stale:
    """The log is no longer at the position that was fetched: ignore the response."""


Step = Append | Truncate | StartAt | StartFromTier | Retry | Stale

APPEND, STALE = Append(), Stale()


class Log(Protocol):
    """The follower's log. `epochs` has no entry at the log end or above."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def local_log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def epochs(self) -> LeaderEpochs: ...


class FollowerCore:
    __slots__ = ("broker_id", "leader", "leader_epoch")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.leader = NO_LEADER
        self.leader_epoch: int = NO_EPOCH

    @property
    def is_follower(self) -> bool:
        return self.leader != NO_LEADER

    def follow(self, leader: int, leader_epoch: int) -> bool:
        """Set the leader (-1: none) and its epoch. Returns False if the epoch is older than the current
        one."""
        if leader_epoch < self.leader_epoch:
            return False
        self.leader, self.leader_epoch = leader, leader_epoch
        return True

    def position(self, log: Log) -> FetchPosition:
        """The position of the next fetch."""
        latest = log.epochs.latest
        last_epoch = NO_EPOCH if latest is None or _is_empty(log) else latest.epoch
        return FetchPosition(log.log_end_offset, last_epoch, self.leader_epoch)

    def on_fetched(self, requested: FetchPosition, fetched: Fetched, log: Log) -> Step:
        """The step that the response to a fetch of `requested` requires. Changes nothing."""
        if not self.is_follower or requested != self.position(log):
            return STALE
        if fetched.error == ErrorCode.NONE:
            return APPEND if fetched.diverging == UNKNOWN_END else _truncation(fetched, requested, log)
        if fetched.error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return StartFromTier(fetched.log_start_offset)
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return _start_in_leader_log(fetched, requested)
        return Retry(fetched.error)


safeguard("a follower truncates at the leader epoch boundary")(FollowerCore.position)


def _truncation(fetched: Fetched, requested: FetchPosition, log: Log) -> Step:
    """Truncate where the leader's epoch ends in the shorter of both logs. If the follower does not know that
    epoch, truncate at the end of the largest smaller one; the next fetch names that.
    """
    leader = fetched.diverging
    own = log.epochs.end_offset_for(leader.epoch, log.log_end_offset)
    if own.epoch == NO_EPOCH or own.epoch == leader.epoch:
        target = leader.end_offset if own.epoch == NO_EPOCH else min(own.end_offset, leader.end_offset)
    else:
        target = own.end_offset
    if target < 0 or target >= requested.offset:
        return Retry(ErrorCode.FENCED_LEADER_EPOCH)  # an invalid response: no truncation makes the logs agree
    if target < log.local_log_start_offset:
        # Only after an unclean election: the logs diverge below the local log start. Fetch from the leader's
        # log start on.
        return StartAt(max(fetched.log_start_offset, 0))
    return Truncate(target)


def _start_in_leader_log(fetched: Fetched, requested: FetchPosition) -> Step:
    """The offset is below the leader's log start, or above its log end while the follower's log is empty."""
    start = fetched.log_start_offset
    if start > requested.offset or (
        requested.last_fetched_epoch == NO_EPOCH and 0 <= start < requested.offset
    ):
        return StartAt(start)
    return Retry(fetched.error)


def _is_empty(log: Log) -> bool:
    return log.log_end_offset <= log.local_log_start_offset


def check_replicated(
    records: memoryview, from_offset: int, last_epoch: int, leader_epoch: int
) -> list[tuple[int, BatchHeader]]:
    """Check what a follower fetched, before it is appended. Returns position and header of each valid batch,
    up to the first invalid or incomplete one. Raises RecordsError if there is none.

    Checks each batch's CRC and counts. Offsets and leader epochs, which the CRC does not cover, must not
    decrease, and no epoch may exceed the leader's. Where they decrease, the batch before may be the invalid
    one, so it is left out too. The first batch must end above `from_offset`; the log decides whether it may
    begin below it. `last_epoch` is the leader epoch of the follower's last record.
    """
    valid: list[tuple[int, BatchHeader]] = []
    at = 0
    try:
        while at + HEADER_SIZE <= len(records):
            length = read_header(records, at).batch_length
            if length >= HEADER_SIZE - LOG_OVERHEAD and at + length + LOG_OVERHEAD > len(records):
                break
            header = _checked(records, at)
            _check_order(header, valid[-1][1] if valid else None, from_offset, last_epoch, leader_epoch)
            valid.append((at, header))
            at += header.size
    except RecordsError:
        if len(valid) < 2:
            raise
        return valid[:-1]
    if not valid:
        raise RecordsError(RecordsFault.CORRUPT, f"{len(records)} bytes hold no complete batch")
    return valid


def _checked(records: memoryview, at: int) -> BatchHeader:
    return check_batch(records, at)


safeguard("a follower checks the CRC of fetched batches")(_checked)


def _check_order(
    header: BatchHeader, before: BatchHeader | None, from_offset: int, last_epoch: int, leader_epoch: int
) -> None:
    expected = from_offset if before is None else before.next_offset
    if header.last_offset < expected or (before is not None and header.base_offset < expected):
        raise RecordsError(
            RecordsFault.CORRUPT, f"a batch at offset {header.base_offset}, expected {expected}"
        )
    last_epoch = last_epoch if before is None else before.leader_epoch
    if not last_epoch <= header.leader_epoch <= leader_epoch:
        raise RecordsError(
            RecordsFault.CORRUPT,
            f"a batch of leader epoch {header.leader_epoch} after {last_epoch}, in epoch {leader_epoch}",
        )
