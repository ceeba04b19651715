"""Who follows the leader of one partition, and which of them count: lag by time, and the in-sync set of
KIP-497.

The in-sync set is the controller's to change; the leader proposes. While a proposal is out nobody knows which
set counts, so both do: `maximal` is what the high watermark waits for. A proposal without an answer stays in
doubt, since it may yet be carried out, until the partition epoch has moved. Called by the leader core; times
are monotonic milliseconds.
"""

from collections.abc import Collection
from typing import NamedTuple

from tierlog.base.types import NO_OFFSET

NO_BROKER_EPOCH = -1
"""Of a broker that has not fetched in this leader epoch. The controller does not compare it (KIP-903)."""

NEVER_MS = -(1 << 62)


class IsrProposal(NamedTuple):
    """What AlterPartition carries: valid for that leader epoch and partition epoch alone. `in_sync`: broker
    ids, growing, with the epoch that each fetched with; -1 for the leader's own, which the caller knows.
    """

    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]

    @property
    def broker_ids(self) -> frozenset[int]:
        return frozenset(broker_id for broker_id, _ in self.in_sync)


class Follower:
    """What the leader knows of one other replica in this leader epoch.

    It is caught up at a moment when it has all that the leader had then. A fetch proves that for the moment
    of the fetch before, if its offset has reached the log end that the leader had there: a follower that is
    always one fetch behind a busy leader does not lag (KIP-16).
    """

    __slots__ = (
        "_fetched_ms",
        "_leader_end_then",
        "asked_again",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int = NEVER_MS) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_BROKER_EPOCH
        self.end_offset: int = NO_OFFSET
        """It has everything below, as durable as its flush.messages asks; -1: not known yet."""
        self.log_start_offset = 0
        """As its last fetch reported it."""
        self.asked_again = 0
        """How often in a row it came back for what was there for it the time before: it cannot take it."""
        self.caught_up_ms = caught_up_ms
        self._fetched_ms = NEVER_MS
        self._leader_end_then = 1 << 62

    def fetched(
        self, broker_epoch: int, offset: int, leader_end: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """Takes a fetch; False if it comes from a process that has been replaced since (KIP-903).

        One that started anew may have lost what the one before it had.
        """
        if broker_epoch < self.broker_epoch:
            return False
        if broker_epoch > self.broker_epoch:
            self.broker_epoch = broker_epoch
            self._fetched_ms, self._leader_end_then = NEVER_MS, 1 << 62
        again = offset == self.end_offset and offset < self._leader_end_then <= leader_end
        self.asked_again = self.asked_again + 1 if again else 0
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.end_offset, self.log_start_offset = offset, log_start_offset
        self._fetched_ms, self._leader_end_then = now_ms, leader_end
        return True

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Nothing is missing now, or nothing was at some moment in the last `lag_max_ms`."""
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class InSyncSet:
    """The committed set, and those that may be committed without this leader knowing it yet."""

    __slots__ = ("committed", "doubtful", "maximal", "partition_epoch", "proposed")

    def __init__(self) -> None:
        self.partition_epoch = -1
        self.committed: frozenset[int] = frozenset()
        self.proposed: frozenset[int] | None = None
        """Of the proposal that is out."""
        self.doubtful: frozenset[int] = frozenset()
        """Of proposals whose outcome is unknown."""
        self.maximal: frozenset[int] = frozenset()

    def commit(self, partition_epoch: int, in_sync: Collection[int]) -> None:
        """The controller's word. A higher partition epoch settles all proposals made under lower ones."""
        if partition_epoch > self.partition_epoch:
            self.proposed, self.doubtful = None, frozenset()
        self.partition_epoch, self.committed = partition_epoch, frozenset(in_sync)
        self._changed()

    def propose(self, in_sync: frozenset[int]) -> None:
        self.proposed = in_sync
        self._changed()

    def withdraw(self) -> None:
        """The proposal that was out is not and will not be carried out."""
        self.proposed = None
        self._changed()

    def doubt(self) -> None:
        """Nobody knows whether it was carried out, or will be."""
        if self.proposed is not None:
            self.doubtful, self.proposed = self.doubtful | self.proposed, None

    def _changed(self) -> None:
        self.maximal = self.committed | self.doubtful | (self.proposed or frozenset())
