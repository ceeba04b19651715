"""The safeguards of the log, of replicas and of the controller, and all others by name (`SAFEGUARDS`)."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

import simulator.broker
from simulator import (
    safeguards_of_brokers,
    safeguards_of_logs,
    safeguards_of_retention,
    safeguards_of_voters,
)
from simulator.switches import SAFEGUARDS, Patches, switched_off
from simulator.switches import safeguard as _safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker.groups.core import coordinator
from tierlog.broker.lifecycle import BrokerLifecycle
from tierlog.broker.maintenance.log_maintenance import LogMaintenance
from tierlog.broker.remote import remote_log_manager
from tierlog.broker.replication.core import fetched_batches as replicated
from tierlog.broker.replication.core.follower import FollowerCore
from tierlog.broker.replication.core.in_sync import InSyncSet
from tierlog.broker.replication.core.leader import LeaderCore
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.storage import checked_batches, recovery
from tierlog.broker.storage.core.producer_state import ProducerStateManager
from tierlog.config.topic import MAX_LONG
from tierlog.metadata import evolve
from tierlog.metadata.controller import election, in_sync, partition_change, remote
from tierlog.metadata.controller.rules import ElectionRules
from tierlog.metadata.quorum import wal
from tierlog.metadata.quorum.leadership import Leadership
from tierlog.metadata.quorum.storage import MetadataStorage
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.messages import Entry
from tierlog.metadata.raft.replication import Replication
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import read_header
from tierlog.tiering import copier, planner

__all__ = [
    "SAFEGUARDS",
    "safeguards_of_brokers",
    "safeguards_of_logs",
    "safeguards_of_retention",
    "safeguards_of_voters",
    "switched_off",
]


def _yes(*_: object, **__: object) -> bool:
    return True


# --- the quorum


def _unsynced(concerned: Callable[[tuple[Any, ...]], bool]) -> object:
    """`MetadataStorage._write` without its fsync, for some writes."""
    write = MetadataStorage._write

    def without(storage: MetadataStorage, records: tuple[Any, ...]) -> None:
        if not concerned(records):
            write(storage, records)
            return
        with patch.object(storage._files, "sync", lambda fd: None):
            write(storage, records)

    return without


@_safeguard("a vote is synced before it is given", "a node votes twice in a term", of_quorum=True)
def _() -> Patches:
    yield (
        MetadataStorage,
        "_write",
        _unsynced(lambda records: not any(isinstance(record, Entry) for record in records)),
    )


@_safeguard("entries are synced before they are acknowledged", "what a majority had is lost", of_quorum=True)
def _() -> Patches:
    yield (
        MetadataStorage,
        "_write",
        _unsynced(lambda records: any(isinstance(record, Entry) for record in records)),
    )


@_safeguard("pre-vote", "a node that was cut off deposes leaders", of_quorum=True)
def _() -> Patches:
    yield RaftCore, "_become_pre_candidate", lambda core: core._become_candidate(transfer=False)


@_safeguard("check-quorum", "a leader that is cut off leads on", of_quorum=True)
def _() -> Patches:
    yield Replication, "majority_is_active", _yes


@_safeguard("appends of older terms are refused", "a deposed leader overwrites logs", of_quorum=True)
def _() -> Patches:
    step = RaftCore.step

    def without(core: RaftCore, message: m.AnyMessage) -> None:
        if isinstance(message, m.Append) and message.term < core.term and not core.is_leader:
            message = replace(message, term=core.term)
        step(core, message)

    yield RaftCore, "step", without


@_safeguard("an append follows an entry that both have", "logs differ at the same index", of_quorum=True)
def _() -> Patches:
    on_append, matches = RaftCore._on_append, RaftLog.matches

    def without(core: RaftCore, append: m.Append) -> None:
        def lenient(log: RaftLog, index: int, term: int) -> bool:
            found = log.term_at(index)
            return found is not None if index == append.prev_index else matches(log, index, term)

        with patch.object(RaftLog, "matches", lenient):
            on_append(core, append)

    yield RaftCore, "_on_append", without


@_safeguard("a vote goes to logs that are up to date", "a leader lacks what was committed", of_quorum=True)
def _() -> Patches:
    yield RaftLog, "is_candidate_up_to_date", _yes


@_safeguard("ReadIndex", "a deposed leader answers from its old state", of_quorum=True)
def _() -> Patches:
    async def without(_: Leadership) -> None:
        return

    yield Leadership, "confirm", without


@_safeguard("checksums of the write-ahead log", "a torn write is taken for an entry", of_quorum=True)
def _() -> Patches:
    def without(segment: bytes, at: int) -> wal.Frame | None:
        if at + wal.FRAME_HEADER > len(segment):
            return None
        length, _, back, number = wal._FRAME.unpack_from(segment, at)
        end = at + wal.FRAME_HEADER + length
        if end > len(segment):
            return None
        record = wal._DECODERS[wal.FrameType(number)].decode(segment[at + wal.FRAME_HEADER : end])
        return wal.Frame(record, at, end, at - back)

    yield wal, "read_frame", without


# --- the controller


@_safeguard("eligible replicas left when nothing more was committed", "a replica leads that lacks records")
def _() -> Patches:
    yield ElectionRules, "effective_min_isr", lambda rules, replicas: 100


@_safeguard("unclean election is off", "a replica leads that lacks records")
def _() -> Patches:
    settled = partition_change.build_partition_change

    def without(before: Any, wanted: Any, rules: ElectionRules, **how: Any) -> Any:
        return settled(before, wanted, dataclasses.replace(rules, unclean=True), **how)

    for module in (partition_change, election, in_sync):
        yield module, "build_partition_change", without


@_safeguard("what may have lost its records says so", "a replica leads that lacks records")
def _() -> Patches:
    yield simulator.broker, "may_have_lost", lambda *_: False


# --- leaders and followers


@_safeguard("the high watermark waits for all in sync", "one disk takes acknowledged records along")
def _() -> Patches:
    yield LeaderCore, "_in_sync_end", lambda core: core.log_end_offset


@_safeguard("nothing is committed below min.insync.replicas", "one disk takes acknowledged records along")
def _() -> Patches:
    update_sets = LeaderCore._update_sets

    def without(core: LeaderCore) -> bool:
        moved = update_sets(core)
        core.may_commit = core.is_leader
        return core._advance() or moved

    yield LeaderCore, "_update_sets", without


@_safeguard("appends are refused below min.insync.replicas", "records are taken in that nobody acknowledges")
def _() -> Patches:
    decide = LeaderCore.decide_append

    def without(core: LeaderCore, header: Any, producers: Any, *, acks: int, from_client: bool = True) -> Any:
        return decide(core, header, producers, acks=1, from_client=from_client)

    yield LeaderCore, "decide_append", without


@_safeguard("who may be in sync already counts", "a replica leads that lacks records")
def _() -> Patches:
    def without(members: InSyncSet) -> None:
        members.maximal = members.committed

    yield InSyncSet, "_update_maximal", without
    yield LeaderCore, "_is_joining", lambda *_: False


@_safeguard("who joins has what was there when the leader began", "a replica leads that lacks records")
def _() -> Patches:
    yield LeaderCore, "_has_caught_up", lambda core, follower: follower.end_offset >= core.high_watermark


@_safeguard("leases", "a broker serves whose partitions were given to others")
def _() -> Patches:
    yield BrokerLifecycle, "holds_lease", lambda lifecycle: not lifecycle.fenced


@_safeguard("logs are cut by leader epoch", "replicas differ at the same offset")
def _() -> Patches:
    position = FollowerCore.position
    yield (
        FollowerCore,
        "position",
        lambda core, log: position(core, log)._replace(last_fetched_epoch=NO_EPOCH),
    )


def _unchecked(buffer: memoryview, at: int = 0, end: int | None = None) -> Any:
    return read_header(buffer, at)


@_safeguard("a follower checks what it fetched", "a flipped bit is stored")
def _() -> Patches:
    yield replicated, "check_batch", _unchecked


@_safeguard("checksums of batches in recovery", "a flipped bit stays in a log")
def _() -> Patches:
    yield checked_batches, "check_batch", _unchecked


@_safeguard("a damaged log counts for nothing", "a replica leads that lacks records")
def _() -> Patches:
    async def without(reports: ReplicaReporter, damaged: Any) -> None:
        return

    yield ReplicaReporter, "_report_damaged", without


@_safeguard("flush.messages before the acknowledgement", "a loss of power takes acknowledged records along")
def _() -> Patches:
    yield Replica, "wants_flush", property(lambda replica: False)


# --- producers


@_safeguard("sequences of producers", "a retry is written twice")
def _() -> Patches:
    yield ProducerStateManager, "validate", lambda producers, header: None


@_safeguard("commits are of the group's generation", "who lost a partition commits for it")
def _() -> Patches:
    check = coordinator.check_commit

    def without(group: Any, request: Any) -> Any:
        error = check(group, request)
        stale = error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE if stale and group is not None else error

    yield coordinator, "check_commit", without


@_safeguard("followers know producers", "a retry after a failover is written twice")
def _() -> Patches:
    become = Replica.become_leader

    def without(replica: Replica, leader_epoch: int, *rest: Any, **named: Any) -> None:
        if leader_epoch > replica.leader_epoch:
            replica.log.producers._producers.clear()
        become(replica, leader_epoch, *rest, **named)

    yield Replica, "become_leader", without


@_safeguard("a snapshot has five batches of each producer", "a retry after a restart is refused")
def _() -> Patches:
    """As Kafka's, and what it leaves out lies too far back in the log."""
    yield ProducerStateManager, "_rest", lambda state: iter(())
    yield recovery, "restore_earlier_batches", lambda *_: None


class _WallClock:
    """Which is taken for a monotonic one."""

    def __init__(self, clock: Any) -> None:
        self.now_ms = self.monotonic_ms = clock.now_ms


@_safeguard("producers are idle by the monotonic clock", "a retry is written twice after a jump of the clock")
def _() -> Patches:
    init = LogMaintenance.__init__

    def without(
        maintenance: LogMaintenance, settings: Any, replicas: Any, files: Any, clock: Any, *rest: Any
    ) -> None:
        init(maintenance, settings, replicas, files, _WallClock(clock), *rest)

    yield LogMaintenance, "__init__", without


# --- the remote tier


@_safeguard("a copy is committed by the leader of its epoch", "a deposed leader's upload enters the manifest")
def _() -> Patches:
    yield remote, "_check_leader", lambda *_: None


@_safeguard("local segments stay until their copy is committed", "records are in neither tier")
def _() -> Patches:
    droppable = planner._droppable_end

    def without(segments: Any, policy: Any, tiered_end: int, log_start: int, now_ms: int) -> int:
        return droppable(segments, policy, MAX_LONG, log_start, now_ms)

    yield planner, "_droppable_end", without


@_safeguard("and until the bucket's manifest names it", "the bucket alone does not have what no disk has")
def _() -> Patches:
    yield remote_log_manager, "_end_of", lambda root: MAX_LONG


@_safeguard("an upload is verified", "the manifest names an object that was torn")
def _() -> Patches:
    async def without(*_: object) -> None:
        return

    yield copier, "_verify", without


@_safeguard("copies that are given up are deleted", "objects that nobody knows of")
def _() -> Patches:
    def without(image: Any, record: Any) -> Any:
        kept = abandoned(image, record)
        return replace(kept, delete_queue=image.delete_queue)

    abandoned = evolve._copy_abandoned
    yield evolve, "_copy_abandoned", without


@_safeguard("a page is named before its deletion begins, or never", "the manifest names a deleted object")
def _() -> Patches:
    def without(image: Any, command: Any) -> Any:
        return spill(replace(image, deleting=frozenset()), command)

    def committed(image: Any, record: Any) -> Any:
        return spilled(replace(image, deleting=image.deleting - {record.page.uuid}), record)

    spill, spilled = remote.spill_entries, evolve._entries_spilled
    yield remote, "spill_entries", without
    yield evolve, "_entries_spilled", committed


@_safeguard("a grace passes in the quorum's time", "a clock that jumps deletes objects early")
def _() -> Patches:
    commit = Leadership.commit

    async def without(leadership: Leadership, command: Any) -> Any:
        clock = leadership._clock
        leadership._quorum_time_offset_ms = clock.now_ms() - clock.monotonic_ms()
        return await commit(leadership, command)

    yield Leadership, "commit", without
