"""Compact: compacts the history of compacted topics on Spark's executors, while the cluster runs (ADR 0042).

The newest record of each key stays, as do tombstones for delete.retention.ms, by the rules of the log
cleaner. One task compacts one partition, and hands its segments over one by one, so a run that is stopped
is simply started again. Records that are still in the leader's local log are left alone, as by the brokers.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tierlog.base.clock import SystemClock
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs.arguments import InvalidArgument, Job, Progress, Values, main, reader_options
from tierlog.spark.jobs.compacting import Compacted, CompactTask, Dirty, compact_partition, dirty_of
from tierlog.spark.jobs.replacing import NotReplaced, Replacer, lines_of_the_rest
from tierlog.spark.jobs.rewrite import runs_of
from tierlog.spark.jobs.runner import run_tasks, spark_session
from tierlog.spark.jobs.selection import cluster_keys, documents_of, sources_of
from tierlog.spark.options import parse_options

MIB = 1 << 20


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Compact what is dirty. Raises JobFailed."""
    if not 1 <= values["lease_seconds"] <= 600:
        raise InvalidArgument(f"--lease-seconds must be 1 to 600, not {values['lease_seconds']}")
    if values["map_mib"] < 1:
        raise InvalidArgument(f"--map-mib must be at least 1, not {values['map_mib']}")
    failures: list[str] = []
    planned = _plan(values, failures)
    document = {
        "planned_partitions": len(planned),
        "dirty_bytes": sum(dirty.bytes for _, dirty in planned),
        "planned_bytes": sum(_size(task) for task, _ in planned),
    }
    if values["dry_run"]:
        return {**document, "dry_run": True, "not_compacted": failures, "is_ok": not failures}
    results: list[Compacted] = []
    tasks = [task for task, _ in planned]
    if tasks:
        with spark_session("compact", values) as spark:
            sizes = [_size(task) for task in tasks]
            progress.begin("compact", sum(sizes))
            results = run_tasks(spark, compact_partition, tasks, progress, sizes)
    failures += [
        f"{task.source}: {found.failure}" for task, found in zip(tasks, results, strict=True) if found.failure
    ]
    return {
        **document,
        "replaced_segments": sum(found.segments for found in results),
        "records_removed": sum(found.records_removed for found in results),
        "bytes_before": sum(found.bytes_before for found in results),
        "bytes_after": sum(found.bytes_after for found in results),
        "not_compacted": failures,
        "is_ok": not failures,
    }


def _plan(values: Values, failures: list[str]) -> list[tuple[CompactTask, Dirty]]:
    """The partitions that are dirty enough. Those which cannot be compacted are added to `failures`. Raises
    JobFailed."""
    store = parse_options({**reader_options(values), "topic": "any"}).store
    bucket = open_bucket(store)
    keys = cluster_keys(bucket, values)
    replacer = Replacer(values["admin"], values["lease_seconds"])
    planned = []
    for source in _compacted_sources(values, documents_of(bucket, keys, values)):
        try:
            limits = replacer.limits(source.id)  # before the entries: its epoch must not be newer
        except NotReplaced as why:
            failures.append(f"{source}: {why}")
            continue
        entries = tuple(entry for run in runs_of(bucket, keys, source) for entry in run)
        if not entries:
            continue
        if limits.compaction is None:
            failures.append(f"{source}: cleanup.policy is not compact")
            continue
        now_ms = SystemClock().now_ms()
        dirty = dirty_of(entries, limits.compaction, limits.local_log_start_offset, now_ms)
        below = sum(entry.log_bytes for entry in entries if entry.end_offset <= dirty.end)
        if dirty.bytes and 100 * dirty.bytes >= values["min_dirty_percent"] * below:
            task = CompactTask(
                store,
                keys.cluster_id,
                source,
                entries,
                limits,
                values["admin"],
                values["lease_seconds"],
                values["map_mib"] * MIB,
            )
            planned.append((task, dirty))
    return planned


def _compacted_sources(values: Values, documents: Sequence[Any]) -> list[Source]:
    """The partitions of the selected topics. A pattern selects only compacted topics."""
    chosen = [
        document
        for document in documents
        if document.name in (values["topic"] or ()) or "compact" in document.configs.get("cleanup.policy", "")
    ]
    return sources_of(chosen)


def _size(task: CompactTask) -> int:
    return sum(entry.log_bytes for entry in task.entries)


def _show(document: dict[str, Any]) -> str:
    planned = (
        f"{document['planned_partitions']:,} partitions with {document['dirty_bytes']:,} bytes that are not "
        f"compacted, of {document['planned_bytes']:,}"
    )
    if not document["planned_partitions"]:
        lines = ["nothing to do: no partition has anything to compact below its local log"]
    elif document.get("dry_run"):
        lines = [f"would compact {planned}. Nothing was changed"]
    else:
        lines = [
            f"compacted {planned}: removed {document['records_removed']:,} records; replaced "
            f"{document['replaced_segments']:,} segments ({document['bytes_before']:,} bytes, now "
            f"{document['bytes_after']:,})"
        ]
    return "\n".join([*lines, *lines_of_the_rest(document, "not_compacted")])


JOB = Job("compact", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
