"""Safeguards of the log, of replicas and of the controller. Imports all others into `SAFEGUARDS`."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from simulator import (
    safeguards_of_brokers,
    safeguards_of_logs,
    safeguards_of_retention,
    safeguards_of_voters,
)
from simulator.switches import SAFEGUARDS, Patches, switched_off
from simulator.switches import safeguard as _safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker import app
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
    """`MetadataStorage._write` without its fsync, for the writes that `concerned` selects."""
    write = MetadataStorage._write

    def without(storage: MetadataStorage, records: tuple[Any, ...]) -> None:
        if not concerned(records):
            write(storage, records)
            return
        with patch.object(storage._files, "sync", lambda fd: None):
            write(storage, records)

    return without


@_safeguard("a vote is synced before it is sent", "a node votes twice in a term", of_quorum=True)
def _() -> Patches:
    yield (
        MetadataStorage,
        "_write",
        _unsynced(lambda records: not any(isinstance(record, Entry) for record in records)),
    )


@_safeguard(
    "log entries are synced before they are acknowledged",
    "an entry that a majority stored is lost",
    of_quorum=True,
)
def _() -> Patches:
    yield (
        MetadataStorage,
        "_write",
        _unsynced(lambda records: any(isinstance(record, Entry) for record in records)),
    )


@_safeguard("pre-vote", "an isolated node deposes leaders", of_quorum=True)
def _() -> Patches:
    yield RaftCore, "_become_pre_candidate", lambda core: core._become_candidate(transfer=False)


@_safeguard("check-quorum", "an isolated leader remains leader", of_quorum=True)
def _() -> Patches:
    yield Replication, "majority_is_active", _yes


@_safeguard("appends from older terms are refused", "a deposed leader overwrites logs", of_quorum=True)
def _() -> Patches:
    step = RaftCore.step

    def without(core: RaftCore, message: m.AnyMessage) -> None:
        if isinstance(message, m.Append) and message.term < core.term and not core.is_leader:
            message = replace(message, term=core.term)
        step(core, message)

    yield RaftCore, "step", without


@_safeguard("an append must match the previous entry's term", "logs differ at the same index", of_quorum=True)
def _() -> Patches:
    on_append, matches = RaftCore._on_append, RaftLog.matches

    def without(core: RaftCore, append: m.Append) -> None:
        def lenient(log: RaftLog, index: int, term: int) -> bool:
            found = log.term_at(index)
            return found is not None if index == append.prev_index else matches(log, index, term)

        with patch.object(RaftLog, "matches", lenient):
            on_append(core, append)

    yield RaftCore, "_on_append", without


@_safeguard(
    "a vote is given only to a candidate with an up-to-date log",
    "a leader lacks committed entries",
    of_quorum=True,
)
def _() -> Patches:
    yield RaftLog, "is_candidate_up_to_date", _yes


@_safeguard(
    "a read is confirmed by a majority (ReadIndex)", "a deposed leader answers from old state", of_quorum=True
)
def _() -> Patches:
    async def without(_: Leadership) -> None:
        return

    yield Leadership, "confirm", without


@_safeguard("write-ahead log frames have checksums", "a torn write is read as an entry", of_quorum=True)
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


@_safeguard(
    "eligible leader replicas need min.insync.replicas", "a replica that lacks records becomes leader"
)
def _() -> Patches:
    yield ElectionRules, "effective_min_isr", lambda rules, replicas: 100


@_safeguard("unclean leader election is disabled", "a replica that lacks records becomes leader")
def _() -> Patches:
    build = partition_change.build_partition_change

    def without(before: Any, wanted: Any, rules: ElectionRules, **how: Any) -> Any:
        return build(before, wanted, dataclasses.replace(rules, unclean=True), **how)

    for module in (partition_change, election, in_sync):
        yield module, "build_partition_change", without


@_safeguard(
    "a broker reports log directories that may have lost records",
    "a replica that lacks records becomes leader",
)
def _() -> Patches:
    yield app, "data_loss_reason", lambda *_: None


# --- leaders and followers


@_safeguard(
    "the high watermark waits for every in-sync replica", "the loss of one disk loses acknowledged records"
)
def _() -> Patches:
    yield LeaderCore, "_in_sync_end", lambda core: core.log_end_offset


@_safeguard(
    "the high watermark stops below min.insync.replicas", "the loss of one disk loses acknowledged records"
)
def _() -> Patches:
    update_sets = LeaderCore._update_sets

    def without(core: LeaderCore) -> bool:
        moved = update_sets(core)
        core.may_commit = core.is_leader
        return core._advance() or moved

    yield LeaderCore, "_update_sets", without


@_safeguard(
    "appends are refused below min.insync.replicas", "records are appended that are never acknowledged"
)
def _() -> Patches:
    decide = LeaderCore.decide_append

    def without(core: LeaderCore, header: Any, producers: Any, *, acks: int, from_client: bool = True) -> Any:
        return decide(core, header, producers, acks=1, from_client=from_client)

    yield LeaderCore, "decide_append", without


@_safeguard(
    "the high watermark waits for replicas that are joining the ISR",
    "a replica that lacks records becomes leader",
)
def _() -> Patches:
    def without(members: InSyncSet) -> None:
        members.maximal = members.committed

    yield InSyncSet, "_update_maximal", without
    yield LeaderCore, "_is_joining", lambda *_: False


@_safeguard(
    "a replica joins the ISR from the leader's epoch start offset",
    "a replica that lacks records becomes leader",
)
def _() -> Patches:
    yield LeaderCore, "_has_caught_up", lambda core, follower: follower.end_offset >= core.high_watermark


@_safeguard(
    "a broker serves only while it holds a lease", "a broker serves partitions that other brokers now lead"
)
def _() -> Patches:
    yield BrokerLifecycle, "holds_lease", lambda lifecycle: not lifecycle.fenced


@_safeguard("a follower truncates at the leader epoch boundary", "replicas differ at the same offset")
def _() -> Patches:
    position = FollowerCore.position
    yield (
        FollowerCore,
        "position",
        lambda core, log: position(core, log)._replace(last_fetched_epoch=NO_EPOCH),
    )


def _unchecked(buffer: memoryview, at: int = 0, end: int | None = None) -> Any:
    return read_header(buffer, at)


@_safeguard("a follower checks the CRC of fetched batches", "a flipped bit is stored")
def _() -> Patches:
    yield replicated, "check_batch", _unchecked


@_safeguard("recovery checks the CRC of batches", "a flipped bit stays in a log")
def _() -> Patches:
    yield checked_batches, "check_batch", _unchecked


@_safeguard(
    "a broker reports damaged replicas to the controller", "a replica that lacks records becomes leader"
)
def _() -> Patches:
    async def without(reports: ReplicaReporter, damaged: Any) -> None:
        return

    yield ReplicaReporter, "_report_damaged", without


@_safeguard("flush.messages syncs before the acknowledgement", "a loss of power loses acknowledged records")
def _() -> Patches:
    yield Replica, "wants_flush", property(lambda replica: False)


# --- producers


@_safeguard("the leader checks producer sequence numbers", "a retry is written twice")
def _() -> Patches:
    yield ProducerStateManager, "validate", lambda producers, header: None


@_safeguard(
    "offset commits check the group generation",
    "a former member commits offsets for a partition that it lost",
)
def _() -> Patches:
    check = coordinator.check_commit

    def without(group: Any, request: Any) -> Any:
        error = check(group, request)
        stale = error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE if stale and group is not None else error

    yield coordinator, "check_commit", without


@_safeguard("followers keep producer state", "a retry after a failover is written twice")
def _() -> Patches:
    become = Replica.become_leader

    def without(replica: Replica, leader_epoch: int, *rest: Any, **named: Any) -> None:
        if leader_epoch > replica.leader_epoch:
            replica.log.producers._producers.clear()
        become(replica, leader_epoch, *rest, **named)

    yield Replica, "become_leader", without


@_safeguard("a producer snapshot holds five batches of each producer", "a retry after a restart is refused")
def _() -> Patches:
    """Kafka's snapshot holds the last batch alone. Earlier batches are not restored from the log either."""
    yield ProducerStateManager, "_rest", lambda state: iter(())
    yield recovery, "restore_earlier_batches", lambda *_: None


class _WallClock:
    """A wall clock in place of the monotonic clock."""

    def __init__(self, clock: Any) -> None:
        self.now_ms = self.monotonic_ms = clock.now_ms


@_safeguard("producer expiration uses the monotonic clock", "a retry is written twice after a clock jump")
def _() -> Patches:
    init = LogMaintenance.__init__

    def without(
        maintenance: LogMaintenance, settings: Any, replicas: Any, files: Any, clock: Any, *rest: Any
    ) -> None:
        init(maintenance, settings, replicas, files, _WallClock(clock), *rest)

    yield LogMaintenance, "__init__", without


# --- the remote tier


@_safeguard(
    "only the leader of the upload's epoch commits a remote segment",
    "a deposed leader's upload is added to the manifest",
)
def _() -> Patches:
    yield remote, "_check_leader", lambda *_: None


@_safeguard("local segments stay until the remote copy is committed", "records are in neither tier")
def _() -> Patches:
    droppable = planner._droppable_end

    def without(segments: Any, policy: Any, tiered_end: int, log_start: int, now_ms: int) -> int:
        return droppable(segments, policy, MAX_LONG, log_start, now_ms)

    yield planner, "_droppable_end", without


@_safeguard(
    "local segments stay until the bucket's manifest lists the copy",
    "records that no disk has are missing from the bucket's manifest",
)
def _() -> Patches:
    yield remote_log_manager, "_end_of", lambda root: MAX_LONG


@_safeguard("an upload is verified before it is committed", "the manifest lists an incomplete object")
def _() -> Patches:
    async def without(*_: object) -> None:
        return

    yield copier, "_verify", without


@_safeguard("abandoned uploads are deleted", "orphaned objects stay in the bucket")
def _() -> Patches:
    def without(image: Any, record: Any) -> Any:
        kept = abandoned(image, record)
        return replace(kept, delete_queue=image.delete_queue)

    abandoned = evolve._copy_abandoned
    yield evolve, "_copy_abandoned", without


@_safeguard("a manifest cannot list a page whose deletion has begun", "the manifest lists a deleted object")
def _() -> Patches:
    def without(image: Any, command: Any) -> Any:
        return spill(replace(image, deleting=frozenset()), command)

    def committed(image: Any, record: Any) -> Any:
        return spilled(replace(image, deleting=image.deleting - {record.page.uuid}), record)

    spill, spilled = remote.spill_entries, evolve._entries_spilled
    yield remote, "spill_entries", without
    yield evolve, "_entries_spilled", committed


@_safeguard("the deletion grace period uses quorum time", "a clock jump deletes objects early")
def _() -> Patches:
    commit = Leadership.commit

    async def without(leadership: Leadership, *args: Any, **kwargs: Any) -> Any:
        clock = leadership._clock
        leadership._quorum_time_offset_ms = clock.now_ms() - clock.monotonic_ms()
        return await commit(leadership, *args, **kwargs)

    yield Leadership, "commit", without
