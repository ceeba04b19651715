"""`tierlog consume`: prints records of a topic."""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import no_partition, usage
from tierlog.cli.options import INT32_MAX, INT64_MAX, Bootstrap, ClientConfig, Topic
from tierlog.cli.output import print_json, readable

if TYPE_CHECKING:
    from tierlog.base.types import TopicPartition
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.consuming import Consumed
    from tierlog.cli.consuming import Start as StartOffsets
    from tierlog.cli.groups import Committed


class Format(StrEnum):
    """How a record is printed."""

    RAW = "raw"
    JSON = "json"


Start = Annotated[
    bool,
    typer.Option("--from-beginning", help="Start at the log start offset. Default: at the log end offset."),
]
Offset = Annotated[
    int | None,
    typer.Option("--offset", "-o", min=0, max=INT64_MAX, help="Start each partition at this offset."),
]
When = Annotated[
    str | None,
    typer.Option(
        "--timestamp",
        "-t",
        metavar="WHEN",
        help="Start at the first record with this timestamp or a later one: milliseconds since 1970, or ISO "
        "8601.",
    ),
]
Follow = Annotated[
    bool | None,
    typer.Option(
        "--follow/--exit-at-end",
        help="At the end, wait for new records, or stop. Default: wait, unless a start is given.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help="Start at the committed offsets of this group, and commit what was printed."
    ),
]
Shape = Annotated[
    Format,
    typer.Option("--format", "-F", help="raw: the value and a newline; json: one JSON document per record."),
]


def consume(
    topic: Topic,
    from_beginning: Start = False,
    offset: Offset = None,
    timestamp: When = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Read only this partition.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")
    ] = None,
    follow: Follow = None,
    group: Group = None,
    format: Shape = Format.RAW,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Print records of a topic, from the brokers' disks and from the object store."""
    from tierlog.cli import groups
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.consuming import Consumer

    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise usage(
            "more than one start given", hint="Use one of --from-beginning, --offset and --timestamp."
        )
    if group == "":
        raise usage("--group must not be empty", hint="For example: --group readers")
    has_start = from_beginning or offset is not None or timestamp is not None or group is not None
    with KafkaClient(bootstrap, changes=group is not None) as client:
        start = _start(client, topic, partition, from_beginning, offset, timestamp, group)
        consumer = Consumer(client, topic, start)
        try:
            for index, consumed in enumerate(
                consumer.read(follow=not has_start if follow is None else follow), 1
            ):
                _print(topic, consumed, Format.JSON if as_json else format)
                if index == count:
                    break
        finally:
            if group is not None:
                groups.commit(client, group, _to_commit(topic, consumer.positions))


def _start(
    client: "KafkaClient",
    topic: str,
    partition: int | None,
    from_beginning: bool,
    offset: int | None,
    timestamp: str | None,
    group: str | None,
) -> "StartOffsets":
    from tierlog.cli import consuming, groups, topics

    count = len(client.topic(topic).partitions)
    if partition is not None and partition >= count:
        raise no_partition(topic, partition, count)
    wanted = range(count) if partition is None else [partition]
    if offset is not None:
        return consuming.Start(dict.fromkeys(wanted, offset))
    if timestamp is not None:
        position = parse_time(timestamp)
    else:
        position = topics.EARLIEST if from_beginning or group else topics.LATEST
    unknown: set[int] = set()
    found = topics.start_offsets(client, topic, wanted, position, unknown=unknown)
    if not group or from_beginning or timestamp is not None:
        return consuming.Start(found, unknown, position)
    stored = {
        partition.partition: found.offset
        for partition, found in groups.committed(client, group).items()
        if partition.topic == topic
    }
    return consuming.Start({index: stored.get(index, found[index]) for index in wanted})


def _to_commit(topic: str, positions: dict[int, int]) -> "dict[TopicPartition, Committed]":
    """The offsets that a group commits when it has read up to these positions of a topic."""
    from tierlog.base.types import TopicPartition
    from tierlog.cli.groups import Committed

    return {TopicPartition(topic, index): Committed(offset) for index, offset in positions.items()}


def parse_time(text: str) -> int:
    """Milliseconds since 1970, from digits or ISO 8601 (UTC without a time zone)."""
    try:
        if text.isdecimal():
            milliseconds = int(text)
        else:
            when = datetime.fromisoformat(text)
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
            milliseconds = int(when.timestamp() * 1000)
        if not 0 <= milliseconds <= INT64_MAX:  # ListOffsets gives negative timestamps a special meaning
            raise ValueError(text)
    except ValueError:
        raise usage(
            f"invalid timestamp {text!r}", hint="For example: 1735689600000 or 2025-01-01T00:00:00Z"
        ) from None
    return milliseconds


def _print(topic: str, consumed: "Consumed", format: Format) -> None:
    record = consumed.record
    if format == Format.RAW:
        sys.stdout.buffer.write((record.value or b"") + b"\n")
        sys.stdout.buffer.flush()
        return
    print_json(
        {
            "topic": topic,
            "partition": consumed.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": readable(record.key),
            "value": readable(record.value),
            "headers": [[name, readable(value)] for name, value in record.headers],
        }
    )
