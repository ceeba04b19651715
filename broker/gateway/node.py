"""The node's parts that the admin routes show. The composition root sets them as they start."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from tierlog.base.clock import Clock
from tierlog.base.types import TopicIdPartition
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.loop_lag import LoopLag
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.sasl import LoginCounts
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.maintenance.directory_moves import DirectoryMoves
from tierlog.broker.maintenance.disk_pressure import DiskPressure
from tierlog.broker.maintenance.log_cleaner import LogCleaner
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.maintenance.rebalancer import Rebalancer
from tierlog.broker.maintenance.scrubber import Scrubber
from tierlog.broker.net.listener import Listener
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.broker.quotas.replication import ReplicationThrottles
from tierlog.broker.remote.bucket_scrubber import BucketScrubber
from tierlog.broker.remote.loads import Loads
from tierlog.broker.remote.manifest_check import ManifestCheck
from tierlog.broker.remote.manifest_recovery import ManifestRecovery
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.remote_repair import RemoteRepair
from tierlog.broker.remote.remote_storage_cleaner import RemoteStorageCleaner
from tierlog.broker.remote.replacements import Replacements
from tierlog.broker.remote.segment_merger import SegmentMerger
from tierlog.broker.remote.tier_snapshots import TierSnapshots
from tierlog.broker.remote.tiering import RemoteTier
from tierlog.broker.replication.alter_partition_manager import AlterPartitionManager
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.config.node import BROKER, NodeSettings
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.client import MetadataClient

if TYPE_CHECKING:
    from tierlog.broker.security.tls_files import NodeTls  # brokers without TLS do not load it

_log = structlog.get_logger("tierlog")
EVENTS_WAITING = 1000
"""Events queued for a slow reader; beyond it the reader is disconnected and must start again."""

Events = asyncio.Queue["dict[str, Any] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The parts of a broker that serves clients."""

    replicas: ReplicaManager
    disk_pressure: DiskPressure
    moves: DirectoryMoves
    alter_partition_manager: AlterPartitionManager
    listener: Listener
    logins: Mapping[str, LoginCounts]
    tiering: RemoteLogManager
    storage_cleaner: RemoteStorageCleaner
    bucket_scrubber: BucketScrubber
    manifest_check: ManifestCheck
    merger: SegmentMerger
    replacements: Replacements
    loads: Loads
    rebalancer: Rebalancer
    manifest_recovery: ManifestRecovery
    remote_repair: RemoteRepair
    snapshots: TierSnapshots
    remote: RemoteTier
    cleaner: LogCleaner
    scrubber: Scrubber
    repair: LogRepair
    groups: GroupService
    purgatory: Purgatory
    sessions: FetchSessions
    commits: GroupCommit
    validator: BatchValidator
    quotas: ClientQuotas
    throttles: ReplicationThrottles
    clock: Clock
    tls: "NodeTls | None"


class FailureLog:
    """Logs unexpected exceptions with their tracebacks and counts them.

    The node continues: a request gets an error, and a repeated task (`TaskGroup.repeat`) runs again. The
    failure of a vital task stops the node instead (`node_base`).
    """

    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, failure: BaseException) -> None:
        """Called by `TaskGroup`."""
        self.count += 1
        _log.error(
            "node.task.failed",
            what=name,
            exc_info=failure,
        )


class Node:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        stats: RequestStats,
        loop_lag: LoopLag,
        failures: FailureLog,
        clock: Clock,
        audit: AuditLog | None = None,
    ) -> None:
        self.settings = settings
        self.metadata = metadata
        self.stats = stats
        self.loop_lag = loop_lag
        self.failures = failures
        self.clock = clock
        self.audit = audit
        self.serving: Serving | None = None
        self.serves = False
        self._readers: set[Events] = set()
        self._has_stopped = False

    @property
    def is_broker(self) -> bool:
        return BROKER in self.settings.process_roles

    def serve(self, serving: Serving | None = None) -> None:
        """`serving`: only for a broker."""
        self.serving, self.serves = serving, True

    def stop_serving(self) -> None:
        """Also end event streams, those of later requests too, since the HTTP server waits for its responses
        when it closes."""
        self.serving, self.serves, self._has_stopped = None, False, True
        for reader in self._readers:
            _put(reader, None)

    # -- events --

    def follow(self) -> Events:
        """A queue of all events from now on; None ends it. Return it with `leave`."""
        reader: Events = asyncio.Queue(EVENTS_WAITING)
        self._readers.add(reader)
        if self._has_stopped:
            _put(reader, None)
        return reader

    def leave(self, reader: Events) -> None:
        self._readers.discard(reader)

    def tier_changed(self, where: TopicIdPartition) -> None:
        """A partition's local or remote segments have changed."""
        topic = self.metadata.image.topics.get(where.topic_id)
        if self._readers and topic is not None:
            self._publish(
                {
                    "image_index": self.metadata.image.index,
                    "changed": ["tiers"],
                    "partitions": [{"topic": topic.name, "partition": where.partition}],
                }
            )

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        if not self._readers:
            return
        parts = ("brokers", "topics", "configs", "quotas", "remote", "delete_queue")
        changed = [part for part in parts if getattr(old, part) is not getattr(new, part)]
        event: dict[str, Any] = {"image_index": new.index, "changed": changed}
        if "remote" in changed:
            event["partitions"] = [
                {"topic": topic.name, "partition": key.partition}
                for key, remote in new.remote.items()
                if old.remote.get(key) is not remote and (topic := new.topics.get(key.topic_id)) is not None
            ]
        self._publish(event)

    def _publish(self, event: dict[str, Any]) -> None:
        for reader in tuple(self._readers):
            if reader.qsize() < EVENTS_WAITING - 1:
                _put(reader, event)
            else:
                self._readers.discard(reader)
                _put(reader, None)


def _put(reader: Events, event: dict[str, Any] | None) -> None:
    if not reader.full():
        reader.put_nowait(event)
