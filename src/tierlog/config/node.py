"""Settings of a node: Kafka's names, defaults and meaning, as one frozen value, validated once.

A field's name is the setting's name with `_` for `.`; its definition lives in the field's metadata, so that
type, default, bounds and documentation stand in one place. Where their texts come from is in `sources`.
Called by the CLI and by the composition root.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value, find_setting
from tierlog.config.topic import MAX_LONG, TOPIC_DEFAULTS, TOPIC_SETTINGS, TopicConfig

BROKER, CONTROLLER = "broker", "controller"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
KIB, MIB = 1 << 10, 1 << 20
UNLIMITED_RATE = MAX_LONG


def _setting(type: SettingType, default: Value, doc: str, **bounds: Any) -> Any:
    return field(default=default, metadata={"type": type, "doc": doc, "bounds": bounds})


def _boolean(default: bool, doc: str) -> Any:
    return _setting(SettingType.BOOLEAN, default, doc)


def _int(default: int, doc: str, **bounds: Any) -> Any:
    return _setting(SettingType.INT, default, doc, **bounds)


def _long(default: int, doc: str, **bounds: Any) -> Any:
    return _setting(SettingType.LONG, default, doc, **bounds)


def _double(default: float, doc: str, **bounds: Any) -> Any:
    return _setting(SettingType.DOUBLE, default, doc, **bounds)


def _string(default: str, doc: str, **bounds: Any) -> Any:
    return _setting(SettingType.STRING, default, doc, **bounds)


def _list(default: tuple[str, ...], doc: str, **bounds: Any) -> Any:
    return _setting(SettingType.LIST, default, doc, **bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Everything that an operator can set on one node."""

    # Who it is, and where it is reached
    node_id: int = _int(1, "Number of this node, unique in the cluster.", least=0)
    cluster_id: str = _string("", "Id of the cluster; empty: the one in meta.properties, or a new one.")
    process_roles: tuple[str, ...] = _list(
        (BROKER, CONTROLLER), "Serves clients, votes on the metadata, or both.", choices=(BROKER, CONTROLLER)
    )
    listeners: tuple[str, ...] = _list(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where clients connect: PLAINTEXT://host:port; port 0 picks a free one.",
    )
    advertised_listeners: tuple[str, ...] = _list(
        (), "What clients are told to connect to; empty: the listener's address."
    )
    admin_listener: str = _string(
        "127.0.0.1:9644", "host:port of the admin HTTP server; port 0 picks a free one."
    )
    admin_allowed_hosts: tuple[str, ...] = _list(
        (),
        "More names by which the admin HTTP server is reached. Addresses, localhost, this machine's name and "
        "the names of voters and brokers are always accepted; a request for any other host is refused.",
    )
    controller_quorum_voters: tuple[str, ...] = _list(
        (), "The metadata quorum, id@host:port of each admin listener; empty: this node alone."
    )
    controller_quorum_secret: str = _setting(
        SettingType.PASSWORD, "", "Shared by the voters of a quorum of several, to sign what they send."
    )
    controller_quorum_election_timeout_ms: int = _int(
        1000,
        "A voter that hears of no leader for this long to twice that stands for election; "
        "a leader whose process seems dead is not waited for.",
        least=200,
    )
    controller_quorum_fetch_timeout_ms: int = _int(
        2000, "A leader that no majority of the voters answers for this long steps down.", least=200
    )
    controller_quorum_ssl_certificate: str = _string(
        "",
        "PEM file of this node's certificate; with the next two, nodes and the admin API speak mutual TLS.",
    )
    controller_quorum_ssl_key: str = _string("", "PEM file of the key of that certificate.")
    controller_quorum_ssl_ca: str = _string(
        "", "PEM file of the CA that signs the certificates of nodes and operators, and nothing else."
    )
    broker_rack: str = _string("", "Zone and host of this broker, for placement.")
    broker_heartbeat_interval_ms: int = _int(
        500, "How often a broker tells the controller that it lives.", least=50
    )
    broker_session_timeout_ms: int = _int(
        3_000,
        "How long the controller waits for a heartbeat before it fences the broker and elects other leaders. "
        "A broker whose process is known to have ended is fenced at once.",
        least=200,
    )
    controlled_shutdown_timeout_ms: int = _int(
        30_000,
        "A broker that stops waits so long for others to lead what it leads, but not if no controller "
        "answers it for two sessions; 0: not at all.",
        least=0,
    )

    auto_leader_rebalance_enable: bool = _boolean(
        True, "The active controller has preferred leaders lead again, where brokers lack too many of theirs."
    )
    leader_imbalance_check_interval_seconds: int = _long(300, "How often it looks for them.", least=1)
    leader_imbalance_per_broker_percentage: int = _int(
        10, "Of the partitions that prefer a broker it may lack so many in a hundred.", least=0
    )

    # Directories and the object store
    log_dirs: tuple[str, ...] = _list(
        ("tierlog-data",), "Directories of partition data; a new partition goes where most is free."
    )
    log_dirs_stop_timeout_ms: int = _int(
        20_000,
        "A stop goes on without a log directory in which nothing has ended for so long: no clean end for it.",
        least=1,
    )
    metadata_log_dir: str = _string("", "Directory of the metadata log; empty: inside the first of log.dirs.")
    metadata_reserve_bytes: int = _long(
        4 * MIB, "Room set aside beside the metadata log, given up when its disk is full; 0: none.", least=0
    )
    object_store_url: str = _string(
        "",
        "file:///dir, s3://bucket/prefix?endpoint=…, memory://; empty: a directory inside log.dirs, and in a"
        " cluster of several brokers nothing is tiered.",
    )
    remote_cache_bytes: int = _long(1024 * MIB, "Disk for cached chunks of remote segments.", least=16 * MIB)

    log_max_open_files: int = _int(
        8192,
        "Files of logs kept open for their next use; fewer if RLIMIT_NOFILE and max.connections leave fewer.",
        least=1,
    )

    # Bounds of the network side
    socket_request_max_bytes: int = _int(100 * MIB, "The largest request.", least=1024)
    socket_send_buffer_bytes: int = _int(
        512 * KIB, "SO_SNDBUF of a client's socket; -1 leaves it to the operating system.", least=-1
    )
    socket_receive_buffer_bytes: int = _int(
        -1, "SO_RCVBUF of a client's socket; -1 leaves it to the operating system.", least=-1
    )
    max_connections: int = _int(10_000, "Connections in all; a further one is closed at once.", least=1)
    max_connections_per_ip: int = _int(2**31 - 1, "Connections from one address.", least=0)
    max_connections_per_ip_overrides: tuple[str, ...] = _list(
        (), "Addresses with another number of connections: address:number, ..."
    )
    max_connection_creation_rate: int = _int(
        1_000, "New connections a second; more wait in the kernel's queue until the next second.", least=1
    )
    connections_max_idle_ms: int = _long(600_000, "An idle connection is closed after this time.", least=1)
    request_header_timeout_ms: int = _long(
        5_000, "From the first byte of a request to its header; a slower client is cut off.", least=1
    )
    request_receive_timeout_ms: int = _long(
        30_000, "From the first byte of a request to its last; a slower client is cut off.", least=1
    )
    response_send_timeout_ms: int = _long(
        300_000, "A client that takes nothing of its responses for so long is cut off.", least=1
    )
    max_in_flight_requests_per_connection: int = _int(
        64, "Requests of one connection handled at a time; then reading stops.", least=1
    )
    queued_max_request_bytes: int = _long(
        1024 * MIB,
        "Bytes of requests under way on all connections: received in part, or kept until they are "
        "appended. At it, connections wait in line to be read. -1: no limit.",
        least=-1,
    )
    queued_max_response_bytes: int = _int(
        64 * MIB, "Response bytes queued on one connection before reading from it stops.", least=1
    )
    queued_max_response_total_bytes: int = _long(
        512 * MIB,
        "Response bytes in memory that clients have not taken, on all connections. "
        "Above it, the one that took nothing for longest is cut off.",
        least=1,
    )
    fetch_max_bytes: int = _int(55 * MIB, "The most that one Fetch answers with.", least=1024)
    max_request_partition_size_limit: int = _int(
        2000, "The most partitions that one answer to DescribeTopicPartitions tells (KIP-966).", least=1
    )
    max_incremental_fetch_session_cache_slots: int = _int(1000, "Fetch sessions kept (KIP-227).", least=0)
    purgatory_max_operations: int = _int(
        100_000,
        "Waiting fetches and produces; beyond, a request is answered at once. "
        "So is a fetch beyond a million partitions that fetches wait for.",
        least=0,
    )

    # Replication
    replica_lag_time_max_ms: int = _int(
        30_000, "A follower that was not caught up for so long leaves the in-sync set.", least=100
    )
    replica_fetch_wait_max_ms: int = _int(
        500, "A leader holds a follower's fetch so long if there is nothing new.", least=1
    )
    replica_fetch_min_bytes: int = _int(1, "What a follower waits for, unless the wait ends before.", least=0)
    replica_fetch_max_bytes: int = _int(
        MIB, "Of one partition in one answer; a larger first batch comes all the same.", least=1
    )
    replica_fetch_response_max_bytes: int = _int(
        10 * MIB, "Of all partitions in one answer to a follower.", least=1
    )
    replica_selector_class: str = _string(
        "",
        "Who names the replica that a consumer reads from; empty: it is the leader. The rack-aware one names "
        "a replica in the zone of the consumer's client.rack (KIP-392).",
        choices=("", RACK_AWARE_SELECTOR),
    )
    leader_replication_throttled_rate: int = _long(
        UNLIMITED_RATE,
        "Bytes per second that followers get that are not in sync, of partitions that their topic's setting "
        "leader.replication.throttled.replicas names.",
        least=0,
    )
    follower_replication_throttled_rate: int = _long(
        UNLIMITED_RATE,
        "Bytes per second that this broker fetches for replicas that are not in sync and that their topic's "
        "setting follower.replication.throttled.replicas names.",
        least=0,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = _long(
        UNLIMITED_RATE, "What is copied of replicas that move between log directories.", least=1
    )
    num_replica_fetchers: int = _int(
        1, "Connections to each broker that is followed; they share its partitions.", least=1
    )
    replica_fetch_backoff_ms: int = _int(
        200, "A follower that cannot fetch a partition, or reach a leader, tries again after it.", least=1
    )

    # Topics
    auto_create_topics_enable: bool = _boolean(True, "Create a topic when a client asks for its metadata.")
    num_partitions: int = _int(1, "Partitions of a topic created without a number.", least=1)
    default_replication_factor: int = _int(1, "Replicas of a topic created without a number.", least=1)
    log_segment_bytes: int = _int(1024 * MIB, "Default of segment.bytes.", least=1)
    log_roll_ms: int = _long(604_800_000, "Default of segment.ms.", least=1)
    log_roll_jitter_ms: int = _long(0, "Default of segment.jitter.ms.", least=0)
    log_retention_ms: int = _long(604_800_000, "Default of retention.ms.", least=-1)
    log_retention_bytes: int = _long(-1, "Default of retention.bytes.", least=-1)
    log_local_retention_ms: int = _long(-2, "Default of local.retention.ms.", least=-2)
    log_local_retention_bytes: int = _long(-2, "Default of local.retention.bytes.", least=-2)
    log_cleanup_policy: tuple[str, ...] = _list(
        ("delete",), "Default of cleanup.policy.", choices=("delete", "compact")
    )
    log_index_interval_bytes: int = _int(4096, "Default of index.interval.bytes.", least=0)
    log_index_size_max_bytes: int = _int(10 * MIB, "Default of segment.index.bytes.", least=4)
    log_flush_interval_messages: int = _long(MAX_LONG, "Default of flush.messages.", least=1)
    log_flush_interval_ms: int = _long(MAX_LONG, "Default of flush.ms.", least=0)
    log_segment_delete_delay_ms: int = _long(60_000, "Default of file.delete.delay.ms.", least=0)
    log_message_timestamp_type: str = _string(
        "CreateTime", "Default of message.timestamp.type.", choices=("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_after_max_ms: int = _long(
        3_600_000, "Default of message.timestamp.after.max.ms.", least=0
    )
    log_message_timestamp_before_max_ms: int = _long(
        MAX_LONG, "Default of message.timestamp.before.max.ms.", least=0
    )
    log_cleaner_delete_retention_ms: int = _long(86_400_000, "Default of delete.retention.ms.", least=0)
    log_cleaner_min_cleanable_ratio: float = _double(
        0.5, "Default of min.cleanable.dirty.ratio.", least=0, most=1
    )
    log_cleaner_min_compaction_lag_ms: int = _long(0, "Default of min.compaction.lag.ms.", least=0)
    log_cleaner_max_compaction_lag_ms: int = _long(MAX_LONG, "Default of max.compaction.lag.ms.", least=1)
    log_preallocate: bool = _boolean(False, "Default of preallocate.")
    message_max_bytes: int = _int(1_048_588, "Default of max.message.bytes.", least=0)
    compression_type: str = _string(
        "producer",
        "Default of compression.type.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    min_insync_replicas: int = _int(
        1,
        "Default of min.insync.replicas for the whole cluster (KIP-966). A new cluster takes it from its "
        "first broker; later it changes only for all brokers at once, whatever a broker's file says.",
        least=1,
    )
    unclean_leader_election_enable: bool = _boolean(
        False,
        "Default of unclean.leader.election.enable for the whole cluster, kept as min.insync.replicas is."
        " A value for one broker is kept and shown, and has no effect.",
    )
    producer_id_expiration_ms: int = _int(
        86_400_000, "An idle producer's sequences are forgotten after it.", least=1
    )

    # Quotas
    quota_window_num: int = _int(11, "Samples that rates of client quotas are made of.", least=1)
    quota_window_size_seconds: int = _int(1, "Time that each such sample covers.", least=1)
    controller_quota_window_num: int = _int(
        11, "With the next setting: how long controller mutations may be saved up for a burst.", least=1
    )
    controller_quota_window_size_seconds: int = _int(
        1, "Time that each window of controller_mutation_rate covers.", least=1
    )

    # Groups
    group_min_session_timeout_ms: int = _int(
        6_000, "The shortest session timeout of a group member.", least=1
    )
    group_max_session_timeout_ms: int = _int(
        1_800_000, "The longest session timeout of a group member.", least=1
    )
    group_initial_rebalance_delay_ms: int = _int(
        3_000, "How long an empty group waits for more members before its first rebalance.", least=0
    )
    group_max_size: int = _int(2**31 - 1, "Members of one group.", least=1)
    group_members_max_bytes: int = _long(
        128 * MIB,
        "Memory that the members of all groups coordinated by this broker may hold: ids, subscriptions and "
        "assignments. Beyond it JoinGroup and SyncGroup answer COORDINATOR_NOT_AVAILABLE; clients retry.",
        least=1,
    )
    offset_metadata_max_bytes: int = _int(4096, "Metadata kept with a committed offset.", least=0)
    offsets_commit_timeout_ms: int = _int(
        5_000, "How long a commit, or an assignment, waits for replicas before its client is told.", least=1
    )
    offsets_retention_minutes: int = _int(10_080, "Offsets of an empty group are kept this long.", least=1)
    offsets_retention_check_interval_ms: int = _long(
        600_000, "How often expired offsets are sought.", least=1
    )
    offsets_topic_num_partitions: int = _int(50, "Partitions of __consumer_offsets.", least=1)
    offsets_topic_replication_factor: int = _int(
        3,
        "Replicas of __consumer_offsets. Groups wait until so many brokers have registered. A node without "
        "controller.quorum.secret stands alone and makes one replica.",
        least=1,
    )
    offsets_topic_segment_bytes: int = _int(100 * MIB, "Segment size of __consumer_offsets.", least=1)

    # Background work
    log_retention_check_interval_ms: int = _long(
        300_000, "How often retention and segment age are checked.", least=1
    )
    log_flush_scheduler_interval_ms: int = _long(
        1_000, "How often logs with flush.ms are looked at.", least=1
    )
    log_flush_offset_checkpoint_interval_ms: int = _int(
        60_000, "How often logs are flushed and their recovery points written.", least=1
    )
    log_cleaner_enable: bool = _boolean(True, "Compact topics whose cleanup.policy says so.")
    log_cleaner_backoff_ms: int = _long(
        15_000, "How often the cleaner looks for a log when none was dirty.", least=0
    )
    log_cleaner_dedupe_buffer_size: int = _long(
        128 * MIB, "Memory for the keys of one cleaning; if it fills, it takes several.", least=1 * MIB
    )
    log_cleaner_io_buffer_load_factor: float = _double(
        0.9, "How full of keys that memory may be: fuller holds more and is slower.", least=0.1, most=1
    )
    log_cleaner_io_max_bytes_per_second: float = _double(
        1.7976931348623157e308, "What the cleaner may read and write.", least=1
    )
    log_scrub_interval_ms: int = _long(604_800_000, "How often all logs are checked; 0: never.", least=0)
    log_scrub_max_bytes_per_second: int = _long(
        10 * MIB, "What that may read; a batch counts as 16 KiB at the least.", least=1
    )
    num_recovery_threads_per_data_dir: int = _int(2, "Threads that recover logs at start.", least=1)
    remote_log_manager_task_interval_ms: int = _long(
        30_000, "How often a partition's tiering is planned.", least=1
    )
    remote_log_delete_grace_ms: int = _long(
        3_600_000, "How long an object stays after the manifest dropped it.", least=0
    )
    remote_fetch_max_wait_ms: int = _int(
        500, "How long a Fetch waits for remote data; what comes later is in the cache.", least=1
    )
    remote_log_reader_threads: int = _int(10, "Remote reads under way at a time.", least=1)

    explicit: frozenset[str] = field(default=frozenset())
    """Names that a source gave, as against defaults (DescribeConfigs tells them apart)."""

    @property
    def listener(self) -> tuple[str, int]:
        """Host and port to bind for clients."""
        return _host_and_port("listeners", self.listeners[0].partition("://")[2])

    @property
    def advertised(self) -> tuple[str, int] | None:
        """What clients are told, if it is not the address bound."""
        if not self.advertised_listeners:
            return None
        return _host_and_port("advertised.listeners", self.advertised_listeners[0].partition("://")[2])

    @property
    def admin(self) -> tuple[str, int]:
        """Host and port to bind for the admin HTTP server."""
        return _host_and_port("admin.listener", self.admin_listener.removeprefix("http://"))

    @property
    def connections_per_address(self) -> dict[str, int]:
        """max.connections.per.ip.overrides: address -> its number."""
        found = {}
        for override in self.max_connections_per_ip_overrides:
            address, _, number = override.rpartition(":")
            try:
                found[str(ip_address(address.strip("[]")))] = int(number)
            except ValueError:
                raise InvalidSetting(
                    f"max.connections.per.ip.overrides: {override!r} is not address:number"
                ) from None
        return found

    @property
    def data_directory(self) -> Path:
        return Path(self.log_dirs[0])

    @property
    def metadata_directory(self) -> Path:
        return (
            Path(self.metadata_log_dir)
            if self.metadata_log_dir
            else self.data_directory / "__cluster_metadata"
        )

    @property
    def voters(self) -> dict[int, str]:
        """Voter id -> URL of its admin server; empty: this node is the whole quorum."""
        found = {}
        for voter in self.controller_quorum_voters:
            number, at, address = voter.partition("@")
            if not at or not number.isdigit():
                raise InvalidSetting(f"controller.quorum.voters: {voter!r} is not id@host:port")
            host, port = _host_and_port("controller.quorum.voters", address)
            found[int(number)] = f"{'https' if self.quorum_files else 'http'}://{host}:{port}"
        return found

    @property
    def quorum_files(self) -> tuple[Path, ...]:
        """Certificate, key and CA of mutual TLS; none: in the clear."""
        names = (
            self.controller_quorum_ssl_certificate,
            self.controller_quorum_ssl_key,
            self.controller_quorum_ssl_ca,
        )
        return tuple(map(Path, filter(None, names)))

    def topic_defaults(self) -> dict[str, str]:
        """Topic setting -> text, for those whose node-wide default an operator gave."""
        return {
            topic_name: TOPIC_SETTINGS[topic_name].text(getattr(self, name.replace(".", "_")))
            for name, topic_name in TOPIC_DEFAULTS.items()
            if name in self.explicit
        }

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Its overrides, then this node's defaults, then Kafka's; raises InvalidSetting."""
        return TopicConfig.parse({**self.topic_defaults(), **overrides})

    def validate(self) -> "NodeSettings":
        """Checks what a single field cannot say; raises InvalidSetting."""
        if not self.log_dirs:
            raise InvalidSetting("log.dirs: at least one directory is needed")
        if len({Path(path).absolute() for path in self.log_dirs}) < len(self.log_dirs):
            raise InvalidSetting("log.dirs: a directory is named twice")
        if len(self.listeners) != 1 or not self.listeners[0].startswith("PLAINTEXT://"):
            raise InvalidSetting(f"listeners: one PLAINTEXT://host:port, not {','.join(self.listeners)!r}")
        if self.advertised_listeners and self.advertised and self.advertised[1] == 0:
            raise InvalidSetting("advertised.listeners: port 0 cannot be connected to")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSetting("group.min.session.timeout.ms is above group.max.session.timeout.ms")
        if 0 <= self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidSetting("queued.max.request.bytes is below socket.request.max.bytes")
        if self.broker_heartbeat_interval_ms * 10 > self.broker_session_timeout_ms * 9:
            raise InvalidSetting(  # a lease is a tenth shorter than the session
                "broker.heartbeat.interval.ms is above nine tenths of broker.session.timeout.ms"
            )
        voters = self.voters
        if voters and CONTROLLER in self.process_roles and self.node_id not in voters:
            raise InvalidSetting(f"controller.quorum.voters does not name this node, {self.node_id}")
        if not self.process_roles:
            raise InvalidSetting("process.roles: broker, controller, or both")
        if len(set(self.process_roles)) < 2 and not (voters and self.controller_quorum_secret):
            raise InvalidSetting("process.roles: one alone needs controller.quorum.voters and .secret")
        if CONTROLLER not in self.process_roles and self.node_id in voters:
            raise InvalidSetting(f"controller.quorum.voters names this node, {self.node_id}: no controller")
        if len(self.quorum_files) not in (0, 3):
            raise InvalidSetting("controller.quorum.ssl.certificate, .key and .ca: all three, or none")
        if len(voters) > 1 and not self.controller_quorum_secret:
            raise InvalidSetting("controller.quorum.secret: a quorum of several voters needs one")
        _ = self.listener, self.admin, self.connections_per_address
        return self


NODE_SETTINGS: dict[str, Setting] = {
    name: Setting(
        name=name,
        type=item.metadata["type"],
        default=item.default,  # type: ignore[arg-type]
        doc=item.metadata["doc"],
        **item.metadata["bounds"],
    )
    for item in fields(NodeSettings)
    if item.metadata
    for name in [item.name.replace("_", ".")]
}

ALIASES: dict[str, tuple[str, int]] = {
    "log.dir": ("log.dirs", 1),
    "broker.id": ("node.id", 1),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}
"""Kafka's other names of a setting, and the factor to the unit of the one used here."""


def settings_from(texts: Mapping[str, str]) -> NodeSettings:
    """Settings from Kafka's names and texts."""
    texts = without_aliases(texts)
    values = {
        name.replace(".", "_"): find_setting(NODE_SETTINGS, name).accept(text) for name, text in texts.items()
    }
    return replace(NodeSettings(**values), explicit=frozenset(texts)).validate()  # type: ignore[arg-type]


def without_aliases(texts: Mapping[str, str]) -> dict[str, str]:
    """Under the names used here; of several that say the same the finest unit wins, as in Kafka."""
    found: dict[str, str] = {}
    for name in sorted(texts, key=_coarseness, reverse=True):
        real, factor = ALIASES.get(name, (name, 1))
        found[real] = texts[name] if factor == 1 else _times(name, texts[name], factor)
    return found


def _coarseness(name: str) -> int:
    return ALIASES[name][1] if name in ALIASES else 0


def _times(name: str, text: str, factor: int) -> str:
    number = int(Setting(name=name, type=SettingType.LONG, default=0, doc="").parse(text))  # type: ignore[arg-type]
    return str(number if number < 0 else number * factor)


def _host_and_port(name: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise InvalidSetting(f"{name}: {address!r} is not host:port")
    return host.strip("[]") or "0.0.0.0", int(port)
