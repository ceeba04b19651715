"""Metric catalogue: name, kind, labels and help text of every metric of a node.

`metrics` provides the values, `exposition` writes them, and the reference page and the dashboards
(`tierlog.monitoring`) are generated from here.
Kafka's metrics have the names that the JMX exporter's example rules give them. A metric that Kafka lacks, or
whose Kafka name promtool rejects, begins with `tierlog_`; the process metrics have Prometheus' usual
`process_` names. Kafka's times are in ms, tierlog's in seconds, as usual in Prometheus.
"""

from tierlog.broker.gateway.metric_kinds import Kind, Metric
from tierlog.broker.gateway.metric_kinds import counter as _counter
from tierlog.broker.gateway.metric_kinds import gauge as _gauge
from tierlog.broker.gateway.metric_kinds import milliseconds as _milliseconds

PARTITION = ("topic", "partition")
CLIENT = ("user", "client_id")
GROUP_PARTITION = ("consumergroup", *PARTITION)
GROUP_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
GROUP_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
"""States for which Kafka has metrics: none for a group of the consumer protocol that is moving partitions."""

GROUPS_OF_BROKER = "Covers the groups that this broker coordinates; at most 5 seconds old"
TOPICS = "kafka_server_brokertopicmetrics_"
ALL_TOPICS = "without a topic label: all topics"
LEADS = f"Covers only partitions that this broker leads; {ALL_TOPICS}"
THROTTLES = "kafka_server_remotelogmanager_remote_"
FETCH_THROTTLE = (
    "{} time in ms, in the last minute, that a remote read waited for "
    "remote.log.manager.fetch.max.bytes.per.second (KIP-956)"
)
COPY_THROTTLE = (
    "{} time in ms, in the last minute, that an upload waited for "
    "remote.log.manager.copy.max.bytes.per.second (KIP-956)"
)
THROTTLE_TIME = "Mean throttle time in ms of clients with a quota"


def _attempts(name: str, what: str) -> tuple[Metric, Metric]:
    """Kafka's two metrics of requests of the remote tier."""
    return (
        _counter(f"{TOPICS}{name}requests_total", f"Number of {what}; {ALL_TOPICS}", "topic"),
        _counter(f"{TOPICS}{name}errors_total", f"Failed {what}; {ALL_TOPICS}", "topic"),
    )


def _transfers(name: str, what: str, done: str) -> tuple[Metric, ...]:
    size = _counter(f"{TOPICS}{name}bytes_total", f"Bytes {done} by {what}; {ALL_TOPICS}", "topic")
    return (size, *_attempts(name, what))


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Requests": (
        _counter("kafka_network_requestmetrics_requests_total", "Requests that were answered", "request"),
        _counter(
            "kafka_network_requestmetrics_errors_total",
            "Error codes in responses, one for each partition or other item",
            "request",
            "error",
        ),
        _milliseconds(
            "kafka_network_requestmetrics_totaltimems", "Total time from request to response", "request"
        ),
        _milliseconds(
            "kafka_network_requestmetrics_localtimems",
            "Time in the handler, until it answered or began to wait",
            "request",
        ),
        _milliseconds(
            "kafka_network_requestmetrics_remotetimems",
            "Time spent waiting for records, replicas, an fsync, the object store or other members",
            "request",
        ),
        _gauge(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests waiting in the purgatory",
            "delayed_operation",
        ),
        _counter(
            "tierlog_purgatory_expired_total",
            "Delayed requests that reached their timeout",
            "delayed_operation",
        ),
        _counter(
            "tierlog_purgatory_refused_total",
            "Requests that were answered at once because purgatory.max.operations or the limit of partitions "
            "that delayed Fetch requests wait for was reached",
            "delayed_operation",
        ),
        _gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions (KIP-227)"),
        _gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
            "Partitions in fetch sessions",
        ),
        _counter(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "Fetch sessions evicted for others",
        ),
        _counter(
            "tierlog_fetch_sessions_refused_total",
            "Fetch sessions not created because the slots (max.incremental.fetch.session.cache.slots) "
            "or the memory were used up",
        ),
        _gauge(
            "tierlog_produce_batches_in_validation",
            "Large batches that are being validated or recompressed outside the event loop, or wait for that",
        ),
    ),
    "Clients": (
        _gauge("tierlog_connections", "Open connections"),
        _counter("kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted"),
        _counter(
            "kafka_server_socket_server_metrics_connection_close_total",
            "Connections closed, by reason",
            "reason",
        ),
        _counter(
            "tierlog_connections_refused_total",
            "Connections refused, by limit. For the limits of connection rate, open files and TLS "
            "handshakes: pauses of the listener while connections waited to be accepted",
            "bound",
        ),
        _counter("tierlog_tls_handshakes_total", "TLS handshakes that succeeded"),
        _gauge("tierlog_tls_handshakes_in_progress", "TLS handshakes in progress"),
        _gauge(
            "tierlog_certificate_expiry_timestamp_seconds",
            "When the certificate of a listener expires, in seconds since 1970",
            "listener",
        ),
        _counter(
            "tierlog_certificate_reload_failures_total",
            "Replaced files of keys and certificates that could not be used: the old ones stay in use",
            "listener",
        ),
        _gauge(
            "tierlog_connections_muted",
            "Connections that are not read because their clients exceeded a quota",
        ),
        _gauge(
            "tierlog_connections_saturated",
            "Connections that are not read because max.in.flight.requests.per.connection was reached, or "
            "because the size of those requests reached socket.request.max.bytes",
        ),
        _gauge(
            "tierlog_connections_blocked",
            "Connections whose client has accepted no response bytes for a second",
        ),
        _gauge(
            "tierlog_connections_waiting_for_memory",
            "Connections that are not read because queued.max.request.bytes was reached",
        ),
        _counter(
            "tierlog_connections_memory_waits_total",
            "Times that a connection had to wait for request memory (queued.max.request.bytes)",
        ),
        _gauge(
            "kafka_network_socketserver_memorypoolused",
            "Bytes of requests that are partly received or kept until they are appended",
        ),
        _gauge("tierlog_requests_held_bytes", "Bytes received of requests that cannot be handled yet"),
        _gauge("tierlog_responses_kept_bytes", "Bytes of responses in memory that clients have not accepted"),
        _counter(
            "kafka_server_socket_server_metrics_successful_authentication_total",
            "Logins that succeeded, by listener",
            "listener",
        ),
        _counter(
            "kafka_server_socket_server_metrics_failed_authentication_total",
            "Logins that failed, by listener",
            "listener",
        ),
        _counter(
            "kafka_server_socket_server_metrics_successful_reauthentication_total",
            "Later logins on the same connection that succeeded (KIP-368), by listener",
            "listener",
        ),
        _counter(
            "kafka_server_socket_server_metrics_failed_reauthentication_total",
            "Later logins on the same connection that failed (KIP-368), by listener",
            "listener",
        ),
        _counter(
            "kafka_server_socket_server_metrics_successful_authentication_no_reauth_total",
            "Logins of clients that cannot log in again on the same connection, by listener",
            "listener",
        ),
        _counter(
            "tierlog_connections_expired_total",
            "Connections closed because their login had expired, by listener",
            "listener",
        ),
        _counter("kafka_server_socket_server_metrics_incoming_byte_total", "Bytes received from clients"),
        _counter("kafka_server_socket_server_metrics_outgoing_byte_total", "Bytes sent to clients"),
    ),
    "Groups": (
        _gauge(
            "tierlog_group_member_bytes",
            "Memory of the members of the groups that this broker coordinates. The limit is "
            "group.members.max.bytes",
        ),
        _gauge(
            "tierlog_group_records_skipped",
            "Records of __consumer_offsets that could not be decoded when their partition was last loaded",
        ),
        _gauge(f"{GROUP_MANAGER}numgroups", "Groups that this broker coordinates, of both protocols"),
        *(
            _gauge(f"{GROUP_MANAGER}numgroups{state.lower()}", f"Those of them in the state {state}")
            for state in GROUP_STATES
        ),
        _gauge(
            "kafka_consumergroup_current_offset",
            f"Committed offset of a group. {GROUPS_OF_BROKER}",
            *GROUP_PARTITION,
        ),
        _gauge(
            "kafka_consumergroup_lag",
            "Records from the committed offset to the high watermark. Missing while the partition's leader "
            f"does not answer. {GROUPS_OF_BROKER}",
            *GROUP_PARTITION,
        ),
        _gauge(
            "kafka_consumergroup_lag_sum",
            "Lag of a group in the partitions of a topic. Missing while one of them has none",
            "consumergroup",
            "topic",
        ),
        _gauge(
            "tierlog_group_lag_partitions_left_out",
            "Partitions of groups whose lag is not exported, because there are more than "
            "group.lag.metrics.max.partitions",
        ),
    ),
    "Quotas": (
        _counter("tierlog_quota_throttles_total", "Requests that were throttled", "quota"),
        _counter("tierlog_quota_throttle_seconds_total", "Total throttle time", "quota"),
        _gauge("kafka_server_produce_byte_rate", "Bytes a second produced by clients with a quota", *CLIENT),
        _gauge("kafka_server_produce_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge("kafka_server_fetch_byte_rate", "Bytes a second fetched by clients with a quota", *CLIENT),
        _gauge("kafka_server_fetch_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge(
            "kafka_server_request_request_time",
            "Percentage of the event loop's time used by clients with a quota",
            *CLIENT,
        ),
        _gauge("kafka_server_request_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge(
            "kafka_server_controllermutation_tokens", "Tokens left to create or delete partitions", *CLIENT
        ),
        _gauge("kafka_server_controllermutation_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge(
            "kafka_server_leaderreplication_byte_rate",
            "Bytes a second sent to throttled replicas that are not in sync",
        ),
        _gauge(
            "kafka_server_followerreplication_byte_rate",
            "Bytes a second fetched for throttled replicas that are not in sync",
        ),
        _gauge(
            "tierlog_replication_throttled_partitions",
            "Partitions that a replication throttle limits now. leader: led here with an out-of-sync "
            "replica; follower: followed here and out of sync",
            "direction",
        ),
    ),
    "Topics and logs": (
        _counter(
            "kafka_server_brokertopicmetrics_bytesin_total",
            "Bytes appended by producers; without a topic label: all topics",
            "topic",
        ),
        _counter(
            "kafka_server_brokertopicmetrics_bytesout_total",
            "Bytes fetched by consumers; without a topic label: all topics",
            "topic",
        ),
        _counter(
            "kafka_server_brokertopicmetrics_messagesin_total",
            "Records appended; without a topic label: all topics",
            "topic",
        ),
        _gauge("kafka_log_log_size", "Bytes on local disk", *PARTITION),
        _gauge("kafka_log_log_numlogsegments", "Segments on local disk", *PARTITION),
        _gauge("kafka_log_log_logstartoffset", "First offset, including remote data", *PARTITION),
        _gauge("kafka_log_log_logendoffset", "Offset of the next record", *PARTITION),
        _gauge("tierlog_log_local_start_offset", "First offset on local disk", *PARTITION),
        _gauge(
            "tierlog_partition_high_watermark",
            "High watermark: the first offset that is not committed",
            *PARTITION,
        ),
        _gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker"),
        _gauge("kafka_server_replicamanager_leadercount", "Partitions led by this broker"),
        _gauge(
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions led by this broker with a replica that is not in sync",
        ),
        _gauge(
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas; writes with "
            "acks=all fail",
        ),
        _gauge(
            "kafka_server_replicamanager_atminisrpartitioncount",
            "Partitions led by this broker with exactly min.insync.replicas in-sync replicas",
        ),
        _gauge(
            "kafka_server_replicamanager_reassigningpartitions", "Partitions led by this broker that move"
        ),
        _gauge(
            "tierlog_waiting_moves", "Those whose new replica's broker is fenced, gone, or has a bad disk"
        ),
        _counter(
            "kafka_server_replicamanager_isrshrinks_total",
            "Times that the in-sync replicas of a partition shrank because a follower lagged",
        ),
        _counter(
            "kafka_server_replicamanager_isrexpands_total",
            "Times that the in-sync replicas of a partition grew because a follower caught up",
        ),
        _gauge(
            "kafka_server_replicamanager_offlinereplicacount",
            "Offline replicas: their log or log directory has failed",
        ),
        _milliseconds("kafka_log_logflushstats_logflushrateandtimems", "Time of a log flush (fsync)"),
        _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Offline log directories"),
        _gauge(
            "tierlog_log_directory_full",
            "1 while appends wait for free space in this log directory",
            "directory",
        ),
        _gauge(
            "tierlog_log_directory_low",
            "1 while this log directory has less free space than log.dir.free.bytes.min, or is full",
            "directory",
        ),
        _counter(
            "tierlog_log_pressure_dropped_segments_total",
            "Local segments deleted because of low disk space, by remote.log.disk.pressure.policy",
            "directory",
        ),
        _counter("tierlog_log_pressure_dropped_bytes_total", "Bytes of these segments", "directory"),
        _gauge("tierlog_log_open_files", "Open log files"),
        _gauge(
            "tierlog_log_open_files_limit",
            "Maximum number of open log files (log.max.open.files, or fewer if descriptors are short)",
        ),
        _counter(
            "tierlog_log_files_opened_total",
            "Log files that had to be opened for use; all other uses found the file open",
        ),
        _counter("tierlog_log_files_evicted_total", "Log files closed in favour of others"),
        _gauge(
            "tierlog_log_uncleanable_partitions",
            "Partitions whose cleaning failed; the cleaner skips them until a repair, truncation or restart",
        ),
        _gauge(
            "kafka_log_logcleanermanager_max_dirty_percent", "Dirty ratio of the dirtiest log, in percent"
        ),
        _counter("tierlog_log_cleaner_read_bytes_total", "Bytes read by the log cleaner"),
        _counter("tierlog_log_cleaner_written_bytes_total", "Bytes written by the log cleaner"),
        _counter("tierlog_log_scrub_read_bytes_total", "Bytes read by the scrubber"),
        _counter("tierlog_log_scrub_read_batches_total", "Batches that the scrubber found intact"),
        _counter("tierlog_log_scrub_passes_total", "Complete passes of the scrubber over all logs"),
        _gauge(
            "tierlog_log_scrub_progress_ratio",
            "Fraction of the logs that the current pass has read; 1: no pass is running",
        ),
        _counter("tierlog_log_damage_found_total", "Damaged ranges found in logs"),
        _counter(
            "tierlog_log_damage_repaired_total",
            "Damaged ranges that were restored from another replica or truncated",
        ),
        _gauge(
            "tierlog_log_damaged_partitions",
            "Partitions with a damaged range, which is not served to readers",
        ),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_maxlag",
            "Maximum offset lag of a future replica in another log directory (KIP-113)",
            "client_id",
        ),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_failedpartitionscount",
            "Partitions whose move to another log directory failed, until it is requested again",
            "client_id",
        ),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_deadthreadcount",
            "Moves ended by an internal error",
            "client_id",
        ),
        _gauge("tierlog_directory_moves", "Moves between log directories that are running or waiting"),
        _counter(
            "tierlog_directory_moves_ended_total",
            "Moves between log directories that have ended, by result",
            "end",
        ),
        _counter(
            "tierlog_directory_moves_copied_bytes_total", "Bytes copied by moves between log directories"
        ),
        _gauge(
            "tierlog_rebalance_state",
            "1 for what balancing by itself (auto.rebalance.enable) does on this broker. standby: the active "
            "broker with the lowest id acts; held: its last look found a fault",
            "state",
        ),
        _gauge(
            "tierlog_rebalance_held",
            "1 for each reason for which the last look of balancing moved nothing",
            "reason",
        ),
        _gauge(
            "tierlog_rebalance_imbalance_ratio",
            "Share of its fair load by which the broker that differs most did so when this broker last "
            "measured. 0: the load is too small to matter, or another broker acts",
            "load",
        ),
        _counter(
            "tierlog_rebalance_results_total",
            "Results of measurements. moved: partitions move; even: no move helps; held: a fault prevents it",
            "result",
        ),
        _counter(
            "tierlog_rebalance_moves_begun_total",
            "Partitions that balancing by itself has begun to move. leader: nothing is copied",
            "kind",
        ),
        _counter(
            "tierlog_rebalance_moves_ended_total",
            "Moves of balancing by itself that have ended. failed: refused, cancelled, replaced by another "
            "move, or the topic was deleted",
            "end",
        ),
    ),
    "The remote tier, as in Kafka": (
        *_transfers("remotefetch", "remote reads of Fetch requests, one for each partition", "read"),
        *_transfers("remotecopy", "uploads of segments", "uploaded"),
        _gauge(
            f"{TOPICS}remotecopylagbytes",
            "Bytes of rolled segments that are not uploaded. Topics with remote.log.copy.disable are left "
            f"out. {LEADS}",
            "topic",
        ),
        _gauge(f"{TOPICS}remotecopylagsegments", f"Rolled segments that are not uploaded. {LEADS}", "topic"),
        _gauge(
            "tierlog_remote_copy_lag_seconds",
            "Age of the oldest record that is not uploaded, in rolled and active segments: since its "
            "append if the topic has remote.log.copy.max.lag.ms, otherwise since its timestamp. Without a "
            "topic label: the maximum of all topics. Topics with remote.log.copy.disable are left out",
            "topic",
        ),
        _gauge(
            "tierlog_remote_copy_behind_partitions",
            "Partitions with a record that is older than remote.log.copy.max.lag.ms and not in the object "
            "store. Alert above 0: `tierlog tier status` shows why",
        ),
        _gauge(
            "tierlog_remote_unread_manifests",
            "Partitions that this broker cannot lead until it has read their manifest in the object store, "
            "after `tierlog quorum recover`. Alert if it stays above 0: `tierlog cluster health` shows why",
        ),
        *_attempts("remotedelete", "deletions of queued segments, pages and topics"),
        _gauge(
            "tierlog_remote_cleanup_failing",
            "Topic documents and deletions that fail although the object store responds to other "
            "requests of this broker. They are retried; the log has the reason",
        ),
        _gauge(
            "tierlog_remote_delete_overdue_seconds",
            "Time since the oldest queued deletion was due, by this broker's clock; 0 if none is due. Every "
            "broker reports it. Deletions that a snapshot delays count too",
        ),
        _gauge(
            "tierlog_remote_snapshots",
            "Live snapshots of readers, on the broker with the lowest id; 0 on others. `tierlog tier "
            "snapshots list` lists them",
        ),
        _gauge(
            "tierlog_remote_snapshot_oldest_seconds",
            "Age of the oldest live snapshot, by its creator's clock, on the broker with the lowest id",
        ),
        _gauge(
            "tierlog_remote_snapshot_held_bytes",
            "Bytes of segments that wait for their deletion and that a snapshot holds, without those of "
            "deleted topics, on the broker with the lowest id",
        ),
        *_attempts("buildremotelogauxstate", "starts of a new replica from the remote tier"),
        _gauge(
            "kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize",
            "Readers that wait for one of remote.log.reader.threads places to download (KIP-1100)",
        ),
        _gauge(
            "kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent",
            "Fraction of the remote.log.reader.threads places that are free now (KIP-1100)",
        ),
        _milliseconds(
            "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems",
            "Time of a remote read of one partition, up to remote.fetch.max.wait.ms (KIP-1018). Reads "
            "answered from memory at once are left out",
        ),
    ),
    "The object store": (
        _gauge(
            "tierlog_remote_readers",
            "Partitions of Fetch and ListOffsets requests that wait for data from the object store",
        ),
        _counter(
            "tierlog_remote_readers_refused_total",
            "Partitions of Fetch and ListOffsets requests that were not read, because 1,000 others waited "
            "for the object store; clients try again",
        ),
        _counter("tierlog_remote_cache_hits_total", "Reads of a chunk that was in the cache"),
        _counter(
            "tierlog_remote_cache_misses_total",
            "Reads of a chunk that had to be downloaded, or whose download was joined",
        ),
        _counter(
            "tierlog_remote_cache_read_aheads_total", "Chunks that were downloaded before they were read"
        ),
        _gauge("tierlog_remote_cache_size_bytes", "Bytes of the cached chunks (remote.cache.bytes)"),
        _gauge("tierlog_remote_index_memory_bytes", "Memory of the cached indexes of remote segments"),
        _counter(
            "tierlog_remote_damaged_reads_total",
            "Reads of the object store whose bytes contradict the manifest, also if a second read was right",
        ),
        _gauge(
            "tierlog_remote_quarantined_objects",
            "Objects that have a damaged range or do not exist. This broker does not serve the affected "
            "ranges. Above 0, see docs/runbooks/damaged-object.md",
        ),
        _gauge(
            "tierlog_remote_missing_objects",
            "Objects that the manifest lists and this broker did not find in the object store. Above 0, see "
            "docs/runbooks/damaged-object.md",
        ),
        _counter(
            "tierlog_remote_restored_objects_total",
            "Damaged or missing objects that this broker has replaced from intact copies of their records",
        ),
        _gauge(
            "tierlog_object_store_available",
            "1 while the object store responds. 0 while calls fail at once: until a probe succeeds, or "
            "because the store was refused as unsuitable. The log has the reason",
        ),
        _counter(
            "tierlog_object_store_refused_calls_total",
            "Calls that failed at once while tierlog_object_store_available was 0",
        ),
        _counter("tierlog_object_store_outages_total", "Times the object store became unavailable"),
        _counter(
            "tierlog_object_store_requests_total",
            "Calls of the object store, each with its retries. Operations: get, put, head, delete, list. "
            "Kinds: segment, index, page, root, document, other. Outcomes: ok, not_found, "
            "precondition_failed, corrupt, timeout, unavailable, cancelled, error",
            "operation",
            "kind",
            "outcome",
        ),
        _counter(
            "tierlog_object_store_bytes_total",
            "Bytes of objects that were read and written",
            "operation",
            "kind",
        ),
        Metric(
            "tierlog_object_store_request_seconds",
            Kind.HISTOGRAM,
            "Time of a call of the object store, with its retries",
            ("operation",),
        ),
        _gauge(
            "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent",
            "Fraction of the upload slots that are free, 0 to 1",
        ),
        _gauge(f"{THROTTLES}fetch_throttle_time_avg", FETCH_THROTTLE.format("Mean")),
        _gauge(f"{THROTTLES}fetch_throttle_time_max", FETCH_THROTTLE.format("Maximum")),
        _gauge(f"{THROTTLES}copy_throttle_time_avg", COPY_THROTTLE.format("Mean")),
        _gauge(f"{THROTTLES}copy_throttle_time_max", COPY_THROTTLE.format("Maximum")),
        _gauge("tierlog_remote_copies_running", "Uploads of segments that are running"),
        _counter(
            "tierlog_remote_copy_stalls_total",
            "Uploads that took longer than 30 s plus 1 s per MiB",
        ),
        _counter("tierlog_remote_merges_total", "Merges of small remote segments into one"),
        _counter("tierlog_remote_merged_segments_total", "Remote segments that merges replaced"),
        _counter("tierlog_remote_merged_bytes_total", "Bytes of remote segments that merges replaced"),
        _counter(
            "tierlog_remote_merge_errors_total",
            "Merges and compactions that failed although the object store responds; the old segments stay",
        ),
        _counter("tierlog_remote_compactions_total", "Compactions of partitions in the object store"),
        _counter("tierlog_remote_compacted_segments_total", "Remote segments that compaction replaced"),
        _counter(
            "tierlog_remote_compaction_read_bytes_total",
            "Bytes of remote segments read by compaction, including those read twice",
        ),
        _counter(
            "tierlog_remote_compaction_kept_bytes_total", "Bytes that compaction kept in remote segments"
        ),
        _counter("tierlog_remote_scrub_passes_total", "Complete passes of the bucket scrubber"),
        _gauge(
            "tierlog_remote_scrub_progress_ratio",
            "Fraction of the partitions that the current pass has checked; 1: no pass is running",
        ),
        _counter("tierlog_remote_scrub_segments_total", "Remote segments that the bucket scrubber checked"),
        _counter("tierlog_remote_scrub_read_bytes_total", "Bytes of segments read by the bucket scrubber"),
        _gauge(
            "tierlog_remote_scrub_damaged_segments",
            "Segments with a missing or damaged object, and damaged manifest pages, that the last pass found "
            "in partitions which this broker leads. Changes only at the end of a pass. Above 0, see "
            "docs/runbooks/damaged-object.md",
        ),
        _gauge(
            "tierlog_remote_scrub_unchecked_segments",
            "Segments and manifest pages that the last pass could not check, although the object store "
            "responds: access denied, or archived. The log has the reasons",
        ),
        _gauge(
            "tierlog_remote_scrub_manifest_faults",
            "Manifest roots and documents in the bucket that the last pass found missing, damaged or "
            "outdated. They have been written again. Changes only at the end of a pass. Above 0, see "
            "docs/runbooks/damaged-object.md",
        ),
        _counter(
            "tierlog_remote_manifest_faults_total",
            "Manifest roots and documents that the bucket scrubber, `tier verify` or `tier gc` found "
            "missing, damaged or outdated",
        ),
        _gauge(
            "tierlog_remote_unknown_objects",
            "Unreferenced objects in the bucket, which neither a manifest nor the delete queue names, found "
            "by the last pass on the broker with the lowest id; 0 on others. `tierlog tier gc --dry-run` "
            "lists them",
        ),
        _gauge(
            "tierlog_remote_unknown_bytes", "Bytes of the objects that tierlog_remote_unknown_objects counts"
        ),
        _gauge(
            f"{TOPICS}remotelogsizebytes",
            f"Bytes of segments in the object store. {LEADS}",
            "topic",
        ),
        _gauge(
            f"{TOPICS}remotelogmetadatacount",
            f"Segments that the manifests list. {LEADS}",
            "topic",
        ),
        _gauge("tierlog_remote_log_size_bytes", "Bytes in the object store", *PARTITION),
        _gauge("tierlog_remote_log_segments", "Segments in the object store", *PARTITION),
        _gauge(
            "tierlog_remote_manifest_memory_bytes",
            "Estimated memory of the manifests' entries on this node",
        ),
        _gauge(
            "tierlog_remote_manifest_memory_budget_bytes",
            "Memory for the manifests' entries: three quarters of remote.log.metadata.cache.bytes",
        ),
        _gauge(
            f"{TOPICS}remotedeletelagbytes",
            "Bytes of segments whose objects wait for their deletion. Copies that were not finished, and "
            f"deletions that an earlier version queued, count 0. {LEADS}",
            "topic",
        ),
        _gauge(
            f"{TOPICS}remotedeletelagsegments",
            f"Segments whose objects wait for their deletion. {LEADS}",
            "topic",
        ),
        _gauge(
            "tierlog_remote_delete_queue_size",
            "Segments, pages and deleted topics whose objects wait for their deletion",
        ),
    ),
    "The metadata quorum": (
        _gauge(
            "kafka_controller_kafkacontroller_activecontrollercount",
            "1 on the active controller, else 0. The sum over the cluster must be 1",
        ),
        _gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions of the cluster without a leader. Like all metrics of the controller, every voter "
            "reports it",
        ),
        _gauge(
            "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
            "Partitions of the cluster that another broker than the preferred one leads",
        ),
        _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster"),
        _gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster"),
        _gauge(
            "kafka_controller_kafkacontroller_activebrokercount", "Registered brokers that are not fenced"
        ),
        _gauge("kafka_controller_kafkacontroller_fencedbrokercount", "Registered brokers that are fenced"),
        _gauge("kafka_server_raft_metrics_current_state", "1 for the current role of the node", "state"),
        _gauge("kafka_server_raft_metrics_current_leader", "Node id of the quorum leader; -1: unknown"),
        _gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the quorum"),
        _gauge("kafka_server_raft_metrics_current_epoch", "Raft term; voters only"),
        _gauge("kafka_server_raft_metrics_log_end_offset", "Next index of the metadata log; voters only"),
        _gauge(
            "kafka_server_raft_metrics_high_watermark",
            "First index of the metadata log that is not known to be committed",
        ),
        _gauge("tierlog_metadata_applied_index", "Last index of the metadata log that this node has applied"),
        _gauge("tierlog_metadata_disk_low", "1: the metadata log has less free space than its reserve takes"),
        _gauge("tierlog_format_version", "The cluster's finalised tierlog.format"),
        _gauge("tierlog_format_version_supported", "Highest tierlog.format that this node supports"),
        _gauge("tierlog_version_problems", "Nodes of other versions whose messages this node cannot read"),
    ),
    "The process": (
        _gauge("tierlog_build_info", "Always 1; the commit is empty if it is not known", "version", "commit"),
        Metric(
            "tierlog_loop_lag_seconds",
            Kind.HISTOGRAM,
            "Delay of a timer that is due every 50 ms. Whatever blocks the event loop delays every client. "
            "Delays above 0.1 s are logged, at most every 10 s",
        ),
        _counter(
            "tierlog_unexpected_failures_total",
            "Requests and background tasks that failed because of a bug; each is logged with its traceback. "
            "Above 0, look at the log",
        ),
        _counter("tierlog_trace_spans_total", "Spans of traces; 0 without traces.sampler.ratio"),
        _counter("tierlog_trace_spans_exported_total", "Spans that the collector of traces accepted"),
        _counter(
            "tierlog_audit_entries_total", "Entries of the audit log, by event. Without one, none", "event"
        ),
        _counter(
            "tierlog_audit_entries_dropped_total",
            "Entries of the audit log that its disk did not take, by reason. Above 0, look at the log",
            "reason",
        ),
        _counter("tierlog_audit_denials_collapsed_total", "Denials that the audit log has as a count alone"),
        _counter("tierlog_audit_responses_before_entry_total", "Responses that gave up on a slow disk"),
        _counter("tierlog_audit_topic_entries_total", "Entries that this broker produced to the audit topic"),
        _counter(
            "tierlog_audit_topic_entries_dropped_total", "Entries in the files alone, by reason", "reason"
        ),
        _gauge("tierlog_audit_topic_waiting_bytes", "Entries that wait for the audit topic"),
        _gauge("tierlog_clock_timestamp_seconds", "Wall clock of the node, in seconds since 1970"),
        _gauge("tierlog_delegation_tokens", "Delegation tokens of the cluster"),
        _gauge("tierlog_delegation_token_next_expiry_seconds", "Until the next one expires; -1: none"),
        _counter("process_cpu_seconds_total", "CPU time, user and system"),
        _gauge("process_resident_memory_bytes", "Resident memory"),
        _gauge("process_open_fds", "Open file descriptors"),
        _gauge("process_max_fds", "Maximum number of open file descriptors"),
    ),
}

METRICS = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}
