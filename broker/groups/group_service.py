"""The group coordinator of this broker: a shard for each partition of `__consumer_offsets` that it leads.

Creates the topic when a group first needs it (internal, compacted), follows the image (loads a shard when
this broker becomes its leader, closes it when it is not any more), and routes each group to its shard by
the hash that Kafka's brokers and tools use. Shards answer only when their partition is replayed. Called by
handlers/groups.py; built by app.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import Rng, TopicPartition, random_uuid
from tierlog.broker.groups.core.coordinator import DescribedGroup
from tierlog.broker.groups.core.events import (
    Answer,
    ErrorAnswer,
    Event,
    ExpireOffsets,
    Request,
    Token,
    TopicsChanged,
)
from tierlog.broker.groups.core.offsets import ByPartition
from tierlog.broker.groups.core.states import GroupState
from tierlog.broker.groups.core.turn import GroupSettings
from tierlog.broker.groups.group_shard import GroupShard, LoadFailed, ShardReplica
from tierlog.broker.groups.timers import Timers
from tierlog.config.node import NodeSettings
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import CreateTopics, NewTopic
from tierlog.metadata.image import BrokerImage, ClusterImage, PartitionImage, changed_topics
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.primitives import STRING_BYTES_MAX

OFFSETS_TOPIC = "__consumer_offsets"
CREATE_TIMEOUT_S = 10.0
RELOAD_DELAY_MS = 1_000
LEASE_CHECK_MS = 500
"""How soon those who wait hear that the lease has ended; new requests are refused at once."""


R = TypeVar("R")
_log = structlog.get_logger("tierlog.groups")


class Lease(Protocol):
    """The broker's right to serve, which the controller extends (runtime.lifecycle)."""

    def holds_lease(self) -> bool: ...


class Replicas(Protocol):
    """What the service asks of runtime.replica_manager.ReplicaManager."""

    def get(self, topic: str, partition: int) -> Any: ...
    def is_offline(self, name: TopicPartition) -> bool: ...


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where a group's coordinator is, or why that cannot be said now."""

    error: ErrorCode
    broker: BrokerImage | None = None


class GroupService:
    def __init__(
        self,
        settings: NodeSettings,
        metadata: MetadataClient,
        replicas: Replicas,
        clock: Clock,
        rng: Rng,
        tasks: TaskGroup,
        lease: Lease | None = None,
    ) -> None:
        """`lease`: None if no other broker could coordinate."""
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
        self._creating = asyncio.Lock()
        self._noted: object = None
        """Why the topic could not be made, as the log last said."""
        self._unsubscribe: Callable[[], None] | None = None

    # ---- life ----

    def start(self) -> None:
        """Loads what this broker leads and follows the image; to be called once the image is caught up."""
        self._unsubscribe = self._metadata.subscribe(self._on_image)
        self._follow(self._metadata.image)
        self._expire_later()
        if self._lease is not None:
            self._watch_lease(self._lease)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        self._timers.close()

    # ---- for handlers ----

    @property
    def image(self) -> ClusterImage:
        return self._metadata.image

    def ask(
        self, group_id: str, build: Callable[[Token], Request], convert: Callable[[Answer], R]
    ) -> "R | asyncio.Future[R]":
        """Hands a request to the group's shard: the converted answer, or a future of it."""
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return convert(ErrorAnswer(error=shard))
        return shard.ask(build, convert)

    def offsets(self, group_id: str) -> ByPartition | ErrorCode:
        """Committed and durable offsets of a group; to read only."""
        shard = self._shard_of(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.core.offsets(group_id)

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.describe(group_id) or ErrorCode.GROUP_ID_NOT_FOUND

    def list_groups(self) -> tuple[ErrorCode, list[tuple[str, str, GroupState]]]:
        """(id, protocol type, state) of the groups coordinated here; an error if some still load."""
        if self._is_deposed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        found = [
            group for shard in self._shards.values() if shard.ready for group in shard.core.list_groups()
        ]
        loading = any(not shard.ready for shard in self._shards.values())
        return (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE), found

    @property
    def member_bytes(self) -> int:
        """Memory that members of the groups coordinated here hold."""
        return sum(shard.core.member_bytes for shard in self._shards.values())

    @property
    def member_room_bytes(self) -> int:
        """Memory that is left for them."""
        return self._settings.group_members_max_bytes - self.member_bytes

    @property
    def skipped_records(self) -> int:
        """Records that could not be used when the partitions coordinated here were last loaded."""
        return sum(shard.skipped_records for shard in self._shards.values())

    def fresh_member_id(self, client_id: str) -> str:
        """The client id and a random UUID. A long client id is cut: the result must be a protocol string."""
        suffix = f"-{random_uuid(self._rng)}"
        prefix = client_id.encode()[: STRING_BYTES_MAX - len(suffix)].decode(errors="ignore")
        return prefix + suffix

    def locate(self, group_id: str) -> CoordinatorAddress | None:
        """None if the topic has yet to be made: then `create_topic` first."""
        partitions = self._partitions()
        if not partitions:
            return None
        partition = partition_of(group_id, len(partitions))
        leader = partitions[partition].leader
        broker = self.image.brokers.get(leader)
        lost = leader == self._settings.node_id and (self._is_deposed or self._is_offline(partition))
        if broker is None or broker.fenced or lost:
            return CoordinatorAddress(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return CoordinatorAddress(ErrorCode.NONE, broker)

    async def create_topic(self) -> None:
        """Makes `__consumer_offsets`, as in Kafka not before there are brokers for all of its replicas: else
        one lost disk could take the offsets of all groups. Concurrent calls wait for the same. Errors are
        logged.
        """
        async with self._creating:
            if self._partitions() or self._lacks_brokers():
                return
            command = CreateTopics(topics=(self._offsets_topic(),))
            try:
                async with asyncio.timeout(CREATE_TIMEOUT_S):
                    reply = await self._metadata.submit(command)
            except (
                Exception
            ) as error:  # whatever it was, the client is told to ask again, and then we try again
                self._note_refusal(str(error))
                return
            outcome = reply.topics[0]
            if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._note_refusal(outcome.message or outcome.error.name)

    @property
    def _replication_factor(self) -> int:
        """A node that stands alone has no other to replicate to."""
        return 1 if self._lease is None else self._settings.offsets_topic_replication_factor

    def _lacks_brokers(self) -> bool:
        """Whether fewer are registered than the topic has replicas."""
        needed, known = self._replication_factor, len(self.image.brokers)
        if known < needed:
            self._note_refusal(
                f"{known} of the {needed} brokers are registered that its replicas need: start the others, "
                "or set offsets.topic.replication.factor lower on every broker"
            )
        return known < needed

    def _note_refusal(self, why: str) -> None:
        """Clients ask again several times a second: the log says it once, until the reason is another."""
        if why != self._noted:
            self._noted = why
            _log.warning("cannot create the topic of the groups, which wait", topic=OFFSETS_TOPIC, why=why)

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
        """The shard if it may answer now, else what to tell the client."""
        partitions = self._partitions()
        if not partitions or self._is_deposed:
            return ErrorCode.NOT_COORDINATOR
        partition = partition_of(group_id, len(partitions))
        shard = self._shards.get(partition) or self._open(partition, partitions[partition])
        if shard is None:
            leads = partitions[partition].leader == self._settings.node_id
            loads = leads and not self._is_offline(partition)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loads else ErrorCode.NOT_COORDINATOR
        return shard if shard.ready else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _open(self, partition: int, image: PartitionImage) -> GroupShard | None:
        """A new shard, loading, if this broker leads the partition and its replica stands."""
        replica: ShardReplica | None = self._replicas.get(OFFSETS_TOPIC, partition)
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
            _log.error("coordinator shard cannot load; trying again", error=str(error))
            self._load_later(shard)
        except Exception:  # a disk that cannot be read, a damaged batch: it must not stay loading for ever
            _log.exception("coordinator shard cannot load; trying again", partition=shard.partition)
            self._load_later(shard)

    def _load_later(self, shard: GroupShard) -> None:
        if self._shards.get(shard.partition) is not shard:
            return  # led elsewhere, or its topic was deleted
        self._timers.set((OFFSETS_TOPIC, shard.partition), RELOAD_DELAY_MS, lambda: self._load(shard))

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topic_ids is new.topic_ids and old.topics is new.topics:
            return
        if old.topic_ids is not new.topic_ids:
            deleted = frozenset(topic.name for topic in changed_topics(old, new)[0])
            self._tell_all(TopicsChanged(ids=new.topic_ids, deleted=deleted))
        self._follow(new)

    def _follow(self, image: ClusterImage) -> None:
        topic = image.topic(OFFSETS_TOPIC)
        partitions = topic.partitions if topic is not None else ()
        led = {index for index, each in enumerate(partitions) if each.leader == self._settings.node_id}
        for partition, shard in sorted(self._shards.items()):
            # Led by another now, or in between: some images are never seen. Or another replica of this name:
            # the topic was deleted and made again.
            is_led = partition in led and partitions[partition].leader_epoch == shard.leader_epoch
            if not is_led or self._replicas.get(OFFSETS_TOPIC, partition) is not shard.replica:
                self._shards.pop(partition).close()
                self._timers.cancel((OFFSETS_TOPIC, partition))
        for partition in sorted(led - self._shards.keys()):
            self._open(partition, partitions[partition])

    def replicas_changed(self) -> None:
        """Some went offline, and their shards with them."""
        self._follow(self.image)

    @property
    def _is_deposed(self) -> bool:
        """Another broker may coordinate by now, of which this one has not heard."""
        return self._lease is not None and not self._lease.holds_lease()

    def _watch_lease(self, lease: Lease) -> None:
        def look() -> None:
            if not lease.holds_lease():
                for shard in self._shards.values():
                    shard.turn_away(ErrorCode.NOT_COORDINATOR)
            self._watch_lease(lease)

        self._timers.set("lease", LEASE_CHECK_MS, look)

    def _is_offline(self, partition: int) -> bool:
        return self._replicas.is_offline(TopicPartition(OFFSETS_TOPIC, partition))

    def _tell_all(self, event: Event) -> None:
        for shard in self._shards.values():
            shard.submit(event)

    def _expire_later(self) -> None:
        def expire() -> None:
            self._tell_all(ExpireOffsets())
            self._expire_later()

        self._timers.set("expire offsets", self._settings.offsets_retention_check_interval_ms, expire)

    def _partitions(self) -> tuple[PartitionImage, ...]:
        topic = self.image.topic(OFFSETS_TOPIC)
        return topic.partitions if topic is not None else ()


def partition_of(group_id: str, partitions: int) -> int:
    """Kafka's: Utils.abs(groupId.hashCode()) % partitions, the hash over UTF-16 units in 32 bits."""
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
