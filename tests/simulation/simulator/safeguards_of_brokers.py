"""More safeguards of brokers, and of what the controller takes from them."""

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
from tierlog.broker.replication import replica, topic_configs
from tierlog.broker.replication.core.follower import FetchPosition
from tierlog.broker.replication.replica import ReadResult, Replica
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.replication.replica_roles import ReplicaRoles
from tierlog.broker.storage import unclean_restart
from tierlog.broker.storage.core.batch_validation import RecordChecks
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller import brokers, partition_change, reassignment, rules
from tierlog.metadata.controller.rules import ClusterDefaults
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.image import ClusterImage, PartitionImage
from tierlog.protocol.schema import ZERO_UUID

# --- what producers say


@safeguard("timestamps of records, and not of headers", "a false header deletes acknowledged records")
def _() -> Patches:
    yield replica, "required_checks", lambda *_: RecordChecks.FIRST_RECORDS
    yield replica, "first_records_are_consistent", lambda *_: True


# --- the controller


@safeguard("a move ends when all who stay have caught up", "a replica leads that lacks records")
def _() -> Patches:
    def without(wanted: PartitionImage) -> PartitionImage:
        if not wanted.is_reassigned:
            return wanted
        target = tuple(one for one in wanted.replicas if one not in wanted.removing)
        return replace(wanted, replicas=target, in_sync=target, adding=(), removing=())

    yield partition_change, "_completed", without


@safeguard("a move leaves enough replicas that hold all", "the loss of one disk loses what was acknowledged")
def _() -> Patches:
    def without(before: PartitionImage, replicas: tuple[int, ...], _: int) -> None:
        """As in Kafka: one that is in sync stays."""
        check(before, replicas, 1)

    check = reassignment._check_holders
    yield reassignment, "_check_holders", without


@safeguard("an empty disk is told of", "a replica leads that lacks records")
def _() -> Patches:
    async def without(_: ReplicaReporter, empty: object) -> None:
        return

    yield ReplicaReporter, "report_empty", without


@safeguard("min.insync.replicas is a setting of the cluster", "one broker's file lets others lose records")
def _() -> Patches:
    """As before: the least of all brokers counts for the controller, and a leader goes by its own."""

    def without(image: ClusterImage) -> ClusterDefaults:
        return ClusterDefaults(min((one.min_in_sync for one in image.brokers.values()), default=1), False)

    yield rules, "cluster_defaults", without
    yield running_settings, "settings_of", _own_settings
    yield topic_configs, "settings_of", _own_settings


def _own_settings(image: ClusterImage, at_start: NodeSettings) -> NodeSettings:
    return at_start


@safeguard("unclean election is a setting of the cluster", "one broker's file lets others lose records")
def _() -> Patches:
    def without(image: ClusterImage) -> ClusterDefaults:
        least, unclean = known(image)
        return ClusterDefaults(least, unclean or any(one.unclean_election for one in image.brokers.values()))

    known = rules.cluster_defaults
    yield rules, "cluster_defaults", without


@safeguard("a live broker's place is not taken", "a broker serves whose partitions were given to others")
def _() -> Patches:
    yield BrokerSessions, "in_session", lambda *_: frozenset()


@safeguard("a directory carries the epoch of its last use", "a replica leads that lacks records")
def _() -> Patches:
    yield brokers, "_loss", lambda *_: None


@safeguard("a copied directory is recognised", "a replica leads that lacks records")
def _() -> Patches:
    yield unclean_restart, "_stamp", lambda _: ""


# --- leases


@safeguard("a lease counts from its heartbeat", "a broker serves whose partitions were given to others")
def _() -> Patches:
    take = BrokerLifecycle._take

    def without(lifecycle: BrokerLifecycle, reply: Any, sent_ms: int) -> None:
        take(lifecycle, reply, lifecycle._clock.monotonic_ms())

    yield BrokerLifecycle, "_take", without


# --- what is read, and what a fetch says


@safeguard("the leader epoch of a fetch", "a client reads from a leader that is none any more")
def _() -> Patches:
    read_one = fetch._Fetcher.read_one

    def without(fetcher: Any, asked: Any, item: Any, reading: Any) -> Any:
        said, item.current_leader_epoch = item.current_leader_epoch, -1
        try:
            return read_one(fetcher, asked, item, reading)
        finally:
            item.current_leader_epoch = said

    yield fetch._Fetcher, "read_one", without


@safeguard("consumers see what is committed", "a record that was seen is lost")
def _() -> Patches:
    read = Replica.read

    def without(replica: Replica, offset: int, max_bytes: int, **how: Any) -> ReadResult:
        if not replica.is_leader:
            return read(replica, offset, max_bytes, **how)
        found = replica.read_for_follower(offset, max_bytes, min_one=how.get("min_one", True))
        return found._replace(high_watermark=replica.log_end_offset)

    yield Replica, "read", without


@safeguard("a follower's fetch claims what is synced", "a loss of power takes acknowledged records along")
def _() -> Patches:
    def without(replica: Replica) -> FetchPosition | None:
        if replica.failed is not None or not replica._follower.is_follower:
            return None
        return replica._follower.position(replica.log)

    yield ReplicaRoles, "fetch_position", without


# --- what a restart knows


@safeguard("the high watermark is checkpointed", "what was committed cannot be read after a restart")
def _() -> Patches:
    known = ReplicaRoles.checkpoint
    yield ReplicaRoles, "checkpoint", property(lambda replica: (*known.fget(replica)[:2], None))


# --- group coordinators


@safeguard("a coordinator replays its partition", "committed offsets go back")
def _() -> Patches:
    async def without(shard: GroupShard) -> None:
        shard.core = Coordinator(shard._settings)
        shard.start_empty()
        shard._handle_inbox()

    yield GroupShard, "load", without


@safeguard("committed offsets are stored with the topic's id", "an offset of an earlier topic is given")
def _() -> Patches:
    known = coordinator.decode_offset

    def without(data: bytes | memoryview) -> CommittedOffset:
        return dataclasses.replace(known(data), topic_id=ZERO_UUID)

    yield coordinator, "decode_offset", without
