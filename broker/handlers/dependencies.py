"""Dependencies of the request handlers; built by app.py."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.tracing import RequestTracer
from tierlog.base.types import TopicPartition
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.coordinators.shards import Lease
from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.handlers.sequence_gaps import Refusals
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.maintenance.directory_moves import DirectoryMoves
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.broker.quotas.replication import ReplicationThrottles
from tierlog.broker.replication.dynamic_settings import DynamicSettings
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.security.authorizer import Authorizer
from tierlog.broker.security.delegation_tokens import DelegationTokens, no_delegation_tokens
from tierlog.broker.transactions.verifier import TransactionVerifier
from tierlog.config.node import NodeSettings
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.remote_log import RemoteLog


def _ignore(replica: Replica) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    settings: NodeSettings  # as at startup
    metadata: MetadataClient
    replicas: ReplicaManager
    purgatory: Purgatory
    fetch_sessions: FetchSessions
    clock: Clock
    tasks: TaskGroup
    recently_fenced: RecentlyFencedBrokers
    dynamic_settings: DynamicSettings | None = None  # None: settings stay as they were at the start
    remote: RemoteLog | None = None
    moves: DirectoryMoves | None = None  # None: replicas stay in their directories
    quotas: ClientQuotas = field(default_factory=ClientQuotas)
    stats: RequestStats = field(default_factory=RequestStats)
    batch_validator: BatchValidator = field(default_factory=BatchValidator)
    audit: AuditLog | None = None  # None: nothing is recorded
    authorizer: Authorizer | None = None  # None: every client may do everything
    delegation_tokens: DelegationTokens = field(default_factory=no_delegation_tokens)
    lease: Lease | None = None  # None: a standalone broker needs no lease
    verifier: TransactionVerifier | None = None
    refusals: Refusals = field(default_factory=Refusals)
    tracer: RequestTracer | None = None  # None: requests are not traced
    throttles: ReplicationThrottles = field(default_factory=lambda: ReplicationThrottles(NodeSettings()))
    submit_isr_change: Callable[[Replica], None] = _ignore
    """Called when a follower's fetch may change the in-sync replicas (`AlterPartitionManager.submit`)."""

    @property
    def effective_settings(self) -> NodeSettings:
        return self.settings if self.dynamic_settings is None else self.dynamic_settings.now

    def find_follower(self, topic: str | uuid.UUID, partition: int) -> "Replica | None":
        """Returns the local follower if consumers may fetch from it (KIP-392), else None."""
        replica = self.replicas.get(topic, partition)
        if replica is None or replica.is_leader or replica.failed is not None or not self._may_serve:
            return None
        return replica

    @property
    def _may_serve(self) -> bool:
        return self.lease is None or self.lease.holds_lease()

    def find_leader(self, topic: str | uuid.UUID, partition: int) -> "Replica | ErrorCode":
        """Returns the local leader replica of a topic name or id, or the error code to respond with."""
        replica = self.replicas.get(topic, partition)
        if replica is not None:
            if replica.is_leader and self._may_serve:
                return replica
            if replica.failed is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        image = self.metadata.image
        found = image.find_topic(topic)
        if found is None and not isinstance(topic, str):
            return ErrorCode.UNKNOWN_TOPIC_ID
        if found is None or not 0 <= partition < len(found.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.replicas.is_offline(TopicPartition(found.name, partition)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
