"""Leader core: high watermark, in-sync set and append decisions of one replica.

It knows offsets and epochs, not bytes. The replica calls `decide_append`, writes the batch, and calls
`appended`; `follower_fetched` takes a follower's fetch offset, and `become_leader` the controller's in-sync
set. While the replica is a follower, `on_leader_high_watermark` takes the leader's high watermark.

A leader's high watermark is the smallest log end over the maximal in-sync set (KIP-497). It advances only
while the committed set has at least min.insync.replicas members: a replica that leaves a smaller set stays
eligible for election, so it must not lack committed records (KIP-966). It never decreases, not even over
elections, unless the log itself is truncated below it (guarantee 6). Called by the replica; times are
monotonic milliseconds.
"""

from collections.abc import Collection, Mapping

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH, NO_OFFSET, require
from tierlog.broker.replication.core.in_sync import (
    NEVER_MS,
    NO_BROKER_EPOCH,
    Follower,
    InSyncSet,
    IsrProposal,
)
from tierlog.broker.storage.core.producer_state import Duplicate, ProducerStateManager, Rejection
from tierlog.broker.storage.core.verification import VerificationGuard
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import BatchHeader
from tierlog.records.markers import EndMarker

ALL_IN_SYNC = -1
"""acks=-1, which clients call `all`."""

REPEATED_FETCHES_MAX = 3
"""After this many fetches of one offset, its records may be damaged. Lost connections may cause fewer."""

_NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Errors after which the in-sync set is certainly unchanged: the controller rejected the proposal."""

_STALE_IMAGE = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Errors that mean a stale leader: it proposes nothing before it has a newer image."""


class LeaderCore:
    __slots__ = (
        "_emptied",
        "_followers",
        "_full",
        "_in_sync",
        "_joining",
        "_lag_max_ms",
        "_leader_high_watermark",
        "_live",
        "_pending",
        "_replicas",
        "_waits_for_image",
        "_waits_on",
        "broker_id",
        "epoch_start_offset",
        "high_watermark",
        "is_closed",
        "is_leader",
        "isr_due",
        "leader_epoch",
        "leads_since_ms",
        "log_end_offset",
        "may_commit",
        "min_in_sync",
        "repeated_fetch_offset",
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
        """Everything below is as durable on this broker as flush.messages requires."""
        self.high_watermark = high_watermark
        self.leader_epoch: int = NO_EPOCH
        self.is_leader = False
        self.epoch_start_offset = 0
        """First offset of this leader's own records; all below is committed as soon as one of them is."""
        self.leads_since_ms = NEVER_MS
        """When this leader epoch began here."""
        self.repeated_fetch_offset: int | None = None
        """An offset that a follower fetches again and again: the records may be damaged. The caller resets
        it."""
        self.is_closed = False
        """Whether appends are refused in this leader epoch, because a bulk load uses the offsets from the log
        end on."""
        self.isr_due = False
        """Whether a fetch has shown that the in-sync set may have to change: call `isr_proposal` soon."""
        self.min_in_sync = min_in_sync
        """min.insync.replicas, at most the number of replicas."""
        self._in_sync = InSyncSet()
        self._pending: IsrProposal | None = None
        self._replicas: frozenset[int] = frozenset({broker_id})
        self._followers: dict[int, Follower] = {}
        self._waits_on: tuple[Follower, ...] = ()  # their log ends bound the high watermark
        self.may_commit = False
        """Whether it is the leader and enough replicas are in sync for the high watermark to advance."""
        self._joining: frozenset[int] = frozenset()  # not in the in-sync set yet, but caught up
        self._live: Mapping[int, int] = {}
        self._emptied: frozenset[int] = frozenset()  # reported as having lost their records
        self._full: frozenset[int] = frozenset()  # on full disks: they must not join for now
        self._lag_max_ms = 0
        self._waits_for_image = False
        self._leader_high_watermark = high_watermark  # while it is a follower

    # -- roles --

    @property
    def in_sync(self) -> frozenset[int]:
        """The set that the controller has committed."""
        return self._in_sync.committed

    @property
    def partition_epoch(self) -> int:
        return self._in_sync.partition_epoch

    @property
    def followers(self) -> Mapping[int, Follower]:
        """The other replicas, by broker id; empty unless it is the leader."""
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
        """Become leader, or change the replicas or the in-sync set of this leader. Older epochs are ignored.

        Returns whether the high watermark advanced. `full`: replicas on full disks, which must not join for
        now. `emptied`: replicas which lost their records; what they fetched before no longer counts.
        """
        if leader_epoch < self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        require(self.broker_id in in_sync, f"leader {self.broker_id} is not in sync: {sorted(in_sync)}")
        if leader_epoch > self.leader_epoch or not self.is_leader:
            # Followers may have truncated their logs since the older epoch.
            self.is_closed = False
            self._followers, self._joining, self.isr_due = {}, frozenset(), False
            self._in_sync = InSyncSet()
            self.epoch_start_offset = (
                self.log_end_offset if epoch_start_offset is None else epoch_start_offset
            )
            self.leads_since_ms = now_ms
        if partition_epoch > self.partition_epoch:
            self._waits_for_image = False
        self.is_leader, self.leader_epoch, self._replicas = True, leader_epoch, frozenset(replicas)
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
        return self._update_sets()

    def resign(self, leader_epoch: int, partition_epoch: int) -> None:
        """Become a follower, or a replica without a leader."""
        require(leader_epoch >= self.leader_epoch, f"leader epoch {self.leader_epoch} -> {leader_epoch}")
        self.is_leader, self.leader_epoch, self.isr_due = False, leader_epoch, False
        self.is_closed = False
        self._in_sync = InSyncSet()
        self._in_sync.commit(partition_epoch, ())
        self._followers, self._waits_on, self._joining = {}, (), frozenset()
        self.may_commit = self._waits_for_image = False
        self._leader_high_watermark = self.high_watermark

    def set_min_in_sync(self, min_in_sync: int) -> bool:
        """Set min.insync.replicas. Returns whether the high watermark advanced."""
        effective = min(min_in_sync, len(self._replicas))
        if effective == self.min_in_sync:
            return False
        self.min_in_sync = effective
        return self._update_sets()

    @property
    def has_peers(self) -> bool:
        """Whether other brokers have replicas. Only a leader knows that there are none."""
        return not self.is_leader or bool(self._followers)

    # -- appends --

    def decide_append(
        self,
        header: BatchHeader,
        producers: ProducerStateManager,
        *,
        acks: int,
        from_client: bool = True,
        guard: VerificationGuard | None = None,
        must_verify: bool = True,
    ) -> Duplicate | Rejection | None:
        """Check leadership, min.insync.replicas, idempotence and transactions; changes nothing.

        Returns None if the batch is to be appended at `log_end_offset`.
        """
        if (refused := self._refusal(acks)) is not None or header.producer_id < 0:
            return refused
        if from_client:
            return producers.validate(header, guard, must_verify=must_verify)
        return producers.validate_coordinator(header, guard, must_verify=must_verify)

    def decide_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndMarker,
        producers: ProducerStateManager,
        *,
        transaction_version: int,
        acks: int = ALL_IN_SYNC,
    ) -> Rejection | None:
        """Check leadership, min.insync.replicas and epochs for a marker of a transaction; changes nothing."""
        refused = self._refusal(acks)
        return refused or producers.validate_marker(producer_id, producer_epoch, marker, transaction_version)

    def _refusal(self, acks: int) -> Rejection | None:
        if not self.is_leader:
            return Rejection(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica is not the leader of the partition"
            )
        if self.is_closed:
            return Rejection(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "a bulk load is starting the next leader epoch"
            )
        if acks == ALL_IN_SYNC and not self.may_commit:
            return Rejection(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.in_sync)} replicas in sync, min.insync.replicas is {self.min_in_sync}",
            )
        return None

    def all_end_at(self, offset: int) -> bool:
        """Whether this log and those of all replicas that are or may be in sync end at `offset`, and
        everything below is committed."""
        ends = self.high_watermark, self.log_end_offset, self._in_sync_end()
        return self.may_commit and all(end == offset for end in ends)

    def appended(self, log_end_offset: int) -> bool:
        """Set the local log end. Returns whether the high watermark advanced."""
        require(log_end_offset >= self.log_end_offset, f"log end {self.log_end_offset} -> {log_end_offset}")
        self.log_end_offset = log_end_offset
        return self._advance()

    def acknowledgement(
        self, end_offset: int, acks: int, leader_epoch: int | None = None
    ) -> ErrorCode | None:
        """The acknowledgement of a batch that ends at `end_offset` and was appended in that leader epoch.

        Returns NONE once the batch is acknowledged, an error if it has failed, and None while it must wait.
        If all in-sync replicas have the batch but fewer than min.insync.replicas are in sync, it fails at
        once: it is not committed, and nothing says when it will be.
        """
        if not self.is_leader or leader_epoch not in (None, self.leader_epoch):
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
        """Record a follower's fetch from `offset`: it has everything from its log start up to there, and its
        log agrees with this one. Returns whether the high watermark advanced.
        """
        known = self._followers.get(follower)
        end = self.log_end_offset
        if known is None or not known.fetched(broker_epoch, offset, end, now_ms, log_start_offset):
            return False
        if known.repeated_fetches == REPEATED_FETCHES_MAX:
            self.repeated_fetch_offset = offset
        if follower not in self._in_sync.maximal:
            self.isr_due = self.isr_due or self._has_caught_up(known)
            joining = self._is_joining(known, now_ms)
            if joining != (follower in self._joining):
                self._joining ^= {follower}
                return self._update_sets()
        elif offset < self.high_watermark:
            self.isr_due = True
        return self._advance()

    def low_watermark(self, log_start_offset: int) -> int:
        """The smallest log start of all live or in-sync replicas: no leader elected from them serves a record
        below it (Kafka's `Partition.lowWatermarkIfLeader`). `log_start_offset` is this replica's. A process
        that has not fetched yet counts as 0.
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
        """Whether `follower` is a follower here, and `broker_epoch` is not older than that of its last
        fetch."""
        known = self._followers.get(follower)
        return known is not None and broker_epoch >= known.broker_epoch

    # -- the in-sync set --

    def set_live(self, live: Mapping[int, int]) -> bool:
        """Set the brokers which may be in sync (unfenced, not shutting down), with their epochs. Returns
        whether the high watermark advanced.
        """
        self._live = live
        joining = frozenset(
            id_ for id_ in self._joining if live.get(id_) == self._followers[id_].broker_epoch
        )
        if joining == self._joining:
            return False
        self._joining = joining
        return self._update_sets()

    def isr_proposal(self, now_ms: int, lag_max_ms: int, live: Mapping[int, int]) -> IsrProposal | None:
        """A proposal, if the in-sync set has to change. It is pending until `on_isr_response` or
        `on_isr_failure`, and no other is made before.

        A member leaves if it has not caught up for `lag_max_ms` (replica.lag.time.max.ms) or has lost
        records. A follower joins if its broker is live, with the epoch it fetched with, and has everything
        committed and everything from before this leader epoch. This call may advance the high watermark.
        """
        if not self.is_leader or self._in_sync.proposed is not None or self._waits_for_image:
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
        changes = in_sync != self.in_sync or self._in_sync.uncertain
        if changes:
            self._in_sync.propose(frozenset(in_sync))
        self._update_sets()
        self._pending = self._build_proposal() if changes else None
        return self._pending

    def on_isr_response(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        leader_epoch: int = -1,
        partition_epoch: int = -1,
    ) -> bool:
        """Take the controller's response to the pending proposal; others are ignored. Returns whether the
        high watermark advanced.

        The new set takes effect with the image that contains it, since that image may also raise
        min.insync.replicas. With the old setting, this leader might commit a record which a replica that left
        the set, but can still be elected, does not have.
        """
        if not self._is_pending(proposal):
            return False
        if error == ErrorCode.NONE:
            if leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
                return self.on_isr_failure(proposal)
            if partition_epoch > self.partition_epoch:
                return False
            self._in_sync.withdraw()  # there was nothing to change
        elif error in _NOT_APPLIED:
            self._in_sync.withdraw()
        else:
            self._waits_for_image = error in _STALE_IMAGE
            self._in_sync.mark_uncertain()
        return self._update_sets()

    def on_isr_failure(self, proposal: IsrProposal) -> bool:
        """No response arrived: the controller may have applied the proposal, or may still do so. The larger
        of both sets counts until the partition epoch increases; `isr_proposal` proposes again. Returns
        whether the high watermark advanced.
        """
        if not self._is_pending(proposal):
            return False
        self._in_sync.mark_uncertain()
        return self._update_sets()

    # -- as follower --

    def on_leader_high_watermark(self, high_watermark: int) -> bool:
        """Take the leader's high watermark, after this log was found to agree with the leader's. Returns
        whether the high watermark advanced.
        """
        if self.is_leader:
            return False
        self._leader_high_watermark = max(self._leader_high_watermark, high_watermark)
        return self._advance()

    @property
    def lag(self) -> int:
        """Committed offsets that this follower does not have yet."""
        return 0 if self.is_leader else max(self._leader_high_watermark - self.log_end_offset, 0)

    def truncated(self, log_end_offset: int) -> None:
        """The log was truncated."""
        require(not self.is_leader, "a leader's log is never truncated")
        self.log_end_offset = min(self.log_end_offset, log_end_offset)
        self.high_watermark = self._leader_high_watermark = min(self.high_watermark, self.log_end_offset)

    def started_at(self, offset: int) -> None:
        """The log was truncated fully and starts at `offset`; everything below has been committed."""
        require(not self.is_leader, "a leader's log is never truncated")
        self.log_end_offset = self.high_watermark = self._leader_high_watermark = offset

    def last_stable_offset(self, producers: ProducerStateManager) -> int:
        """The high watermark, or the first record of an open transaction below it."""
        unstable = producers.first_unstable_offset()
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def check(self) -> None:
        """Raises InvariantViolation if the high watermark is above the log end, or the sets are
        inconsistent."""
        require(self.high_watermark <= self.log_end_offset, "high watermark above the log end")
        require(not self.is_leader or self.broker_id in self.in_sync, "the leader is not in sync")
        maximal = self._in_sync.maximal
        require(self.in_sync <= maximal, "the maximal set lacks committed members")
        require(self._joining.isdisjoint(maximal), "a joining replica is in the maximal set")

    # -- helpers --

    def _has_caught_up(self, follower: Follower) -> bool:
        has_all = follower.end_offset >= max(self.high_watermark, self.epoch_start_offset)
        return has_all and follower.broker_id not in self._full

    def _may_stay(self, follower: Follower, now_ms: int) -> bool:
        lost = NO_OFFSET < follower.end_offset < self.high_watermark
        return not lost and follower.is_caught_up(self.log_end_offset, now_ms, self._lag_max_ms)

    def _may_join(self, follower: Follower) -> bool:
        broker_id = follower.broker_id
        is_live = self._live.get(broker_id) == follower.broker_epoch != NO_BROKER_EPOCH
        return broker_id in self._replicas and is_live and self._has_caught_up(follower)

    def _is_joining(self, follower: Follower, now_ms: int) -> bool:
        """Whether the high watermark waits for it although it is not in sync. Otherwise the high watermark
        would advance with every append of a leader without in-sync followers, and no follower could reach it.
        """
        return (
            self._live.get(follower.broker_id) == follower.broker_epoch
            and follower.broker_id not in self._full
            and follower.end_offset >= 0
            and follower.is_caught_up(self.log_end_offset, now_ms, self._lag_max_ms)
        )

    def _is_pending(self, proposal: IsrProposal) -> bool:
        return self.is_leader and proposal is self._pending and self._in_sync.proposed is not None

    def _build_proposal(self) -> IsrProposal:
        proposed = self._in_sync.proposed or frozenset()
        members = tuple(
            (broker_id, NO_BROKER_EPOCH if other is None else other.broker_epoch)
            for broker_id, other in ((id_, self._followers.get(id_)) for id_ in sorted(proposed))
        )
        return IsrProposal(self.leader_epoch, self.partition_epoch, members)

    def _update_sets(self) -> bool:
        """After a change of the sets: update which replicas the high watermark waits for, and advance it."""
        self._joining -= self._in_sync.maximal
        waits_on = self._awaited_replicas()
        self._waits_on = tuple(other for id_, other in self._followers.items() if id_ in waits_on)
        self.may_commit = self.is_leader and self._has_min_in_sync()
        return self._advance()

    def _awaited_replicas(self) -> frozenset[int]:
        """The replicas which the high watermark waits for."""
        return self._in_sync.maximal | self._joining

    def _has_min_in_sync(self) -> bool:
        return len(self._in_sync.committed) >= self.min_in_sync

    def _in_sync_end(self) -> int:
        """The smallest log end of the replicas which the high watermark waits for."""
        return min([self.log_end_offset, *(other.end_offset for other in self._waits_on)])

    def _advance(self) -> bool:
        if self.may_commit:
            committed = self._in_sync_end() if self._waits_on else self.log_end_offset
        elif self.is_leader:
            return False
        else:
            committed = min(self._leader_high_watermark, self.log_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True


safeguard("appends are refused below min.insync.replicas")(LeaderCore.decide_append)
safeguard("a replica joins the ISR from the leader's epoch start offset")(LeaderCore._has_caught_up)
safeguard("the high watermark waits for replicas that are joining the ISR")(LeaderCore._awaited_replicas)
safeguard("the high watermark stops below min.insync.replicas")(LeaderCore._has_min_in_sync)
safeguard("the high watermark waits for every in-sync replica")(LeaderCore._in_sync_end)
safeguard("read_committed stops at the last stable offset")(LeaderCore.last_stable_offset)
