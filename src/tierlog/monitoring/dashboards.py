"""Dashboards of the cluster, its brokers, topics, consumer groups, quorum and clients.

`DASHBOARDS` has all of them, in the order in which an operator opens them.
"""

from tierlog.monitoring.grafana import Dashboard, dashboard_json, number, panel, row
from tierlog.monitoring.tiering import TIERING

_TOPICS = "kafka_server_brokertopicmetrics_"
_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_REQUESTS = "kafka_network_requestmetrics_"
_SOCKETS = "kafka_server_socket_server_metrics_"
_RAFT = "kafka_server_raft_metrics_"
_REBALANCE = "tierlog_rebalance_"


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _quantile(share: float, histogram: str, by: str = "instance", matchers: str = "") -> str:
    bucket = f"{histogram}_bucket{matchers}"
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({bucket}[$__rate_interval])))"


CLUSTER = Dashboard(
    name="cluster",
    title="cluster",
    description="Is the cluster healthy, and how much does it carry? Start here.",
    variables=(),
    rows=(
        row(
            "Health",
            number("Nodes that respond", "Fewer than the cluster has: docs/runbooks/lost-broker.md.",
                   "count(tierlog_build_info)"),
            number("Nodes that do not respond", "Prometheus cannot scrape them.",
                   "count(up == 0) or vector(0)", bad_from=1),
            number("Fenced brokers", "The controller does not hear them, and others lead their partitions.",
                   f"max({_CONTROLLER}fencedbrokercount)", bad_from=1),
            number("Partitions without a leader", "They serve nothing. `tierlog cluster health` names them.",
                   f"max({_CONTROLLER}offlinepartitionscount)", bad_from=1),
            number("Partitions below min.insync.replicas", "Writes with acks=all fail.",
                   f"sum({_REPLICAS}underminisrpartitioncount)", bad_from=1),
            number("Under-replicated partitions", "Normal for a while after a restart.",
                   f"sum({_REPLICAS}underreplicatedpartitions)", bad_from=1),
            number("Active controllers", "Anything but 1: docs/runbooks/lost-majority.md.",
                   f"sum({_CONTROLLER}activecontrollercount)"),
            number("Brokers", "Registered and not fenced.", f"max({_CONTROLLER}activebrokercount)"),
            number("Topics", "Internal topics included.", f"max({_CONTROLLER}globaltopiccount)"),
            number("Partitions", "Each costs memory and a share of fetch requests.",
                   f"max({_CONTROLLER}globalpartitioncount)"),
            number("Offline replicas", "Their log or log directory has failed.",
                   f"sum({_REPLICAS}offlinereplicacount)", bad_from=1),
            number("Nodes whose object store is unavailable", "docs/runbooks/bucket-down.md",
                   "count(tierlog_object_store_available == 0) or vector(0)", bad_from=1),
        ),
        row(
            "Load",
            panel("Bytes in and out", "Bps", "The rate of producers and of consumers, replication left out.",
                  (f'sum(rate({_TOPICS}bytesin_total{{topic=""}}[$__rate_interval]))', "in"),
                  (f'sum(rate({_TOPICS}bytesout_total{{topic=""}}[$__rate_interval]))', "out")),
            panel("Records in", "short", "Records a second that producers append.",
                  (f'sum(rate({_TOPICS}messagesin_total{{topic=""}}[$__rate_interval]))', "records/s")),
            panel("Bytes in by broker", "Bps",
                  "A broker that stands out leads too much: `tierlog partition balance` spreads leaders.",
                  (_rate(f'{_TOPICS}bytesin_total{{topic=""}}'), "{{instance}}")),
            panel("Time of a Produce request", "ms",
                  "With acks=all it includes the followers. A rise with the same load: look at the brokers.",
                  *((f"histogram_quantile({share}, sum by (le) (rate({_REQUESTS}totaltimems_bucket"
                     '{request="Produce"}[$__rate_interval])))', name)
                    for share, name in ((0.5, "median"), (0.99, "99%")))),
            panel("Requests that failed", "ops",
                  "By error code. NOT_LEADER_OR_FOLLOWER is normal while leaders move.",
                  (f'sum by (error) (rate({_REQUESTS}errors_total{{error!="NONE"}}[$__rate_interval]))',
                   "{{error}}")),
            panel("Largest lag of a group", "short", "Groups that fall behind; details on the lag dashboard.",
                  ("topk(5, max by (consumergroup, topic) (kafka_consumergroup_lag_sum))",
                   "{{consumergroup}} {{topic}}")),
        ),
        row(
            "Capacity",
            panel("CPU time by node", "percentunit", "A node uses one core: near 1 it is saturated.",
                  (_rate("process_cpu_seconds_total"), "{{instance}}")),
            panel("Bytes on local disks", "bytes", "All replicas. Tiered topics keep local.retention.ms.",
                  ("sum by (instance) (kafka_log_log_size)", "{{instance}}")),
            panel("Bytes in the bucket", "bytes", "Segments of all topics, each counted once.",
                  (f'sum({_TOPICS}remotelogsizebytes{{topic=""}})', "bucket")),
        ),
        row(
            "Balancing by itself",
            panel("Imbalance", "percentunit", "How far the broker that differs most is from its fair share. "
                  "Moves begin at 25%. 0 while auto.rebalance.enable is off.",
                  (f"max by (load) ({_REBALANCE}imbalance_ratio)", "{{load}}")),
            panel("Moves that began and ended", "short", "In the last hour. A move fails if it is cancelled "
                  "or its topic is deleted.",
                  (f"sum by (kind) (increase({_REBALANCE}moves_begun_total[1h]))", "{{kind}} begun"),
                  (f"sum by (end) (increase({_REBALANCE}moves_ended_total[1h]))", "{{end}}")),
            panel("Why nothing moves", "short", "1 for each reason: docs/howto/balance.md",
                  (f"max by (reason) ({_REBALANCE}held)", "{{reason}}")),
            panel("Brokers by state", "short", "One broker acts, the others are on standby.",
                  (f"sum by (state) ({_REBALANCE}state)", "{{state}}")),
        ),
    ),
)  # fmt: skip

BROKER = Dashboard(
    name="broker",
    title="broker",
    description="One node or several beside each other: requests, event loop, replication, disks, process.",
    rows=(
        row(
            "Requests",
            panel("Requests", "reqps", "By API. Fetch and Produce dominate; many Metadata requests are not "
                  "normal.",
                  (_rate(f"{_REQUESTS}requests_total", "request"), "{{request}}")),
            panel("Time of requests (99%)", "ms", "Fetch waits for records up to fetch.max.wait.ms: that is "
                  "no fault.",
                  (_quantile(0.99, f"{_REQUESTS}totaltimems", "request"), "{{request}}")),
            panel("Time of a Produce request by part (99%)", "ms",
                  "Local: this broker's CPU and page cache. Remote: waiting for followers or an fsync.",
                  (_quantile(0.99, f"{_REQUESTS}localtimems", matchers='{request="Produce"}'),
                   "{{instance}} local"),
                  (_quantile(0.99, f"{_REQUESTS}remotetimems", matchers='{request="Produce"}'),
                   "{{instance}} remote")),
            panel("Errors by code", "ops", "One for each partition or other item of a response.",
                  (_rate(f'{_REQUESTS}errors_total{{error!="NONE"}}', "request, error"),
                   "{{request}} {{error}}")),
            panel("Delayed requests", "short", "Requests that wait in the purgatory. Fetch: consumers at the "
                  "end of their log. Produce: followers are slow.",
                  ("sum by (delayed_operation) (kafka_server_delayedoperationpurgatory_purgatorysize)",
                   "{{delayed_operation}}")),
            panel("Fetch sessions", "short",
                  "Evictions again and again: raise max.incremental.fetch.session.cache.slots.",
                  ("sum by (instance) (kafka_server_fetchsessioncache_numincrementalfetchsessions)",
                   "{{instance}}"),
                  ("sum by (instance) (rate(kafka_server_fetchsessioncache_incrementalfetchsession"
                   "evictions_total[$__rate_interval]))", "{{instance}} evictions/s")),
        ),
        row(
            "Event loop and process",
            panel("Delay of the event loop (99%)", "s",
                  "Everything that a node does waits for this. Above 0.1 s the log names the cause.",
                  (_quantile(0.99, "tierlog_loop_lag_seconds"), "{{instance}}")),
            panel("CPU time", "percentunit", "1 is one core, which is all that the event loop can use.",
                  (_rate("process_cpu_seconds_total"), "{{instance}}")),
            panel("Resident memory", "bytes", "It should become level within a day.",
                  ("max by (instance) (process_resident_memory_bytes)", "{{instance}}")),
            panel("Open files, share of the limit", "percentunit", "Near 1, connections are refused.",
                  ("max by (instance) (process_open_fds / process_max_fds)", "{{instance}}")),
            panel("Failures because of a bug", "short", "Above 0, the log has a traceback. Report it.",
                  ("sum by (instance) (increase(tierlog_unexpected_failures_total[1h]))", "{{instance}}")),
            panel("Clock, seconds ahead of Prometheus", "s",
                  "A node that differs from the others: docs/runbooks/wrong-clock.md.",
                  ("max by (instance) (tierlog_clock_timestamp_seconds - "
                   "timestamp(tierlog_clock_timestamp_seconds))", "{{instance}}")),
        ),
        row(
            "Replication",
            panel("Partitions that are led, and replicas", "short", "Leaders should be spread evenly.",
                  (f"max by (instance) ({_REPLICAS}leadercount)", "{{instance}} led"),
                  (f"max by (instance) ({_REPLICAS}partitioncount)", "{{instance}} replicas")),
            panel("Under-replicated, and at or below min.insync.replicas", "short",
                  "Below the minimum, writes with acks=all fail. At the minimum, one more fault makes them "
                  "fail.",
                  (f"max by (instance) ({_REPLICAS}underreplicatedpartitions)",
                   "{{instance}} under-replicated"),
                  (f"max by (instance) ({_REPLICAS}atminisrpartitioncount)", "{{instance}} at the minimum"),
                  (f"max by (instance) ({_REPLICAS}underminisrpartitioncount)", "{{instance}} below")),
            panel("Changes of in-sync sets", "ops", "Shrinks and expansions again and again: a follower is "
                  "at its limit, or the network is.",
                  (_rate(f"{_REPLICAS}isrshrinks_total"), "{{instance}} shrinks"),
                  (_rate(f"{_REPLICAS}isrexpands_total"), "{{instance}} expands")),
            panel("Moves of partitions", "short", "Those that wait need a broker that is away or full.",
                  (f"max by (instance) ({_REPLICAS}reassigningpartitions)", "{{instance}} moving"),
                  ("max by (instance) (tierlog_waiting_moves)", "{{instance}} waiting")),
            panel("Throttled replication", "Bps", "Traffic that a replication throttle limits.",
                  ("max by (instance) (kafka_server_leaderreplication_byte_rate)", "{{instance}} sent"),
                  ("max by (instance) (kafka_server_followerreplication_byte_rate)",
                   "{{instance}} fetched")),
            panel("Moves between log directories", "short", "Failed ones stay until requested again.",
                  ("max by (instance) (tierlog_directory_moves)", "{{instance}}"),
                  ("max by (instance) (kafka_server_replicaalterlogdirsmanager_failedpartitionscount)",
                   "{{instance}} failed")),
        ),
        row(
            "Disks",
            panel("Bytes on local disk", "bytes", "Compare it with the size of the disk.",
                  ("sum by (instance) (kafka_log_log_size)", "{{instance}}")),
            panel("Log directories: low, full, offline", "short",
                  "Low or full: docs/runbooks/full-disk.md. Offline: the disk has failed.",
                  ("sum by (instance) (tierlog_log_directory_low)", "{{instance}} low"),
                  ("sum by (instance) (tierlog_log_directory_full)", "{{instance}} full"),
                  ("max by (instance) (kafka_log_logmanager_offlinelogdirectorycount)",
                   "{{instance}} offline")),
            panel("Time of an fsync (99%)", "ms", "A disk that wears out shows here first.",
                  (_quantile(0.99, "kafka_log_logflushstats_logflushrateandtimems"), "{{instance}}")),
            panel("Log files that are opened and evicted", "ops",
                  "Evictions again and again: raise log.max.open.files.",
                  (_rate("tierlog_log_files_opened_total"), "{{instance}} opened"),
                  (_rate("tierlog_log_files_evicted_total"), "{{instance}} evicted")),
            panel("Log cleaner", "Bps", "Compaction. A dirty ratio that rises on the topic dashboard: the "
                  "cleaner is too slow.",
                  (_rate("tierlog_log_cleaner_read_bytes_total"), "{{instance}} read"),
                  (_rate("tierlog_log_cleaner_written_bytes_total"), "{{instance}} written")),
            panel("Damage in logs", "short", "Damaged partitions need docs/runbooks/damaged-log.md.",
                  ("max by (instance) (tierlog_log_damaged_partitions)", "{{instance}} damaged"),
                  ("max by (instance) (tierlog_log_uncleanable_partitions)", "{{instance}} not cleanable"),
                  ("sum by (instance) (increase(tierlog_log_damage_repaired_total[1h]))",
                   "{{instance}} repaired in an hour")),
        ),
    ),
)  # fmt: skip

TOPIC = Dashboard(
    name="topic",
    title="topic",
    description="Rates, sizes and offsets of topics, in both tiers.",
    variables=("topic",),
    source="kafka_log_log_size",
    rows=(
        row(
            "Traffic",
            panel("Bytes in", "Bps", "Producers of each topic.",
                  (_rate(f"{_TOPICS}bytesin_total", "topic"), "{{topic}}")),
            panel("Bytes out", "Bps", "Consumers. Many times the bytes in: several groups read the topic.",
                  (_rate(f"{_TOPICS}bytesout_total", "topic"), "{{topic}}")),
            panel("Records in", "short", "Records a second.",
                  (_rate(f"{_TOPICS}messagesin_total", "topic"), "{{topic}}")),
            panel("Growth of the busiest partitions", "short",
                  "Records a second. One partition above the others is hot: its keys are not spread evenly.",
                  ("topk(10, max by (topic, partition) "
                   "(rate(tierlog_partition_high_watermark[$__rate_interval])))",
                   "{{topic}} {{partition}}")),
            panel("Bytes read from the bucket", "Bps", "Consumers that are behind local retention.",
                  (_rate(f"{_TOPICS}remotefetchbytes_total", "topic"), "{{topic}}")),
            panel("Bytes uploaded", "Bps", "It should follow the bytes in.",
                  (_rate(f"{_TOPICS}remotecopybytes_total", "topic"), "{{topic}}")),
        ),
        row(
            "Size",
            panel("Bytes on local disks", "bytes", "All replicas.",
                  ("sum by (topic) (kafka_log_log_size)", "{{topic}}")),
            panel("Bytes in the bucket", "bytes", "Each segment is counted once.",
                  (f"sum by (topic) ({_TOPICS}remotelogsizebytes)", "{{topic}}")),
            panel("Local segments of the largest partitions", "short", "Each has open files and an index.",
                  ("topk(10, max by (topic, partition) (kafka_log_log_numlogsegments))",
                   "{{topic}} {{partition}}")),
            panel("Records in each partition", "short", "From the first offset in either tier to the last.",
                  ("max by (topic, partition) (kafka_log_log_logendoffset) - "
                   "max by (topic, partition) (kafka_log_log_logstartoffset)", "{{topic}} {{partition}}")),
            panel("Records that are only in the bucket", "short",
                  "Their reads take a request to the object store.",
                  ("max by (topic, partition) (tierlog_log_local_start_offset) - "
                   "max by (topic, partition) (kafka_log_log_logstartoffset)", "{{topic}} {{partition}}")),
            panel("Offsets that are not committed", "short",
                  "Appended and not replicated. It stays near 0 unless followers are slow.",
                  ("max by (topic, partition) (kafka_log_log_logendoffset) - "
                   "max by (topic, partition) (tierlog_partition_high_watermark)",
                   "{{topic}} {{partition}}")),
        ),
        row(
            "Upkeep",
            panel("Bytes to upload", "bytes", "Rolled segments that wait for their upload.",
                  (f"sum by (topic) ({_TOPICS}remotecopylagbytes)", "{{topic}}")),
            panel("Age of the oldest record that is not uploaded", "s", "See the tiering dashboard.",
                  ("max by (topic) (tierlog_remote_copy_lag_seconds)", "{{topic}}")),
            panel("Dirty ratio of the dirtiest log", "percent",
                  "Above min.cleanable.dirty.ratio for long: the log cleaner is too slow. By node.",
                  ("max by (instance) (kafka_log_logcleanermanager_max_dirty_percent)", "{{instance}}")),
        ),
    ),
)  # fmt: skip

_GROUP = "consumergroup"
LAG = Dashboard(
    name="consumer-lag",
    title="consumer lag",
    description="How far consumer groups are behind, and whether they catch up. Page: docs/howto/groups.md.",
    variables=(_GROUP, "topic"),
    source="kafka_consumergroup_lag_sum",
    rows=(
        row(
            "Lag",
            panel("Lag by group and topic", "short",
                  "Records. A line that only rises: the group is slower than the producers, or stands still.",
                  (f"max by ({_GROUP}, topic) (kafka_consumergroup_lag_sum)", "{{consumergroup}} {{topic}}")),
            panel("Partitions with the largest lag", "short",
                  "One partition alone: a hot key, or a record that its consumer cannot handle.",
                  (f"topk(10, max by ({_GROUP}, topic, partition) (kafka_consumergroup_lag))",
                   "{{consumergroup}} {{topic}} {{partition}}")),
            panel("Time until the group has caught up", "s",
                  "At the rate of the last minutes. Missing while the lag does not shrink.",
                  (f"(max by ({_GROUP}, topic) (kafka_consumergroup_lag_sum) / "
                   f"clamp_min(-max by ({_GROUP}, topic) (deriv(kafka_consumergroup_lag_sum[5m])), 0)) < Inf"
                   f" or max by ({_GROUP}, topic) (kafka_consumergroup_lag_sum) == 0",
                   "{{consumergroup}} {{topic}}")),
        ),
        row(
            "Rates",
            panel("Records a second that groups commit", "short",
                  "0 while records arrive: consumers are stopped, or do not commit.",
                  (f"sum by ({_GROUP}, topic) (deriv(kafka_consumergroup_current_offset[5m]))",
                   "{{consumergroup}} {{topic}}")),
            panel("Records a second that producers append", "short",
                  "Compare it with the committed records.",
                  (f"sum by (topic) (rate({_TOPICS}messagesin_total[$__rate_interval]))", "{{topic}}")),
            panel("Committed offsets", "short", "A step back is a reset of the group.",
                  (f"max by ({_GROUP}, topic, partition) (kafka_consumergroup_current_offset)",
                   "{{consumergroup}} {{topic}} {{partition}}")),
        ),
        row(
            "Coordinators",
            panel("Partitions of groups whose lag is not exported", "short",
                  "Above 0, raise group.lag.metrics.max.partitions or delete groups.",
                  ("max by (instance) (tierlog_group_lag_partitions_left_out)", "{{instance}}")),
            panel("Memory of members", "bytes", "The limit is group.members.max.bytes.",
                  ("max by (instance) (tierlog_group_member_bytes)", "{{instance}}")),
            panel("Time of requests of groups (99%)", "ms",
                  "JoinGroup and SyncGroup wait for other members: that is a rebalance.",
                  (_quantile(0.99, f"{_REQUESTS}totaltimems", "request",
                             '{request=~"JoinGroup|SyncGroup|Heartbeat|OffsetCommit|ConsumerGroupHeartbeat"}'),
                   "{{request}}")),
        ),
    ),
)  # fmt: skip

QUORUM = Dashboard(
    name="quorum",
    title="metadata quorum",
    description="The Raft quorum that keeps the metadata. Runbook: lost-majority.",
    rows=(
        row(
            "Health",
            number("Active controllers", "Anything but 1: docs/runbooks/lost-majority.md.",
                   f"sum({_CONTROLLER}activecontrollercount)"),
            number("Voters", "A majority of them must run.", f"max({_RAFT}number_of_voters)"),
            number("Epoch", "Each election raises it. It should not change for days.",
                   f"max({_RAFT}current_epoch)"),
            number("Format", "The cluster's finalised tierlog.format.", "min(tierlog_format_version)"),
            number("Format that all nodes support", "Above the format: `tierlog cluster finalize`.",
                   "min(tierlog_format_version_supported)"),
            number("Version problems", "Nodes of other versions whose messages a node cannot read.",
                   "max(tierlog_version_problems)", bad_from=1),
        ),
        row(
            "Raft",
            panel("Role of each node", "short", "One leader; the others are followers or observers.",
                  (f"max by (instance, state) ({_RAFT}current_state)", "{{instance}} {{state}}")),
            panel("Leader that each node knows", "short", "Nodes that differ for long are cut off. -1: none.",
                  (f"max by (instance) ({_RAFT}current_leader)", "{{instance}}")),
            panel("Elections in an hour", "short", "Elections without a restart: the event loop, the disk or "
                  "the network of voters is too slow.",
                  (f"max(changes({_RAFT}current_epoch[1h]))", "elections")),
            panel("Records of metadata", "short", "A second. Thousands: a topic with many partitions moves.",
                  (f"max(rate({_RAFT}high_watermark[$__rate_interval]))", "records/s")),
            panel("Metadata that a node has not applied", "short",
                  "Entries behind the quorum's end. A node that does not catch up serves stale metadata.",
                  (f"max by (job) ({_RAFT}high_watermark) - on (job) group_right () "
                   "max by (job, instance) (tierlog_metadata_applied_index) - 1", "{{instance}}")),
            panel("Entries that are not committed", "short", "Above 0 for long: no majority acknowledges.",
                  (f"max by (instance) ({_RAFT}log_end_offset - {_RAFT}high_watermark)", "{{instance}}")),
        ),
        row(
            "Cluster",
            panel("Brokers", "short", "Fenced ones are not heard by the controller.",
                  (f"max({_CONTROLLER}activebrokercount)", "active"),
                  (f"max({_CONTROLLER}fencedbrokercount)", "fenced")),
            panel("Partitions without a leader", "short", "They serve nothing.",
                  (f"max({_CONTROLLER}offlinepartitionscount)", "partitions")),
            panel("Partitions whose manifest is not read", "short",
                  "After `tierlog quorum recover`: docs/runbooks/lost-majority-for-good.md.",
                  ("max by (instance) (tierlog_remote_unread_manifests)", "{{instance}}")),
        ),
    ),
)  # fmt: skip

_CLIENT = "user, client_id"
CLIENTS = Dashboard(
    name="clients",
    title="clients",
    description="Connections, logins, TLS, request memory and quotas.",
    rows=(
        row(
            "Connections",
            panel("Open connections", "short", "A rise without an end: clients that do not close theirs.",
                  ("max by (instance) (tierlog_connections)", "{{instance}}")),
            panel("Connections accepted and closed", "ops",
                  "Many of both: clients that connect for each request.",
                  (_rate(f"{_SOCKETS}connection_creation_total"), "{{instance}} accepted"),
                  (_rate(f"{_SOCKETS}connection_close_total", "reason"), "closed: {{reason}}")),
            panel("Connections refused, by limit", "ops", "The limits: docs/reference/settings.md.",
                  (_rate("tierlog_connections_refused_total", "bound"), "{{bound}}")),
            panel("Connections that are not read", "short",
                  "Muted: over a quota. Saturated: too many requests at once. Waiting: no request memory is "
                  "left.",
                  ("max by (instance) (tierlog_connections_muted)", "{{instance}} muted"),
                  ("max by (instance) (tierlog_connections_saturated)", "{{instance}} saturated"),
                  ("max by (instance) (tierlog_connections_waiting_for_memory)", "{{instance}} waiting")),
            panel("Connections that take no responses", "short", "Clients that hang, or a slow network.",
                  ("max by (instance) (tierlog_connections_blocked)", "{{instance}}")),
            panel("Traffic with clients", "Bps", "All bytes, also of replication.",
                  (_rate(f"{_SOCKETS}incoming_byte_total"), "{{instance}} received"),
                  (_rate(f"{_SOCKETS}outgoing_byte_total"), "{{instance}} sent")),
        ),
        row(
            "Memory",
            panel("Memory of requests", "bytes", "The limit is queued.max.request.bytes.",
                  ("max by (instance) (kafka_network_socketserver_memorypoolused)", "{{instance}}")),
            panel("Memory of responses", "bytes", "Responses that clients have not accepted.",
                  ("max by (instance) (tierlog_responses_kept_bytes)", "{{instance}}")),
            panel("Waits for request memory", "ops", "Above 0, producers are slowed down.",
                  (_rate("tierlog_connections_memory_waits_total"), "{{instance}}")),
        ),
        row(
            "Logins and TLS",
            panel("Logins", "ops", "Failures again and again: a wrong password, or an attack.",
                  (_rate(f"{_SOCKETS}successful_authentication_total", "listener"),
                   "{{listener}} succeeded"),
                  (_rate(f"{_SOCKETS}failed_authentication_total", "listener"), "{{listener}} failed")),
            panel("TLS handshakes", "ops", "They cost CPU: clients should keep their connections.",
                  (_rate("tierlog_tls_handshakes_total"), "{{instance}}"),
                  ("max by (instance) (tierlog_tls_handshakes_in_progress)", "{{instance}} in progress")),
            panel("Days until certificates expire", "d",
                  "Replace the files before 0. Brokers read replaced files without a restart.",
                  ("min by (instance, listener) (tierlog_certificate_expiry_timestamp_seconds - time()) "
                   "/ 86400", "{{instance}} {{listener}}")),
            panel("Certificates that could not be read again", "short", "The old ones stay in use.",
                  ("sum by (instance) (increase(tierlog_certificate_reload_failures_total[1h]))",
                   "{{instance}}")),
            panel("Connections closed because a login expired", "ops",
                  "Clients that do not log in again (KIP-368) reconnect.",
                  (_rate("tierlog_connections_expired_total", "listener"), "{{listener}}")),
            panel("Delegation tokens", "short", "`tierlog token describe` lists them.",
                  ("max(tierlog_delegation_tokens)", "tokens")),
        ),
        row(
            "Quotas",
            panel("Bytes produced by clients with a quota", "Bps", "Compare it with producer_byte_rate.",
                  (f"sum by ({_CLIENT}) (kafka_server_produce_byte_rate)", "{{user}} {{client_id}}")),
            panel("Bytes fetched by clients with a quota", "Bps", "Compare it with consumer_byte_rate.",
                  (f"sum by ({_CLIENT}) (kafka_server_fetch_byte_rate)", "{{user}} {{client_id}}")),
            panel("Throttle time of clients with a quota (mean)", "ms", "Above 0, quotas slow the client.",
                  (f"max by ({_CLIENT}) (kafka_server_produce_throttle_time)",
                   "{{user}} {{client_id}} produce"),
                  (f"max by ({_CLIENT}) (kafka_server_fetch_throttle_time)",
                   "{{user}} {{client_id}} fetch")),
            panel("Requests that were throttled", "ops", "By kind of quota.",
                  (_rate("tierlog_quota_throttles_total", "quota"), "{{quota}}")),
        ),
        row(
            "Audit log",
            panel("Entries by event", "ops", "Many denials: a client without rights, or an attack.",
                  (_rate("tierlog_audit_entries_total", "event"), "{{event}}")),
            panel("Entries that were lost", "short", "Everything above 0 needs docs/howto/audit-log.md.",
                  ("sum by (instance, reason) (increase(tierlog_audit_entries_dropped_total[1h]))",
                   "{{instance}} {{reason}}")),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (CLUSTER, BROKER, TOPIC, LAG, TIERING, QUORUM, CLIENTS)


def dashboard_files() -> dict[str, str]:
    """File name -> content, for all dashboards."""
    return {f"{one.name}.json": dashboard_json(one) for one in DASHBOARDS}
