"""Group service: the group coordinator of this broker, with a shard for each `__consumer_offsets` partition
it leads.

It creates the topic when a group first needs it (internal, compacted). It loads a shard when this broker
becomes the partition's leader, and closes it when another does. Each group belongs to the shard that Kafka's
hash of its id selects. A shard serves requests only after its partition is replayed. Called by
handlers/groups.py; built by app.py.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import Rng, TopicPartition, random_uuid
from tierlog.broker.groups.core.events import (
    ErrorResponse,
    Event,
    ExpireOffsets,
    Request,
    Response,
    Token,
    TopicsChanged,
)
from tierlog.broker.groups.core.offsets import OffsetsByPartition
from tierlog.broker.groups.core.states import GroupState
from tierlog.broker.groups.core.turn import GroupSettings
from tierlog.broker.groups.group_shard import GroupShard, LoadFailed
from tierlog.broker.groups.timers import Timers
from tierlog.broker.replication.replica_events import DirectoryFailed, ReplicaEvent, ReplicasCreated
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import CreateTopics, NewTopic
from tierlog.metadata.image import BrokerImage, ClusterImage, changed_topics
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.records import PartitionRecord
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_groups import DescribedGroup
from tierlog.protocol.primitives import STRING_BYTES_MAX

OFFSETS_TOPIC = "__consumer_offsets"
CREATE_TIMEOUT_S = 10.0
RELOAD_DELAY_MS = 1_000
LEASE_CHECK_MS = 500
"""How soon waiting requests fail after the lease has ended; new requests fail at once."""


R = TypeVar("R")
_log = structlog.get_logger("tierlog.groups")


class Lease(Protocol):
    """The broker's right to serve, which heartbeats extend (broker.lifecycle)."""

    def holds_lease(self) -> bool: ...


class GroupService:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        clock: Clock,
        rng: Rng,
        tasks: TaskGroup,
        lease: Lease | None = None,
    ) -> None:
        """`lease`: None for a standalone broker."""
        self._settings = settings
        self._group_settings = group_settings(settings)
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._lease = lease
        self._timers = Timers(clock)
        self._shards: dict[int, GroupShard] = {}
        self._creation: asyncio.Task[None] | None = None
        self._logged_reason: str | None = None
        """The last logged reason why the topic could not be created."""

    # ---- start and stop ----

    def start(self) -> None:
        """Start the timers. `follow` has loaded the shards of this broker."""
        self._expire_later()
        if self._lease is not None:
            self._watch_lease(self._lease)

    async def close(self) -> None:
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self._timers.close()

    # ---- for handlers ----

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    def ask(
        self, group_id: str, build: Callable[[Token], Request], convert: Callable[[Response], R]
    ) -> "R | asyncio.Future[R]":
        """Pass a request to the group's shard. Returns the converted response, or a future of it."""
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return convert(ErrorResponse(error=shard))
        return shard.ask(build, convert)

    def offsets(self, group_id: str) -> OffsetsByPartition | ErrorCode:
        """Committed, durable offsets of a group. Read-only."""
        shard = self._shard_of(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.core.offsets(group_id)

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.describe(group_id) or ErrorCode.GROUP_ID_NOT_FOUND

    def list_groups(self) -> tuple[ErrorCode, list[tuple[str, str, GroupState]]]:
        """(id, protocol type, state) of the groups coordinated here, and an error if some are not known yet:
        their shards are loading, or their replicas are being created."""
        if self._lacks_lease:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        shards = [self._shards.get(partition) for partition in self._led_partitions()]
        ready = [shard for shard in shards if shard is not None and shard.ready]
        found = [group for shard in ready for group in shard.core.list_groups()]
        is_complete = len(ready) == len(shards)
        return (ErrorCode.NONE if is_complete else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), found

    def _led_partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` whose groups this broker coordinates."""
        return [number for number, each in enumerate(self._partitions()) if self._coordinates(number, each)]

    def _coordinates(self, number: int, partition: PartitionRecord) -> bool:
        """Whether this broker leads the partition, on a disk that works."""
        return partition.leader == self._settings.node_id and not self._is_offline(number)

    @property
    def member_bytes(self) -> int:
        """Memory used by members of the groups coordinated here."""
        return sum(shard.core.member_bytes for shard in self._shards.values())

    @property
    def member_free_bytes(self) -> int:
        """Memory left for members."""
        return self._settings.group_members_max_bytes - self.member_bytes

    @property
    def skipped_records(self) -> int:
        """Unusable records in the partitions coordinated here, when they were last loaded."""
        return sum(shard.skipped_records for shard in self._shards.values())

    def generate_member_id(self, client_id: str) -> str:
        """The client id and a random UUID. A long client id is shortened, to fit a protocol string."""
        suffix = f"-{random_uuid(self._rng)}"
        prefix = client_id.encode()[: STRING_BYTES_MAX - len(suffix)].decode(errors="ignore")
        return prefix + suffix

    @property
    def has_topic(self) -> bool:
        """Whether `__consumer_offsets` exists. Without it no group has a coordinator: call `create_topic`."""
        return bool(self._partitions())

    def coordinator_of(self, group_id: str) -> BrokerImage | None:
        """The broker which coordinates a group; None if there is none now, or no `__consumer_offsets`."""
        if not (partitions := self._partitions()):
            return None
        partition = partition_of(group_id, len(partitions))
        leader = partitions[partition].leader
        broker = self.image.brokers.get(leader)
        lost = leader == self._settings.node_id and (self._lacks_lease or self._is_offline(partition))
        return None if broker is None or broker.fenced or lost else broker

    async def create_topic(self) -> None:
        """Create `__consumer_offsets`. As in Kafka, not before there are brokers for all its replicas:
        otherwise one lost disk could lose the offsets of all groups. Concurrent calls share one attempt.
        Errors are logged.
        """
        if self._creation is None:
            self._creation = self._tasks.spawn(f"create {OFFSETS_TOPIC}", self._create_topic())
            self._creation.add_done_callback(self._creation_ended)
        await asyncio.shield(self._creation)

    def _creation_ended(self, _: object) -> None:
        self._creation = None

    async def _create_topic(self) -> None:
        if self._partitions() or self._lacks_brokers():
            return
        command = CreateTopics(topics=(self._offsets_topic(),))
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                reply = await self._metadata.submit(command)
        except Exception as error:  # the client retries its request, and then this is retried
            self._log_reason(str(error) or f"no response from the controller within {CREATE_TIMEOUT_S:g} s")
            return
        outcome = reply.topics[0]
        if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log_reason(outcome.message or outcome.error.name)

    @property
    def _replication_factor(self) -> int:
        """1 for a standalone broker."""
        return 1 if self._lease is None else self._settings.offsets_topic_replication_factor

    def _lacks_brokers(self) -> bool:
        """Whether fewer brokers are registered than the topic has replicas."""
        needed, known = self._replication_factor, len(self.image.brokers)
        if known < needed:
            self._log_reason(
                f"its replicas need {needed} brokers, and {known} are registered: start the others, "
                "or set offsets.topic.replication.factor lower on every broker"
            )
        return known < needed

    def _log_reason(self, why: str) -> None:
        """Log why the topic cannot be created. Clients retry several times a second, so log each reason
        once."""
        if why != self._logged_reason:
            self._logged_reason = why
            _log.warning("cannot create the offsets topic; groups wait for it", topic=OFFSETS_TOPIC, why=why)

    def _offsets_topic(self) -> NewTopic:
        return NewTopic(
            name=OFFSETS_TOPIC,
            partitions=self._settings.offsets_topic_num_partitions,
            replication_factor=self._replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(self._settings.offsets_topic_segment_bytes)),
            ),
        )

    # ---- shards ----

    def _shard_of(self, group_id: str) -> GroupShard | ErrorCode:
        """The group's shard if it is ready, otherwise the error for the client."""
        partitions = self._partitions()
        if not partitions or self._lacks_lease:
            return ErrorCode.NOT_COORDINATOR
        partition = partition_of(group_id, len(partitions))
        shard = self._shards.get(partition) or self._open(partition, partitions[partition])
        if shard is None:
            loads = self._coordinates(partition, partitions[partition])
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NOT_COORDINATOR
        return shard if shard.ready else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _open(self, partition: int, image: PartitionRecord) -> GroupShard | None:
        """A new, loading shard if this broker leads the partition and has its replica."""
        replica = self._replicas.get(OFFSETS_TOPIC, partition)
        if replica is None or image.leader != self._settings.node_id:
            return None
        shard = GroupShard(
            partition,
            replica,
            self._group_settings,
            self._clock,
            self._timers,
            lambda: self.image.topic_ids,
            self._settings.offsets_commit_timeout_ms,
        )
        shard.on_failure = self._load_later
        self._shards[partition] = shard
        if replica.log_end_offset == replica.log_start_offset:
            shard.start_empty()
        else:
            self._load(shard)
        return shard

    def _load(self, shard: GroupShard) -> None:
        self._tasks.spawn(f"load {OFFSETS_TOPIC}-{shard.partition}", self._load_shard(shard))

    async def _load_shard(self, shard: GroupShard) -> None:
        try:
            await shard.load()
        except LoadFailed as error:
            _log.error("cannot load a coordinator shard; it is retried", error=str(error))
            self._load_later(shard)
        except Exception:  # a read error or a damaged batch: the shard must not stay loading forever
            _log.exception("cannot load a coordinator shard; it is retried", partition=shard.partition)
            self._load_later(shard)

    def _load_later(self, shard: GroupShard) -> None:
        if self._shards.get(shard.partition) is not shard:
            return  # another broker is the leader, or the topic was deleted
        self._timers.set((OFFSETS_TOPIC, shard.partition), RELOAD_DELAY_MS, lambda: self._load(shard))

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topic_ids is new.topic_ids and old.topics is new.topics:
            return
        if old.topic_ids is not new.topic_ids:
            deleted = frozenset(topic.name for topic in changed_topics(old, new)[0])
            self._submit_to_all(TopicsChanged(ids=new.topic_ids, deleted=deleted))
        self._follow(new)

    def _follow(self, image: ClusterImage) -> None:
        topic = image.topic(OFFSETS_TOPIC)
        partitions = topic.partitions if topic is not None else ()
        led = {index for index, each in enumerate(partitions) if each.leader == self._settings.node_id}
        for partition, shard in sorted(self._shards.items()):
            # Another broker leads the partition, or did in an image that was skipped. Or the topic was
            # deleted and created again, so the replica is another one.
            is_led = partition in led and partitions[partition].leader_epoch == shard.leader_epoch
            if not is_led or self._replicas.get(OFFSETS_TOPIC, partition) is not shard.replica:
                self._shards.pop(partition).close()
                self._timers.cancel((OFFSETS_TOPIC, partition))
        for partition in sorted(led - self._shards.keys()):
            self._open(partition, partitions[partition])

    def on_replica_event(self, event: ReplicaEvent) -> None:
        """Close the shards of replicas that went offline, and open those of replicas that were created."""
        if isinstance(event, DirectoryFailed | ReplicasCreated):
            self._follow(self.image)

    @property
    def _lacks_lease(self) -> bool:
        """Whether another broker may already be the coordinator."""
        return self._lease is not None and not self._lease.holds_lease()

    def _watch_lease(self, lease: Lease) -> None:
        def check() -> None:
            if not lease.holds_lease():
                for shard in self._shards.values():
                    shard.fail_waiting(ErrorCode.NOT_COORDINATOR)
            self._watch_lease(lease)

        self._timers.set("lease", LEASE_CHECK_MS, check)

    def _is_offline(self, partition: int) -> bool:
        return self._replicas.is_offline(TopicPartition(OFFSETS_TOPIC, partition))

    def _submit_to_all(self, event: Event) -> None:
        for shard in self._shards.values():
            shard.submit(event)

    def _expire_later(self) -> None:
        def expire() -> None:
            self._submit_to_all(ExpireOffsets())
            self._expire_later()

        self._timers.set("expire offsets", self._settings.offsets_retention_check_interval_ms, expire)

    def _partitions(self) -> tuple[PartitionRecord, ...]:
        topic = self.image.topic(OFFSETS_TOPIC)
        return topic.partitions if topic is not None else ()


def partition_of(group_id: str, partitions: int) -> int:
    """Kafka's `Utils.abs(groupId.hashCode()) % partitions`; the hash is over UTF-16 units, in 32 bits."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (code * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code & 0x8000_0000 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def group_settings(settings: NodeSettings) -> GroupSettings:
    return GroupSettings(
        group_min_session_timeout_ms=settings.group_min_session_timeout_ms,
        group_max_session_timeout_ms=settings.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        group_max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )
