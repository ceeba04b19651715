"""Group service: the group coordinator of this broker, with a shard for each `__consumer_offsets` partition
it leads. Called by handlers/groups.py; built by app.py.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tierlog.base.network import Network
from tierlog.base.types import Rng, TopicPartition, random_uuid
from tierlog.broker.coordinators.core.effects import Producer, Token
from tierlog.broker.coordinators.shards import CoordinatorTopic, Host, Shards
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.events import EndTransaction, ExpireOffsets, Request, Response, TopicsChanged
from tierlog.broker.groups.core.offsets import OffsetsByPartition
from tierlog.broker.groups.core.turn import GroupSettings
from tierlog.broker.groups.group_lag import GroupLag
from tierlog.broker.groups.image_topics import ImageTopics
from tierlog.broker.storage.core.producer_state import EndMarker
from tierlog.config.node import NodeSettings
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.metadata.image import ClusterImage, changed_topics
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_groups import DescribedGroup
from tierlog.protocol.primitives import STRING_BYTES_MAX

R = TypeVar("R")


class GroupService:
    def __init__(self, settings: NodeSettings, host: Host, rng: Rng, network: Network | None = None) -> None:
        """`network`: to other brokers, None if there are none."""
        core_settings = group_settings(settings)
        self.shards = Shards(
            host,
            offsets_topic(settings),
            lambda: Coordinator(core_settings),
            settings.offsets_commit_timeout_ms,
            topics=ImageTopics,
        )
        self.lag = GroupLag(self.shards, host, network, settings.group_lag_metrics_max_partitions)
        self._settings = settings
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
        shard = self.shards.shard_of(group_id)
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

    def list_groups(self) -> tuple[ErrorCode, list[tuple[str, str, str, str]]]:
        """(id, protocol type, state, group type) of the groups coordinated here, and an error if some are not
        known yet."""
        error, shards = self.shards.ready()
        return error, [group for shard in shards for group in shard.core.list_groups()]

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

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topic_ids is new.topic_ids and old.topics is new.topics:
            return
        if old.topic_ids is not new.topic_ids:
            deleted = frozenset(topic.name for topic in changed_topics(old, new)[0])
            self.shards.submit_to_all(TopicsChanged(topics=ImageTopics(new), deleted=deleted))
        self.shards.follow(new)


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
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )
