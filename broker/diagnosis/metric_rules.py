"""Metric rules: findings of `tierlog doctor` that one sample of a metric shows. Used by `findings`."""

from dataclasses import dataclass
from enum import StrEnum

OVERDUE_S = 3_600  # deletions in the bucket that wait for longer


class Urgency(StrEnum):
    """The most urgent first."""

    UNAVAILABLE = "unavailable"  # some requests of clients or operators are not served
    DEGRADED = "degraded"  # everything is served, with less redundancy than configured
    RISK = "risk"  # it will fail, or one more fault has an effect that is not expected
    ADVICE = "advice"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    """A finding for each node with a sample above a bound. `what` may have {value}, and labels of the
    metric."""

    rule: str
    metric: str
    above: float = 0
    urgency: Urgency = Urgency.RISK
    what: str
    why: str
    next: str
    runbook: str = ""


METRIC_RULES = (
    MetricRule(
        rule="disk-low",
        metric="tierlog_log_directory_low",
        what="log directory {directory} has less free space than log.dir.free.bytes.min",
        why="Appends are refused soon, or uploaded segments of large topics are dropped early.",
        next="See `tierlog cluster logdirs`; shorten retention, or add space.",
        runbook="docs/runbooks/full-disk.md",
    ),
    MetricRule(
        rule="metadata-disk-low",
        metric="tierlog_metadata_disk_low",
        what="the disk of its metadata log has less free space than metadata.reserve.bytes, or the reserve "
        "is in use",
        why="A voter whose disk is full ends. Without a majority of voters there is no controller.",
        next="Free space on the disk of metadata.log.dir.",
        runbook="docs/runbooks/full-disk.md",
    ),
    MetricRule(
        rule="deletions-fail",
        metric="tierlog_remote_cleanup_failing",
        what="{value} objects cannot be deleted from the bucket",
        why="The role of the brokers may lack the permission, or objects are locked.",
        next="The event `cleanup.object.failed` in its log has the store's error.",
        runbook="docs/runbooks/wrong-clock.md",
    ),
    MetricRule(
        rule="deletions-wait",
        metric="tierlog_remote_delete_overdue_seconds",
        above=OVERDUE_S,
        urgency=Urgency.ADVICE,
        what="deletions in the bucket are {value} s overdue",
        why="A snapshot holds the objects, or there was no controller for long.",
        next="`tierlog tier snapshots list` shows what holds them.",
        runbook="docs/runbooks/wrong-clock.md",
    ),
    MetricRule(
        rule="scrub-incomplete",
        metric="tierlog_remote_scrub_unchecked_segments",
        what="the bucket scrubber could not read {value} segments",
        why="The store refuses requests for single objects.",
        next="The event `bucket.segment.unchecked` in its log has the reason.",
        runbook="docs/runbooks/damaged-object.md",
    ),
    MetricRule(
        rule="unknown-objects",
        metric="tierlog_remote_unknown_objects",
        urgency=Urgency.ADVICE,
        what="the bucket has {value} objects that no manifest names",
        why="A crash left them, or something else writes below the same prefix. They cost money only.",
        next="`tierlog tier gc --dry-run` lists them.",
        runbook="docs/runbooks/damaged-object.md",
    ),
    MetricRule(
        rule="uncleanable",
        metric="tierlog_log_uncleanable_partitions",
        what="the log cleaner gave up {value} compacted partitions",
        why="Their logs grow without bound: compaction failed with an error.",
        next="See the event `compaction.failed` in its log. `tierlog log verify` checks the files.",
        runbook="docs/runbooks/damaged-log.md",
    ),
    MetricRule(
        rule="move-failed",
        metric="kafka_server_replicaalterlogdirsmanager_failedpartitionscount",
        what="{value} moves between log directories have failed",
        why="The target directory is full or has failed.",
        next="See the event `move.failed` in its log, and repeat the move: `tierlog partition move-dir`.",
    ),
    MetricRule(
        rule="move-waits",
        metric="tierlog_waiting_moves",
        what="{value} partitions that it leads move to a broker that is away or has a bad disk",
        why="The move cannot end before that broker copies the partition.",
        next="Mend the broker, or cancel the move: `tierlog partition list --moving` names it.",
    ),
    MetricRule(
        rule="memory-pool",
        metric="tierlog_connections_waiting_for_memory",
        what="{value} connections wait for memory of requests",
        why="Requests in progress use all of queued.max.request.bytes, so clients are slowed down.",
        next="Raise queued.max.request.bytes, or spread the load over more brokers.",
    ),
    MetricRule(
        rule="audit-lost",
        metric="tierlog_audit_entries_dropped_total",
        what="{value} entries of the audit log were lost since the node started ({reason})",
        why="The disk of audit.log.dir was full, failed or too slow.",
        next="Free space or replace the disk of audit.log.dir.",
        runbook="docs/howto/audit-log.md",
    ),
    MetricRule(
        rule="unexpected-failure",
        metric="tierlog_unexpected_failures_total",
        what="{value} internal errors since the node started",
        why="This is a fault of tierlog: the event `node.task.failed` in its log has the traceback of each.",
        next="Make a `tierlog debug bundle`, and report it with that.",
    ),
)
