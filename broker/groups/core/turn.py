"""Group turn: a turn of the group coordinator's core, which knows the settings of groups."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tierlog.broker.coordinators.core import turn
from tierlog.broker.coordinators.core.turn import PendingWrites
from tierlog.broker.groups.core.topic_view import TopicView


class MigrationPolicy(StrEnum):
    """group.consumer.migration.policy: which groups may change their protocol while they have members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The node's settings group.* and offsets.*, with `_` for `.`."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    group_consumer_regex_refresh_interval_ms: int = 10 * 60_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    # A member in its first join does not know its id, so it cannot send heartbeats. Kafka's constant.
    new_member_join_timeout_ms: int = 5 * 60_000
    # Until a member's first request after the response to its first join; clients send it at once. Kafka
    # waits for the session timeout, which lets a client fill the memory for members for half an hour.
    new_member_response_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of one consumer group: its own (`GroupConfig`), or the broker's group.consumer.*."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


DEFAULT_CONSUMER_SETTINGS = ConsumerSettings()


class Turn(turn.Turn):
    """`topics`: of the newest image. `consumer_settings`: the present settings of a consumer group."""

    def __init__(
        self,
        now_ms: int,
        writes: PendingWrites,
        settings: GroupSettings,
        topics: TopicView,
        consumer_settings: Callable[[str], ConsumerSettings],
    ) -> None:
        super().__init__(now_ms, writes)
        self.settings = settings
        self.topics = topics
        self.consumer_settings = consumer_settings
