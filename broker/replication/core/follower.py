"""The follower of one partition: where it fetches next, and what to do with the answer.

A fetch says the epoch of the last record at hand; where the leader's log does not agree up to there, the
answer says where that epoch, or the one before it that the leader knows, ends. The follower cuts there, and
asks again, until both agree (KIP-595 in the Fetch API, with the rule of KIP-279 for epochs that only one of
them knows). Never is it cut by the high watermark: that lags behind what is committed (KIP-101).

Only the answer to the very position that the log is still at counts: one that comes late or twice is stale.
Called by the replica.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd, LeaderEpochs
from tierlog.base.types import NO_EPOCH, NO_OFFSET
from tierlog.protocol.errors import ErrorCode

NO_LEADER = -1


class FetchPosition(NamedTuple):
    """What a fetch asks for: records from `offset` on, of the leader of `leader_epoch`, if its log agrees
    with this one's last record, which is of `last_fetched_epoch` (-1: there is none).
    """

    offset: int
    last_fetched_epoch: int
    leader_epoch: int


class Fetched(NamedTuple):
    """A leader's answer for one partition, without its records. `diverging`: where the leader's log stops
    agreeing, UNKNOWN_END if it does agree.
    """

    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: EpochEnd = UNKNOWN_END


@dataclass(frozen=True, slots=True)
class Append:
    """The logs agree: append what came, if anything, and take the leader's high watermark and log start."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log there, then fetch again: the logs may still not agree."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Nothing here is of use: begin anew at an offset, the leader's log start."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartFromTier:
    """What comes next is remote: ask the leader for its first local offset (ListOffsets -4), take leader
    epochs and producers as of there from the remote tier, and begin anew at it (KIP-405).
    """

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Later: the leader cannot answer now, or one of both has not heard of the other's leader epoch yet."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Stale:
    """The answer is not to what the log would ask now: nothing in it may be used."""


Step = Append | Truncate | StartAt | StartFromTier | Retry | Stale

APPEND, STALE = Append(), Stale()


class Log(Protocol):
    """What a follower looks at in its log; `epochs` has no entry at the log end or above."""

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
    def follows(self) -> bool:
        return self.leader != NO_LEADER

    def follow(self, leader: int, leader_epoch: int) -> bool:
        """Another leader, or none (-1), or the same in a new epoch. False if that is older than what it
        knows.
        """
        if leader_epoch < self.leader_epoch:
            return False
        self.leader, self.leader_epoch = leader, leader_epoch
        return True

    def position(self, log: Log) -> FetchPosition:
        """What to fetch next."""
        latest = log.epochs.latest
        last_epoch = NO_EPOCH if latest is None or _is_empty(log) else latest.epoch
        return FetchPosition(log.log_end_offset, last_epoch, self.leader_epoch)

    def on_fetched(self, asked: FetchPosition, answer: Fetched, log: Log) -> Step:
        """What to do with the answer to a fetch of `asked`; changes nothing."""
        if not self.follows or asked != self.position(log):
            return STALE
        if answer.error == ErrorCode.NONE:
            return APPEND if answer.diverging == UNKNOWN_END else _agree(answer, asked, log)
        if answer.error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return StartFromTier(answer.log_start_offset)
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return _begin_anew(answer, asked)
        return Retry(answer.error)


def _agree(answer: Fetched, asked: FetchPosition, log: Log) -> Step:
    """Where to cut: where the leader's epoch ends in the shorter of both logs. If the follower does not know
    that epoch, where the one before it ends here, and the leader will be asked about that one.
    """
    theirs = answer.diverging
    own = log.epochs.end_offset_for(theirs.epoch, log.log_end_offset)
    if own.epoch == NO_EPOCH or own.epoch == theirs.epoch:
        target = theirs.end_offset if own.epoch == NO_EPOCH else min(own.end_offset, theirs.end_offset)
    else:
        target = own.end_offset
    if target < 0 or target >= asked.offset:
        return Retry(ErrorCode.FENCED_LEADER_EPOCH)  # nonsense: no cut would bring the logs nearer
    if target < log.local_log_start_offset:
        # Not even what was deleted here, or is remote, agrees: after an unclean election alone. It is fetched
        # again, as far as the leader has it.
        return StartAt(max(answer.log_start_offset, 0))
    return Truncate(target)


def _begin_anew(answer: Fetched, asked: FetchPosition) -> Step:
    """The leader has nothing there: its log begins later, or it ends before an empty one that begins here."""
    start = answer.log_start_offset
    if start > asked.offset or (asked.last_fetched_epoch == NO_EPOCH and 0 <= start < asked.offset):
        return StartAt(start)
    return Retry(answer.error)


def _is_empty(log: Log) -> bool:
    return log.log_end_offset <= log.local_log_start_offset
