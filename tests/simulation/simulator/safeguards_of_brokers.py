"""Safeguards of brokers, and of the controller's handling of their requests."""

import dataclasses
from typing import Any

from msgspec.structs import replace

from simulator.switches import Patches, safeguard
from tierlog.broker.groups.core import coordinator
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.formats import CommittedOffset
from tierlog.broker.groups.group_shard import GroupShard
from tierlog.broker.handlers import fetch
from tierlog.broker.lifecycle import BrokerLifecycle
from tierlog.broker.replication import dynamic_settings as running_settings
from tierlog.broker.replication import leader_role, topic_configs
from tierlog.broker.replication.core.follower import FetchPosition
from tierlog.broker.replication.follower_role import FollowerRole
from tierlog.broker.replication.replica import ReadResult, Replica
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.storage import unclean_restart
from tierlog.broker.storage.core.batch_validation import RecordChecks
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller import brokers, partition_change, reassignment, rules
from tierlog.metadata.controller.rules import ClusterDefaults
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.schema import ZERO_UUID

# --- timestamps


@safeguard(
    "retention uses the timestamps of records instead of batch headers",
    "a false timestamp in a header deletes acknowledged records",
)
def _() -> Patches:
    yield leader_role, "required_checks", lambda *_: RecordChecks.FIRST_RECORDS
    yield leader_role, "first_records_are_consistent", lambda *_: True


# --- the controller


@safeguard(
    "a reassignment completes when all target replicas are in sync",
    "a replica that lacks records becomes leader",
)
def _() -> Patches:
    def without(wanted: PartitionRecord) -> PartitionRecord:
        if not wanted.is_reassigned:
            return wanted
        target = tuple(one for one in wanted.replicas if one not in wanted.removing)
        return replace(wanted, replicas=target, in_sync=target, adding=(), removing=())

    yield partition_change, "_completed", without


@safeguard(
    "a reassignment keeps min.insync.replicas complete replicas",
    "the loss of one disk loses acknowledged records",
)
def _() -> Patches:
    def without(before: PartitionRecord, replicas: tuple[int, ...], _: int) -> None:
        """As in Kafka: one in-sync replica is enough."""
        check(before, replicas, 1)

    check = reassignment._check_holders
    yield reassignment, "_check_holders", without


@safeguard(
    "a broker reports replicas that are empty after a restart", "a replica that lacks records becomes leader"
)
def _() -> Patches:
    async def without(_: ReplicaReporter, empty: object) -> None:
        return

    yield ReplicaReporter, "report_empty", without


@safeguard(
    "min.insync.replicas is a cluster-wide setting",
    "one broker's settings file lets other brokers lose records",
)
def _() -> Patches:
    """The controller uses the lowest value of all brokers, and a leader uses its own."""

    def without(image: ClusterImage) -> ClusterDefaults:
        return ClusterDefaults(min((one.min_in_sync for one in image.brokers.values()), default=1), False)

    yield rules, "cluster_defaults", without
    yield running_settings, "settings_of", _own_settings
    yield topic_configs, "settings_of", _own_settings


def _own_settings(image: ClusterImage, at_start: NodeSettings) -> NodeSettings:
    return at_start


@safeguard(
    "unclean leader election is a cluster-wide setting",
    "one broker's settings file lets other brokers lose records",
)
def _() -> Patches:
    def without(image: ClusterImage) -> ClusterDefaults:
        least, unclean = known(image)
        return ClusterDefaults(least, unclean or any(one.unclean_election for one in image.brokers.values()))

    known = rules.cluster_defaults
    yield rules, "cluster_defaults", without


@safeguard(
    "a broker id with a live session cannot be registered again",
    "a broker serves partitions that other brokers now lead",
)
def _() -> Patches:
    yield BrokerSessions, "in_session", lambda *_: frozenset()


@safeguard(
    "a log directory stores the broker epoch of its last use", "a replica that lacks records becomes leader"
)
def _() -> Patches:
    yield brokers, "_loss", lambda *_: None


@safeguard("a restored copy of a log directory is detected", "a replica that lacks records becomes leader")
def _() -> Patches:
    yield unclean_restart, "_stamp", lambda _: ""


# --- leases


@safeguard(
    "a lease starts when its heartbeat is sent", "a broker serves partitions that other brokers now lead"
)
def _() -> Patches:
    apply = BrokerLifecycle._apply

    def without(lifecycle: BrokerLifecycle, reply: Any, sent_ms: int) -> None:
        apply(lifecycle, reply, lifecycle._clock.monotonic_ms())

    yield BrokerLifecycle, "_apply", without


# --- fetches


@safeguard("a fetch with an old leader epoch is refused", "a client reads from a former leader")
def _() -> Patches:
    read_one = fetch._Fetcher.read_one

    def without(fetcher: Any, requested: Any, item: Any, reading: Any) -> Any:
        sent, item.current_leader_epoch = item.current_leader_epoch, -1
        try:
            return read_one(fetcher, requested, item, reading)
        finally:
            item.current_leader_epoch = sent

    yield fetch._Fetcher, "read_one", without


@safeguard("consumers read only up to the high watermark", "a record that a consumer read is lost")
def _() -> Patches:
    read = Replica.read

    def without(replica: Replica, offset: int, max_bytes: int, **how: Any) -> ReadResult:
        if not replica.is_leader:
            return read(replica, offset, max_bytes, **how)
        found = replica.read_for_follower(offset, max_bytes, min_one=how.get("min_one", True))
        return found._replace(high_watermark=replica.log_end_offset)

    yield Replica, "read", without


@safeguard("a follower fetches from its flushed offset", "a loss of power loses acknowledged records")
def _() -> Patches:
    def without(role: FollowerRole) -> FetchPosition | None:
        if role._replica.failed is not None or not role._follower.is_follower:
            return None
        return role._follower.position(role._log)

    yield FollowerRole, "fetch_position", without


# --- restarts


@safeguard(
    "the high watermark is written to a checkpoint", "committed records cannot be read after a restart"
)
def _() -> Patches:
    known = Replica.checkpoint
    yield Replica, "checkpoint", property(lambda replica: (*known.fget(replica)[:2], None))


# --- group coordinators


@safeguard("a group coordinator replays its partition before it serves", "committed offsets go back")
def _() -> Patches:
    async def without(shard: GroupShard) -> None:
        shard.core = Coordinator(shard._settings)
        shard.start_empty()
        shard._handle_inbox()

    yield GroupShard, "load", without


@safeguard(
    "committed offsets are stored with the topic id",
    "a new topic gets the offset of a deleted topic of the same name",
)
def _() -> Patches:
    known = coordinator.decode_offset

    def without(data: bytes | memoryview) -> CommittedOffset:
        return dataclasses.replace(known(data), topic_id=ZERO_UUID)

    yield coordinator, "decode_offset", without
