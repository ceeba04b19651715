"""Coordinator shards: the shards of one internal topic whose partitions this broker leads.

Creates the topic when a client first needs it (internal, compacted). Loads a shard when this broker becomes
the partition's leader, and closes it when another does. Each group or transactional id belongs to the shard
that Kafka's hash of its name selects. A shard serves requests only after its partition is replayed. Owned by
the group service and the transaction service; image changes and replica events come from app.py.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import Effect, ErrorResponse, Token
from tierlog.broker.coordinators.shard import Core, LoadFailed, Shard
from tierlog.broker.coordinators.timers import Timers
from tierlog.broker.replication.replica_events import DirectoryFailed, ReplicaEvent, ReplicasCreated
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.metadata.controller.commands import CreateTopics, NewTopic
from tierlog.metadata.image import BrokerImage, ClusterImage
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode

CREATE_TIMEOUT_S = 10.0
RELOAD_DELAY_MS = 1_000
LEASE_CHECK_MS = 500
"""How soon waiting requests fail after the lease has ended; new requests fail at once."""
LEASE_MAY_RETURN_MS = 10_000
"""Time for which a broker without its lease may get it again. Afterwards another broker leads, or clients
should look for one."""

R = TypeVar("R")
C = TypeVar("C", bound=Core)
_log = structlog.get_logger("tierlog.coordinators")


class Lease(Protocol):
    """The broker's right to serve, which heartbeats extend (broker.lifecycle)."""

    def holds_lease(self) -> bool: ...


class CoordinatorTopic(NamedTuple):
    """An internal topic. `replication_setting`: the setting of its replication factor, for messages.
    `min_in_sync`: its min.insync.replicas, if that is not the broker's."""

    name: str
    partitions: int
    replication_factor: int
    replication_setting: str
    configs: tuple[tuple[str, str], ...]
    min_in_sync: int | None = None


class Host(NamedTuple):
    """The parts of a broker that its coordinators use. `lease`: None for a standalone broker.
    `must_verify`: the setting transaction.partition.verification.enable."""

    node_id: int
    metadata: MetadataClient
    replicas: ReplicaManager
    clock: Clock
    tasks: TaskGroup
    lease: Lease | None = None
    must_verify: Callable[[], bool] = lambda: True


class Shards(Generic[C]):
    def __init__(
        self,
        host: Host,
        topic: CoordinatorTopic,
        new_core: Callable[[], C],
        append_timeout_ms: int,
        perform: Callable[[Shard[C], Effect], None] | None = None,
        topics: Callable[[ClusterImage], Any] = lambda image: None,
    ) -> None:
        """`perform`: performs the effects of this kind of coordinator. `topics`: what its core knows about
        the topics of an image."""
        self.timers = Timers(host.clock)
        self._host = host
        self._topic = topic
        self._new_core = new_core
        self._append_timeout_ms = append_timeout_ms
        self._perform = perform
        self._topics = topics
        self._shards: dict[int, Shard[C]] = {}
        self._creation: asyncio.Task[None] | None = None
        self._logged_reason: str | None = None
        """The last logged reason why the topic could not be created."""
        self._lease_seen_ms = host.clock.monotonic_ms()
        """When the lease was last seen."""

    # ---- start and stop ----

    def start(self, interval_ms: int, event: Any) -> None:
        """Start the timers: all shards get `event` every `interval_ms`. `follow` has loaded the shards of
        this broker."""
        self._submit_later(interval_ms, event)
        if self._host.lease is not None:
            self._watch_lease(self._host.lease)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self.timers.close()

    # ---- requests and events ----

    @property
    def image(self) -> ClusterImage:
        return self._host.metadata.image

    def __iter__(self) -> Iterator[Shard[C]]:
        """The shards of this broker, also those that are loading."""
        return iter(self._shards.values())

    def ask(
        self, name: str, build: Callable[[Token], Any], convert: Callable[[Any], R]
    ) -> "R | asyncio.Future[R]":
        """Pass a request to the shard of `name`. Returns the converted response, or a future of it."""
        shard = self.shard_of(name)
        if isinstance(shard, ErrorCode):
            return convert(ErrorResponse(error=shard))
        return shard.ask(build, convert)

    def submit_to_all(self, event: Any) -> None:
        """Shards that are loading need no event: a load ends with the newest image. While one waits for the
        repair of its log, events would pile up, each with an image."""
        for shard in self._shards.values():
            if shard.ready:
                shard.submit(event)

    def _submit_later(self, interval_ms: int, event: Any) -> None:
        def submit() -> None:
            self.submit_to_all(event)
            self._submit_later(interval_ms, event)

        self.timers.set("regular event", interval_ms, submit)

    def ready(self) -> tuple[ErrorCode, list[Shard[C]]]:
        """The shards that serve, and an error if others are not known yet: they are loading, or their
        replicas are being created."""
        if self.lacks_lease:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        shards = [self._shards.get(partition) for partition in self._led_partitions()]
        ready = [shard for shard in shards if shard is not None and shard.ready]
        is_complete = len(ready) == len(shards)
        return (ErrorCode.NONE if is_complete else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ready

    def _led_partitions(self) -> list[int]:
        """The partitions of the topic which this broker coordinates."""
        return [number for number, each in enumerate(self._partitions()) if self._coordinates(number, each)]

    def _coordinates(self, number: int, partition: PartitionRecord) -> bool:
        """Whether this broker leads the partition, on a disk that works."""
        return partition.leader == self._host.node_id and not self._is_offline(number)

    @property
    def skipped_records(self) -> int:
        """Unusable records in the partitions coordinated here, when they were last loaded."""
        return sum(shard.skipped_records for shard in self._shards.values())

    @property
    def has_topic(self) -> bool:
        """Whether the topic exists. Without it there are no coordinators: call `create_topic`."""
        return bool(self._partitions())

    def coordinator_of(self, name: str) -> BrokerImage | None:
        """The broker which coordinates `name`; None if there is none now, or no topic."""
        if not (partitions := self._partitions()):
            return None
        partition = partition_of(name, len(partitions))
        leader = partitions[partition].leader
        broker = self.image.brokers.get(leader)
        lost = leader == self._host.node_id and (self.lacks_lease or self._is_offline(partition))
        return None if broker is None or broker.fenced or lost else broker

    async def create_topic(self) -> None:
        """Create the topic. As in Kafka, not before there are brokers for all its replicas: otherwise one
        lost disk could lose the state of all coordinators. Concurrent calls share one attempt. Errors are
        logged.
        """
        if self._creation is None:
            self._creation = self._host.tasks.spawn(f"create {self._topic.name}", self._create_topic())
            self._creation.add_done_callback(self._creation_ended)
        await asyncio.shield(self._creation)

    def _creation_ended(self, _: object) -> None:
        self._creation = None

    async def _create_topic(self) -> None:
        if self._partitions() or self._lacks_brokers():
            return
        command = CreateTopics(topics=(self._new_topic(),))
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                reply = await self._host.metadata.submit(command)
        except Exception as error:  # the client retries its request, and then this is retried
            self._log_reason(str(error) or f"no response from the controller within {CREATE_TIMEOUT_S:g} s")
            return
        outcome = reply.topics[0]
        if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log_reason(outcome.message or outcome.error.name)

    @property
    def _replication_factor(self) -> int:
        """1 for a standalone broker."""
        return 1 if self._host.lease is None else self._topic.replication_factor

    def _lacks_brokers(self) -> bool:
        """Whether fewer brokers are registered than the topic has replicas."""
        needed, known = self._replication_factor, len(self.image.brokers)
        if known < needed:
            self._log_reason(
                f"its replicas need {needed} brokers, and {known} are registered: start the others, "
                f"or set {self._topic.replication_setting} lower on every broker"
            )
        return known < needed

    def _log_reason(self, why: str) -> None:
        """Log why the topic cannot be created. Clients retry several times a second, so log each reason
        once."""
        if why != self._logged_reason:
            self._logged_reason = why
            _log.warning("coordinator.topic.missing", topic=self._topic.name, why=why)

    def _new_topic(self) -> NewTopic:
        configs = [("cleanup.policy", "compact"), ("compression.type", "producer"), *self._topic.configs]
        if self._topic.min_in_sync is not None:
            in_sync = min(self._topic.min_in_sync, self._replication_factor)
            configs.append(("min.insync.replicas", str(in_sync)))
        return NewTopic(
            name=self._topic.name,
            partitions=self._topic.partitions,
            replication_factor=self._replication_factor,
            configs=tuple(configs),
        )

    # ---- shards ----

    def shard_of(self, name: str) -> Shard[C] | ErrorCode:
        """The shard of `name` if it is ready, otherwise the error for the client."""
        partitions = self._partitions()
        return self.shard_at(partition_of(name, len(partitions))) if partitions else ErrorCode.NOT_COORDINATOR

    def shard_to_read(self, name: str) -> Shard[C] | ErrorCode:
        """As `shard_of`, for requests that librdkafka does not repeat after NOT_COORDINATOR (its issue 5586):
        while the lease may return, they get COORDINATOR_LOAD_IN_PROGRESS, which every client repeats. If
        another broker leads, the client learns that from its next heartbeat."""
        if not (partitions := self._partitions()):
            return ErrorCode.NOT_COORDINATOR
        number = partition_of(name, len(partitions))
        may_return = self._host.clock.monotonic_ms() - self._lease_seen_ms < LEASE_MAY_RETURN_MS
        if self.lacks_lease and may_return and self._coordinates(number, partitions[number]):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.shard_at(number)

    def shard_at(self, partition: int) -> Shard[C] | ErrorCode:
        partitions = self._partitions()
        if partition >= len(partitions) or self.lacks_lease:
            return ErrorCode.NOT_COORDINATOR
        shard = self._shards.get(partition) or self._open(partition, partitions[partition])
        if shard is None:
            loads = self._coordinates(partition, partitions[partition])
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NOT_COORDINATOR
        is_ready = shard.ready and shard.is_current
        return shard if is_ready else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _open(self, partition: int, image: PartitionRecord) -> Shard[C] | None:
        """A new, loading shard if this broker leads the partition and has its replica."""
        replica = self._host.replicas.get(self._topic.name, partition)
        if replica is None or image.leader != self._host.node_id:
            return None
        shard = Shard[C](
            TopicPartition(self._topic.name, partition),
            replica,
            self._new_core,
            self._host.clock,
            self.timers,
            lambda: self._topics(self.image),
            self._append_timeout_ms,
            self._host.must_verify,
        )
        shard.is_replicated = len(image.replicas) > 1
        shard.on_failure = self._load_later
        if self._perform is not None:
            shard.on_service_effect = self._perform
        self._shards[partition] = shard
        if replica.log_end_offset == replica.log_start_offset:
            shard.start_empty()
        else:
            self._load(shard)
        return shard

    def _load(self, shard: Shard[C]) -> None:
        self._host.tasks.spawn(f"load {shard.name}", self._load_shard(shard))

    async def _load_shard(self, shard: Shard[C]) -> None:
        try:
            await shard.load()
        except LoadFailed as error:
            _log.error("coordinator.load_failed", error=str(error))
            self._load_later(shard)
        except Exception:  # a read error or a damaged batch: the shard must not stay loading forever
            _log.exception("coordinator.load_failed", partition=str(shard.name))
            self._load_later(shard)

    def _load_later(self, shard: Shard[C]) -> None:
        if self._shards.get(shard.name.partition) is not shard:
            return  # another broker is the leader, or the topic was deleted
        self.timers.set((self._topic.name, shard.name.partition), RELOAD_DELAY_MS, lambda: self._load(shard))

    def follow(self, image: ClusterImage) -> None:
        topic = image.topic(self._topic.name)
        partitions = topic.partitions if topic is not None else ()
        led = {index for index, each in enumerate(partitions) if each.leader == self._host.node_id}
        for partition, shard in sorted(self._shards.items()):
            # Another broker leads the partition, or did in an image that was skipped. Or the topic was
            # deleted and created again, so the replica is another one.
            is_led = partition in led and partitions[partition].leader_epoch == shard.leader_epoch
            if not is_led or self._host.replicas.get(self._topic.name, partition) is not shard.replica:
                self._shards.pop(partition).close()
                self.timers.cancel((self._topic.name, partition))
        for partition in sorted(led - self._shards.keys()):
            self._open(partition, partitions[partition])

    def on_replica_event(self, event: ReplicaEvent) -> None:
        """Close the shards of replicas that went offline, and open those of replicas that were created."""
        if isinstance(event, DirectoryFailed | ReplicasCreated):
            self.follow(self.image)

    @property
    def must_verify(self) -> bool:
        """transaction.partition.verification.enable."""
        return self._host.must_verify()

    @property
    def lacks_lease(self) -> bool:
        """Whether another broker may already be the coordinator."""
        return self._host.lease is not None and not self._host.lease.holds_lease()

    def _watch_lease(self, lease: Lease) -> None:
        def check() -> None:
            if lease.holds_lease():
                self._lease_seen_ms = self._host.clock.monotonic_ms()
            else:
                for shard in self._shards.values():
                    shard.fail_waiting(ErrorCode.NOT_COORDINATOR)
            self._watch_lease(lease)

        self.timers.set("lease", LEASE_CHECK_MS, check)

    def _is_offline(self, partition: int) -> bool:
        return self._host.replicas.is_offline(TopicPartition(self._topic.name, partition))

    def _partitions(self) -> tuple[PartitionRecord, ...]:
        topic = self.image.topic(self._topic.name)
        return topic.partitions if topic is not None else ()


def partition_of(name: str, partitions: int) -> int:
    """The partition which coordinates a group or transactional id: Kafka's `Utils.abs(name.hashCode()) %
    partitions`; the hash is over UTF-16 units, in 32 bits."""
    units = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (code * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code & 0x8000_0000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
