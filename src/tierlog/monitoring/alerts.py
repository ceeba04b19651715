"""Alert rules of nodes, the quorum, replicas, disks, certificates, clocks, groups and the audit log.

`ALERTS` has all groups, with those of tiering.
"""

from tierlog.monitoring.rules import CRITICAL, INFO, WARNING, Alert, Group
from tierlog.monitoring.tier_alerts import TIER_ALERTS

FILE = "alerts.yml"

CLOCK_AHEAD_S = 3
"""Seconds from which a clock is wrong, as in `tierlog doctor`."""

CERTIFICATE_DAYS, CERTIFICATE_LAST_DAYS = 14, 2
"""Days before the end of a certificate from which there is a warning, and from which it is urgent."""

_REPLICAS = "kafka_server_replicamanager_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_MOVING = f"{_REPLICAS}reassigningpartitions"
_CLOCK = "(tierlog_clock_timestamp_seconds - timestamp(tierlog_clock_timestamp_seconds))"
_CERTIFICATE = "min by (instance, listener) (tierlog_certificate_expiry_timestamp_seconds - time())"
_EXPIRES = (
    "{{ $labels.instance }}: the certificate of {{ $labels.listener }} expires in "
    "{{ $value | humanizeDuration }}"
)
_RENEW = "Replace the files. Brokers read them without a restart. Afterwards no client can connect."
_CERTIFICATE_PAGE = "howto/secure-a-cluster.md"

_NODES = Group(
    "tierlog-nodes",
    (
        Alert(
            "TierlogNodeDown",
            'up{job=~"tierlog.*"} == 0',
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $labels.instance }} does not respond",
            description="The node is stopped, hangs, or Prometheus cannot reach it. `tierlog doctor` shows "
            "the cause and the remedy.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogBrokerFenced",
            f"max by (job) ({_CONTROLLER}fencedbrokercount) > 0",
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $labels.job }}: {{ $value }} brokers are fenced",
            description="The controller does not hear them, and other brokers lead their partitions. "
            "`tierlog broker list` names them.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogNoController",
            f"sum by (job) ({_CONTROLLER}activecontrollercount) == 0",
            lasting="30s",
            severity=CRITICAL,
            summary="{{ $labels.job }}: the quorum has no leader",
            description="Topics cannot be changed, and brokers stop serving within "
            "broker.session.timeout.ms. Start enough voters for a majority.",
            page="runbooks/lost-majority.md",
        ),
        Alert(
            "TierlogMetadataBehind",
            "max by (job) (kafka_server_raft_metrics_high_watermark) - on (job) group_right () "
            "max by (job, instance) (tierlog_metadata_applied_index) - 1 > 1000",
            lasting="5m",
            severity=WARNING,
            summary="{{ $labels.instance }} has not applied {{ $value }} entries of the metadata",
            description="It serves stale metadata. Look at its CPU, its event loop, and the network to the "
            "voters.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogMetadataDiskLow",
            "max by (instance) (tierlog_metadata_disk_low) > 0",
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: the disk of the metadata log is nearly full",
            description="It has less free space than metadata.reserve.bytes, or uses that reserve. A voter "
            "whose disk is full ends. Without a majority of voters there is no controller. Free space there.",
            page="runbooks/full-disk.md",
        ),
        Alert(
            "TierlogVersionProblems",
            "max by (instance) (tierlog_version_problems) > 0",
            severity=CRITICAL,
            summary="{{ $labels.instance }} cannot read the messages of {{ $value }} nodes of other versions",
            description="More than two successive versions run side by side. `tierlog cluster versions` "
            "lists them.",
            page="howto/upgrade.md",
        ),
        Alert(
            "TierlogClockSkew",
            f"abs({_CLOCK} - on (job) group_left () quantile by (job) (0.5, {_CLOCK})) > {CLOCK_AHEAD_S}",
            lasting="1m",
            severity=CRITICAL,
            summary="the clock of {{ $labels.instance }} differs by {{ $value | humanizeDuration }} from "
            "those of most nodes",
            description="A leader whose clock is ahead deletes records too early, and object stores refuse "
            "requests whose time is wrong.",
            page="runbooks/wrong-clock.md",
        ),
        Alert(
            "TierlogEventLoopSlow",
            "histogram_quantile(0.99, sum by (instance, le) (rate(tierlog_loop_lag_seconds_bucket[5m]))) > 1",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: its event loop is {{ $value | humanizeDuration }} late",
            description="Every client of the node waits. Its log names the cause of each delay; the host "
            "may be overloaded.",
            page="explanation/data-plane.md",
        ),
        Alert(
            "TierlogOpenFiles",
            "max by (instance) (process_open_fds / process_max_fds and on (instance) tierlog_build_info) "
            "> 0.9",
            lasting="5m",
            severity=WARNING,
            summary="{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its open files",
            description="Soon it refuses connections. Raise LimitNOFILE of the unit, or ulimit -n.",
            page="howto/hosts.md",
        ),
        Alert(
            "TierlogUnexpectedFailures",
            "sum by (instance) (increase(tierlog_unexpected_failures_total[1h])) > 0",
            severity=WARNING,
            summary="{{ $labels.instance }}: a request or a background task failed because of a bug",
            description="The log has its traceback. Please report it with the archive of `tierlog debug "
            "bundle`.",
            page="howto/doctor.md",
        ),
    ),
)

_PARTITIONS = Group(
    "tierlog-partitions",
    (
        Alert(
            "TierlogOfflinePartitions",
            f"max by (job) ({_CONTROLLER}offlinepartitionscount) > 0",
            lasting="30s",
            severity=CRITICAL,
            summary="{{ $labels.job }}: {{ $value }} partitions have no leader",
            description="They serve nothing. `tierlog partition list --offline` names them and the brokers "
            "that they need.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogUnderMinIsr",
            f"sum by (job) ({_REPLICAS}underminisrpartitioncount) > 0",
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $labels.job }}: {{ $value }} partitions have fewer in-sync replicas than "
            "min.insync.replicas",
            description="Writes with acks=all fail. `tierlog partition list --below-min` names them.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogUnderReplicated",
            f"sum by (job) ({_REPLICAS}underreplicatedpartitions) > 0",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.job }}: {{ $value }} partitions have a replica that is not in sync",
            description="A broker is away, or a follower is too slow. `tierlog partition list "
            "--under-replicated` names them.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogIsrFlaps",
            f"sum by (instance) (increase({_REPLICAS}isrshrinks_total[10m])) > 0",
            lasting="30m",
            severity=WARNING,
            summary='{{ $labels.instance }}: in-sync sets shrink again and again, {{ $value | printf "%.0f" '
            "}} times in ten minutes",
            description="Followers fall behind and catch up: look at their disks, their CPU and the network.",
            page="runbooks/lost-broker.md",
        ),
        Alert(
            "TierlogDirectoryOffline",
            "max by (instance) (kafka_log_logmanager_offlinelogdirectorycount) > 0",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value }} log directories have failed",
            description="Their replicas are offline until the disk is replaced.",
            page="runbooks/full-disk.md",
        ),
        Alert(
            "TierlogDamagedLog",
            "max by (instance) (tierlog_log_damaged_partitions) > 0",
            lasting="5m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value }} partitions have a damaged range",
            description="The range is refused to readers, and no other replica has restored it yet.",
            page="runbooks/damaged-log.md",
        ),
        Alert(
            "TierlogUncleanable",
            "max by (instance) (tierlog_log_uncleanable_partitions) > 0",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: {{ $value }} compacted partitions are not cleaned",
            description="Their logs grow. The log has the reason, often a damaged range.",
            page="runbooks/damaged-log.md",
        ),
        Alert(
            "TierlogMoveWaits",
            "sum by (job) (tierlog_waiting_moves) > 0",
            lasting="15m",
            severity=WARNING,
            summary="{{ $labels.job }}: the moves of {{ $value }} partitions wait for a broker",
            description="The broker that gets the replica is away, or its disk is full or has failed. Mend "
            "it, or cancel the move: `tierlog partition list --moving` lists all.",
            page="howto/cluster.md",
        ),
        Alert(
            "TierlogMoveStuck",
            f"sum by (job) ({_MOVING}) >= max_over_time(sum by (job) ({_MOVING})[6h:10m]) "
            f"and min_over_time(sum by (job) ({_MOVING})[6h:10m]) > 0 "
            f"and sum by (job) ({_MOVING} offset 6h) > 0",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.job }}: {{ $value }} partitions move, and none has arrived for six hours",
            description="With a throttle below the rate of the producers, no replica catches up: `tierlog "
            "partition unthrottle` removes it. Large partitions may need so long.",
            page="howto/cluster.md",
        ),
        Alert(
            "TierlogRebalanceHeld",
            "max by (job, reason) (tierlog_rebalance_held) > 0",
            lasting="6h",
            severity=INFO,
            summary="{{ $labels.job }}: balancing by itself moves nothing, reason: {{ $labels.reason }}",
            description="The load may become uneven. `tierlog partition balance --explain` says what holds "
            "it.",
            page="howto/balance.md",
        ),
    ),
)

_GROUPS = Group(
    "tierlog-groups",
    (
        Alert(
            "TierlogGroupLag",
            "min by (consumergroup, topic) (min_over_time(kafka_consumergroup_lag_sum[30m])) > max by "
            "(consumergroup, topic) (max_over_time(kafka_consumergroup_lag_sum[30m] offset 1h))",
            lasting="10m",
            severity=WARNING,
            summary="group {{ $labels.consumergroup }} falls behind in {{ $labels.topic }}: {{ $value }} "
            "records",
            description="It reads slower than producers write, or not at all. Delete the group if it is no "
            "longer used.",
            page="howto/groups.md",
        ),
        Alert(
            "TierlogGroupLagLeftOut",
            "max by (instance) (tierlog_group_lag_partitions_left_out) > 0",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: the lag of {{ $value }} partitions of groups is not exported",
            description="These groups raise no alert. Raise group.lag.metrics.max.partitions, or delete "
            "groups that are not used.",
            page="howto/groups.md",
        ),
    ),
)

_SECURITY = Group(
    "tierlog-security",
    (
        Alert(
            "TierlogCertificateExpires",
            f"{_CERTIFICATE} < {CERTIFICATE_DAYS} * 86400 > {CERTIFICATE_LAST_DAYS} * 86400",
            severity=WARNING,
            summary=_EXPIRES,
            description=_RENEW,
            page=_CERTIFICATE_PAGE,
        ),
        Alert(
            "TierlogCertificateExpiresSoon",
            f"{_CERTIFICATE} <= {CERTIFICATE_LAST_DAYS} * 86400",
            severity=CRITICAL,
            summary=_EXPIRES,
            description=_RENEW,
            page=_CERTIFICATE_PAGE,
        ),
        Alert(
            "TierlogCertificateNotReloaded",
            "sum by (instance, listener) (increase(tierlog_certificate_reload_failures_total[1h])) > 0",
            severity=WARNING,
            summary="{{ $labels.instance }}: the new certificate of {{ $labels.listener }} cannot be used",
            description="The old one stays in use until it expires. The log has the reason.",
            page=_CERTIFICATE_PAGE,
        ),
        Alert(
            "TierlogAuditEntriesLost",
            "sum by (instance) (increase(tierlog_audit_entries_dropped_total[15m])) > 0",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: entries of the audit log are lost",
            description="The disk of audit.log.dir is full, not writable or too slow. Requests are answered "
            "all the same.",
            page="howto/audit-log.md",
        ),
    ),
)

ALERTS = (_NODES, _PARTITIONS, TIER_ALERTS, _GROUPS, _SECURITY)
