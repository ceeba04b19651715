"""Settings of a node: Kafka's names, defaults and meaning, in one frozen value that is validated once.

A field's name is the setting's name with `_` for `.`. Its metadata holds type, default, bounds and
documentation, which docs/reference/settings.md is generated from; names end in their unit. `sources` reads
settings from files and the environment.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from tierlog.config.background import MIB, UNLIMITED_RATE
from tierlog.config.definitions import (
    InvalidSetting,
    SettingType,
    boolean_,
    int_,
    list_,
    long_,
    setting_field,
    settings_of,
    string_,
)
from tierlog.config.listeners import (
    DEFAULT_PROTOCOLS,
    ListenerSettings,
    host_and_port,
    parse_listeners,
)
from tierlog.config.telemetry import TelemetrySettings

BROKER, CONTROLLER = "broker", "controller"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(TelemetrySettings):
    """All settings of a node; the defaults of topic settings are inherited."""

    # Identity and addresses
    node_id: int = int_(
        1,
        "Id of this node, unique in the cluster. Set another one on each node, and do not change it.",
        minimum=0,
    )
    cluster_id: str = string_(
        "",
        "Id of the cluster, the same on all its nodes. If empty, the id in meta.properties, or a new one. "
        "Set it to let a node refuse the data of another cluster.",
    )
    process_roles: tuple[str, ...] = list_(
        (BROKER, CONTROLLER),
        "Roles of this node: broker (serves clients), controller (votes in the metadata quorum), or both. "
        "Set broker alone on the nodes of a cluster beyond the three or five that vote.",
        choices=(BROKER, CONTROLLER),
    )
    listeners: tuple[str, ...] = list_(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Addresses on which clients connect, as NAME://host:port, ... The name is a security protocol, or "
        "has one in listener.security.protocol.map. Without a host, all addresses of the machine. Port 0 "
        "picks a free port. Change it to let clients of other machines connect.",
    )
    advertised_listeners: tuple[str, ...] = list_(
        (),
        "Addresses that the broker gives to clients, as NAME://host:port with names of listeners. A "
        "listener that is not named has its own address. Set it if clients reach this broker through NAT, "
        "a container port or another name.",
    )
    listener_security_protocol_map: tuple[str, ...] = list_(
        DEFAULT_PROTOCOLS,
        "Security protocol of each listener's name, as NAME:PROTOCOL, with PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL. Set it if listeners have other names than these.",
    )
    inter_broker_listener_name: str = string_(
        "",
        "Name of the listener on which other brokers connect to this one. If empty, the first listener. Set "
        "it to keep replication on a network of its own.",
    )
    controller_quorum_voters: tuple[str, ...] = list_(
        (),
        "Voters of a new metadata quorum as id@host:port, with the port of each admin listener. If empty, "
        "this node is the only voter. `tierlog quorum add` and `remove` change them later. Set it to the "
        "same three or five nodes everywhere.",
    )
    controller_quorum_secret: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Secret shared by all nodes of the cluster; they sign their requests to each other with it. Needed "
        "in every cluster of several nodes. Change it on all nodes at once, while they are stopped.",
    )
    controller_quorum_election_timeout_ms: int = int_(
        1000,
        "A voter that hears from no leader stands for election after a random time of one to two times this "
        "value in milliseconds, or sooner if the leader's process has ended. Raise it on slow networks.",
        minimum=200,
    )
    controller_quorum_fetch_timeout_ms: int = int_(
        2000,
        "How long, in milliseconds, a quorum leader without answers from a majority of the voters stays "
        "leader. Raise it on slow networks.",
        minimum=200,
    )
    controller_quorum_ssl_certificate: str = string_(
        "",
        "PEM file of this node's certificate. With controller.quorum.ssl.key and controller.quorum.ssl.ca, "
        "nodes and the admin API use mutual TLS. Set all three where networks are not trusted.",
    )
    controller_quorum_ssl_key: str = string_(
        "",
        "PEM file of the private key of controller.quorum.ssl.certificate. Set it together with the "
        "certificate.",
    )
    controller_quorum_ssl_ca: str = string_(
        "",
        "PEM file of the CA of nodes and operators. It must sign nothing else. Set it together with the "
        "certificate.",
    )
    broker_rack: str = string_(
        "",
        "Zone of this broker, or zone/host. Replicas are spread over zones and hosts. Set it if brokers are "
        "in several zones, or share a host.",
    )
    broker_heartbeat_interval_ms: int = int_(
        500,
        "How often, in milliseconds, a broker sends a heartbeat to the controller. Raise it together with "
        "broker.session.timeout.ms, in large clusters.",
        minimum=50,
    )
    broker_session_timeout_ms: int = int_(
        3_000,
        "How long, in milliseconds, the controller waits for a heartbeat before it fences the broker and "
        "elects other leaders. A broker whose process has ended is fenced at once. Raise it for overloaded "
        "brokers, on all controllers alike.",
        minimum=200,
    )
    controlled_shutdown_timeout_ms: int = int_(
        30_000,
        "How long, in milliseconds, a broker that stops waits for other brokers to take over its "
        "leaderships. It does not wait longer than two sessions if no controller answers. 0: do not wait. "
        "Raise it if a broker that leads thousands of partitions stops before they have moved.",
        minimum=0,
    )

    auto_leader_rebalance_enable: bool = boolean_(
        True,
        "Whether the controller moves leadership back to preferred leaders in the background. If not, run "
        "`tierlog partition elect` after a broker has returned. Turn it off if leaders must not move at "
        "unexpected times.",
    )
    leader_imbalance_check_interval_seconds: int = long_(
        300,
        "How often, in seconds, the controller checks the balance of leaders. Lower it if leaders should "
        "return sooner after a restart.",
        minimum=1,
    )
    leader_imbalance_per_broker_percentage: int = int_(
        10,
        "Maximum percentage of a broker's preferred partitions that other brokers may lead before the "
        "controller rebalances leadership. Raise it if leaders move too often.",
        minimum=0,
    )

    # Log directories and the object store
    log_dirs: tuple[str, ...] = list_(
        ("tierlog-data",),
        "Directories of partition data, one for each disk. New partitions go where most space is free. Set "
        "it: the default is relative to the working directory.",
    )
    log_dirs_stop_timeout_ms: int = int_(
        20_000,
        "How long, in milliseconds, shutdown waits for a log directory that does not respond. Shutdown "
        "then continues without it, and the directory is recovered as after a crash. Raise it if slow "
        "disks need longer to flush.",
        minimum=1,
    )
    log_dir_free_bytes_min: int = long_(
        0,
        "Free bytes of a log directory's disk below which the broker deletes local segments of topics with "
        "remote.log.disk.pressure.policy=drop-oldest-uploaded, and, if that is not enough, refuses appends "
        "in the directory with KAFKA_STORAGE_ERROR, as if it were full. Checked four times a second: set it "
        "to what is written in a few seconds, or more. 0: only a full disk counts.",
        minimum=0,
    )
    metadata_log_dir: str = string_(
        "",
        "Directory of the metadata log. If empty, a directory inside the first of log.dirs. Put it on a "
        "disk of its own if partition data keeps that one busy.",
    )
    metadata_reserve_bytes: int = long_(
        4 * MIB,
        "Bytes of disk space that are reserved beside the metadata log and released when its disk is full, "
        "so that the quorum can continue. 0: none. Raise it if thousands of topics change while the disk "
        "is full.",
        minimum=0,
    )
    object_store_url: str = string_(
        "",
        "Object store for tiered data: s3://bucket/prefix?endpoint=…&region=… (with any of the parameters "
        "below), file:///directory or memory://. Percent-encode special characters. If empty, a standalone "
        "broker uses a directory inside log.dirs, and a cluster tiers nothing. All brokers need the same "
        "one. Set it to tier topics.",
    )
    remote_cache_bytes: int = long_(
        1024 * MIB,
        "Bytes of disk space for chunks of remote segments that are read again, after they left memory "
        "(remote.cache.memory.bytes). Raise it if consumers that are far apart read the same old data.",
        minimum=16 * MIB,
    )
    remote_cache_memory_bytes: int = long_(
        128 * MIB,
        "Bytes of memory for chunks of remote segments, from which they are served. Half of it is for "
        "read-ahead. Used only once old data is read. Raise it if many consumers read old data, at "
        "different places.",
        minimum=32 * MIB,
    )
    remote_cache_directory: str = string_(
        "",
        "Directory for the chunks that left memory, for example on a disk of its own. Brokers may share "
        "it. If empty, they are in the first of log.dirs. Set it if reads of old data disturb the disk of "
        "the logs.",
    )

    log_max_open_files: int = int_(
        8192,
        "Maximum number of log files that stay open between uses. Lowered if RLIMIT_NOFILE and "
        "max.connections leave fewer descriptors. Raise it, with RLIMIT_NOFILE, for tens of thousands of "
        "partitions.",
        minimum=1,
    )

    # Limits of the network layer
    socket_request_max_bytes: int = int_(
        100 * MIB,
        "Maximum size of a request in bytes. The connection of a larger one is closed. Lower it to protect "
        "a broker with little memory; keep it above max.message.bytes.",
        minimum=1024,
    )
    socket_send_buffer_bytes: int = int_(
        512 * KIB,
        "SO_SNDBUF of client connections, in bytes. -1: the system's default. Raise it for clients behind "
        "long, fast connections.",
        minimum=-1,
    )
    socket_receive_buffer_bytes: int = int_(
        -1,
        "SO_RCVBUF of client connections, in bytes. -1: the system's default. Raise it for producers "
        "behind long, fast connections.",
        minimum=-1,
    )
    max_connections: int = int_(
        10_000,
        "Maximum number of client connections. At the limit the oldest one that has not logged in yet makes "
        "room; without such, further ones are closed at once. Raise it, with RLIMIT_NOFILE, for more.",
        minimum=1,
    )
    max_connections_per_ip: int = int_(
        2**31 - 1,
        "Maximum number of connections from one IP address; further ones are closed at once. Lower it if "
        "one client could use up max.connections.",
        minimum=0,
    )
    max_connections_per_ip_overrides: tuple[str, ...] = list_(
        (),
        "Limits of single IP addresses in place of max.connections.per.ip, as address:number, ... Set it "
        "for hosts of many clients, such as a NAT gateway.",
    )
    max_connection_creation_rate: int = int_(
        1_000,
        "Maximum number of new connections per second; more wait in the kernel's queue. Lower it if "
        "storms of reconnects take the CPU from other clients.",
        minimum=1,
    )
    connections_max_idle_ms: int = long_(
        600_000,
        "Idle time in milliseconds after which a connection is closed. Lower it to get rid of abandoned "
        "connections sooner.",
        minimum=1,
    )
    request_header_timeout_ms: int = long_(
        5_000,
        "Maximum time in milliseconds from a request's first byte to the end of its header. The connection "
        "of a slower client is closed. Raise it for clients behind very slow connections.",
        minimum=1,
    )
    request_receive_timeout_ms: int = long_(
        30_000,
        "Maximum time in milliseconds from a request's first byte to its last. The connection of a slower "
        "client is closed. Raise it for large requests over slow networks.",
        minimum=1,
    )
    response_send_timeout_ms: int = long_(
        300_000,
        "Milliseconds for which a client may accept no bytes of its responses before it is disconnected. "
        "Lower it if stalled clients hold too much memory.",
        minimum=1,
    )
    max_in_flight_requests_per_connection: int = int_(
        64,
        "Maximum number of unanswered requests of one connection, which is not read at this limit. Raise "
        "it for clients that pipeline more requests.",
        minimum=1,
    )
    queued_max_request_bytes: int = long_(
        1024 * MIB,
        "Maximum bytes of requests in memory over all connections: partly received, or kept until they are "
        "appended. At this limit connections wait in a queue to be read. -1: no limit. Lower it on hosts "
        "with little memory.",
        minimum=-1,
    )
    queued_max_response_bytes: int = int_(
        64 * MIB,
        "Response bytes queued on one connection at which the broker stops reading from it. Lower it on "
        "hosts with little memory.",
        minimum=1,
    )
    queued_max_response_total_bytes: int = long_(
        512 * MIB,
        "Maximum bytes of responses in memory over all connections. Above it, the connection that has "
        "accepted nothing for longest is closed. Lower it on hosts with little memory.",
        minimum=1,
    )
    fetch_max_bytes: int = int_(
        55 * MIB,
        "Maximum bytes of records in one Fetch response. Only a single batch may be larger. Lower it to "
        "bound the memory that each consumer can ask for.",
        minimum=1024,
    )
    max_request_partition_size_limit: int = int_(
        2000,
        "Maximum partitions in one DescribeTopicPartitions response (KIP-966). Lower it if responses to "
        "admin clients become too large for them.",
        minimum=1,
    )
    max_incremental_fetch_session_cache_slots: int = int_(
        1000,
        "Maximum number of fetch sessions kept (KIP-227). Consumers without one send larger requests. Raise "
        "it if the metric tierlog_fetch_sessions_refused_total grows.",
        minimum=0,
    )
    purgatory_max_operations: int = int_(
        100_000,
        "Maximum number of delayed Fetch and Produce operations; further ones are answered at once. So is "
        "a Fetch if delayed ones already wait for a million partitions. Raise it for more than 100,000 "
        "clients that wait at once.",
        minimum=0,
    )

    # Replication
    replica_lag_time_max_ms: int = int_(
        30_000,
        "How long, in milliseconds, a follower may lag before it leaves the in-sync replicas. Raise it if "
        "followers leave the in-sync replicas under bursts of load.",
        minimum=100,
    )
    replica_fetch_wait_max_ms: int = int_(
        500,
        "How long, in milliseconds, a leader holds a follower's Fetch if there is nothing new. Keep it far "
        "below replica.lag.time.max.ms. Raise it to save requests between brokers with many idle "
        "partitions.",
        minimum=1,
    )
    replica_fetch_min_bytes: int = int_(
        1,
        "Minimum bytes for a response to a follower's Fetch. With fewer, the leader waits up to "
        "replica.fetch.wait.max.ms, and acks=all with it. Leave it, unless latency does not matter.",
        minimum=0,
    )
    replica_fetch_max_bytes: int = int_(
        MIB,
        "Maximum bytes that a follower fetches from one partition in one response. Only a single batch may "
        "be larger. Raise it if batches are larger than that.",
        minimum=1,
    )
    replica_fetch_response_max_bytes: int = int_(
        10 * MIB,
        "Maximum bytes that a follower fetches in one response, over all partitions. Raise it if "
        "followers with many busy partitions lag.",
        minimum=1,
    )
    replica_selector_class: str = string_(
        "",
        "Which replica a consumer reads from. Empty: the leader. The rack-aware selector chooses a replica "
        "in the consumer's client.rack (KIP-392); set it to save traffic between zones.",
        choices=("", RACK_AWARE_SELECTOR),
    )
    leader_replication_throttled_rate: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes per second sent to followers that are not in sync, for replicas in the topic setting "
        "leader.replication.throttled.replicas. Set it while partitions are moved (KIP-73).",
        minimum=0,
    )
    follower_replication_throttled_rate: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes per second fetched for replicas that are not in sync and are in the topic setting "
        "follower.replication.throttled.replicas. Set it while partitions are moved (KIP-73).",
        minimum=0,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes per second copied between log directories. Set it if a move slows clients.",
        minimum=1,
    )
    follower_fetch_last_tiered_offset_enable: bool = boolean_(
        False,
        "Whether an empty replica of a tiered topic starts at the first offset that is not in the object "
        "store yet, instead of copying all that its leader has locally (KIP-1023). Set it so that a new "
        "replica is in sync sooner. If it becomes the leader, it has less on local disk, and more reads go "
        "to the object store.",
    )
    num_replica_fetchers: int = int_(
        1,
        "Number of connections to each source broker. They share its partitions. Raise it if followers lag "
        "while CPU and network are idle.",
        minimum=1,
    )
    replica_fetch_backoff_ms: int = int_(
        200,
        "How long, in milliseconds, a follower waits after a failed fetch or connection. Raise it if "
        "followers of a failed broker log too much.",
        minimum=1,
    )

    # New topics and producers
    auto_create_topics_enable: bool = boolean_(
        True,
        "Whether a client's request for the metadata of an unknown topic creates the topic. Disable it if a "
        "mistyped name must not create one.",
    )
    num_partitions: int = int_(
        1,
        "Number of partitions of a topic that is created without one. Raise it if topics that are created "
        "automatically need more consumers.",
        minimum=1,
    )
    default_replication_factor: int = int_(
        1,
        "Replication factor of a topic that is created without one. Set 3 in a cluster.",
        minimum=1,
    )
    producer_id_expiration_ms: int = int_(
        86_400_000,
        "How long, in milliseconds, the state of an idle producer id is kept, to recognise retries. Lower "
        "it if millions of short-lived producers take too much memory.",
        minimum=1,
    )
    transaction_partition_verification_enable: bool = boolean_(
        True,
        "Whether a partition asks the transaction coordinator before the first record of a transaction is "
        "appended (KIP-890). Leave it on: without it, a late record can open a transaction that never ends.",
    )

    # Quotas
    quota_window_num: int = int_(
        11,
        "Number of samples kept to measure client quotas. More allow longer bursts. Leave it, unless "
        "bursts must be longer or shorter.",
        minimum=1,
    )
    quota_window_size_seconds: int = int_(
        1, "Length in seconds of each sample for client quotas. Raise it to allow longer bursts.", minimum=1
    )
    controller_quota_window_num: int = int_(
        11,
        "Number of windows over which unused controller mutations add up. More allow larger bursts. Leave "
        "it, unless bursts of topic creation are refused.",
        minimum=1,
    )
    controller_quota_window_size_seconds: int = int_(
        1,
        "Length in seconds of each window for controller_mutation_rate. Raise it to allow larger bursts.",
        minimum=1,
    )

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Host and port that clients connect to; None: the bound address."""
        return self.client_listeners[0].advertised

    @property
    def client_listeners(self) -> tuple[ListenerSettings, ...]:
        """Listeners in the order of the setting."""
        return parse_listeners(self.listeners, self.advertised_listeners, self.listener_security_protocol_map)

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener for other brokers."""
        return self.inter_broker_listener_name.upper() or self.client_listeners[0].name

    @property
    def admin(self) -> tuple[str, int]:
        """Host and port to bind for the admin HTTP server."""
        return host_and_port("admin.listener", self.admin_listener.removeprefix("http://"))

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
            if not at or not (number.isascii() and number.isdecimal()):
                raise InvalidSetting(f"controller.quorum.voters: {voter!r} is not id@host:port")
            host, port = host_and_port("controller.quorum.voters", address)
            found[int(number)] = f"{'https' if self.quorum_files else 'http'}://{host}:{port}"
        return found

    @property
    def quorum_files(self) -> tuple[Path, ...]:
        """Certificate, key and CA of mutual TLS; empty: no TLS."""
        certificate, key = self.controller_quorum_ssl_certificate, self.controller_quorum_ssl_key
        return tuple(map(Path, filter(None, (certificate, key, self.controller_quorum_ssl_ca))))

    def _check_listeners(self) -> None:
        with_sasl = [listener.name for listener in self.client_listeners if listener.protocol.has_sasl]
        self.check_sasl(with_sasl, self.inter_broker_listener if self.controller_quorum_secret else "")
        names = [listener.name for listener in self.client_listeners]
        if self.inter_broker_listener not in names:
            raise InvalidSetting(
                f"inter.broker.listener.name: listeners has no {self.inter_broker_listener}, only "
                f"{', '.join(names)}"
            )
        self.check_tls(self.client_listeners)

    def validate(self) -> "NodeSettings":
        """Check conditions that involve several settings. Raises InvalidSetting."""
        if not self.log_dirs:
            raise InvalidSetting("log.dirs: at least one directory is needed")
        if len({Path(path).absolute() for path in self.log_dirs}) < len(self.log_dirs):
            raise InvalidSetting("log.dirs: a directory is listed twice")
        self._check_listeners()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidSetting("group.min.session.timeout.ms is above group.max.session.timeout.ms")
        self.check_consumer_groups()
        self.check_delegation_tokens()
        self.check_audit_log()
        self.check_admin_api(self.admin[0], has_tls=bool(self.quorum_files))
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
        _ = self.admin, self.connections_per_address, self.super_user_names
        return self


NODE_SETTINGS = settings_of(NodeSettings)
