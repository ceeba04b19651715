"""Lag of a group: how far its committed offsets are behind each partition, in records and in time.

The lag in records is the distance from the committed offset to the log end, as Kafka's tools compute it. It
counts offsets without a record too: markers of transactions, compacted records. The lag in time is the age of
the first record that the group has not read, by that record's timestamp.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tierlog.base.clock import SystemClock
from tierlog.base.types import TopicPartition
from tierlog.cli import groups, topics
from tierlog.cli.client import KafkaClient, remedy
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.groups import Committed, Row
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tierlog.records.batch import iter_batches
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records

if TYPE_CHECKING:
    from tierlog.protocol.messages.metadata import MetadataResponseTopic

FETCH_WAIT_MS = 500
"""How long a broker may wait for the object store before it answers without a record."""

PARTITION_MAX_BYTES = 16 << 10
FETCH_MAX_BYTES = 4 << 20
PARTITIONS_PER_FETCH = 100
BATCH_MAX_BYTES = 64 << 20  # decompressed; protects against decompression bombs

Positions = dict[TopicPartition, int]


class Ends(NamedTuple):
    """Offsets of partitions; those without a live leader are missing. `stable`: last stable offsets.
    `failed`: why the leader of a partition did not say an offset."""

    start: Positions
    end: Positions
    stable: Positions
    failed: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})


def describe(client: KafkaClient, group: str) -> Row:
    """A group with its members, and a row for each partition that has an offset or a member."""
    found = groups.describe(client, group)
    offsets = groups.committed(client, group)
    owners = {partition: member for member in found["members"] for partition in member["partitions"]}
    names = sorted({partition.topic for partition in (*offsets, *owners)})
    silent = client.silent_leaders(known_topics(client, names))
    ends = read_ends(client, names, silent)
    unread = {
        partition: max(committed.offset, ends.start.get(partition, 0))
        for partition, committed in offsets.items()
        if committed.offset < ends.stable.get(partition, 0)
    }
    times = first_timestamps(client, unread, ends.stable, silent)
    return {**found, "partitions": partition_rows(offsets, owners, ends, times, SystemClock().now_ms())}


def partition_rows(
    offsets: groups.Offsets,
    owners: Mapping[TopicPartition, Row],
    ends: Ends,
    times: Mapping[TopicPartition, int],
    now_ms: int,
) -> list[Row]:
    """One row per partition. `times`: timestamp of the first record that the group has not read."""
    return [
        _row(partition, offsets.get(partition), owners.get(partition), ends, times.get(partition), now_ms)
        for partition in sorted({*offsets, *owners})
    ]


def _row(
    partition: TopicPartition,
    committed: Committed | None,
    owner: Row | None,
    ends: Ends,
    first_unread_ms: int | None,
    now_ms: int,
) -> Row:
    end, stable, failed = ends.end.get(partition), ends.stable.get(partition), ends.failed.get(partition)
    lag = None if committed is None or end is None else max(end - committed.offset, 0)
    lag_ms = None if first_unread_ms is None else max(now_ms - first_unread_ms, 0)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed_offset": None if committed is None else committed.offset,
        "log_start_offset": ends.start.get(partition),
        "log_end_offset": end,
        "last_stable_offset": stable,
        "lag": lag,
        "lag_ms": 0 if lag == 0 else lag_ms,
        "error": None if failed is None else failed.name,
        "remedy": None if failed is None else remedy(failed),
        "metadata": committed.metadata if committed is not None else None,
        "member_id": owner and owner["member_id"],
        "client_id": owner and owner["client_id"],
        "host": owner and owner["host"],
    }


def read_ends(client: KafkaClient, names: list[str], silent: set[int] | None = None) -> Ends:
    """The offsets of all partitions of these topics. A topic that does not exist has none. `silent`: brokers
    that are not asked, because they do not respond; this call adds to them."""
    failed: dict[TopicPartition, ErrorCode] = {}
    ends = Ends({}, {}, {}, failed)
    silent = set() if silent is None else silent
    for topic in known_topics(client, names):
        name = topic.name or ""
        for found, position, committed in (
            (ends.start, topics.EARLIEST, False),
            (ends.stable, topics.LATEST, True),
            (ends.end, topics.LATEST, False),
        ):
            errors: dict[int, ErrorCode] = {}
            known = topics.known_offsets(
                client, topic, position, committed=committed, silent=silent, failed=errors
            )
            found.update({TopicPartition(name, number): offset for number, offset in known.items()})
            failed.update({TopicPartition(name, number): error for number, error in errors.items()})
    return ends


def known_topics(client: KafkaClient, names: list[str]) -> "list[MetadataResponseTopic]":
    """Fresh metadata of the topics that exist."""
    if not names:
        return []
    return [topic for topic in client.metadata(names).topics if not topic.error_code]


def first_timestamps(
    client: KafkaClient, positions: Positions, ends: Positions, silent: Collection[int] = ()
) -> Positions:
    """The timestamp of the first record at or after each position. Partitions whose leader does not answer
    or is `silent`, and those without such a record, are missing."""
    found: Positions = {}
    for leader, partitions in _by_leader(client, positions).items():
        if leader in silent:
            continue
        remaining = {partition: positions[partition] for partition in partitions}
        while remaining:
            wanted = dict(list(remaining.items())[:PARTITIONS_PER_FETCH])
            try:
                fetched = dict(_fetch(client, leader, wanted))
            except CliError as failure:
                if failure.code != ExitCode.UNREACHABLE:
                    raise
                break
            # the first partition always gets a batch, if there is one; others may be above the limit of bytes
            first = next(iter(wanted))
            for partition, data in fetched.items():
                timestamp, position = _first_record(data, remaining[partition])
                if timestamp is not None:
                    found[partition] = timestamp
                has_moved = remaining[partition] < position < ends[partition]
                if has_moved:
                    remaining[partition] = position
                elif timestamp is not None or data.error_code or partition == first:
                    remaining.pop(partition)
            if first not in fetched:
                remaining.pop(first)
    return found


def _by_leader(client: KafkaClient, partitions: Positions) -> dict[int, list[TopicPartition]]:
    found: dict[int, list[TopicPartition]] = {}
    for name in dict.fromkeys(partition.topic for partition in partitions):
        for each in client.topic(name).partitions:
            partition = TopicPartition(name, each.partition_index)
            if partition in partitions and client.is_live(each.leader_id):
                found.setdefault(each.leader_id, []).append(partition)
    return found


def _fetch(
    client: KafkaClient, leader: int, positions: Positions
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    by_topic: dict[str, list[FetchPartition]] = {}
    for partition, offset in positions.items():
        wanted = FetchPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=PARTITION_MAX_BYTES
        )
        by_topic.setdefault(partition.topic, []).append(wanted)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_MAX_BYTES,
        topics=[FetchTopic(topic=name, partitions=wanted) for name, wanted in by_topic.items()],
    )
    response: Any = client.call(request, leader)
    for topic in () if response.error_code else response.responses:
        for data in topic.partitions:
            yield TopicPartition(topic.topic, data.partition_index), data


def _first_record(data: PartitionData, position: int) -> tuple[int | None, int]:
    """Timestamp of the first record from a position on, and the position after the batches that were read."""
    if data.error_code != ErrorCode.NONE or not isinstance(data.records, memoryview):
        return None, position
    try:
        for at, header in iter_batches(data.records):
            for record in (
                () if header.is_control else iter_records(data.records, at, max_bytes=BATCH_MAX_BYTES)
            ):
                if record.offset >= position:
                    return record.timestamp, position
            position = max(position, header.next_offset)
    except RecordsError:  # damaged: the consumers cannot read it either
        return None, position
    return None, position
