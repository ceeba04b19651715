"""What one replica knows to be committed, and, while it leads, who is in sync and whether a batch may be
appended.

It knows offsets and epochs, never bytes on disk. The replica asks `decide_append`, writes, and tells it with
`appended`; a follower's fetch offset arrives with `follower_fetched`, and the controller's word on the
in-sync set with `become_leader`. While it follows, `told` says how far the leader has committed.

The high watermark of a leader is the smallest log end over the maximal in-sync set (KIP-497), and it moves
only while the committed set has at least min.insync.replicas members, as what left the set below that must
still have all that is committed (KIP-966). It never goes back, over elections neither, unless the log itself
is cut below it (guarantee 6). Called by the replica; times are monotonic milliseconds.
"""

from collections.abc import Collection, Mapping

from tierlog.base.types import NO_OFFSET, require
from tierlog.broker.replication.core.in_sync import (
    NEVER_MS,
    NO_BROKER_EPOCH,
    Follower,
    InSyncSet,
    IsrProposal,
)
from tierlog.broker.storage.core.producer_state import Duplicate, ProducerStateManager, Rejection
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader

__all__ = ["ALL_IN_SYNC", "NO_LEADER_EPOCH", "Follower", "IsrProposal", "LeaderCore"]

ALL_IN_SYNC = -1
"""acks=-1, which clients call `all`."""

NO_LEADER_EPOCH = -1

ASKED_AGAIN_MAX = 3
"""Times in a row: a connection that breaks under an answer is no news, but a follower that refuses it is."""

_NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""The controller knew the partition epoch of the proposal and turned the proposal down."""

_IMAGE_TELLS = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""What the leader knows is no longer so: nothing to propose before an image has said what is."""


class LeaderCore:
    __slots__ = (
        "_emptied",
        "_followers",
        "_full",
        "_in_sync",
        "_joining",
        "_lag_max_ms",
        "_live",
        "_out",
        "_replicas",
        "_told",
        "_waits_for_image",
        "_waits_on",
        "asked_again",
        "broker_id",
        "epoch_start_offset",
        "high_watermark",
        "isr_due",
        "leader_epoch",
        "leads",
        "log_end_offset",
        "may_commit",
        "min_in_sync",
    )

    def __init__(
        self, broker_id: int, log_end_offset: int, high_watermark: int, *, min_in_sync: int = 1
    ) -> None:
        require(
            0 <= high_watermark <= log_end_offset,
            f"high watermark {high_watermark}, log end {log_end_offset}",
        )
        self.broker_id = broker_id
        self.log_end_offset = log_end_offset
        """Everything below is as durable here as flush.messages asks."""
        self.high_watermark = high_watermark
        self.leader_epoch = NO_LEADER_EPOCH
        self.leads = False
        self.epoch_start_offset = 0
        """Where this leader's own records begin; what lies below is committed once one of them is."""
        self.asked_again: int | None = None
        """Where a follower does not get on: what it is given there may be damaged. The caller takes it."""
        self.isr_due = False
        """Whether a fetch has shown that the in-sync set may have to change: ask `isr_proposal` soon."""
        self.min_in_sync = min_in_sync
        """min.insync.replicas, and no more than there are replicas."""
        self._in_sync = InSyncSet()
        self._out: IsrProposal | None = None
        self._replicas: frozenset[int] = frozenset({broker_id})
        self._followers: dict[int, Follower] = {}
        self._waits_on: tuple[Follower, ...] = ()  # whose log ends bound the high watermark
        self.may_commit = False
        """Whether it leads, and enough are in sync for the high watermark to move."""
        self._joining: frozenset[int] = frozenset()  # not in sync, and near enough that they soon will be
        self._live: Mapping[int, int] = {}
        self._emptied: frozenset[int] = frozenset()  # marked as having lost what they had
        self._full: frozenset[int] = frozenset()  # without room: the controller lets them in later
        self._lag_max_ms = 0
        self._waits_for_image = False
        self._told = high_watermark

    # -- roles --

    @property
    def in_sync(self) -> frozenset[int]:
        """As the controller has committed it."""
        return self._in_sync.committed

    @property
    def maximal_in_sync(self) -> frozenset[int]:
        return self._in_sync.maximal

    @property
    def partition_epoch(self) -> int:
        return self._in_sync.partition_epoch

    @property
    def followers(self) -> Mapping[int, Follower]:
        """The other replicas, by broker id; empty while it does not lead."""
        return self._followers

    def become_leader(
        self,
        leader_epoch: int,
        partition_epoch: int,
        replicas: Collection[int],
        in_sync: Collection[int],
        now_ms: int,
        *,
        min_in_sync: int,
        epoch_start_offset: int | None = None,
        full: Collection[int] = (),
        emptied: Collection[int] = (),
    ) -> bool:
        """Begins to lead, or takes new replicas or another in-sync set. True if the high watermark moved.
        Older epochs are ignored. `full`: replicas without room, which do not join for now. `emptied`: those
        that gave up what they had; what they fetch from then on tells what they have.
        """
        if leader_epoch < self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        require(self.broker_id in in_sync, f"leader {self.broker_id} is not in sync: {sorted(in_sync)}")
        if leader_epoch > self.leader_epoch or not self.leads:
            # What followers had in an older epoch may since have been cut.
            self._followers, self._joining, self.isr_due = {}, frozenset(), False
            self._in_sync = InSyncSet()
            self.epoch_start_offset = (
                self.log_end_offset if epoch_start_offset is None else epoch_start_offset
            )
        if partition_epoch > self.partition_epoch:
            self._waits_for_image = False
        self.leads, self.leader_epoch, self._replicas = True, leader_epoch, frozenset(replicas)
        self._in_sync.commit(partition_epoch, in_sync)
        known = self._followers.keys() - (frozenset(emptied) - self._emptied)
        self._followers = {
            other: self._followers[other]
            if other in known
            else Follower(other, now_ms if other in in_sync else NEVER_MS)
            for other in sorted((self._replicas | self.in_sync) - {self.broker_id})
        }
        self._full, self._emptied = frozenset(full), frozenset(emptied)
        self._joining = self._joining.intersection(known, self._followers) - self._full
        self.min_in_sync = min(min_in_sync, len(self._replicas))
        return self._recount()

    def resign(self, leader_epoch: int, partition_epoch: int) -> None:
        """Follows from here on, or stands by; the log may be cut and appended to by another leader."""
        require(leader_epoch >= self.leader_epoch, f"leader epoch {self.leader_epoch} -> {leader_epoch}")
        self.leads, self.leader_epoch, self.isr_due = False, leader_epoch, False
        self._in_sync = InSyncSet()
        self._in_sync.commit(partition_epoch, ())
        self._followers, self._waits_on, self._joining = {}, (), frozenset()
        self.may_commit = self._waits_for_image = False
        self._told = self.high_watermark

    def set_min_in_sync(self, min_in_sync: int) -> bool:
        """min.insync.replicas has changed. True if the high watermark moved."""
        effective = min(min_in_sync, len(self._replicas))
        if effective == self.min_in_sync:
            return False
        self.min_in_sync = effective
        return self._recount()

    @property
    def has_peers(self) -> bool:
        """Whether other brokers have replicas; who does not lead yet takes it that they have."""
        return not self.leads or bool(self._followers)

    # -- appends --

    def decide_append(
        self, header: BatchHeader, producers: ProducerStateManager, *, acks: int, from_client: bool = True
    ) -> Duplicate | Rejection | None:
        """None: append at `log_end_offset`. Judges leadership, replication and idempotence; changes
        nothing.
        """
        if not self.leads:
            return Rejection(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica does not lead the partition")
        if acks == ALL_IN_SYNC and not self.may_commit:
            return Rejection(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.in_sync)} in sync, min.insync.replicas is {self.min_in_sync}",
            )
        if header.producer_id < 0 or not from_client:
            return None
        if header.is_transactional:
            # No coordinator here begins transactions, so there is none that the batch could belong to.
            return Rejection(
                ErrorCode.INVALID_TXN_STATE, f"producer {header.producer_id} has no transaction here"
            )
        return producers.validate(header)

    def appended(self, log_end_offset: int) -> bool:
        """The local log ends here now. True if the high watermark moved."""
        require(log_end_offset >= self.log_end_offset, f"log end {self.log_end_offset} -> {log_end_offset}")
        self.log_end_offset = log_end_offset
        return self._advance()

    def acknowledgement(
        self, end_offset: int, acks: int, leader_epoch: int | None = None
    ) -> ErrorCode | None:
        """Whether a batch that ends there, appended in that leader epoch, may be acknowledged; None as long
        as that is not known.

        A batch that all in sync have, but too few are in sync, is refused at once: it is not committed, and
        when it will be is not known.
        """
        if not self.leads or leader_epoch not in (None, self.leader_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks != ALL_IN_SYNC:
            return ErrorCode.NONE if self.log_end_offset >= end_offset else None
        if self.high_watermark >= end_offset:
            return ErrorCode.NONE
        if not self.may_commit and self._in_sync_end() >= end_offset:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return None

    # -- followers --

    def follower_fetched(
        self, follower: int, broker_epoch: int, offset: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """A replica asks for what begins at `offset`, and so has everything from its log start up to there;
        its log agrees with this one there. True if the high watermark moved.
        """
        known = self._followers.get(follower)
        end = self.log_end_offset
        if known is None or not known.fetched(broker_epoch, offset, end, now_ms, log_start_offset):
            return False
        if known.asked_again == ASKED_AGAIN_MAX:
            self.asked_again = offset
        if follower not in self._in_sync.maximal:
            self.isr_due = self.isr_due or self._fits(known)
            near = self._is_joining(known, now_ms)
            if near != (follower in self._joining):
                self._joining ^= {follower}
                return self._recount()
        elif offset < self.high_watermark:
            self.isr_due = True
        return self._advance()

    def low_watermark(self, log_start_offset: int) -> int:
        """The smallest log start of all replicas that are alive or in sync: no leader elected from them
        serves a record below it (Kafka's `Partition.lowWatermarkIfLeader`). `log_start_offset` is that of
        this replica. A process that has not fetched yet may begin at 0.
        """
        lowest = log_start_offset
        for broker_id, follower in self._followers.items():
            epoch = self._live.get(broker_id)
            if epoch not in (None, follower.broker_epoch):
                lowest = 0
            elif epoch is not None or broker_id in self._in_sync.maximal:
                lowest = min(lowest, follower.log_start_offset)
        return lowest

    def knows(self, follower: int, broker_epoch: int) -> bool:
        """Whether that is one of the other replicas, and not a process that has been replaced."""
        known = self._followers.get(follower)
        return known is not None and broker_epoch >= known.broker_epoch

    # -- the in-sync set --

    def set_live(self, live: Mapping[int, int]) -> bool:
        """The brokers that may be in sync (unfenced, not stopping), and their epochs. True if the high
        watermark moved.
        """
        self._live = live
        near = frozenset(id_ for id_ in self._joining if live.get(id_) == self._followers[id_].broker_epoch)
        if near == self._joining:
            return False
        self._joining = near
        return self._recount()

    def isr_proposal(self, now_ms: int, lag_max_ms: int, live: Mapping[int, int]) -> IsrProposal | None:
        """What the in-sync set should be, if that is not what it is; until its outcome is told with
        `isr_answered` or `isr_failed` there is no other.

        A member leaves that has not been caught up for `lag_max_ms` (replica.lag.time.max.ms), or has lost
        what it had. A follower joins that lives, with the epoch it fetched with, and has all that is
        committed and all that was there when this leader began. The high watermark may move by this call.
        """
        if not self.leads or self._in_sync.proposed is not None or self._waits_for_image:
            return None
        self._live, self._lag_max_ms, self.isr_due = live, lag_max_ms, False
        in_sync = {self.broker_id}
        for broker_id, follower in self._followers.items():
            member = broker_id in self.in_sync
            if self._may_stay(follower, now_ms) if member else self._may_join(follower):
                in_sync.add(broker_id)
        self._joining = frozenset(
            broker_id
            for broker_id, follower in self._followers.items()
            if broker_id not in self._in_sync.maximal and self._is_joining(follower, now_ms)
        )
        changes = in_sync != self.in_sync or self._in_sync.doubtful
        if changes:
            self._in_sync.propose(frozenset(in_sync))
        self._recount()
        self._out = self._proposal() if changes else None
        return self._out

    def isr_answered(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        leader_epoch: int = -1,
        partition_epoch: int = -1,
    ) -> bool:
        """The controller's answer to a proposal; of one that is not out any more it tells nothing. True if
        the high watermark moved.

        A new set counts once an image has it, together with the settings of that moment: with a
        min.insync.replicas older than the set, more might be committed than who left it is known to have.
        """
        if not self._is_out(proposal):
            return False
        if error == ErrorCode.NONE:
            if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
                return self.isr_failed(proposal)
            if partition_epoch > self.partition_epoch:
                return False
            self._in_sync.withdraw()  # there was nothing to change
        elif error in _NOT_APPLIED:
            self._in_sync.withdraw()
        else:
            self._waits_for_image = error in _IMAGE_TELLS
            self._in_sync.doubt()
        return self._recount()

    def isr_failed(self, proposal: IsrProposal) -> bool:
        """No answer came: the proposal may have been carried out, or yet be. The larger of both sets counts
        until the partition epoch has moved; `isr_proposal` proposes again. True if the high watermark moved.
        """
        if not self._is_out(proposal):
            return False
        self._in_sync.doubt()
        return self._recount()

    # -- what a follower hears, and what cuts do --

    def told(self, high_watermark: int) -> bool:
        """The leader has committed up to there, and this log agrees with its log as far as it goes. True if
        the high watermark moved.
        """
        if self.leads:
            return False
        self._told = max(self._told, high_watermark)
        return self._advance()

    @property
    def lag(self) -> int:
        """Committed offsets that this follower does not have yet."""
        return 0 if self.leads else max(self._told - self.log_end_offset, 0)

    def truncated(self, log_end_offset: int) -> None:
        """The log was cut."""
        require(not self.leads, "a leader's log is never cut")
        self.log_end_offset = min(self.log_end_offset, log_end_offset)
        self.high_watermark = self._told = min(self.high_watermark, self.log_end_offset)

    def started_at(self, offset: int) -> None:
        """The log is empty and begins anew; all that was below was committed once."""
        require(not self.leads, "a leader's log never begins anew")
        self.log_end_offset = self.high_watermark = self._told = offset

    def last_stable_offset(self, producers: ProducerStateManager) -> int:
        """What read_committed may read up to: the high watermark, or the first record whose fate is open."""
        unstable = producers.first_unstable_offset()
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def check(self) -> None:
        """Raises InvariantViolation if the high watermark is above the log end, or sets contradict."""
        require(self.high_watermark <= self.log_end_offset, "high watermark above the log end")
        require(not self.leads or self.broker_id in self.in_sync, "a leader is in sync with itself")
        require(self.in_sync <= self.maximal_in_sync, "the maximal set lacks committed members")
        require(self._joining.isdisjoint(self.maximal_in_sync), "who joins is not in sync yet")

    # -- the rest --

    def _fits(self, follower: Follower) -> bool:
        has_all = follower.end_offset >= max(self.high_watermark, self.epoch_start_offset)
        return has_all and follower.broker_id not in self._full

    def _may_stay(self, follower: Follower, now_ms: int) -> bool:
        lost = NO_OFFSET < follower.end_offset < self.high_watermark
        return not lost and follower.is_caught_up(self.log_end_offset, now_ms, self._lag_max_ms)

    def _may_join(self, follower: Follower) -> bool:
        broker_id = follower.broker_id
        lives = self._live.get(broker_id) == follower.broker_epoch != NO_BROKER_EPOCH
        return broker_id in self._replicas and lives and self._fits(follower)

    def _is_joining(self, follower: Follower, now_ms: int) -> bool:
        """Whether the high watermark waits for it although it is not in sync: else it would move with every
        append of a leader that is alone, and nobody ever reach it.
        """
        return (
            self._live.get(follower.broker_id) == follower.broker_epoch
            and follower.broker_id not in self._full
            and follower.end_offset >= 0
            and follower.is_caught_up(self.log_end_offset, now_ms, self._lag_max_ms)
        )

    def _is_out(self, proposal: IsrProposal) -> bool:
        return self.leads and proposal is self._out and self._in_sync.proposed is not None

    def _proposal(self) -> IsrProposal:
        proposed = self._in_sync.proposed or frozenset()
        members = tuple(
            (broker_id, NO_BROKER_EPOCH if other is None else other.broker_epoch)
            for broker_id, other in ((id_, self._followers.get(id_)) for id_ in sorted(proposed))
        )
        return IsrProposal(self.leader_epoch, self.partition_epoch, members)

    def _recount(self) -> bool:
        """After a change of sets: who bounds the high watermark, and whether it may move at all."""
        in_sync = self._in_sync
        self._joining -= in_sync.maximal
        waits_on = in_sync.maximal | self._joining
        self._waits_on = tuple(other for id_, other in self._followers.items() if id_ in waits_on)
        self.may_commit = self.leads and len(in_sync.committed) >= self.min_in_sync
        return self._advance()

    def _in_sync_end(self) -> int:
        """Below it every replica that counts has everything."""
        return min([self.log_end_offset, *(other.end_offset for other in self._waits_on)])

    def _advance(self) -> bool:
        if self.may_commit:
            committed = self._in_sync_end() if self._waits_on else self.log_end_offset
        elif self.leads:
            return False
        else:
            committed = min(self._told, self.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
