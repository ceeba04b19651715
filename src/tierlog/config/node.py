"""Settings of a node: Kafka's names, defaults and meaning, in one frozen value that is validated once.

A field's name is the setting's name with `_` for `.`. Its metadata holds type, default, bounds and
documentation, which docs/reference/settings.md is generated from; names end in their unit. `sources` reads
settings from files and the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tierlog.config.definitions import (
    InvalidSetting,
    SettingType,
    boolean_,
    double_,
    int_,
    list_,
    long_,
    setting_field,
    settings_of,
    string_,
)
from tierlog.config.topic import MAX_LONG, TOPIC_SETTINGS, TopicConfig

BROKER, CONTROLLER = "broker", "controller"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
KIB, MIB = 1 << 10, 1 << 20
UNLIMITED_RATE = MAX_LONG


def _topic_default(topic_setting: str, doc: str = "", **bounds: Any) -> Any:
    """The default of a topic setting, with its type and, unless given, its bounds."""
    of_topic = TOPIC_SETTINGS[topic_setting]
    setting = replace(of_topic, doc=doc or f"Default of {topic_setting}.", **bounds)
    return field(default=of_topic.default, metadata={"setting": setting, "topic_setting": topic_setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    # Identity and addresses
    node_id: int = int_(1, "Number of this node, unique in the cluster.", least=0)
    cluster_id: str = string_("", "Id of the cluster. Empty: the one in meta.properties, or a new one.")
    process_roles: tuple[str, ...] = list_(
        (BROKER, CONTROLLER),
        "Roles of this node: broker (serves clients), controller (votes in the metadata quorum), or both.",
        choices=(BROKER, CONTROLLER),
    )
    listeners: tuple[str, ...] = list_(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Address on which clients connect, as PLAINTEXT://host:port. Port 0 picks a free port.",
    )
    advertised_listeners: tuple[str, ...] = list_(
        (),
        "Address that the broker advertises to clients. If empty, the listener's own address. Set it if "
        "clients reach this broker through NAT, a container port or another name.",
    )
    admin_listener: str = string_(
        "127.0.0.1:9644", "host:port of the admin HTTP server. Port 0 picks a free port."
    )
    admin_allowed_hosts: tuple[str, ...] = list_(
        (),
        "Further host names of the admin HTTP server. IP addresses, localhost, this machine's name and the "
        "names of voters and brokers are always accepted. Requests for any other host are refused.",
    )
    controller_quorum_voters: tuple[str, ...] = list_(
        (),
        "Voters of the metadata quorum as id@host:port, with the port of each admin listener. If empty, "
        "this node is the only voter.",
    )
    controller_quorum_secret: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Secret shared by all nodes of the cluster; they sign their requests to each other with it.",
    )
    controller_quorum_election_timeout_ms: int = int_(
        1000,
        "A voter that hears from no leader stands for election after a random time of one to two times this "
        "value, or sooner if the leader's process has ended. Raise it on slow networks.",
        least=200,
    )
    controller_quorum_fetch_timeout_ms: int = int_(
        2000,
        "How long a quorum leader without answers from a majority of the voters stays leader.",
        least=200,
    )
    controller_quorum_ssl_certificate: str = string_(
        "",
        "PEM file of this node's certificate. With controller.quorum.ssl.key and .ca, nodes and the admin "
        "API use mutual TLS.",
    )
    controller_quorum_ssl_key: str = string_("", "PEM file of that certificate's private key.")
    controller_quorum_ssl_ca: str = string_(
        "", "PEM file of the CA of nodes and operators. It must sign nothing else."
    )
    broker_rack: str = string_(
        "", "Zone of this broker, or zone/host. Replicas are spread over zones and hosts."
    )
    broker_heartbeat_interval_ms: int = int_(
        500, "How often a broker sends a heartbeat to the controller.", least=50
    )
    broker_session_timeout_ms: int = int_(
        3_000,
        "How long the controller waits for a heartbeat before it fences the broker and elects other "
        "leaders. A broker whose process has ended is fenced at once. Raise it for overloaded brokers.",
        least=200,
    )
    controlled_shutdown_timeout_ms: int = int_(
        30_000,
        "How long a broker that stops waits for other brokers to take over its leaderships. It does not "
        "wait longer than two sessions if no controller answers. 0: do not wait.",
        least=0,
    )

    auto_leader_rebalance_enable: bool = boolean_(
        True, "Whether the controller moves leadership back to preferred leaders in the background."
    )
    leader_imbalance_check_interval_seconds: int = long_(
        300, "How often the controller checks the balance of leaders.", least=1
    )
    leader_imbalance_per_broker_percentage: int = int_(
        10,
        "Maximum percentage of a broker's preferred partitions that other brokers may lead before the "
        "controller rebalances leadership.",
        least=0,
    )

    # Log directories and the object store
    log_dirs: tuple[str, ...] = list_(
        ("tierlog-data",),
        "Directories of partition data, one for each disk. New partitions go where most space is free.",
    )
    log_dirs_stop_timeout_ms: int = int_(
        20_000,
        "How long shutdown waits for a log directory that does not respond. Shutdown then continues without "
        "it, and the directory is recovered as after a crash.",
        least=1,
    )
    metadata_log_dir: str = string_(
        "", "Directory of the metadata log. If empty, a directory inside the first of log.dirs."
    )
    metadata_reserve_bytes: int = long_(
        4 * MIB,
        "Disk space that is reserved beside the metadata log and released when its disk is full, so that "
        "the quorum can go on. 0: none.",
        least=0,
    )
    object_store_url: str = string_(
        "",
        "Object store for tiered data: file:///dir, s3://bucket/prefix?endpoint=… or memory://. Empty: a "
        "standalone broker uses a directory inside log.dirs, and a cluster tiers nothing.",
    )
    remote_cache_bytes: int = long_(
        1024 * MIB,
        "Disk space for cached chunks of remote log segments. Raise it if consumers often read old data.",
        least=16 * MIB,
    )

    log_max_open_files: int = int_(
        8192,
        "Maximum number of log files that stay open between uses. It is lowered if RLIMIT_NOFILE and "
        "max.connections leave fewer descriptors.",
        least=1,
    )

    # Limits of the network layer
    socket_request_max_bytes: int = int_(100 * MIB, "Maximum size of a request.", least=1024)
    socket_send_buffer_bytes: int = int_(
        512 * KIB, "SO_SNDBUF of client connections. -1: the system's default.", least=-1
    )
    socket_receive_buffer_bytes: int = int_(
        -1, "SO_RCVBUF of client connections. -1: the system's default.", least=-1
    )
    max_connections: int = int_(
        10_000, "Maximum number of connections; further ones are closed at once.", least=1
    )
    max_connections_per_ip: int = int_(
        2**31 - 1, "Maximum number of connections from one IP address.", least=0
    )
    max_connections_per_ip_overrides: tuple[str, ...] = list_(
        (),
        "Connection limits of single IP addresses in place of max.connections.per.ip, as address:number, ...",
    )
    max_connection_creation_rate: int = int_(
        1_000, "Maximum new connections a second; more wait in the kernel's queue.", least=1
    )
    connections_max_idle_ms: int = long_(600_000, "Idle time after which a connection is closed.", least=1)
    request_header_timeout_ms: int = long_(
        5_000,
        "Maximum time from a request's first byte to the end of its header. The connection of a slower "
        "client is closed.",
        least=1,
    )
    request_receive_timeout_ms: int = long_(
        30_000,
        "Maximum time from a request's first byte to its last. The connection of a slower client is closed.",
        least=1,
    )
    response_send_timeout_ms: int = long_(
        300_000,
        "How long a client may accept no bytes of its responses before its connection is closed.",
        least=1,
    )
    max_in_flight_requests_per_connection: int = int_(
        64,
        "Maximum number of unanswered requests of one connection. At this limit the broker stops reading "
        "from it.",
        least=1,
    )
    queued_max_request_bytes: int = long_(
        1024 * MIB,
        "Maximum bytes of requests in memory over all connections: partly received, or kept until they are "
        "appended. At this limit connections wait in line to be read. -1: no limit.",
        least=-1,
    )
    queued_max_response_bytes: int = int_(
        64 * MIB,
        "Response bytes queued on one connection at which the broker stops reading from it.",
        least=1,
    )
    queued_max_response_total_bytes: int = long_(
        512 * MIB,
        "Maximum bytes of responses in memory over all connections. Above it, the connection that has "
        "accepted nothing for longest is closed.",
        least=1,
    )
    fetch_max_bytes: int = int_(55 * MIB, "Maximum bytes in one Fetch response.", least=1024)
    max_request_partition_size_limit: int = int_(
        2000, "Maximum partitions in one DescribeTopicPartitions response (KIP-966).", least=1
    )
    max_incremental_fetch_session_cache_slots: int = int_(
        1000, "Maximum number of fetch sessions kept (KIP-227).", least=0
    )
    purgatory_max_operations: int = int_(
        100_000,
        "Maximum number of delayed Fetch and Produce operations; further ones are answered at once. So is a "
        "Fetch if delayed ones already wait for a million partitions.",
        least=0,
    )

    # Replication
    replica_lag_time_max_ms: int = int_(
        30_000,
        "How long a follower may lag behind the leader before it leaves the in-sync replicas.",
        least=100,
    )
    replica_fetch_wait_max_ms: int = int_(
        500, "How long a leader holds a follower's Fetch if there is nothing new.", least=1
    )
    replica_fetch_min_bytes: int = int_(
        1,
        "Minimum bytes for a response to a follower's Fetch. With fewer, the leader waits up to "
        "replica.fetch.wait.max.ms.",
        least=0,
    )
    replica_fetch_max_bytes: int = int_(
        MIB,
        "Maximum bytes that a follower fetches from one partition in one response. A larger first batch is "
        "returned all the same.",
        least=1,
    )
    replica_fetch_response_max_bytes: int = int_(
        10 * MIB, "Maximum bytes that a follower fetches in one response, over all partitions.", least=1
    )
    replica_selector_class: str = string_(
        "",
        "Which replica a consumer reads from. Empty: the leader. The rack-aware selector chooses a replica "
        "in the consumer's client.rack (KIP-392).",
        choices=("", RACK_AWARE_SELECTOR),
    )
    leader_replication_throttled_rate: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes a second sent to followers that are not in sync, for replicas in the topic setting "
        "leader.replication.throttled.replicas. Set it while partitions are moved (KIP-73).",
        least=0,
    )
    follower_replication_throttled_rate: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes a second fetched for replicas that are not in sync and are in the topic setting "
        "follower.replication.throttled.replicas. Set it while partitions are moved (KIP-73).",
        least=0,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes a second copied for replicas that move between log directories.",
        least=1,
    )
    num_replica_fetchers: int = int_(
        1,
        "Number of connections to each source broker. They share its partitions. Raise it if followers lag "
        "while CPU and network are idle.",
        least=1,
    )
    replica_fetch_backoff_ms: int = int_(
        200, "How long a follower waits after a failed fetch or connection.", least=1
    )

    # Topics
    auto_create_topics_enable: bool = boolean_(
        True, "Whether a client's request for the metadata of an unknown topic creates the topic."
    )
    num_partitions: int = int_(1, "Number of partitions of a topic that is created without one.", least=1)
    default_replication_factor: int = int_(
        1, "Replication factor of a topic that is created without one.", least=1
    )
    log_segment_bytes: int = _topic_default("segment.bytes", least=1)
    log_roll_ms: int = _topic_default("segment.ms")
    log_roll_jitter_ms: int = _topic_default("segment.jitter.ms")
    log_retention_ms: int = _topic_default("retention.ms")
    log_retention_bytes: int = _topic_default("retention.bytes")
    log_local_retention_ms: int = _topic_default("local.retention.ms")
    log_local_retention_bytes: int = _topic_default("local.retention.bytes")
    log_cleanup_policy: tuple[str, ...] = _topic_default("cleanup.policy")
    log_index_interval_bytes: int = _topic_default("index.interval.bytes")
    log_index_size_max_bytes: int = _topic_default("segment.index.bytes")
    log_flush_interval_messages: int = _topic_default("flush.messages")
    log_flush_interval_ms: int = _topic_default("flush.ms")
    log_segment_delete_delay_ms: int = _topic_default("file.delete.delay.ms")
    log_message_timestamp_type: str = _topic_default("message.timestamp.type")
    log_message_timestamp_after_max_ms: int = _topic_default("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = _topic_default("message.timestamp.before.max.ms")
    log_cleaner_delete_retention_ms: int = _topic_default("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _topic_default("max.compaction.lag.ms")
    log_preallocate: bool = _topic_default("preallocate")
    message_max_bytes: int = _topic_default("max.message.bytes")
    compression_type: str = _topic_default("compression.type")
    min_insync_replicas: int = _topic_default(
        "min.insync.replicas",
        "Default of min.insync.replicas for the whole cluster (KIP-966). A new cluster takes it from its "
        "first broker; afterwards the value in a broker's file is ignored.",
    )
    unclean_leader_election_enable: bool = _topic_default(
        "unclean.leader.election.enable",
        "Default of unclean.leader.election.enable for the whole cluster, kept like min.insync.replicas. A "
        "value set for one broker is kept and shown, but has no effect.",
    )
    producer_id_expiration_ms: int = int_(
        86_400_000, "How long the state of an idle producer id is kept.", least=1
    )

    # Quotas
    quota_window_num: int = int_(11, "Number of samples kept to measure client quotas.", least=1)
    quota_window_size_seconds: int = int_(1, "Time span of each sample for client quotas.", least=1)
    controller_quota_window_num: int = int_(
        11, "Number of windows over which unused controller mutations add up.", least=1
    )
    controller_quota_window_size_seconds: int = int_(
        1, "Time span of each window for controller_mutation_rate.", least=1
    )

    # Groups
    group_min_session_timeout_ms: int = int_(6_000, "Minimum session timeout of a group member.", least=1)
    group_max_session_timeout_ms: int = int_(1_800_000, "Maximum session timeout of a group member.", least=1)
    group_initial_rebalance_delay_ms: int = int_(
        3_000,
        "How long an empty group waits for more members before it rebalances. Raise it if consumers start "
        "slowly.",
        least=0,
    )
    group_max_size: int = int_(2**31 - 1, "Maximum number of members of a group.", least=1)
    group_members_max_bytes: int = long_(
        128 * MIB,
        "Maximum memory for the members of all groups of this broker: ids, subscriptions, assignments. "
        "Beyond it JoinGroup and SyncGroup return COORDINATOR_NOT_AVAILABLE, and clients retry.",
        least=1,
    )
    offset_metadata_max_bytes: int = int_(
        4096, "Maximum size of the metadata of a committed offset.", least=0
    )
    offsets_commit_timeout_ms: int = int_(
        5_000, "How long an offset commit or group assignment waits for replicas.", least=1
    )
    offsets_retention_minutes: int = int_(10_080, "How long the offsets of an empty group are kept.", least=1)
    offsets_retention_check_interval_ms: int = long_(
        600_000, "How often expired offsets are removed.", least=1
    )
    offsets_topic_num_partitions: int = int_(50, "Number of partitions of __consumer_offsets.", least=1)
    offsets_topic_replication_factor: int = int_(
        3,
        "Replication factor of __consumer_offsets; a standalone node creates one replica. Groups cannot be "
        "used before this many brokers have registered.",
        least=1,
    )
    offsets_topic_segment_bytes: int = int_(100 * MIB, "Segment size of __consumer_offsets.", least=1)

    # Background work
    log_retention_check_interval_ms: int = long_(
        300_000, "How often retention and the age of segments are checked.", least=1
    )
    log_flush_scheduler_interval_ms: int = long_(
        1_000, "How often logs with flush.ms are checked for a due flush.", least=1
    )
    log_flush_offset_checkpoint_interval_ms: int = int_(
        60_000, "How often logs are flushed and their recovery points written.", least=1
    )
    log_cleaner_enable: bool = boolean_(True, "Whether topics with the cleanup.policy compact are compacted.")
    log_cleaner_backoff_ms: int = long_(
        15_000, "How long the cleaner sleeps if there is no log to clean.", least=0
    )
    log_cleaner_dedupe_buffer_size: int = long_(
        128 * MIB,
        "Memory in bytes for the keys of one cleaning. If it fills up, cleaning a log takes several passes.",
        least=1 * MIB,
    )
    log_cleaner_io_buffer_load_factor: float = double_(
        0.9,
        "Maximum fill ratio of that memory. A higher value holds more keys, but is slower.",
        least=0.1,
        most=1,
    )
    log_cleaner_io_max_bytes_per_second: float = double_(
        1.7976931348623157e308, "Maximum bytes a second that the cleaner reads and writes.", least=1
    )
    log_scrub_interval_ms: int = long_(
        604_800_000, "How often all logs are read and verified. 0: never.", least=0
    )
    log_scrub_max_bytes_per_second: int = long_(
        10 * MIB, "Maximum bytes a second that the scrubber reads. A batch counts as 16 KiB or more.", least=1
    )
    num_recovery_threads_per_data_dir: int = int_(
        2,
        "Number of threads for each log directory that recover logs at startup. Raise it if recovery after "
        "a crash is slow.",
        least=1,
    )
    remote_log_manager_task_interval_ms: int = long_(
        30_000, "How often the tiering work of each partition is planned.", least=1
    )
    remote_log_delete_grace_ms: int = long_(
        3_600_000, "How long an object stays in the object store after it left the manifest.", least=0
    )
    remote_fetch_max_wait_ms: int = int_(
        500, "How long a Fetch waits for remote data. Later data is cached for the next Fetch.", least=1
    )
    remote_log_reader_threads: int = int_(10, "Maximum number of concurrent remote reads.", least=1)

    explicit: frozenset[str] = field(default=frozenset())
    """Names that are set, as opposed to defaults; DescribeConfigs reports the difference."""

    @property
    def listener(self) -> tuple[str, int]:
        """Host and port to bind for clients."""
        return _host_and_port("listeners", self.listeners[0].partition("://")[2])

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Host and port that clients connect to; None: the bound address."""
        if not self.advertised_listeners:
            return None
        return _host_and_port("advertised.listeners", self.advertised_listeners[0].partition("://")[2])

    @property
    def admin(self) -> tuple[str, int]:
        """Host and port to bind for the admin HTTP server."""
        return _host_and_port("admin.listener", self.admin_listener.removeprefix("http://"))

    @property
    def connections_per_address(self) -> dict[str, int]:
        """max.connections.per.ip.overrides: address -> limit."""
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
        return Path(self.metadata_log_dir or self.data_directory / "__cluster_metadata")

    @property
    def voters(self) -> dict[int, str]:
        """Voter id -> URL of its admin server; empty: this node is the only voter."""
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
        """Certificate, key and CA of mutual TLS; empty: no TLS."""
        certificate, key = self.controller_quorum_ssl_certificate, self.controller_quorum_ssl_key
        return tuple(map(Path, filter(None, (certificate, key, self.controller_quorum_ssl_ca))))

    def topic_defaults(self) -> dict[str, str]:
        """Topic setting -> text, for the topic defaults that are set on this node."""
        return {
            topic_name: TOPIC_SETTINGS[topic_name].text(getattr(self, name.replace(".", "_")))
            for name, topic_name in TOPIC_DEFAULTS.items()
            if name in self.explicit
        }

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The topic's overrides, then this node's defaults, then Kafka's. Raises InvalidSetting."""
        return TopicConfig.parse({**self.topic_defaults(), **overrides})

    def validate(self) -> "NodeSettings":
        """Check conditions that involve several settings. Raises InvalidSetting."""
        if not self.log_dirs:
            raise InvalidSetting("log.dirs: at least one directory is needed")
        if len({Path(path).absolute() for path in self.log_dirs}) < len(self.log_dirs):
            raise InvalidSetting("log.dirs: a directory is listed twice")
        if len(self.listeners) != 1 or not self.listeners[0].startswith("PLAINTEXT://"):
            raise InvalidSetting(
                f"listeners: must be PLAINTEXT://host:port, not {','.join(self.listeners)!r}"
            )
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
            raise InvalidSetting("process.roles: must be broker, controller, or both")
        if len(set(self.process_roles)) < 2 and not (voters and self.controller_quorum_secret):
            raise InvalidSetting("process.roles: a single role needs controller.quorum.voters and .secret")
        if CONTROLLER not in self.process_roles and self.node_id in voters:
            raise InvalidSetting(
                f"controller.quorum.voters names this node, {self.node_id}, which is no controller"
            )
        if len(self.quorum_files) not in (0, 3):
            raise InvalidSetting("controller.quorum.ssl.certificate, .key and .ca: set all three or none")
        if len(voters) > 1 and not self.controller_quorum_secret:
            raise InvalidSetting("controller.quorum.secret: needed in a quorum of several voters")
        _ = self.listener, self.admin, self.connections_per_address
        return self


NODE_SETTINGS = settings_of(NodeSettings)

TOPIC_DEFAULTS: dict[str, str] = {
    item.name.replace("_", "."): item.metadata["topic_setting"]
    for item in fields(NodeSettings)
    if "topic_setting" in item.metadata
}
"""Node setting -> topic setting that it is the default of."""


def _host_and_port(name: str, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise InvalidSetting(f"{name}: {address!r} is not host:port")
    return host.strip("[]") or "0.0.0.0", int(port)
