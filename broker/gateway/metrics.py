"""Metric values, read from the parts of the node when /metrics is requested."""

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.base import build
from tierlog.base.clock import Clock
from tierlog.base.types import NO_LEADER
from tierlog.broker.audit.entries import EVENTS
from tierlog.broker.audit.log import DROP_REASONS, AuditCounts, AuditLog
from tierlog.broker.audit.topic_queue import TOPIC_DROP_REASONS, TopicQueue
from tierlog.broker.gateway.catalogue import GROUP_MANAGER, GROUP_STATES
from tierlog.broker.gateway.cluster_views import Condition, conditions
from tierlog.broker.gateway.exposition import PAUSE, Family, Sample, exposition, single, slices
from tierlog.broker.gateway.node import Node, Serving
from tierlog.broker.gateway.tier_metrics import manifest_families, tier_families
from tierlog.broker.groups.group_lag import GroupLag, PartitionLag
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.purgatory import DELAYED_OPERATIONS
from tierlog.broker.handlers.sasl import LoginCounts
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.maintenance.directory_moves import DirectoryMoves, MoveOutcome
from tierlog.broker.maintenance.log_cleaner import LogCleaner
from tierlog.broker.maintenance.rebalancer import Activity, End, Result, State
from tierlog.broker.net.listener import Listener, Refusal
from tierlog.broker.quotas.quotas import ClientQuotas, Report
from tierlog.broker.replication.replica import NO_TRAFFIC, Replica, Traffic
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.metadata.controller.load_balance import Hold, Load
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.status import NodeStatus
from tierlog.metadata.records import PartitionRecord, QuotaKey
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.page_tree import image_budget

if TYPE_CHECKING:
    from tierlog.broker.security.tls_files import NodeTls  # brokers without TLS do not load it


async def render(node: Node) -> bytes:
    if node.serving is not None:
        await node.serving.groups.lag.refresh()
    return await exposition(families(node))


def families(node: Node) -> Iterator[Family]:
    """All metric families. The caller pauses between families, so the node may stop in between."""
    yield from _request_families(node.stats)
    serving = node.serving
    if serving is not None:
        yield from _delayed_operation_families(serving)
        yield from _connection_families(serving.listener, serving.tls, serving.logins)
        yield from _group_families(serving.groups)
        yield from group_lag_families(serving.groups.lag)
        yield from quota_families(serving.quotas, serving.clock)
        yield from _throttled_replication_families(node, serving)
        yield from topic_families(serving.replicas)
        yield from log_families(serving.replicas)
        yield from _isr_families(node, serving)
        yield from _log_dir_families(serving)
        yield from _cleaner_families(serving.cleaner)
        yield from _scrub_families(serving)
        yield from move_families(serving.moves)
        yield from _rebalance_families(serving.rebalancer.activity)
        yield from tier_families(serving, node.metadata.image)
    budget_bytes = image_budget(node.settings.remote_log_metadata_cache_bytes)
    yield from manifest_families(node.metadata.image, node.settings.node_id, budget_bytes)
    yield from _quorum_families(node)
    yield "tierlog_build_info", [((build.VERSION, build.commit()), 1)]
    yield "tierlog_loop_lag_seconds", [((), node.loop_lag.seconds)]
    yield "tierlog_unexpected_failures_total", single(node.failures.count)
    yield "tierlog_trace_spans_total", single(node.metadata.tracer.begun)
    yield "tierlog_trace_spans_exported_total", single(node.metadata.tracer.exported)
    yield from _audit_families(node.audit)
    yield "tierlog_clock_timestamp_seconds", single(node.clock.now_ms() / 1000)
    tokens = node.metadata.image.tokens
    yield "tierlog_delegation_tokens", single(len(tokens))
    next_ms = min((one.expires_ms for one in tokens.values()), default=None)
    left_s = -1 if next_ms is None else max(next_ms - node.clock.now_ms(), 0) // 1000
    yield "tierlog_delegation_token_next_expiry_seconds", single(left_s)
    yield from _process_families()


def _audit_families(audit: AuditLog | None) -> Iterator[Family]:
    counts = AuditCounts() if audit is None else audit.counts
    yield "tierlog_audit_entries_total", [((event,), counts.entries[event]) for event in EVENTS]
    yield (
        "tierlog_audit_entries_dropped_total",
        [((reason,), counts.dropped[reason]) for reason in DROP_REASONS],
    )
    yield "tierlog_audit_denials_collapsed_total", single(counts.repeated)
    yield "tierlog_audit_responses_before_entry_total", single(counts.late)
    topic = TopicQueue("") if audit is None or audit.topic is None else audit.topic
    yield "tierlog_audit_topic_entries_total", single(topic.written)
    yield (
        "tierlog_audit_topic_entries_dropped_total",
        [((reason,), topic.dropped[reason]) for reason in TOPIC_DROP_REASONS],
    )
    yield "tierlog_audit_topic_waiting_bytes", single(topic.waiting_bytes)


def _request_families(stats: RequestStats) -> Iterator[Family]:
    used = [(APIS[key].name, api) for key, api in sorted(stats.by_api.items()) if api.count]
    yield "kafka_network_requestmetrics_requests_total", [((name,), api.count) for name, api in used]
    yield (
        "kafka_network_requestmetrics_errors_total",
        [((name, ErrorCode(code).name), count) for name, api in used for code, count in api.errors.items()],
    )
    yield "kafka_network_requestmetrics_totaltimems", [((name,), api.total()) for name, api in used]
    yield "kafka_network_requestmetrics_localtimems", [((name,), api.local()) for name, api in used]
    yield "kafka_network_requestmetrics_remotetimems", [((name,), api.remote()) for name, api in used]


def _delayed_operation_families(serving: Serving) -> Iterator[Family]:
    purgatory, sessions = serving.purgatory, serving.sessions
    yield "kafka_server_delayedoperationpurgatory_purgatorysize", _by_operation(purgatory.waiting)
    yield "tierlog_purgatory_expired_total", _by_operation(purgatory.expired)
    yield "tierlog_purgatory_refused_total", _by_operation(purgatory.refused)
    yield "kafka_server_fetchsessioncache_numincrementalfetchsessions", single(len(sessions))
    yield "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", single(sessions.partitions)
    yield "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", single(sessions.evictions)
    yield "tierlog_fetch_sessions_refused_total", single(sessions.refused)
    yield "tierlog_produce_batches_in_validation", single(serving.validator.pending_batches)


def _by_operation(counts: Counter[str]) -> list[Sample]:
    return [((name,), counts[name]) for name in DELAYED_OPERATIONS]


LOGIN_FAMILIES = {
    "kafka_server_socket_server_metrics_successful_authentication_total": "successful",
    "kafka_server_socket_server_metrics_failed_authentication_total": "failed",
    "kafka_server_socket_server_metrics_successful_reauthentication_total": "reauthenticated",
    "kafka_server_socket_server_metrics_failed_reauthentication_total": "reauthentication_failed",
    "kafka_server_socket_server_metrics_successful_authentication_no_reauth_total": (
        "without_reauthentication"
    ),
    "tierlog_connections_expired_total": "expired",
}
"""Metrics of logins, and the field of LoginCounts that each shows."""


def _connection_families(
    listener: Listener, tls: "NodeTls | None", logins: Mapping[str, LoginCounts]
) -> Iterator[Family]:
    memory_pool = listener.memory_pool
    yield "tierlog_connections", single(listener.connections)
    yield "kafka_server_socket_server_metrics_connection_creation_total", single(listener.accepted)
    yield (
        "kafka_server_socket_server_metrics_connection_close_total",
        [((str(why),), count) for why, count in listener.closed.items()],
    )
    yield (
        "tierlog_connections_refused_total",
        [((str(bound),), listener.refused[bound]) for bound in Refusal],
    )
    yield "tierlog_tls_handshakes_total", single(listener.tls_gate.handshakes)
    yield "tierlog_tls_handshakes_in_progress", single(listener.tls_gate.pending)
    certificates = [] if tls is None else tls.by_name.values()
    yield (
        "tierlog_certificate_expiry_timestamp_seconds",
        [((one.name,), one.expires_at_s) for one in certificates],
    )
    yield (
        "tierlog_certificate_reload_failures_total",
        [((one.name,), one.reload_failures) for one in certificates],
    )
    yield PAUSE  # each of the following reads all connections
    yield "tierlog_connections_muted", single(listener.muted)
    yield PAUSE
    yield "tierlog_connections_saturated", single(listener.saturated)
    yield PAUSE
    yield "tierlog_connections_blocked", single(listener.blocked)
    yield "tierlog_connections_waiting_for_memory", single(memory_pool.waiting)
    yield "tierlog_connections_memory_waits_total", single(memory_pool.waits)
    yield "kafka_network_socketserver_memorypoolused", single(memory_pool.used)
    yield "tierlog_requests_held_bytes", single(memory_pool.held)
    yield "tierlog_responses_kept_bytes", single(listener.kept_bytes)
    for family, field in LOGIN_FAMILIES.items():
        yield family, [((name,), getattr(counts, field)) for name, counts in logins.items()]
    yield "kafka_server_socket_server_metrics_incoming_byte_total", single(listener.received_bytes)
    yield "kafka_server_socket_server_metrics_outgoing_byte_total", single(listener.sent_bytes)


def _group_families(groups: GroupService) -> Iterator[Family]:
    yield "tierlog_group_member_bytes", single(groups.member_bytes)
    yield "tierlog_group_records_skipped", single(groups.shards.skipped_records)
    states = Counter(state for _, _, state, _ in groups.list_groups()[1])
    yield f"{GROUP_MANAGER}numgroups", single(states.total())
    for state in GROUP_STATES:
        yield f"{GROUP_MANAGER}numgroups{state.lower()}", single(states[state])


def group_lag_families(lag: GroupLag) -> Iterator[Family]:
    """The values of the last refresh, which `render` has waited for."""
    yield (
        "kafka_consumergroup_current_offset",
        ((_group_labels(row), row.committed_offset) for row in lag.partitions),
    )
    yield (
        "kafka_consumergroup_lag",
        ((_group_labels(row), row.lag) for row in lag.partitions if row.lag is not None),
    )
    yield "kafka_consumergroup_lag_sum", (((row.group, row.topic), row.lag) for row in lag.topics)
    yield "tierlog_group_lag_partitions_left_out", single(lag.left_out)


def _group_labels(row: PartitionLag) -> tuple[str, str, str]:
    return row.group, row.partition.topic, str(row.partition.partition)


_QUOTA_METRICS = {
    QuotaKey.PRODUCER_BYTE_RATE: ("kafka_server_produce_byte_rate", "kafka_server_produce_throttle_time"),
    QuotaKey.CONSUMER_BYTE_RATE: ("kafka_server_fetch_byte_rate", "kafka_server_fetch_throttle_time"),
    QuotaKey.REQUEST_PERCENTAGE: ("kafka_server_request_request_time", "kafka_server_request_throttle_time"),
    QuotaKey.CONTROLLER_MUTATION_RATE: (
        "kafka_server_controllermutation_tokens",
        "kafka_server_controllermutation_throttle_time",
    ),
}


def quota_families(quotas: ClientQuotas, clock: Clock) -> Iterator[Family]:
    """Yields PAUSE before each quota, because reading a quota's accounts may take some milliseconds."""
    yield "tierlog_quota_throttles_total", [((str(key),), quotas.throttled[key]) for key in QuotaKey]
    yield (
        "tierlog_quota_throttle_seconds_total",
        [((str(key),), quotas.throttled_ms[key] / 1000) for key in QuotaKey],
    )
    for key, (use, throttle_time) in _QUOTA_METRICS.items():
        yield PAUSE
        rows = _by_labels(quotas.report(key, clock.monotonic_ms()))
        yield use, [(labels, row.used) for labels, row in rows.items()]
        yield (
            throttle_time,
            [(labels, row.throttled_ms / max(row.throttled, 1)) for labels, row in rows.items()],
        )


def _by_labels(reports: Sequence[Report]) -> dict[tuple[str, str], Report]:
    """Add reports with the same labels: those of a user, and of the user's clients without an id."""
    rows: dict[tuple[str, str], Report] = {}
    for new in reports:
        labels = new.account.user or "", new.account.client_id or ""
        before = rows.get(labels)
        rows[labels] = new if before is None else before.plus(new)
    return rows


def topic_families(replicas: ReplicaManager) -> Iterator[Family]:
    by_topic: defaultdict[str, Traffic] = defaultdict(lambda: NO_TRAFFIC)
    everything = replicas.removed_traffic
    for batch in slices(replicas):
        yield PAUSE
        for replica in batch:
            by_topic[replica.name.topic] += replica.traffic
            everything += replica.traffic
    rows = [((), everything), *(((topic,), traffic) for topic, traffic in by_topic.items())]
    yield (
        "kafka_server_brokertopicmetrics_bytesin_total",
        [(labels, traffic.bytes_in) for labels, traffic in rows],
    )
    yield (
        "kafka_server_brokertopicmetrics_bytesout_total",
        [(labels, traffic.bytes_out) for labels, traffic in rows],
    )
    yield (
        "kafka_server_brokertopicmetrics_messagesin_total",
        [(labels, traffic.records_in) for labels, traffic in rows],
    )


_REPLICA_METRICS: dict[str, Callable[[Replica], int]] = {
    "kafka_log_log_size": lambda replica: replica.log.size_bytes,
    "kafka_log_log_numlogsegments": lambda replica: len(replica.log.segment_files),
    "kafka_log_log_logstartoffset": lambda replica: replica.log_start_offset,
    "kafka_log_log_logendoffset": lambda replica: replica.log_end_offset,
    "tierlog_log_local_start_offset": lambda replica: replica.local_log_start_offset,
    "tierlog_partition_high_watermark": lambda replica: replica.high_watermark,
}


def log_families(manager: ReplicaManager) -> Iterator[Family]:
    replicas, led = list(manager), 0
    names: list[tuple[str, str]] = []
    for batch in slices(replicas):
        yield PAUSE
        names += [(replica.name.topic, str(replica.name.partition)) for replica in batch]
        led += sum(replica.is_leader for replica in batch)
    for name, value in _REPLICA_METRICS.items():
        yield name, zip(names, map(value, replicas), strict=True)
    yield "kafka_server_replicamanager_partitioncount", single(len(replicas))
    yield "kafka_server_replicamanager_leadercount", single(led)


def _isr_families(node: Node, serving: Serving) -> Iterator[Family]:
    """Metrics of the partitions that this broker leads, as in Kafka, so that a sum over all brokers counts
    each partition once."""
    found: Counter[Condition] = Counter()
    at_min = waiting = 0
    for batch in slices(serving.replicas):
        yield PAUSE
        image = node.metadata.image
        for replica in batch:
            partition = image.partition(replica.topic_id, replica.name.partition)
            if partition is None or not replica.is_leader:
                continue
            min_in_sync = replica.config.min_insync_replicas
            found.update(conditions(partition, min_in_sync))
            at_min += len(partition.in_sync) == min_in_sync
            waiting += any(_cannot_copy(image, partition, one) for one in partition.adding)
    yield "kafka_server_replicamanager_underreplicatedpartitions", single(found[Condition.UNDER_REPLICATED])
    yield "kafka_server_replicamanager_underminisrpartitioncount", single(found[Condition.BELOW_MIN])
    yield "kafka_server_replicamanager_atminisrpartitioncount", single(at_min)
    yield "kafka_server_replicamanager_reassigningpartitions", single(found[Condition.MOVING])
    yield "tierlog_waiting_moves", single(waiting)
    yield "kafka_server_replicamanager_isrshrinks_total", single(serving.alter_partition_manager.shrinks)
    yield "kafka_server_replicamanager_isrexpands_total", single(serving.alter_partition_manager.expands)


def _cannot_copy(image: ClusterImage, partition: PartitionRecord, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    has_bad_disk = broker_id in partition.offline or broker_id in partition.full
    return broker is None or broker.fenced or has_bad_disk


def _throttled_replication_families(node: Node, serving: Serving) -> Iterator[Family]:
    leader, follower = serving.throttles.leader, serving.throttles.follower
    now_ms = serving.clock.monotonic_ms()
    yield "kafka_server_leaderreplication_byte_rate", single(leader.byte_rate(now_ms))
    yield "kafka_server_followerreplication_byte_rate", single(follower.byte_rate(now_ms))
    leading = following = 0
    if leader.is_set or follower.is_set:
        for batch in slices(serving.replicas):
            yield PAUSE
            leading += sum(leader.is_throttled(one.name) and _has_lagging_follower(one) for one in batch)
            following += sum(follower.is_throttled(one.name) and _is_lagging(node, one) for one in batch)
    yield "tierlog_replication_throttled_partitions", [(("leader",), leading), (("follower",), following)]


def _has_lagging_follower(replica: Replica) -> bool:
    return replica.is_leader and not replica.followers.keys() <= replica.in_sync


def _is_lagging(node: Node, replica: Replica) -> bool:
    partition = node.metadata.image.partition(replica.topic_id, replica.name.partition)
    return replica.is_follower and partition is not None and node.settings.node_id not in partition.in_sync


def _log_dir_families(serving: Serving) -> Iterator[Family]:
    directories = serving.replicas.directories
    yield "kafka_server_replicamanager_offlinereplicacount", single(serving.replicas.offline_count)
    yield "kafka_log_logflushstats_logflushrateandtimems", [((), serving.commits.seconds)]
    yield "kafka_log_logmanager_offlinelogdirectorycount", single(len(directories.offline))
    yield (
        "tierlog_log_directory_full",
        [((str(directory.path),), int(directory.is_full)) for directory in directories.online],
    )
    pressure = serving.disk_pressure
    yield (
        "tierlog_log_directory_low",
        [((str(directory.path),), int(directory in pressure.low)) for directory in directories.online],
    )
    for name, dropped in (
        ("tierlog_log_pressure_dropped_segments_total", pressure.dropped_segments),
        ("tierlog_log_pressure_dropped_bytes_total", pressure.dropped_bytes),
    ):
        yield name, [((str(directory.path),), count) for directory, count in dropped.items()]
    files = directories.open_files
    yield "tierlog_log_open_files", single(len(files))
    yield "tierlog_log_open_files_limit", single(files.limit)
    yield "tierlog_log_files_opened_total", single(files.opened)
    yield "tierlog_log_files_evicted_total", single(files.evicted)


def _cleaner_families(cleaner: LogCleaner) -> Iterator[Family]:
    yield "tierlog_log_uncleanable_partitions", single(cleaner.uncleanable)
    yield "kafka_log_logcleanermanager_max_dirty_percent", single(100 * cleaner.max_dirty_ratio)
    yield "tierlog_log_cleaner_read_bytes_total", single(cleaner.bytes_read)
    yield "tierlog_log_cleaner_written_bytes_total", single(cleaner.bytes_written)


def _scrub_families(serving: Serving) -> Iterator[Family]:
    scrubber, repair = serving.scrubber, serving.repair
    yield "tierlog_log_scrub_read_bytes_total", single(scrubber.bytes_read)
    yield "tierlog_log_scrub_read_batches_total", single(scrubber.batches_read)
    yield "tierlog_log_scrub_passes_total", single(scrubber.passes)
    yield "tierlog_log_scrub_progress_ratio", single(scrubber.progress)
    yield "tierlog_log_damage_found_total", single(repair.found_count)
    yield "tierlog_log_damage_repaired_total", single(repair.repaired_count)
    yield "tierlog_log_damaged_partitions", single(len(repair.damaged))


def move_families(moves: DirectoryMoves) -> Iterator[Family]:
    under_way = moves.under_way
    kafka_values = {
        "maxlag": max((move.offset_lag for move in under_way), default=0),
        "failedpartitionscount": len(moves.failed_partitions),
        "deadthreadcount": moves.unexpected_failures,
    }
    for name, value in kafka_values.items():
        yield f"kafka_server_replicaalterlogdirsmanager_{name}", [(("ReplicaAlterLogDirs",), value)]
    yield "tierlog_directory_moves", single(len(under_way))
    yield "tierlog_directory_moves_ended_total", [((str(end),), moves.outcomes[end]) for end in MoveOutcome]
    yield "tierlog_directory_moves_copied_bytes_total", single(moves.copied_bytes)


def _rebalance_families(activity: Activity) -> Iterator[Family]:
    reasons = {one.reason for one in activity.held}
    yield "tierlog_rebalance_state", [((str(one),), int(one is activity.state)) for one in State]
    yield "tierlog_rebalance_held", [((str(one),), int(one in reasons)) for one in Hold]
    yield (
        "tierlog_rebalance_imbalance_ratio",
        [((str(load),), activity.imbalance.get(load, 0)) for load in Load],
    )
    yield "tierlog_rebalance_results_total", [((str(one),), activity.results[one]) for one in Result]
    kinds = {"leader": False, "replica": True}
    yield (
        "tierlog_rebalance_moves_begun_total",
        [((kind,), activity.begun[is_copied]) for kind, is_copied in kinds.items()],
    )
    yield "tierlog_rebalance_moves_ended_total", [((str(one),), activity.ended[one]) for one in End]


def _quorum_families(node: Node) -> Iterator[Family]:
    """Every voter reports the controller's metrics, leader or not, as in KRaft."""
    if not node.metadata.started:
        return
    status = node.metadata.status()
    is_voter = isinstance(status, NodeStatus)
    image = node.metadata.image
    partitions = offline = imbalanced = 0
    for batch in slices(image.topics.values() if is_voter else ()):
        yield PAUSE
        partitions += sum(len(topic.partitions) for topic in batch)
        offline += sum(one.leader == NO_LEADER for topic in batch for one in topic.partitions)
        imbalanced += sum(one.leader != one.replicas[0] for topic in batch for one in topic.partitions)
    fenced = sum(broker.fenced for broker in image.brokers.values())
    controller_values = {
        "activecontrollercount": int(is_voter and status.leader == status.node_id),
        "offlinepartitionscount": offline,
        "preferredreplicaimbalancecount": imbalanced,
        "globaltopiccount": len(image.topics),
        "globalpartitioncount": partitions,
        "activebrokercount": len(image.brokers) - fenced,
        "fencedbrokercount": fenced,
    }
    for name, value in controller_values.items():
        yield f"kafka_controller_kafkacontroller_{name}", single(value) if is_voter else []
    yield "kafka_server_raft_metrics_current_state", [((status.role,), 1)]
    yield "kafka_server_raft_metrics_current_leader", single(status.leader)
    yield "kafka_server_raft_metrics_number_of_voters", single(len(status.voters))
    log_values = (
        {
            "current_epoch": status.term,
            "log_end_offset": status.last_index + 1,
            "high_watermark": status.commit_index + 1,
        }
        if isinstance(status, NodeStatus)
        else {"high_watermark": status.applied_index + 1}
    )
    for name in ("current_epoch", "log_end_offset", "high_watermark"):
        yield f"kafka_server_raft_metrics_{name}", single(log_values[name]) if name in log_values else []
    yield "tierlog_metadata_applied_index", single(status.applied_index)
    yield "tierlog_metadata_disk_low", single(int(node.metadata.disk_is_low)) if is_voter else []
    yield "tierlog_format_version", single(node.metadata.image.format_version)
    yield "tierlog_format_version_supported", single(SUPPORTED_FORMATS[1])
    yield "tierlog_version_problems", single(len(node.metadata.version_problems))


def _process_families() -> Iterator[Family]:
    used = os.times()
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield "process_cpu_seconds_total", single(used.user + used.system)
    yield "process_resident_memory_bytes", single(resident_pages * os.sysconf("SC_PAGESIZE"))
    yield "process_open_fds", single(len(os.listdir("/proc/self/fd")))
    yield "process_max_fds", single(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
