"""Replacements of the safeguards of controller, quorum, replication and groups. See `safeguards`."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from simulator.disk import unsynced
from simulator.switches import Function, and_without, without
from tierlog.base.types import NO_EPOCH
from tierlog.config.topic import MAX_LONG
from tierlog.metadata.controller.rules import ClusterDefaults
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.messages import PAYLOAD, Entry
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID
from tierlog.records.batch import read_header

# --- timestamps


@without(
    "retention uses the timestamps of records instead of batch headers",
    breaks="a false timestamp in a header deletes acknowledged records",
)
def _(original: Function, *_: Any) -> bool:
    return False


# --- the controller


@without(
    "a reassignment completes when all target replicas are in sync",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, wanted: Any) -> Any:
    return original(replace(wanted, in_sync=wanted.replicas) if wanted.is_reassigned else wanted)


@without(
    "a reassignment keeps min.insync.replicas complete replicas",
    breaks="the loss of one disk loses acknowledged records",
)
def _(original: Function, before: Any, replicas: tuple[int, ...], _: int) -> None:
    """As in Kafka: one in-sync replica is enough."""
    original(before, replicas, 1)


@without(
    "a broker reports replicas that are empty after a restart",
    breaks="a replica that lacks records becomes leader",
)
async def _(original: Function, *_: Any) -> None:
    return


@without(
    "min.insync.replicas is a cluster-wide setting",
    breaks="one broker's settings file lets other brokers lose records",
)
def _(original: Function, image: Any, at_start: Any) -> Any:
    """Each leader uses the settings of its own file."""
    return at_start


@and_without(
    "unclean leader election is a cluster-wide setting",
    row="min.insync.replicas is a cluster-wide setting",
)
def _(original: Function, image: Any) -> ClusterDefaults:
    """The controller uses the smallest setting of any broker's file."""
    least, unclean = original(image)
    return ClusterDefaults(min((one.min_in_sync for one in image.brokers.values()), default=least), unclean)


@without(
    "unclean leader election is a cluster-wide setting",
    breaks="one broker's settings file lets other brokers lose records",
)
def _(original: Function, image: Any) -> ClusterDefaults:
    least, unclean = original(image)
    return ClusterDefaults(least, unclean or any(one.unclean_election for one in image.brokers.values()))


@without(
    "a broker id with a live session cannot be registered again",
    breaks="a broker serves partitions that other brokers now lead",
)
def _(original: Function, *_: Any) -> frozenset[int]:
    return frozenset()


@without(
    "a log directory stores the broker epoch of its last use",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, *_: Any) -> None:
    return


@without(
    "a restored copy of a log directory is detected", breaks="a replica that lacks records becomes leader"
)
def _(original: Function, directory: Any) -> str:
    return ""


# --- leases


@without(
    "a lease starts when its heartbeat is sent",
    breaks="a broker serves partitions that other brokers now lead",
)
def _(original: Function, lifecycle: Any, reply: Any, sent_ms: int) -> None:
    original(lifecycle, reply, int(asyncio.get_running_loop().time() * 1000))


# --- fetches


@without("a fetch with an old leader epoch is refused", breaks="a client reads from a former leader")
def _(original: Function, *_: Any) -> ErrorCode:
    return ErrorCode.NONE


@without("consumers read only up to the high watermark", breaks="a record that a consumer read is lost")
def _(original: Function, replica: Any, offset: int, max_bytes: int, **how: Any) -> Any:
    if not replica.is_leader:
        return original(replica, offset, max_bytes, **how)
    found = replica.read_for_follower(offset, max_bytes, min_one=how.get("min_one", True))
    return found._replace(high_watermark=replica.log_end_offset)


@without("a follower fetches from its flushed offset", breaks="a loss of power loses acknowledged records")
def _(original: Function, role: Any) -> bool:
    return True


# --- restarts


@without(
    "the high watermark is written to a checkpoint",
    breaks="committed records cannot be read after a restart",
)
def _(original: Function, replica: Any) -> None:
    return


# --- group coordinators


@without("a coordinator replays its partition before it serves", breaks="committed offsets go back")
async def _(original: Function, shard: Any) -> None:
    shard.start_empty()


@without(
    "committed offsets are stored with the topic id",
    breaks="a new topic gets the offset of a deleted topic of the same name",
)
def _(original: Function, data: bytes) -> Any:
    return dataclasses.replace(original(data), topic_id=ZERO_UUID)


# --- bit rot: flipped bits on disk, also in the fields that no CRC covers
#
# Private steps of log repair are called here, since the safeguard is the order in which it takes them.


@without(
    "a batch's leader epoch must match the leader epoch cache",
    breaks="a batch with a damaged leader epoch is served and replicated",
)
def _(original: Function, *_: Any) -> bool:
    return True


@without("a batch's base offset must follow the previous batch", breaks="records move to other offsets")
def _(original: Function, rules: Any, header: Any, expected: int) -> str:
    return rules.epoch_fault(header)


@without(
    "a damaged replica leaves the ISR before it is truncated",
    breaks="a replica that lacks records becomes leader",
)
async def _(original: Function, repair: Any, replica: Any, tries: int) -> bool:
    return repair.truncate(replica) if replica.is_follower else await original(repair, replica, tries)


@without(
    "a log that ends below its checkpoints is reported as damaged",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, *_: Any) -> int:
    return 0


@without(
    "log repair keeps batches that are intact",
    breaks="replicas damaged in different places lose records that one of them had",
)
async def _(original: Function, repair: Any, replica: Any, tries: int) -> bool:
    """Repair truncates at the damage as soon as another replica is in sync."""
    return await repair.prepare_truncation(replica)


@and_without(
    "a log is truncated only if another replica serves what it loses",
    row="log repair keeps batches that are intact",
)
async def _(original: Function, repair: Any, replica: Any, partition: Any) -> bool:
    return bool(repair.complete_replicas(partition))


# --- retention of tiered topics


@without(
    "retention.bytes counts a record in both tiers once",
    breaks="retention deletes more than retention.bytes allows",
)
def _(original: Function, remote: Any) -> int:
    return 0


@without(
    "retention deletes only committed records", breaks="the log start offset is above the next leader's log"
)
def _(original: Function, remote: Any, segments: Any, policy: Any, view: Any, now_ms: int) -> int:
    return original(remote, segments, policy, dataclasses.replace(view, high_watermark=MAX_LONG), now_ms)


@without(
    "replicas move the log start offset after the quorum commits it",
    breaks="records disappear on one replica and come back later",
)
async def _(original: Function, manager: Any, where: Any, state: Any, offset: int, *command: Any) -> None:
    state.replica.raise_log_start(offset)
    await original(manager, where, state, offset, *command)


@without(
    "a follower adopts the leader's log start offset", breaks="the next leader serves deleted records again"
)
def _(original: Function, role: Any, records: memoryview, **options: Any) -> Any:
    return original(role, records, **{**options, "log_start_offset": 0})


# --- the quorum's log


@without(
    "a Raft heartbeat commits only entries that the follower has",
    breaks="an entry that was never committed is applied",
    of_quorum=True,
)
def _(original: Function, progress: Any, commit: int) -> int:
    return commit


@without(
    "an append truncates only conflicting entries",
    breaks="a late append removes newer entries",
    of_quorum=True,
)
def _(original: Function, log: Any, entries: Sequence[Entry]) -> None:
    if entries and log.commit < entries[0].index <= log.last_index:
        original(log, (replace(entries[0], term=0, kind=PAYLOAD),))
    original(log, entries)


# --- responses of the quorum's leader


@without("the controller responds after the commit", breaks="an acknowledged change is lost", of_quorum=True)
def _(original: Function, leadership: Any, index: int) -> "asyncio.Future[None]":
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


# --- leases that the quorum grants


@without(
    "a broken connection does not end a broker's session",
    breaks="a broker serves partitions that other brokers now lead",
)
def _(original: Function, node: Any, peer: int) -> None:
    original(node, peer)
    broker = node.image.brokers.get(peer)
    if broker is not None:
        node.process_ended(peer, broker.broker_epoch)


@without(
    "a broker's suspected failure is cleared when its session ends",
    breaks="clients see no leader for a partition that has one",
)
def _(original: Function, *_: Any) -> bool:
    return True


@without(
    "a new controller starts a session for every broker",
    breaks="a broker serves partitions that other brokers now lead",
)
def _(original: Function, sessions: Any, image: Any, now_ms: int) -> None:
    original(sessions, image, now_ms)
    sessions.extend_all(-sessions.session_ms)


# --- the quorum


def _unsynced_if(concerned: bool, original: Function, storage: Any, records: Any) -> None:
    if concerned:
        with unsynced():
            original(storage, records)
    else:
        original(storage, records)


@without("a vote is synced before it is sent", breaks="a node votes twice in a term", of_quorum=True)
def _(original: Function, storage: Any, records: tuple[Any, ...]) -> None:
    is_vote = not any(isinstance(record, Entry) for record in records)
    _unsynced_if(is_vote, original, storage, records)


@without(
    "log entries are synced before they are acknowledged",
    breaks="an entry that a majority stored is lost",
    of_quorum=True,
)
def _(original: Function, storage: Any, records: tuple[Any, ...]) -> None:
    has_entries = any(isinstance(record, Entry) for record in records)
    _unsynced_if(has_entries, original, storage, records)


@without("pre-vote", breaks="an isolated node deposes leaders", of_quorum=True)
def _(original: Function, node_id: int, voters: Any) -> bool:
    return False


@without("check-quorum", breaks="an isolated leader remains leader", of_quorum=True)
def _(original: Function, replication: Any) -> bool:
    return True


@without("appends from older terms are refused", breaks="a deposed leader overwrites logs", of_quorum=True)
def _(original: Function, core: Any, message: m.AnyMessage) -> None:
    if isinstance(message, m.Append) and message.term < core.term and not core.is_leader:
        message = replace(message, term=core.term)
    original(core, message)


@without(
    "an append must match the previous entry's term",
    breaks="logs differ at the same index",
    of_quorum=True,
)
def _(original: Function, core: Any, append: m.Append) -> None:
    found = core.log.term_at(append.prev_index)
    original(core, append if found is None else replace(append, prev_term=found))


@without(
    "a vote is given only to a candidate with an up-to-date log",
    breaks="a leader lacks committed entries",
    of_quorum=True,
)
def _(original: Function, *_: Any) -> bool:
    return True


@without(
    "a read is confirmed by a majority (ReadIndex)",
    breaks="a deposed leader answers from old state",
    of_quorum=True,
)
async def _(original: Function, leadership: Any) -> None:
    return


@without("write-ahead log frames have checksums", breaks="a torn write is read as an entry", of_quorum=True)
def _(original: Function, content: bytes, crc: int) -> bool:
    return True


# --- elections


@without(
    "eligible leader replicas need min.insync.replicas", breaks="a replica that lacks records becomes leader"
)
def _(original: Function, rules: Any, replicas: tuple[int, ...]) -> int:
    return 100


@without("unclean leader election is disabled", breaks="a replica that lacks records becomes leader")
def _(original: Function, before: Any, wanted: Any, rules: Any, **how: Any) -> Any:
    return original(before, wanted, dataclasses.replace(rules, unclean=True), **how)


@without(
    "a broker reports log directories that may have lost records",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, *_: Any) -> None:
    return


# --- leaders and followers


@without(
    "the high watermark waits for every in-sync replica",
    breaks="the loss of one disk loses acknowledged records",
)
def _(original: Function, core: Any) -> int:
    return core.log_end_offset


@without(
    "the high watermark stops below min.insync.replicas",
    breaks="the loss of one disk loses acknowledged records",
)
def _(original: Function, core: Any) -> bool:
    return True


@without("the latest offset is that of a current high watermark", breaks="the end of a partition goes back")
def _(original: Function, replica: Any) -> bool:
    return True


@without(
    "appends are refused below min.insync.replicas", breaks="records are appended that are never acknowledged"
)
def _(original: Function, core: Any, *batch: Any, **options: Any) -> Any:
    return original(core, *batch, **{**options, "acks": 1})


@without(
    "the high watermark waits for replicas that are joining the ISR",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, core: Any) -> frozenset[int]:
    return core.in_sync


@without(
    "a replica joins the ISR from the leader's epoch start offset",
    breaks="a replica that lacks records becomes leader",
)
def _(original: Function, core: Any, follower: Any) -> bool:
    return follower.end_offset >= core.high_watermark


@without(
    "a broker serves only while it holds a lease",
    breaks="a broker serves partitions that other brokers now lead",
)
def _(original: Function, lifecycle: Any) -> bool:
    return not lifecycle.fenced


@without("a follower truncates at the leader epoch boundary", breaks="replicas differ at the same offset")
def _(original: Function, core: Any, log: Any) -> Any:
    return original(core, log)._replace(last_fetched_epoch=NO_EPOCH)


@without("a follower checks the CRC of fetched batches", breaks="a flipped bit is stored")
def _(original: Function, records: memoryview, at: int) -> Any:
    return read_header(records, at)


@without("a scan of a log checks the CRC of batches", breaks="a flipped bit stays in a log")
def _(original: Function, window: bytes, at: int) -> Any:
    return read_header(window, at)


@without(
    "a broker reports damaged replicas to the controller",
    breaks="a replica that lacks records becomes leader",
)
async def _(original: Function, *_: Any) -> None:
    return


@without(
    "flush.messages syncs before the acknowledgement", breaks="a loss of power loses acknowledged records"
)
def _(original: Function, replica: Any) -> bool:
    return False


# --- producers


@without("the leader checks producer sequence numbers", breaks="a retry is written twice")
def _(original: Function, *_: Any, **options: Any) -> None:
    return


@without(
    "offset commits check the group generation",
    breaks="a former member commits offsets for a partition that it lost",
)
def _(original: Function, group: Any, request: Any) -> ErrorCode:
    error: ErrorCode = original(group, request)
    stale = error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    return ErrorCode.NONE if stale and group is not None else error


@without("followers keep producer state", breaks="a retry after a failover is written twice")
def _(original: Function, replica: Any, leader_epoch: int, *rest: Any, **named: Any) -> None:
    if leader_epoch > replica.leader_epoch:
        replica.log.producers.expire(0, 0)
    original(replica, leader_epoch, *rest, **named)


@without(
    "a batch waits for an earlier one that was refused or lost",
    breaks="a batch is refused as a gap, or overtakes an earlier one",
)
def _(original: Function, *_: Any) -> bool:
    return False


@without(
    "a producer snapshot holds five batches of each producer", breaks="a retry after a restart is refused"
)
def _(original: Function, producers: Any, rest: bytes) -> None:
    """Kafka's snapshot holds the last batch alone. Earlier batches are not restored from the log either."""


@without("producer expiration uses the monotonic clock", breaks="a retry is written twice after a clock jump")
def _(original: Function, clock: Any) -> int:
    return clock.now_ms()


# --- access


@without(
    "decisions about access end with the ACLs that they came from",
    breaks="a client writes after its right was revoked",
)
def _(original: Function, _: Any) -> None:
    return
