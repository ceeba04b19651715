"""The leader of one partition: who is in sync, what is committed, and whether a batch may be appended.

It knows offsets and epochs, never bytes on disk. The replica asks `decide_append`, writes, and tells it
with `appended`; a follower's fetch offset arrives with `follower_fetched`. The high watermark is the
smallest log end among the in-sync replicas; it never goes back while this leader leads (guarantee 6).
"""

from collections.abc import Collection

from tierlog.broker.partition.producers import Duplicate, ProducerState, Refused
from tierlog.broker.ports.types import require
from tierlog.broker.records.batch import BatchHeader
from tierlog.broker.wire.errors import ErrorCode

ALL_IN_SYNC = -1
"""acks=-1, which clients call `all`."""

NO_LEADER_EPOCH = -1


class LeaderCore:
    __slots__ = (
        "_ends",
        "broker_id",
        "high_watermark",
        "in_sync",
        "leader_epoch",
        "log_end_offset",
        "partition_epoch",
    )

    def __init__(self, broker_id: int, log_end_offset: int, high_watermark: int) -> None:
        require(
            0 <= high_watermark <= log_end_offset,
            f"high watermark {high_watermark}, log end {log_end_offset}",
        )
        self.broker_id = broker_id
        self.log_end_offset = log_end_offset
        self.high_watermark = high_watermark
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.in_sync: frozenset[int] = frozenset()
        self._ends: dict[int, int] = {}  # in-sync follower -> its log end

    @property
    def leads(self) -> bool:
        return self.leader_epoch != NO_LEADER_EPOCH

    def become_leader(self, leader_epoch: int, partition_epoch: int, in_sync: Collection[int]) -> bool:
        """Begins to lead, or takes a new in-sync set. True if the high watermark moved. Older epochs are
        ignored.
        """
        if leader_epoch < self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        require(self.broker_id in in_sync, f"leader {self.broker_id} is not in sync: {sorted(in_sync)}")
        if leader_epoch != self.leader_epoch:
            self._ends = {}  # what followers had in an older epoch may since have been cut
        self.leader_epoch, self.partition_epoch, self.in_sync = (
            leader_epoch,
            partition_epoch,
            frozenset(in_sync),
        )
        followers = sorted(self.in_sync - {self.broker_id})
        self._ends = {follower: self._ends.get(follower, 0) for follower in followers}
        return self._advance()

    def decide_append(
        self,
        header: BatchHeader,
        producers: ProducerState,
        *,
        acks: int,
        min_in_sync: int,
        from_client: bool = True,
    ) -> Duplicate | Refused | None:
        """None: append at `log_end_offset`. Judges leadership, replication and idempotence; changes
        nothing.
        """
        if self.leader_epoch == NO_LEADER_EPOCH:
            return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica does not lead the partition")
        if acks == ALL_IN_SYNC and len(self.in_sync) < min_in_sync:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.in_sync)} in sync, min.insync.replicas is {min_in_sync}",
            )
        if header.producer_id < 0 or not from_client:
            return None
        if header.is_transactional:
            # No coordinator here begins transactions, so there is none that the batch could belong to.
            return Refused(
                ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has no transaction here"
            )
        return producers.judge(header)

    def appended(self, log_end_offset: int) -> bool:
        """The local log ends here now. True if the high watermark moved."""
        require(log_end_offset >= self.log_end_offset, f"log end {self.log_end_offset} -> {log_end_offset}")
        self.log_end_offset = log_end_offset
        return self._advance()

    def follower_fetched(self, follower: int, offset: int) -> bool:
        """An in-sync follower has everything below `offset`. True if the high watermark moved."""
        if follower not in self._ends or offset <= self._ends[follower]:
            return False
        self._ends[follower] = offset
        return self._advance()

    def last_stable_offset(self, producers: ProducerState) -> int:
        """What read_committed may read up to: the high watermark, or the first record whose fate is open."""
        unstable = producers.first_unstable_offset()
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def check(self) -> None:
        """Raises InvariantViolation if the high watermark is above an in-sync log end."""
        require(self.high_watermark <= self.log_end_offset, "high watermark above the log end")

    def _advance(self) -> bool:
        committed = (
            min(self._ends.values(), default=self.log_end_offset) if self._ends else self.log_end_offset
        )
        committed = min(committed, self.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
