"""Group service: the group coordinator of this broker, with a shard for each `__consumer_offsets` partition
it leads. Called by handlers/groups.py and handlers/consumer_groups.py; built by app.py.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from tierlog.base.network import Network
from tierlog.base.types import Rng, TopicPartition, random_uuid
from tierlog.broker.coordinators.core.effects import Producer, Token
from tierlog.broker.coordinators.shards import CoordinatorTopic, Host, Shards
from tierlog.broker.groups.computations import Computations
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.events import EndTransaction, ExpireOffsets, Request, Response, TopicsChanged
from tierlog.broker.groups.core.offsets import OffsetsByPartition
from tierlog.broker.groups.core.turn import ConsumerSettings, GroupSettings, MigrationPolicy
from tierlog.broker.groups.group_lag import GroupLag
from tierlog.broker.groups.heartbeat_pace import HeartbeatPace
from tierlog.broker.groups.image_topics import ImageTopics
from tierlog.config.coordinators import CONSUMER_PROTOCOL
from tierlog.config.dynamic import effective_settings
from tierlog.config.groups import HEARTBEAT_INTERVAL, consumer_settings
from tierlog.config.node import NodeSettings
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.metadata.controller.features import level_of
from tierlog.metadata.image import ClusterImage, TopicImage, changed_topics
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import consumer_group_describe
from tierlog.protocol.messages.describe_groups import DescribedGroup
from tierlog.protocol.primitives import STRING_BYTES_MAX
from tierlog.records.markers import EndMarker

R = TypeVar("R")


class GroupService:
    def __init__(self, settings: NodeSettings, host: Host, rng: Rng, network: Network | None = None) -> None:
        """`network`: to other brokers, None if there are none."""
        core_settings = group_settings(settings)
        self.shards = Shards(
            host,
            offsets_topic(settings),
            lambda: Coordinator(core_settings, self._settings_of.consumer),
            settings.offsets_commit_timeout_ms,
            perform=Computations(host.tasks).perform,
            topics=ImageTopics,
        )
        self.lag = GroupLag(self.shards, host, network, settings.group_lag_metrics_max_partitions)
        self._settings = settings
        pace = HeartbeatPace(settings.group_consumer_heartbeats_per_second, self._count_consumers, host.clock)
        self._settings_of = _GroupConfigs(settings, lambda: host.metadata.image, pace)
        self._rng = rng

    # ---- start and stop ----

    def start(self) -> None:
        """Start the timers. `follow` has loaded the shards of this broker."""
        self.shards.start(self._settings.offsets_retention_check_interval_ms, ExpireOffsets())

    async def close(self) -> None:
        self.shards.close()
        self.lag.close()

    # ---- for handlers ----

    @property
    def image(self) -> ClusterImage:
        return self.shards.image

    def ask(
        self, group_id: str, build: Callable[[Token], Request], convert: Callable[[Response], R]
    ) -> "R | asyncio.Future[R]":
        """Pass a request to the group's shard. Returns the converted response, or a future of it."""
        return self.shards.ask(group_id, build, convert)

    def offsets(self, group_id: str) -> OffsetsByPartition | ErrorCode:
        """Committed, durable offsets of a group. Read-only."""
        shard = self.shards.shard_to_read(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.core.offsets(group_id)

    def unstable_partitions(self, group_id: str) -> list[TopicPartition]:
        """Partitions whose offsets an open transaction may change."""
        shard = self.shards.shard_of(group_id)
        return [] if isinstance(shard, ErrorCode) else shard.core.unstable_partitions(group_id)

    def end_transaction(
        self, partition: int, producer: Producer, marker: EndMarker, transaction_version: int
    ) -> "ErrorCode | asyncio.Future[ErrorCode]":
        """End a transaction in a partition of `__consumer_offsets`: its offsets are committed or dropped."""
        shard = self.shards.shard_at(partition)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.ask(
            lambda token: EndTransaction(
                token=token,
                producer=producer,
                committed=marker.committed,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=transaction_version,
            ),
            lambda response: ErrorCode(response.error),
        )

    def describe(self, group_id: str) -> DescribedGroup | ErrorCode:
        shard = self.shards.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.describe(group_id) or ErrorCode.GROUP_ID_NOT_FOUND

    @property
    def serves_consumer_protocol(self) -> bool:
        """Whether members may use the protocol of KIP-848."""
        is_set = CONSUMER_PROTOCOL in self._settings.group_coordinator_rebalance_protocols
        return is_set and level_of(self.image, "group.version") > 0

    def describe_consumer(self, group_id: str) -> consumer_group_describe.DescribedGroup | ErrorCode:
        shard = self.shards.shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.describe_consumer(group_id) or ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> ErrorCode:
        """The error of a member that fetches committed offsets in this epoch (OffsetFetch version 9)."""
        shard = self.shards.shard_to_read(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.check_fetch(group_id, member_id, member_epoch)

    def list_groups(self) -> tuple[ErrorCode, list[tuple[str, str, str, str]]]:
        """(id, protocol type, state, group type) of the groups coordinated here, and an error if some are not
        known yet."""
        error, shards = self.shards.ready()
        return error, [group for shard in shards for group in shard.core.list_groups()]

    def _count_consumers(self) -> int:
        """Members of all consumer groups coordinated here."""
        return sum(shard.core.count_consumers() for shard in self.shards)

    @property
    def member_bytes(self) -> int:
        """Memory used by members of the groups coordinated here."""
        return sum(shard.core.member_bytes for shard in self.shards)

    @property
    def member_free_bytes(self) -> int:
        """Memory left for members."""
        return self._settings.group_members_max_bytes - self.member_bytes

    def generate_member_id(self, client_id: str) -> str:
        """The client id and a random UUID. A long client id is shortened, to fit a protocol string."""
        suffix = f"-{random_uuid(self._rng)}"
        prefix = client_id.encode()[: STRING_BYTES_MAX - len(suffix)].decode(errors="ignore")
        return prefix + suffix

    def generate_consumer_id(self) -> str:
        """A random UUID in Kafka's form, for a member without an id (ConsumerGroupHeartbeat version 0)."""
        return base64.urlsafe_b64encode(random_uuid(self._rng).bytes).decode().rstrip("=")

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Racks of brokers count as they were when the topics last changed."""
        if old.topic_ids is new.topic_ids and old.topics is new.topics:
            return
        deleted, changed = changed_topics(old, new)
        if deleted or any(_has_other_replicas(old.topics.get(topic.topic_id), topic) for topic in changed):
            names = frozenset(topic.name for topic in deleted)
            self.shards.submit_to_all(TopicsChanged(topics=ImageTopics(new), deleted=names))
        self.shards.follow(new)


class _GroupConfigs:
    """The present settings of consumer groups: their own, or those of this broker."""

    def __init__(
        self, settings: NodeSettings, image: Callable[[], ClusterImage], pace: HeartbeatPace
    ) -> None:
        self._at_start = settings
        self._image = image
        self._pace = pace
        self._configs: object = None
        """`ClusterImage.configs` from which the others were read."""
        self._now = settings
        self._known: dict[str, ConsumerSettings] = {}

    def consumer(self, group_id: str) -> ConsumerSettings:
        image = self._image()
        if image.configs is not self._configs:
            self._configs = image.configs
            of_cluster = image.overrides(ConfigScope.CLUSTER, "")
            of_node = image.overrides(ConfigScope.BROKER, str(self._at_start.node_id))
            self._now = effective_settings(self._at_start, of_cluster, of_node)
            self._known.clear()
        overrides = image.overrides(ConfigScope.GROUP, group_id)
        name = group_id if overrides else ""  # no group has this name
        if name not in self._known:
            self._known[name] = self._read(overrides)
        found = self._known[name]
        if HEARTBEAT_INTERVAL in overrides:
            return found
        return replace(found, heartbeat_interval_ms=self._pace.interval_ms(found.heartbeat_interval_ms))

    def _read(self, overrides: Mapping[str, str]) -> ConsumerSettings:
        values = consumer_settings(self._now, overrides)
        return ConsumerSettings(
            session_timeout_ms=values["consumer.session.timeout.ms"],
            heartbeat_interval_ms=values["consumer.heartbeat.interval.ms"],
            assignment_interval_ms=values["consumer.assignment.interval.ms"],
        )


def _has_other_replicas(old: TopicImage | None, new: TopicImage) -> bool:
    """Whether a topic is new, or its partitions or their replicas are others."""
    if old is None or len(old.partitions) != len(new.partitions):
        return True
    return any(
        before.replicas != now.replicas
        for before, now in zip(old.partitions, new.partitions, strict=True)
        if before is not now
    )


def offsets_topic(settings: NodeSettings) -> CoordinatorTopic:
    return CoordinatorTopic(
        name=OFFSETS_TOPIC,
        partitions=settings.offsets_topic_num_partitions,
        replication_factor=settings.offsets_topic_replication_factor,
        replication_setting="offsets.topic.replication.factor",
        configs=(("segment.bytes", str(settings.offsets_topic_segment_bytes)),),
    )


def group_settings(settings: NodeSettings) -> GroupSettings:
    return GroupSettings(
        group_min_session_timeout_ms=settings.group_min_session_timeout_ms,
        group_max_session_timeout_ms=settings.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        group_max_size=settings.group_max_size,
        group_consumer_max_size=settings.group_consumer_max_size,
        group_consumer_assignors=settings.group_consumer_assignors,
        group_consumer_migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        group_consumer_regex_refresh_interval_ms=settings.group_consumer_regex_refresh_interval_ms,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )
