"""`tierlog topic analyze`: rates, batch sizes and skew of a topic's partitions, and its heaviest keys."""

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands.consume import parse_time
from tierlog.cli.errors import no_partition, usage
from tierlog.cli.options import INT32_MAX, Bootstrap, ClientConfig, Json, Topic
from tierlog.cli.output import counted, print_json, print_rows, print_status, readable, size

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.topic_analysis import HotKey, KeySample

DEFAULT_RANGE = "10m"
DEFAULT_SAMPLE_MIB = 64
SAMPLE_MIB_MAX = 4096
MIB = 1 << 20
TOP_MAX = 1000
AGO = re.compile(r"\d+[a-zA-Z]")
COLUMNS = {
    "partition": "partition",
    "leader": "leader",
    "rate": "bytes/s",
    "batches_per_s": "batches/s",
    "records_per_s": "records/s",
    "batch": "batch: mean",
    "batch_p50": "p50",
    "batch_p99": "p99",
    "records_per_batch": "records/batch",
    "share": "share",
    "read": "read",
}
KEY_COLUMNS = {
    "key": "key",
    "partition": "partition",
    "of_topic": "of the topic",
    "of_partition": "of the partition",
}


def analyze(
    topic: Topic,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Begin of the time range: a duration before now (10m, 6h, 7d), milliseconds since 1970, or "
            "ISO 8601.",
        ),
    ] = DEFAULT_RANGE,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="End of the time range, likewise. Default: now."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Only this one. May be repeated."),
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Name the keys with the most bytes.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, max=TOP_MAX, help="Keys that are named.")] = 10,
    sample: Annotated[
        int,
        typer.Option(
            "--sample-mib", min=1, max=SAMPLE_MIB_MAX, help="MiB of batches that are read at most, in all."
        ),
    ] = DEFAULT_SAMPLE_MIB,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the rates, batch sizes and skew of a topic's partitions over a time range, and what to do.

    Offsets are exact. Bytes, batches and keys come from a sample, spread over the range of each partition.
    """
    from tierlog.cli import topic_analysis
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.topic_samples import read_samples

    now_ms = time.time_ns() // 1_000_000
    begin_ms = _moment(since, now_ms)
    end_ms = now_ms if until is None else _moment(until, now_ms)
    if begin_ms >= end_ms:
        raise usage("the time range is empty", hint="--since must be before --until, and before now.")
    seconds = (end_ms - begin_ms) / 1000
    found = topic_analysis.KeySample() if keys else None
    with KafkaClient(bootstrap) as client:
        ranges = _ranges(client, topic, partition or [], begin_ms, None if until is None else end_ms)
        loads = read_samples(client, topic, ranges, sample_bytes=sample * MIB, keys=found)
    rows = topic_analysis.partition_rows(loads, seconds)
    document: dict[str, Any] = {
        "topic": topic,
        "since_ms": begin_ms,
        "until_ms": end_ms,
        **topic_analysis.summary(loads, seconds),
        "partition_loads": rows,
        "keys": None if found is None else _keys(found, top),
        "advice": topic_analysis.advice(topic, loads, seconds, found),
    }
    if as_json:
        print_json(document)
    else:
        _print(document, None if found is None else found.top(top))


def _ranges(
    client: "KafkaClient", topic: str, only: list[int], begin_ms: int, end_ms: int | None
) -> dict[int, tuple[int, int]]:
    """First offset in the time range and the one after its last, by partition. `end_ms` None: the log end.
    Raises CliError for a partition that does not exist."""
    from tierlog.cli import topics

    count = len(client.topic(topic).partitions)
    for one in only:
        if one >= count:
            raise no_partition(topic, one, count)
    wanted = sorted(set(only) or range(count))
    ends = topics.offsets(client, topic, wanted, topics.LATEST)
    firsts = topics.offsets(client, topic, wanted, begin_ms)
    stops = {} if end_ms is None else topics.offsets(client, topic, wanted, end_ms)
    found = {}
    for one in wanted:
        end = ends[one] if stops.get(one, -1) < 0 else stops[one]
        first = end if firsts[one] < 0 else firsts[one]  # -1: no record is as recent
        found[one] = (min(first, end), end)
    return found


def _moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, from a duration before now, or a time. Raises CliError."""
    from tierlog.cli.group_offsets import parse_duration

    if AGO.fullmatch(text) or text.startswith("P"):
        return max(now_ms - parse_duration(text), 0)
    return parse_time(text)


def _keys(found: "KeySample", top: int) -> dict[str, Any]:
    return {
        "records": found.records,
        "without_key": found.without_key,
        "undecoded_batches": found.undecoded,
        "bytes_error": found.items.error,
        "top": [
            {
                "key": readable(one.key),
                "partition": one.partition,
                "bytes": one.bytes,
                "of_topic": round(one.of_topic, 4),
                "of_partition": round(one.of_partition, 4),
            }
            for one in found.top(top)
        ],
    }


def _print(document: dict[str, Any], hot: "list[HotKey] | None") -> None:
    rows = [
        row
        | {
            "rate": size(row["bytes_per_s"]),
            "batch": size(row["batch_bytes_mean"]),
            "batch_p50": size(row["batch_bytes_p50"]),
            "batch_p99": size(row["batch_bytes_p99"]),
            "share": f"{row['share']:.1%}",
            "read": f"{row['sampled']:.0%}",
        }
        for row in document["partition_loads"]
    ]
    title = (
        f"{document['topic']}: {size(document['bytes_per_s'])}/s, "
        f"{document['batches_per_s']:,.1f} batches/s, "
        f"{document['records_per_s']:,.1f} records/s; a batch has {size(document['batch_bytes_mean'])}"
    )
    print_rows(COLUMNS, rows, title=title)
    if hot is not None:
        lines = [
            {
                "key": str(readable(one.key)),
                "partition": one.partition,
                "of_topic": f"{one.of_topic:.1%}",
                "of_partition": f"{one.of_partition:.1%}",
            }
            for one in hot
        ]
        keys = document["keys"]
        title = (
            f"Keys with the most bytes, in {keys['records']:,} records, {keys['without_key']:,} without key"
        )
        print_rows(KEY_COLUMNS, lines, title=title)
        if undecoded := keys["undecoded_batches"]:
            print_status(
                f"{counted(undecoded, 'batch', 'batches')} cannot be decoded: their keys are missing"
            )
    if not document["records"]:
        print_status("no records in this time range; --since 7d looks further back")
    for sentence in document["advice"]:
        print_status(sentence)
