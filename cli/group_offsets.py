"""New offsets of a group: which partitions are set, and to which offsets.

`new_offsets` and `plan` are pure. The rules are those of Kafka's `kafka-consumer-groups --reset-offsets`: an
offset below the log start is raised to it, and one above the log end lowered to it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tierlog.base.types import TopicPartition
from tierlog.cli import groups, topics
from tierlog.cli.client import KafkaClient
from tierlog.cli.errors import CliError, ExitCode, no_partition, unknown_topic, usage
from tierlog.cli.group_lag import Ends, Positions, known_topics, read_ends
from tierlog.cli.groups import Offsets, Row
from tierlog.cli.output import listed
from tierlog.client.errors import UNKNOWN_END_REMEDY, unknown_ends
from tierlog.protocol.errors import ErrorCode

DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS = 86_400_000, 3_600_000, 60_000, 1_000
ISO_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)
SHORT_DURATION = re.compile(r"(\d+)(d|h|m|s)", re.ASCII)
UNITS_MS = {"d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS}


class To(StrEnum):
    """The kinds of new offsets, as Kafka's tool names its options."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    OFFSET = "to-offset"
    DATETIME = "to-datetime"
    DURATION = "by-duration"
    SHIFT = "shift-by"
    CURRENT = "to-current"
    FILE = "from-file"


@dataclass(frozen=True, slots=True)
class Reset:
    """`value`: an offset, a timestamp in milliseconds, or a number of records. `offsets`: those of a file."""

    to: To
    value: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


def reset_rows(client: KafkaClient, group: str, reset: Reset, words: Iterable[str]) -> list[Row]:
    """The plan for the partitions of the file, of `--topic` options, or without these of all committed
    offsets."""
    committed = groups.committed(client, group)
    if reset.offsets is not None:
        partitions = sorted(reset.offsets)
    else:
        partitions = selected(client, words) or sorted(committed)
    if not partitions:
        what = f"group {group!r} has no committed offsets"
        raise CliError(what, hint=groups.LIST_HINT, code=ExitCode.NOT_FOUND)
    ends = find_ends(client, partitions)
    is_by_time = reset.to in (To.DATETIME, To.DURATION)
    by_time = offsets_of_time(client, partitions, reset.value) if is_by_time else {}
    return plan(group, new_offsets(reset, partitions, committed, ends, by_time), committed, ends)


def new_offsets(
    reset: Reset,
    partitions: Iterable[TopicPartition],
    committed: Offsets,
    ends: Ends,
    by_time: Mapping[TopicPartition, int],
) -> Positions:
    """The wanted offset of each partition, before it is moved into the partition's range.

    `by_time`: the first offset with the timestamp of `reset` or a later one. Raises CliError if a partition
    has no committed offset to shift.
    """
    partitions = list(partitions)
    match reset.to:
        case To.EARLIEST:
            return {one: ends.start[one] for one in partitions}
        case To.LATEST:
            return {one: ends.end[one] for one in partitions}
        case To.OFFSET:
            return dict.fromkeys(partitions, reset.value)
        case To.DATETIME | To.DURATION:
            return {one: by_time[one] if by_time.get(one, -1) >= 0 else ends.end[one] for one in partitions}
        case To.CURRENT:
            return {one: committed[one].offset if one in committed else ends.end[one] for one in partitions}
        case To.FILE:
            return {one: (reset.offsets or {})[one] for one in partitions}
        case To.SHIFT:
            if missing := [str(one) for one in partitions if one not in committed]:
                what = f"no committed offset to shift: {listed(missing)}"
                raise CliError(
                    what, hint="Choose partitions with --topic TOPIC:0,1.", code=ExitCode.NOT_FOUND
                )
            return {one: committed[one].offset + reset.value for one in partitions}


def plan(group: str, wanted: Positions, committed: Offsets, ends: Ends) -> list[Row]:
    """One row per partition. `new_offset` is in the partition's range; `note` says what was moved into it."""
    rows = []
    for partition, offset in sorted(wanted.items()):
        start, end = ends.start[partition], ends.end[partition]
        new = min(max(offset, start), end)
        note = ""
        if new != offset:
            note = f"{offset:,} is {'below the log start' if new > offset else 'above the log end'}"
        rows.append(
            {
                "group": group,
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": committed[partition].offset if partition in committed else None,
                "new_offset": new,
                "lag": end - new,
                "note": note,
            }
        )
    return rows


def find_ends(client: KafkaClient, partitions: Iterable[TopicPartition]) -> Ends:
    """The ranges of these partitions. Raises CliError if one does not exist, has no leader, or no end that is
    known."""
    wanted = sorted(partitions)
    names = list(dict.fromkeys(one.topic for one in wanted))
    counts = {topic.name: len(topic.partitions) for topic in known_topics(client, names)}
    for one in wanted:
        if one.topic not in counts:
            raise unknown_topic(one.topic)
        if one.partition >= counts[one.topic]:
            raise no_partition(one.topic, one.partition, counts[one.topic])
    ends = read_ends(client, names)
    if unknown := [one for one in wanted if ends.failed.get(one) == ErrorCode.OFFSET_NOT_AVAILABLE]:
        raise CliError(unknown_ends(unknown), hint=f"{UNKNOWN_END_REMEDY} Or leave them out.")
    without_leader = [str(one) for one in wanted if one not in ends.end or one not in ends.start]
    if without_leader:
        what = f"partitions without a leader: {listed(without_leader)}"
        raise CliError(what, hint="Run `tierlog cluster health` to see what is wrong, or leave them out.")
    return ends


def offsets_of_time(
    client: KafkaClient, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> Positions:
    """The first offset with this timestamp or a later one; -1 if there is none."""
    names = dict.fromkeys(one.topic for one in partitions)
    return {
        TopicPartition(name, number): offset
        for name in names
        for number, offset in topics.offsets(
            client, name, range(len(client.topic(name).partitions)), timestamp_ms
        ).items()
    }


def selected(client: KafkaClient, words: Iterable[str]) -> list[TopicPartition]:
    """The partitions of `--topic TOPIC[:PARTITION,…]` options. Raises CliError if one does not exist."""
    found: set[TopicPartition] = set()
    for word in words:
        name, numbers = parse_topic(word)
        count = len(client.topic(name).partitions)
        for number in range(count) if numbers is None else numbers:
            if number >= count:
                raise no_partition(name, number, count)
            found.add(TopicPartition(name, number))
    return sorted(found)


def parse_topic(word: str) -> tuple[str, list[int] | None]:
    """`orders:0,1` -> ("orders", [0, 1]); None: all partitions. Raises CliError."""
    name, colon, numbers = word.partition(":")
    parts = [part.strip() for part in numbers.split(",")]
    if not name or (colon and not all(part.isascii() and part.isdecimal() for part in parts)):
        raise usage(f"invalid --topic {word!r}", hint="For example: --topic orders, or --topic orders:0,1")
    return name, sorted({int(part) for part in parts}) if colon else None


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration (`P1DT12H`) or a short one (`90m`). Raises CliError."""
    if short := SHORT_DURATION.fullmatch(text):
        return int(short[1]) * UNITS_MS[short[2]]
    parts = ISO_DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        raise usage(f"invalid duration {text!r}", hint="For example: 90m, 36h, 7d, or P1DT12H")
    days, hours, minutes = (int(part or 0) for part in parts.groups()[:3])
    return days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + int(float(parts[4] or 0) * SECOND_MS)
