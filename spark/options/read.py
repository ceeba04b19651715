"""Options of `spark.read.format("tierlog")`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tierlog.spark.options.table import MOST, Given, InvalidOption, Use
from tierlog.spark.options.values import ValueOptions, value_options

EARLIEST, LATEST = -2, -1  # as in the JSON of Spark's Kafka source
DEFAULT_SPLIT_BYTES = 64 << 20
ENDPOINT = r"https?://[^/?#\s]+/?"


class Edge(Enum):
    """Which end of the range a bound is."""

    STARTING = "starting"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of the read: a timestamp for all partitions or for one, or else an offset of the
    partition, or else `default`. `must_match`: a partition without a record at or after the timestamp is an
    error."""

    default: int
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps: Mapping[tuple[str, int], int] = field(default_factory=dict)
    must_match: bool = False

    def offset_of(self, topic: str, partition: int) -> int:
        """An offset, EARLIEST or LATEST."""
        return self.offsets.get((topic, partition), self.default)

    def timestamp_of(self, topic: str, partition: int) -> int | None:
        """Milliseconds since 1970, or None if the bound is an offset."""
        return self.timestamps.get((topic, partition), self.timestamp_ms)


class Table(Enum):
    """The rows of a batch query."""

    RECORDS = "records"
    PARTITIONS = "partitions"
    SEGMENTS = "segments"
    SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Address and credentials of the bucket, for executors."""

    path: str
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """`value`: how values are decoded; None: they stay bytes."""

    store: StoreAddress
    cluster: str | None
    table: Table
    topics: tuple[str, ...]
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    partitions: frozenset[int] | None
    starting: Bound
    ending: Bound
    include_headers: bool
    columns: tuple[str, ...] | None
    fail_on_data_loss: bool
    split_bytes: int
    min_splits: int | None
    max_splits: int | None
    max_records: int | None
    push_filters: bool
    max_lateness_ms: int | None
    snapshot: str | None
    snapshot_lease_ms: int
    value: ValueOptions | None = None

    def partitions_of(self, topic: str) -> frozenset[int] | None:
        """The wanted partitions of a topic; None: all."""
        return self.partitions if self.assigned is None else self.assigned[topic]


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse and validate Spark's options, whose names are case-insensitive. Raises InvalidOption."""
    options = Given(given, Use.READ)
    if not options.text("path"):
        raise InvalidOption("option `path` is required: a directory, file:///directory or s3://bucket/prefix")
    return read_options(options)


def read_options(options: Given) -> ReadOptions:
    """The options that batch reads and streams have in common. A stream from brokers alone has no path."""
    isolation = options.text("kafka.isolation.level")
    if isolation is not None and isolation.strip().lower() != "read_committed":
        raise InvalidOption("`kafka.isolation.level` must be read_committed: the bucket has nothing else")
    table = _table(options)
    assigned = _assigned(options.text("assign"))
    topics = _topics(options, assigned, is_required=table is Table.RECORDS)
    starting, ending = _bound(options, Edge.STARTING, EARLIEST), _bound(options, Edge.ENDING, LATEST)
    _check_range(starting, ending)
    return ReadOptions(
        store=_store(options.text("path") or "", options),
        cluster=options.text("cluster"),
        table=table,
        topics=topics,
        pattern=_pattern(options, is_default=table is not Table.RECORDS),
        assigned=assigned,
        partitions=_partitions(options.text("partitions")),
        starting=starting,
        ending=ending,
        include_headers=options.boolean("includeHeaders", False),
        columns=options.names("columns"),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        split_bytes=options.positive("splitBytes", DEFAULT_SPLIT_BYTES, "number of bytes"),
        min_splits=options.positive_or_none("minPartitions"),
        max_splits=options.positive_or_none("maxPartitions"),
        max_records=options.positive_or_none("maxRecordsPerPartition"),
        push_filters=options.boolean("pushFilters", False),
        max_lateness_ms=options.timestamp("maxLateness"),
        snapshot=options.text("snapshot"),
        snapshot_lease_ms=options.positive("snapshotLeaseMs", 3_600_000, "number of milliseconds"),
        value=value_options(options, topics),
    )


def _store(path: str, options: Given) -> StoreAddress:
    address = StoreAddress(
        path=path,
        endpoint=options.text("endpoint"),
        region=options.text("region"),
        access_key=options.text("accessKey"),
        secret_key=options.text("secretKey"),
        session_token=options.text("sessionToken"),
        profile=options.text("profile"),
    )
    if address.endpoint is not None and not re.fullmatch(ENDPOINT, address.endpoint):
        raise InvalidOption(
            f"`endpoint` must be http://host:port or https://host:port, not {address.endpoint!r}"
        )
    if (address.access_key is None) != (address.secret_key is None):
        raise InvalidOption("set both `accessKey` and `secretKey`, or neither: then the AWS chain is used")
    if address.session_token is not None and address.access_key is None:
        raise InvalidOption("`sessionToken` belongs to temporary keys: set `accessKey` and `secretKey` too")
    return address


def _table(options: Given) -> Table:
    text = (options.text("table") or Table.RECORDS.value).strip().lower()
    try:
        return Table(text)
    except ValueError:
        names = ", ".join(table.value for table in Table)
        raise InvalidOption(f"`table` must be one of {names}, not {text!r}") from None


SELECTORS = ("subscribe", "subscribePattern", "assign", "topic", "topics")


def _topics(
    options: Given, assigned: Mapping[str, frozenset[int]] | None, is_required: bool
) -> tuple[str, ...]:
    given = [name for name in SELECTORS if name in options]
    if len(given) > 1 or (is_required and not given):
        raise InvalidOption(
            "set one of `subscribe` (topics, separated by commas), `subscribePattern`, `assign` and `topic`"
        )
    if assigned is not None:
        return tuple(assigned)
    if not given or given == ["subscribePattern"]:
        return ()
    text = options.text(given[0]) or ""
    names = [text] if given == ["topic"] else text.split(",")
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not found:
        raise InvalidOption(f"`{given[0]}` must name a topic")
    return found


def _pattern(options: Given, is_default: bool) -> str | None:
    """The pattern of topic names. `is_default`: without any selection, all topics."""
    text = options.text("subscribePattern")
    if text is None:
        return ".*" if is_default and not any(name in options for name in SELECTORS) else None
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"`subscribePattern` {text!r} is not a regular expression: {error}") from None
    return text


def _assigned(text: str | None) -> dict[str, frozenset[int]] | None:
    """`{"topic": [0, 1]}`"""
    if text is None:
        return None
    wrong = InvalidOption(f'`assign` must be JSON like {{"topic":[0,1]}}, not {text!r}')
    try:
        found = {topic: frozenset(numbers) for topic, numbers in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise wrong from None
    numbers = [number for some in found.values() for number in some]
    if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
        raise wrong
    return found


def _partitions(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        numbers = frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidOption(f"`partitions` must be a comma-separated list of numbers, not {text!r}") from None
    if min(numbers) < 0:
        raise InvalidOption(f"`partitions` must not be negative: {text!r}")
    return numbers


def _bound(options: Given, edge: Edge, default: int) -> Bound:
    """As in Spark's Kafka source, a timestamp precedes timestamps by partition, and these precede offsets."""
    must_match = edge is Edge.STARTING and _strategy(options) == "error"
    stamp = options.timestamp(f"{edge.value}Timestamp")
    if stamp is not None:
        return Bound(default, timestamp_ms=stamp, must_match=must_match)
    by_time = f"{edge.value}OffsetsByTimestamp"
    text = options.text(by_time)
    if text is not None:
        return Bound(default, timestamps=_by_partition(by_time, text, 0), must_match=must_match)
    offsets = f"{edge.value}Offsets"
    text = options.text(offsets)
    if text is None:
        return Bound(default)
    if text.strip().lower() in ("earliest", "latest"):
        return Bound(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    return Bound(default, _by_partition(offsets, text, EARLIEST))


def _check_range(starting: Bound, ending: Bound) -> None:
    since, until = starting.timestamp_ms, ending.timestamp_ms
    if since is not None and until is not None and since > until:
        raise InvalidOption(f"`startingTimestamp` {since} is after `endingTimestamp` {until}")


def _strategy(options: Given) -> str:
    name = "startingOffsetsByTimestampStrategy"
    text = (options.text(name) or "error").strip().lower()
    if text not in ("error", "latest"):
        raise InvalidOption(f"`{name}` must be error or latest, not {text!r}")
    return text


def _by_partition(name: str, text: str, least: int) -> dict[tuple[str, int], int]:
    """`{"topic": {"0": 23, "1": -2}}`: among offsets, -2 is the earliest and -1 the latest."""
    words = "" if least == 0 else "earliest, latest or "
    wrong = InvalidOption(f'`{name}` must be {words}JSON like {{"topic":{{"0":23}}}}, not {text!r}')
    try:
        document = json.loads(text)
        found = {
            (topic, int(partition)): number
            for topic, partitions in document.items()
            for partition, number in partitions.items()
        }
    except (ValueError, AttributeError):
        raise wrong from None
    if not all(type(number) is int and least <= number <= MOST for number in found.values()):
        raise wrong
    return found
