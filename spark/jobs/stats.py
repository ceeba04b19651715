"""Stats: sizes, rates, keys and skew of topics, as JSON and as a page of plots.

Reads every record of the range once, or with --manifests-only none: then sizes and rates come from the
segments, and there are no keys. It needs no broker and changes nothing. With --resume, a run that was stopped
continues where it ended.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierlog.metadata.records import RemoteSegment
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.plan import OffsetRange, Part, Source
from tierlog.spark.history.snapshot import PartitionView
from tierlog.spark.jobs.arguments import (
    InvalidArgument,
    Job,
    JobFailed,
    Progress,
    Values,
    main,
    reader_options,
)
from tierlog.spark.jobs.page import Chart, Page, readable
from tierlog.spark.jobs.runner import run_tasks, spark_session
from tierlog.spark.jobs.selection import cluster_keys, documents_of, ends_of, plan, segments_of, sources_of
from tierlog.spark.options import parse_options

if TYPE_CHECKING:
    from tierlog.spark.jobs.record_stats import RecordStats
    from tierlog.spark.jobs.stats_progress import StatsProgress

MIB = 1 << 20
TASK_BYTES = 64 * MIB
READS_AT_ONCE = 16
ROUND_TASKS = 256
"""Tasks of a round: Spark limits the results that a driver takes at once by spark.driver.maxResultSize."""

EVERYTHING = OffsetRange(0, 2**63 - 1)
PERIODS_MS = tuple(
    seconds * 1_000
    for seconds in (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
)
PERIODS = 300
"""The width of a period is the smallest of PERIODS_MS that makes at most so many."""

LINES = 10
"""Partitions that a plot of rates shows, largest first."""

Segments = dict[Source, list[RemoteSegment]]


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """The statistics. Raises JobFailed, and InvalidArgument before any work."""
    check_arguments(values)
    bucket = open_bucket(parse_options({**reader_options(values), "topic": "any"}).store)
    keys = cluster_keys(bucket, values)
    sources = sources_of(documents_of(bucket, keys, values))
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        views = pool.map(lambda source: PartitionView(bucket, keys, source), sources)
        segments = {view.source: list(view.entries(EVERYTHING)) for view in views}
    entries = [one for some in segments.values() for one in some]
    first_ms = min((one.first_timestamp for one in entries if one.first_timestamp >= 0), default=0)
    period_ms = period_of(max((one.max_timestamp for one in entries), default=0) - first_ms)
    state = _progress(values, period_ms)
    if gone := state.ends.keys() - {source.id for source in sources}:
        raise JobFailed(f"{state.file} counts topic {min(gone)}, which was deleted since. Delete the file")
    topics = _sizes(segments, state.period_ms)
    document: dict[str, Any] = {"period_ms": state.period_ms, "topics": topics, "is_ok": True}
    if not values["manifests_only"]:
        _collect(values, state, progress)
        _add_records(document, state.found, values["top"])
        if has_range(values):  # the bytes stored are those of all records
            for topic in document["topics"].values():
                topic["bytes_per_stored_byte"] = None
    if values["html"]:
        Path(values["html"]).write_text(_page(document).html(), encoding="utf-8")
    state.end()
    return document


def check_arguments(values: Values) -> None:
    """Raises InvalidArgument."""
    for name in ("resume", "html"):
        if values[name] and not Path(values[name]).absolute().parent.is_dir():
            raise InvalidArgument(f"--{name} {values[name]}: there is no such directory")
    if values["manifests_only"] and has_range(values):
        raise InvalidArgument("--manifests-only has no range: sizes are those of all segments")
    if values["manifests_only"] and values["resume"]:
        raise InvalidArgument("--manifests-only reads no records: there is nothing to --resume")


def has_range(values: Values) -> bool:
    """Whether not all records are read."""
    is_part = values["starting_offsets"] != "earliest" or values["ending_offsets"] != "latest"
    return is_part or values["starting_timestamp"] is not None or values["ending_timestamp"] is not None


def period_of(span_ms: int) -> int:
    """Width of a period for this span of time, in milliseconds."""
    return next((width for width in PERIODS_MS if span_ms <= width * PERIODS), PERIODS_MS[-1])


def _sizes(segments: Segments, period_ms: int) -> dict[str, Any]:
    """Sizes of each topic, from manifests. A segment's bytes count in the period of its newest record."""
    topics: dict[str, Any] = {}
    for source, some in segments.items():
        topic = topics.setdefault(source.topic, {"bytes": 0, "segments": 0, "offsets": 0, "partitions": {}})
        stored: dict[int, int] = {}
        for one in some:
            period = one.max_timestamp // period_ms * period_ms
            stored[period] = stored.get(period, 0) + one.log_bytes
        found = {
            "bytes": sum(one.log_bytes for one in some),
            "segments": len(some),
            "offsets": some[-1].end_offset - some[0].base_offset if some else 0,
            "stored_by_period": sorted(stored.items()),
        }
        for name in ("bytes", "segments", "offsets"):
            topic[name] += found[name]
        topic["partitions"][source.partition] = found
    return topics


def _progress(values: Values, period_ms: int) -> "StatsProgress":
    from tierlog.spark.jobs.stats_progress import StatsProgress

    return StatsProgress.load(values, period_ms)


def _collect(values: Values, state: "StatsProgress", progress: Progress) -> None:
    """Count the records that were not counted yet."""
    from tierlog.spark.jobs.record_stats import RecordStats, StatsTask, collect

    options, parts = plan(values, state.ends)
    if not parts:
        return
    with spark_session("stats", values) as spark:
        for number, some in enumerate(_rounds(parts), 1):
            tasks = [StatsTask(tuple(group), options, state.period_ms) for group in _groups(some)]
            sizes = [sum(part.end - part.start for part in task.parts) for task in tasks]
            progress.begin(f"records, round {number}", sum(sizes))
            for result in run_tasks(spark, collect, tasks, progress, sizes):
                for where, stats in result.items():
                    state.found.setdefault(where, RecordStats()).merge(stats)
            for stats in state.found.values():
                stats.trim()
            state.reach(ends_of(some))


def _rounds(parts: Sequence[Part]) -> list[list[Part]]:
    """Rounds of complete segments: the progress is kept after each."""
    rounds: list[list[Part]] = [[]]
    size = 0
    for segment in segments_of(parts):
        if size >= ROUND_TASKS * TASK_BYTES:
            rounds.append([])
            size = 0
        rounds[-1] += segment
        size += sum(part.end - part.start for part in segment)
    return rounds


def _groups(parts: Sequence[Part]) -> list[list[Part]]:
    groups: list[list[Part]] = []
    size = TASK_BYTES
    for part in parts:
        if size >= TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.end - part.start
    return groups


def _add_records(document: dict[str, Any], found: "dict[tuple[str, int], RecordStats]", top: int) -> None:
    from tierlog.spark.jobs.record_stats import merged

    period_ms = document["period_ms"]
    for name, topic in document["topics"].items():
        partitions = {partition: stats for (owner, partition), stats in found.items() if owner == name}
        for partition, stats in partitions.items():
            topic["partitions"][partition].update(_of_records(stats, period_ms))
        total = merged(partitions.values())
        topic.update(_of_records(total, period_ms))
        raw = total.key_bytes + total.value_bytes
        counts = [partitions[one].records if one in partitions else 0 for one in topic["partitions"]]
        topic["partition_skew"] = _skew(counts)
        topic["bytes_per_stored_byte"] = round(raw / topic["bytes"], 3) if topic["bytes"] else None
        topic["value_sizes"] = [
            {"below": 1 << number, "records": int(count)} for number, count in enumerate(total.sizes) if count
        ]
        topic["hot_keys"] = [
            {
                "key": key.decode("utf-8", "backslashreplace"),
                "records": count,
                "share": round(count / total.records, 6),
            }
            for key, count in sorted(total.keys.items(), key=lambda pair: (-pair[1], pair[0]))[:top]
        ]
        topic["skew_by_period"] = _skew_by_period(partitions, len(topic["partitions"]), period_ms)


def _of_records(stats: "RecordStats", period_ms: int) -> dict[str, Any]:
    seconds = period_ms / 1_000
    return {
        "records": stats.records,
        "key_bytes": stats.key_bytes,
        "value_bytes": stats.value_bytes,
        "null_keys": stats.null_keys,
        "null_values": stats.null_values,
        "late_records": stats.late_records,
        "distinct_keys": stats.distinct_keys,
        "first_timestamp": stats.first_ms,
        "last_timestamp": stats.last_ms,
        "rates": [
            {
                "timestamp": period * period_ms,
                "records_per_second": round(records / seconds, 3),
                "bytes_per_second": round(size / seconds, 3),
            }
            for period, (records, size) in sorted(stats.by_period.items())
        ],
    }


def _skew_by_period(
    partitions: "dict[int, RecordStats]", count: int, period_ms: int
) -> list[tuple[int, float]]:
    periods = sorted({period for stats in partitions.values() for period in stats.by_period})
    found = []
    for period in periods:
        records = [stats.by_period.get(period, (0, 0))[0] for stats in partitions.values()]
        found.append((period * period_ms, _skew([*records, *[0] * (count - len(records))])))
    return found


def _skew(counts: Sequence[int]) -> float:
    """The largest share of a partition, as a multiple of the mean: 1 is even."""
    return round(max(counts) * len(counts) / sum(counts), 3) if sum(counts) else 1.0


def _page(document: dict[str, Any]) -> Page:
    topics: dict[str, Any] = document["topics"]
    facts = {
        "topics": len(topics),
        "partitions": sum(len(topic["partitions"]) for topic in topics.values()),
        "segments": sum(topic["segments"] for topic in topics.values()),
        "stored bytes": sum(topic["bytes"] for topic in topics.values()),
        "one point of a line is": _duration(document["period_ms"]),
    }
    page = Page("Topics in the bucket", facts)
    largest = sorted(topics.items(), key=lambda pair: -pair[1]["bytes"])
    page.charts.append(
        Chart.bars("Stored bytes by topic", {name: topic["bytes"] for name, topic in largest}, "bytes")
    )
    page.table("Topics", [_topic_row(name, topic) for name, topic in largest])
    for name, topic in largest:
        _add_topic(page, name, topic)
    return page


def _topic_row(name: str, topic: dict[str, Any]) -> dict[str, Any]:
    row = {
        "topic": name,
        "partitions": len(topic["partitions"]),
        "segments": topic["segments"],
        "stored bytes": topic["bytes"],
        "offsets": topic["offsets"],
    }
    names = ("records", "distinct_keys", "null_keys", "null_values", "late_records", "partition_skew")
    return {**row, **{one.replace("_", " "): topic[one] for one in names if one in topic}}


def _add_topic(page: Page, name: str, topic: dict[str, Any]) -> None:
    partitions = sorted(topic["partitions"].items(), key=lambda pair: -pair[1]["bytes"])
    sizes = {f"{name}-{partition}": one["bytes"] for partition, one in partitions}
    page.charts.append(Chart.bars(f"{name}: stored bytes by partition", sizes, "bytes"))
    if "records" not in topic:
        stored = {f"{name}-{partition}": one["stored_by_period"] for partition, one in partitions[:LINES]}
        page.charts.append(Chart.times(f"{name}: bytes of segments by their newest record", stored, "bytes"))
        return
    counts = {f"{name}-{partition}": one.get("records", 0) for partition, one in partitions}
    page.charts.append(Chart.bars(f"{name}: records by partition", counts, "records"))
    for unit in ("records", "bytes"):
        lines = {
            f"{name}-{partition}": _line(one["rates"], f"{unit}_per_second")
            for partition, one in partitions[:LINES]
            if "rates" in one
        }
        page.charts.append(Chart.times(f"{name}: {unit} a second, by timestamp", lines, f"{unit}/s"))
    skew = {"largest partition": topic["skew_by_period"]}
    page.charts.append(Chart.times(f"{name}: skew by time", skew, "times the mean"))
    hot = {one["key"] or "(empty)": one["records"] for one in topic["hot_keys"]}
    page.charts.append(Chart.bars(f"{name}: most frequent keys", hot, "records"))
    classes = {_class(one["below"]): one["records"] for one in topic["value_sizes"]}
    page.charts.append(Chart.bars(f"{name}: records by size of the value", classes, "records"))


def _line(rates: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(one["timestamp"], one[name]) for one in rates]


def _class(below: int) -> str:
    return "empty or null" if below == 1 else f"below {readable(below)} bytes"


def _duration(milliseconds: int) -> str:
    for seconds, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        count = milliseconds // 1_000 // seconds
        if count:
            return f"{count} {unit}" + ("s" if count > 1 else "")
    return f"{milliseconds // 1_000} s"


def _show(document: dict[str, Any]) -> str:
    lines = []
    for name, topic in sorted(document["topics"].items()):
        line = (
            f"{name}: {len(topic['partitions'])} partitions, {topic['segments']:,} segments, "
            f"{topic['bytes']:,} bytes stored"
        )
        if "records" in topic:
            first, last = (_day(topic[one]) for one in ("first_timestamp", "last_timestamp"))
            line += (
                f", {topic['records']:,} records from {first} to {last}, "
                f"about {topic['distinct_keys']:,} keys, "
                f"largest partition {topic['partition_skew']:.2f} times the mean"
            )
        lines.append(line)
    return "\n".join(lines)


def _day(timestamp_ms: int | None) -> str:
    try:
        return datetime.fromtimestamp((timestamp_ms or 0) / 1000, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError):
        return str(timestamp_ms)


JOB = Job("stats", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
