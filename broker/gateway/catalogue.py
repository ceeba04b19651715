"""Every metric of a node: name, kind, labels, meaning. `metrics` fills them in, `exposition` writes them, and
the reference page is drawn from here.

Names of Kafka's metrics are those that the JMX exporter's example rules give them, but where promtool finds
a problem in one; those, and what Kafka has no metric for, begin with `tierlog_`. Kafka's times are in ms,
tierlog's in seconds, as in Prometheus.
"""

from dataclasses import dataclass
from enum import StrEnum

PARTITION = ("topic", "partition")
CLIENT = ("user", "client_id")
THROTTLE_TIME = "Mean ms that they were told to wait"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`scale`: from the unit that it is kept in to that of its name."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0


def _counter(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, doc, labels)


def _gauge(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, doc, labels)


def _milliseconds(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, doc, labels, 1000.0)


SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Requests": (
        _counter("kafka_network_requestmetrics_requests_total", "Requests answered", "request"),
        _counter(
            "kafka_network_requestmetrics_errors_total",
            "Error codes in answers, one for each partition or other item that they are about",
            "request",
            "error",
        ),
        _milliseconds("kafka_network_requestmetrics_totaltimems", "From a request to its answer", "request"),
        _milliseconds(
            "kafka_network_requestmetrics_localtimems",
            "What of it the handler took before it answered or began to wait",
            "request",
        ),
        _milliseconds(
            "kafka_network_requestmetrics_remotetimems",
            "What of it was waiting: for records, replicas, an fsync, the object store, other members",
            "request",
        ),
        _gauge(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "Requests that wait in the purgatory",
            "delayed_operation",
        ),
        _counter(
            "tierlog_purgatory_expired_total",
            "Requests that waited for all of their time",
            "delayed_operation",
        ),
        _counter(
            "tierlog_purgatory_refused_total",
            "Requests answered at once since purgatory.max.operations was reached, or the partitions "
            "that fetches may wait for",
            "delayed_operation",
        ),
        _gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions (KIP-227)"),
        _gauge(
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
            "Partitions in fetch sessions",
        ),
        _counter(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "Sessions that lost their slot to others",
        ),
        _counter(
            "tierlog_fetch_sessions_refused_total",
            "Sessions not opened for want of a slot (max.incremental.fetch.session.cache.slots) or of room",
        ),
        _gauge(
            "tierlog_produce_batches_in_examination",
            "Large batches whose records are looked at or compressed beside the event loop, or wait for it",
        ),
    ),
    "Clients": (
        _gauge("tierlog_connections", "Open connections"),
        _counter("kafka_server_socket_server_metrics_connection_creation_total", "Connections accepted"),
        _counter(
            "kafka_server_socket_server_metrics_connection_close_total", "Connections ended, by why", "reason"
        ),
        _counter(
            "tierlog_connections_refused_total",
            "Connections refused, by the bound that was reached; for the rate of connections and open files: "
            "how often accepting rested while some waited",
            "bound",
        ),
        _gauge("tierlog_connections_muted", "Connections not read since their clients are over a quota"),
        _gauge(
            "tierlog_connections_saturated",
            "Connections not read since max.in.flight.requests.per.connection was reached, "
            "or, in bytes of these requests, socket.request.max.bytes",
        ),
        _gauge(
            "tierlog_connections_blocked",
            "Connections whose client has taken nothing of what there is for it for a second",
        ),
        _gauge(
            "tierlog_connections_waiting_for_room",
            "Connections not read since queued.max.request.bytes was reached",
        ),
        _counter("tierlog_connections_room_waits_total", "How often one had to wait for that"),
        _gauge(
            "kafka_network_socketserver_memorypoolused",
            "Bytes of requests that are received in part or kept until they are appended",
        ),
        _gauge("tierlog_requests_held_bytes", "Bytes received of requests that cannot be handled yet"),
        _gauge("tierlog_responses_kept_bytes", "Bytes of responses in memory that clients have not taken"),
        _counter("kafka_server_socket_server_metrics_incoming_byte_total", "Bytes received from clients"),
        _counter("kafka_server_socket_server_metrics_outgoing_byte_total", "Bytes sent to clients"),
    ),
    "Groups": (
        _gauge(
            "tierlog_group_member_bytes",
            "Memory that members of the groups coordinated here hold, at most group.members.max.bytes",
        ),
        _gauge(
            "tierlog_group_records_skipped",
            "Records of the offsets topic that could not be used when their partition was last loaded",
        ),
    ),
    "Quotas": (
        _counter("tierlog_quota_throttles_total", "Requests whose client was told to wait", "quota"),
        _counter("tierlog_quota_throttle_seconds_total", "How long in all", "quota"),
        _gauge("kafka_server_produce_byte_rate", "Bytes a second produced, by those with a quota", *CLIENT),
        _gauge("kafka_server_produce_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge("kafka_server_fetch_byte_rate", "Bytes a second fetched, by those with a quota", *CLIENT),
        _gauge("kafka_server_fetch_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge("kafka_server_request_request_time", "Percent of the event loop's time", *CLIENT),
        _gauge("kafka_server_request_throttle_time", THROTTLE_TIME, *CLIENT),
        _gauge(
            "kafka_server_controllermutation_tokens", "Partitions that may be created or deleted", *CLIENT
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
            "Partitions here that a throttled rate holds for now: led, with a replica that is not in sync, "
            "or followed and not in sync",
            "direction",
        ),
    ),
    "Topics and logs": (
        _counter(
            "kafka_server_brokertopicmetrics_bytesin_total",
            "Bytes of batches appended; without a topic: of all",
            "topic",
        ),
        _counter(
            "kafka_server_brokertopicmetrics_bytesout_total",
            "Bytes of batches that consumers got; without a topic: of all",
            "topic",
        ),
        _counter(
            "kafka_server_brokertopicmetrics_messagesin_total",
            "Records appended; without a topic: of all",
            "topic",
        ),
        _gauge("kafka_log_log_size", "Bytes on local disk", *PARTITION),
        _gauge("kafka_log_log_numlogsegments", "Segments on local disk", *PARTITION),
        _gauge("kafka_log_log_logstartoffset", "First offset, over both tiers", *PARTITION),
        _gauge("kafka_log_log_logendoffset", "Next offset", *PARTITION),
        _gauge("tierlog_log_local_start_offset", "First offset on local disk", *PARTITION),
        _gauge("tierlog_partition_high_watermark", "First offset that is not committed", *PARTITION),
        _gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker"),
        _gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads"),
        _gauge(
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions led here of which a replica is not in sync",
        ),
        _gauge(
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused",
        ),
        _gauge(
            "kafka_server_replicamanager_atminisrpartitioncount",
            "Partitions led here with as many replicas in sync as min.insync.replicas",
        ),
        _counter(
            "kafka_server_replicamanager_isrshrinks_total", "Replicas that fell behind left in-sync sets"
        ),
        _counter(
            "kafka_server_replicamanager_isrexpands_total", "Replicas that caught up joined in-sync sets"
        ),
        _gauge(
            "kafka_server_replicamanager_offlinereplicacount",
            "Replicas whose log or log directory has failed",
        ),
        _milliseconds("kafka_log_logflushstats_logflushrateandtimems", "fsync of a log"),
        _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Log directories that have failed"),
        _gauge("tierlog_log_directory_full", "1 while appends wait for room in it", "directory"),
        _gauge("tierlog_log_open_files", "Files of logs that are kept open"),
        _gauge("tierlog_log_open_files_limit", "How many may be (log.max.open.files)"),
        _counter(
            "tierlog_log_files_opened_total",
            "Uses of a log's file that found it closed; all other uses found it open",
        ),
        _counter("tierlog_log_files_evicted_total", "Files of logs that were closed to open others"),
        _gauge(
            "tierlog_log_uncleanable_partitions",
            "Logs whose compaction failed, left alone until the next start",
        ),
        _gauge("kafka_log_logcleanermanager_max_dirty_percent", "Dirty share of the dirtiest log"),
        _counter("tierlog_log_cleaner_read_bytes_total", "Bytes that compaction read"),
        _counter("tierlog_log_cleaner_written_bytes_total", "Bytes that compaction kept"),
        _counter("tierlog_log_scrub_read_bytes_total", "Bytes that the scrubber read"),
        _counter("tierlog_log_scrub_read_batches_total", "Batches that it found whole"),
        _counter("tierlog_log_scrub_passes_total", "Times that it went through all logs"),
        _gauge("tierlog_log_scrub_progress_ratio", "Share of the logs that its pass has read; 1: none runs"),
        _counter("tierlog_log_damage_found_total", "Damaged ranges that were found in logs"),
        _counter(
            "tierlog_log_damage_repaired_total", "Damaged ranges put back from another replica, or cut off"
        ),
        _gauge("tierlog_log_damaged_partitions", "Logs of which a range is damaged, and refused to readers"),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_maxlag",
            "Most offsets that a copy lacks which is to take its log's place in another directory (KIP-113)",
            "client_id",
        ),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_failedpartitionscount",
            "Partitions that could not move to another log directory, until they are moved again",
            "client_id",
        ),
        _gauge(
            "kafka_server_replicaalterlogdirsmanager_deadthreadcount",
            "Moves that an error of the broker itself has ended",
            "client_id",
        ),
        _gauge("tierlog_directory_moves", "Moves between log directories that are under way, or wait"),
        _counter("tierlog_directory_moves_ended_total", "Those that ended, by how", "end"),
        _counter("tierlog_directory_moves_copied_bytes_total", "Bytes that they copied"),
    ),
    "The object store": (
        _gauge("tierlog_remote_log_size_bytes", "Bytes in the object store", *PARTITION),
        _gauge("tierlog_remote_log_segments", "Segments in the object store", *PARTITION),
        _gauge("tierlog_remote_delete_queue_size", "Objects that wait for their deletion"),
    ),
    "The metadata quorum": (
        _gauge(
            "kafka_controller_kafkacontroller_activecontrollercount",
            "1 on the voter that leads the quorum, else 0. The sum over the cluster must be 1",
        ),
        _gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions of the cluster without a leader. As all of the controller, told by every voter",
        ),
        _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster"),
        _gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster"),
        _gauge(
            "kafka_controller_kafkacontroller_activebrokercount", "Registered brokers that are not fenced"
        ),
        _gauge("kafka_controller_kafkacontroller_fencedbrokercount", "Registered brokers that are fenced"),
        _gauge("kafka_server_raft_metrics_current_state", "1 for the role that the node has now", "state"),
        _gauge("kafka_server_raft_metrics_current_leader", "Id of the quorum's leader; -1: none is known"),
        _gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the quorum"),
        _gauge("kafka_server_raft_metrics_current_epoch", "Raft's term; of voters"),
        _gauge("kafka_server_raft_metrics_log_end_offset", "Next index of the metadata log; of voters"),
        _gauge("kafka_server_raft_metrics_high_watermark", "First index that is not known to be committed"),
        _gauge("tierlog_metadata_applied_index", "Last index of the metadata log that the node has applied"),
    ),
    "The process": (
        Metric(
            "tierlog_loop_lag_seconds",
            Kind.HISTOGRAM,
            "How late a timer fires that is due every 50 ms: what holds up the event loop holds up every "
            "client. Above 0.1 s it is logged, at most every 10 s",
        ),
        _counter(
            "tierlog_unexpected_failures_total",
            "Requests and turns of background tasks that a bug has ended; each is in the log, with its "
            "traceback. Above 0 needs a look",
        ),
        _counter("process_cpu_seconds_total", "CPU time, user and system"),
        _gauge("process_resident_memory_bytes", "Memory"),
        _gauge("process_open_fds", "Open file descriptors"),
        _gauge("process_max_fds", "The most that may be open"),
    ),
}

METRICS = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}


def reference_page() -> str:
    """The page docs/reference/metrics.md, below its header."""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` of the [admin HTTP API](admin-api.md), in Prometheus' text format; `promtool check",
        "metrics` finds no problem in it. Names that begin with `kafka_` are those that the JMX exporter",
        "gives Kafka's metrics with its example rules for Kafka (`lowercaseOutputName`, `PerSec` becomes",
        "`_total`), which Confluent's dashboards use. Not all of those metrics exist, and two things differ:",
        "labels are in snake case (`client_id`), and latencies are histograms. A panel that asks for",
        '`{quantile="0.99"}` has to be changed. Everything else begins with `tierlog_`.',
        "",
        "    histogram_quantile(0.99, sum by (le, request) (",
        "      rate(kafka_network_requestmetrics_totaltimems_bucket[5m])))",
        "    rate(kafka_network_requestmetrics_requests_total[1m])",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.doc} |"
            for metric in metrics
        ]
    return "\n".join([*lines, ""])
