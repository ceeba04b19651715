"""In-sync set: what a leader knows of its followers, and the in-sync set of KIP-497.

The leader proposes an in-sync set, and the controller decides. While a proposal is pending, either set may be
the current one, so the high watermark waits for both: the `maximal` set. A proposal without a response stays
uncertain, since the controller may still apply it, until the partition epoch has increased. Called by the
leader core; times are monotonic milliseconds.
"""

from collections.abc import Collection
from typing import NamedTuple

from tierlog.base.types import NO_OFFSET

NO_BROKER_EPOCH = -1
"""The broker has not fetched in this leader epoch; the controller then does not check it (KIP-903)."""

NEVER_MS = -(1 << 62)


class IsrProposal(NamedTuple):
    """A proposal for AlterPartition, valid for this leader epoch and partition epoch only. `in_sync`:
    ascending broker ids, each with the broker epoch of its last fetch; -1 for the leader, whose epoch the
    caller knows.
    """

    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


class Follower:
    """State of one follower in this leader epoch, as the leader knows it.

    A fetch proves that the follower had caught up at the time of the previous fetch, if its offset has
    reached the log end which the leader had then. So a follower that is always one fetch behind a busy leader
    does not lag (KIP-16).
    """

    __slots__ = (
        "_fetched_ms",
        "_leader_end_then",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "end_offset",
        "log_start_offset",
        "repeated_fetches",
    )

    def __init__(self, broker_id: int, caught_up_ms: int = NEVER_MS) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_BROKER_EPOCH
        self.end_offset: int = NO_OFFSET
        """The follower has all records below, as durable as its flush.messages requires. -1: unknown."""
        self.log_start_offset = 0
        """The follower's log start offset at its last fetch."""
        self.repeated_fetches = 0
        """Consecutive fetches of one offset although it was sent records: it cannot append them."""
        self.caught_up_ms = caught_up_ms
        self._fetched_ms = NEVER_MS
        self._leader_end_then = 1 << 62

    def fetched(
        self, broker_epoch: int, offset: int, leader_end: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """Record a fetch. Returns False if it is from an earlier process of that broker (KIP-903).

        A new process may have lost records of the previous one.
        """
        if broker_epoch < self.broker_epoch:
            return False
        if broker_epoch > self.broker_epoch:
            self.broker_epoch = broker_epoch
            self._fetched_ms, self._leader_end_then = NEVER_MS, 1 << 62
        is_repeated = offset == self.end_offset and offset < self._leader_end_then <= leader_end
        self.repeated_fetches = self.repeated_fetches + 1 if is_repeated else 0
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self._leader_end_then:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.end_offset, self.log_start_offset = offset, log_start_offset
        self._fetched_ms, self._leader_end_then = now_ms, leader_end
        return True

    def is_caught_up(self, leader_end: int, now_ms: int, lag_max_ms: int) -> bool:
        """Whether it had everything at some moment of the last `lag_max_ms`."""
        return self.end_offset >= leader_end or now_ms - self.caught_up_ms <= lag_max_ms


class InSyncSet:
    """The committed in-sync set, and the sets which the controller may have committed since."""

    __slots__ = ("committed", "maximal", "partition_epoch", "proposed", "uncertain")

    def __init__(self) -> None:
        self.partition_epoch = -1
        self.committed: frozenset[int] = frozenset()
        self.proposed: frozenset[int] | None = None
        """The set of the pending proposal."""
        self.uncertain: frozenset[int] = frozenset()
        """Members of proposals whose outcome is unknown."""
        self.maximal: frozenset[int] = frozenset()
        """All replicas which may be in sync: the high watermark waits for them."""

    def commit(self, partition_epoch: int, in_sync: Collection[int]) -> None:
        """Set the controller's in-sync set. A higher partition epoch ends all proposals of lower ones."""
        if partition_epoch > self.partition_epoch:
            self.proposed, self.uncertain = None, frozenset()
        self.partition_epoch, self.committed = partition_epoch, frozenset(in_sync)
        self._update_maximal()

    def propose(self, in_sync: frozenset[int]) -> None:
        self.proposed = in_sync
        self._update_maximal()

    def withdraw(self) -> None:
        """The controller has not applied the pending proposal, and never will."""
        self.proposed = None
        self._update_maximal()

    def mark_uncertain(self) -> None:
        """The outcome of the pending proposal is unknown."""
        if self.proposed is not None:
            self.uncertain, self.proposed = self.uncertain | self.proposed, None

    def _update_maximal(self) -> None:
        self.maximal = self.committed | self.uncertain | (self.proposed or frozenset())
