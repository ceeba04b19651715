"""Settings of the group and transaction coordinators. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.background import MIB
from tierlog.config.definitions import InvalidSetting, boolean_, int_, list_, long_, string_
from tierlog.config.sasl import SaslSettings

ASSIGNORS = ("uniform", "range")
CLASSIC_PROTOCOL, CONSUMER_PROTOCOL = "classic", "consumer"
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings(SaslSettings):
    # Groups
    group_min_session_timeout_ms: int = int_(
        6_000,
        "Minimum session timeout in milliseconds that a group member can choose. With a short one, failed "
        "members are noticed sooner, at the cost of more heartbeats. Lower it for consumers that must be "
        "replaced within seconds.",
        minimum=1,
    )
    group_max_session_timeout_ms: int = int_(
        1_800_000,
        "Maximum session timeout in milliseconds that a group member can choose. Lower it if members that "
        "fail must not hold partitions for so long.",
        minimum=1,
    )
    group_initial_rebalance_delay_ms: int = int_(
        3_000,
        "Milliseconds that an empty group waits for more members. Raise it if consumers start slowly.",
        minimum=0,
    )
    group_max_size: int = int_(
        2**31 - 1,
        "Maximum number of members of a group; further ones get GROUP_MAX_SIZE_REACHED. Lower it to "
        "protect the coordinator from groups of too many members.",
        minimum=1,
    )
    group_members_max_bytes: int = long_(
        128 * MIB,
        "Maximum bytes of memory for the members of all groups of this broker. Beyond it JoinGroup and "
        "SyncGroup return COORDINATOR_NOT_AVAILABLE, and clients retry. Raise it if groups have tens of "
        "thousands of members.",
        minimum=1,
    )
    group_lag_metrics_max_partitions: int = int_(
        10_000,
        "Maximum number of partitions whose lag a broker exports as metrics, added up over the groups that "
        "it coordinates. A group that does not fit is left out as a whole, with a line in the log. With 0 "
        "none is exported. Lower it if Prometheus has too many time series.",
        minimum=0,
        maximum=50_000,
    )
    group_coordinator_rebalance_protocols: tuple[str, ...] = list_(
        (CLASSIC_PROTOCOL, CONSUMER_PROTOCOL),
        "Rebalance protocols that the broker serves. Without consumer, clients that use the protocol of "
        "KIP-848 get UNSUPPORTED_VERSION. Set it to classic to keep all groups on the classic protocol.",
        choices=(CLASSIC_PROTOCOL, CONSUMER_PROTOCOL),
    )
    group_consumer_session_timeout_ms: int = int_(
        45_000,
        "How long, in milliseconds, a member of a consumer group may send no heartbeat before it is "
        "removed. Lower it, with group.consumer.min.session.timeout.ms, for consumers that must be replaced "
        "within seconds.",
        minimum=1,
    )
    group_consumer_min_session_timeout_ms: int = int_(
        45_000,
        "Minimum of consumer.session.timeout.ms, the session timeout of one group. Lower it if some groups "
        "must notice failed members sooner.",
        minimum=1,
    )
    group_consumer_max_session_timeout_ms: int = int_(
        60_000,
        "Maximum of consumer.session.timeout.ms, the session timeout of one group. Raise it for groups whose "
        "members are away for longer, such as during a restart.",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = int_(
        5_000,
        "Longest interval, in milliseconds, between two heartbeats of a consumer group's member. With a "
        "shorter one, a rebalance ends sooner; see also group.consumer.heartbeats.per.second. Lower it "
        "together with group.consumer.min.heartbeat.interval.ms.",
        minimum=1,
    )
    group_consumer_heartbeats_per_second: int = int_(
        40,
        "Up to this rate, of all consumer groups of a broker together, the broker shortens the interval "
        "between heartbeats, down to one second, so that rebalances end sooner. It does not shorten a "
        "group's own consumer.heartbeat.interval.ms. Raise it for quick rebalances of many members. 0: no "
        "interval is shortened.",
        minimum=0,
        maximum=100_000,
    )
    group_consumer_min_heartbeat_interval_ms: int = int_(
        5_000,
        "Minimum of consumer.heartbeat.interval.ms, the heartbeat interval of one group. Lower it if some "
        "groups must rebalance sooner.",
        minimum=1,
    )
    group_consumer_max_heartbeat_interval_ms: int = int_(
        15_000,
        "Maximum of consumer.heartbeat.interval.ms, the heartbeat interval of one group. Raise it for "
        "groups of very many members.",
        minimum=1,
    )
    group_consumer_assignment_interval_ms: int = int_(
        1_000,
        "Minimum time in milliseconds between two assignments of a consumer group. Changes in between share "
        "the next one. Raise it if many members join or leave at the same time.",
        minimum=0,
    )
    group_consumer_min_assignment_interval_ms: int = int_(
        0,
        "Minimum of consumer.assignment.interval.ms, the assignment interval of one group. Raise it to keep "
        "groups from assigning too often.",
        minimum=0,
    )
    group_consumer_max_assignment_interval_ms: int = int_(
        15_000,
        "Maximum of consumer.assignment.interval.ms, the assignment interval of one group. Raise it for "
        "groups that may wait longer.",
        minimum=0,
    )
    group_consumer_max_size: int = int_(
        2**31 - 1,
        "Maximum number of members of a consumer group; further ones get GROUP_MAX_SIZE_REACHED. Lower it to "
        "protect the coordinator from groups of too many members.",
        minimum=1,
    )
    group_consumer_assignors: tuple[str, ...] = list_(
        ASSIGNORS,
        "Assignors of consumer groups that members can choose. The first one is used for groups whose "
        "members choose none. Set range first if consumers join topics of the same partitioning.",
        choices=ASSIGNORS,
    )
    group_consumer_migration_policy: str = string_(
        "bidirectional",
        "Which groups change their protocol: classic groups when a member of the consumer protocol joins "
        "(upgrade), consumer groups when the last such member leaves (downgrade), both, or none (disabled). "
        "Set it to disabled to keep the members of a group on one protocol.",
        choices=MIGRATION_POLICIES,
    )
    group_consumer_regex_refresh_interval_ms: int = int_(
        600_000,
        "How often, in milliseconds, the topics that match the regular expressions of a consumer group are "
        "looked up if topics have been created or deleted. Lower it if consumers must notice new topics "
        "sooner.",
        minimum=10_000,
    )
    offset_metadata_max_bytes: int = int_(
        4096,
        "Maximum size in bytes of the metadata of a committed offset. Raise it for stream processors that "
        "store state with their offsets.",
        minimum=0,
    )
    offsets_commit_timeout_ms: int = int_(
        5_000,
        "How long, in milliseconds, an offset commit or group assignment waits for replicas before it "
        "fails with COORDINATOR_NOT_AVAILABLE. Raise it if commits fail while replicas are slow.",
        minimum=1,
    )
    offsets_retention_minutes: int = int_(
        10_080,
        "How long, in minutes, the offsets of an empty group are kept. Raise it if groups pause for longer.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = long_(
        600_000,
        "How often, in milliseconds, expired offsets are removed. Lower it if expired offsets must go "
        "sooner.",
        minimum=1,
    )
    offsets_topic_num_partitions: int = int_(
        50,
        "Number of partitions that __consumer_offsets is created with. Set it before the first group "
        "exists: the partition of each group depends on it.",
        minimum=1,
    )
    offsets_topic_replication_factor: int = int_(
        3,
        "Replication factor of __consumer_offsets; a standalone node creates one replica. Groups cannot be "
        "used before this many brokers have registered. Set it to the number of brokers, if they are "
        "fewer than three.",
        minimum=1,
    )
    offsets_topic_segment_bytes: int = int_(
        100 * MIB,
        "Segment size in bytes that __consumer_offsets is created with. Lower it to load groups sooner "
        "after a coordinator has moved.",
        minimum=1,
    )

    # Transactions
    transaction_max_timeout_ms: int = int_(
        15 * 60_000,
        "Maximum timeout in milliseconds that a transactional producer can choose. Longer ones are refused: "
        "an open transaction holds back the readers of committed records. Raise it for producers whose "
        "transactions take longer, such as those of Flink with long checkpoints.",
        minimum=1,
    )
    transactional_id_expiration_ms: int = int_(
        7 * 24 * 3_600_000,
        "How long, in milliseconds, an unused transactional id is kept. Then its producer must initialize "
        "again. The coordinator must also have seen it unused for that time, or for a day if that is less. "
        "Raise it if producers pause for longer.",
        minimum=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = int_(
        10_000,
        "Time in milliseconds in which a failed attempt to abort a transaction is repeated ten times. The "
        "first comes as soon as its timeout has passed. Lower it if attempts fail often.",
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = int_(
        3_600_000,
        "How often, in milliseconds, expired transactional ids are removed. Lower it if there are many "
        "short-lived ids.",
        minimum=1,
    )
    transaction_two_phase_commit_enable: bool = boolean_(
        False,
        "Whether producers may use two-phase commit (KIP-939): their transactions have no timeout. Turn it "
        "on for applications that coordinate a transaction with another database.",
    )
    transaction_state_log_num_partitions: int = int_(
        50,
        "Number of partitions that __transaction_state is created with. Set it before the first "
        "transactional producer starts: the partition of each transactional id depends on it.",
        minimum=1,
    )
    transaction_state_log_replication_factor: int = int_(
        3,
        "Replication factor of __transaction_state; a standalone node creates one replica. Transactions "
        "cannot be used before this many brokers have registered. Set it to the number of brokers, if they "
        "are fewer than three.",
        minimum=1,
    )
    transaction_state_log_min_isr: int = int_(
        2,
        "min.insync.replicas that __transaction_state is created with; 1 on a standalone node. Set it to 1 "
        "in a cluster of two brokers that must work when one fails.",
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = int_(
        100 * MIB,
        "Segment size in bytes that __transaction_state is created with. Lower it to load transactions "
        "sooner after a coordinator has moved.",
        minimum=1,
    )

    def check_consumer_groups(self) -> None:
        """Kafka's conditions between the settings of groups. Raises InvalidSetting."""
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
            default, minimum, maximum = (
                getattr(self, f"group.consumer.{bound}{name}".replace(".", "_"))
                for bound in ("", "min.", "max.")
            )
            if not minimum <= default <= maximum:
                names = f"group.consumer.min.{name} and group.consumer.max.{name}"
                raise InvalidSetting(f"group.consumer.{name} is not between {names}")
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise InvalidSetting(
                "group.consumer.heartbeat.interval.ms is not below group.consumer.session.timeout.ms"
            )
        if CLASSIC_PROTOCOL not in self.group_coordinator_rebalance_protocols:
            raise InvalidSetting(
                "group.coordinator.rebalance.protocols: the classic protocol cannot be turned off"
            )
        if not self.group_consumer_assignors:
            raise InvalidSetting("group.consumer.assignors: at least one assignor is needed")
