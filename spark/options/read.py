"""Options of `spark.read.format("tierlog")`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tierlog.spark.options.table import Given, InvalidOption, Use

EARLIEST, LATEST = -2, -1  # as in the JSON of Spark's Kafka source
DEFAULT_SPLIT_BYTES = 64 << 20


class Edge(Enum):
    """Which end of the range a bound is."""

    STARTING = "starting"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of the read: a timestamp, or else an offset per partition, or else `default`."""

    default: int
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    timestamp_ms: int | None = None

    def offset_of(self, topic: str, partition: int) -> int:
        """An offset, EARLIEST or LATEST."""
        return self.offsets.get((topic, partition), self.default)


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
    store: StoreAddress
    cluster: str | None
    topics: tuple[str, ...]
    partitions: frozenset[int] | None
    starting: Bound
    ending: Bound
    include_headers: bool
    columns: tuple[str, ...] | None
    fail_on_data_loss: bool
    split_bytes: int
    push_filters: bool


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse and validate Spark's options, whose names are case-insensitive. Raises InvalidOption."""
    options = Given(given, Use.READ)
    if not options.text("path"):
        raise InvalidOption("option `path` is required: a directory, file:///directory or s3://bucket/prefix")
    return read_options(options)


def read_options(options: Given) -> ReadOptions:
    """The options that batch reads and streams have in common. A stream from brokers alone has no path."""
    return ReadOptions(
        store=_store(options.text("path") or "", options),
        cluster=options.text("cluster"),
        topics=_topics(options),
        partitions=_partitions(options.text("partitions")),
        starting=_bound(options, Edge.STARTING, EARLIEST),
        ending=_bound(options, Edge.ENDING, LATEST),
        include_headers=options.boolean("includeHeaders", False),
        columns=options.names("columns"),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        split_bytes=options.positive("splitBytes", DEFAULT_SPLIT_BYTES, "number of bytes"),
        push_filters=options.boolean("pushFilters", False),
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
    if (address.access_key is None) != (address.secret_key is None):
        raise InvalidOption("set both `accessKey` and `secretKey`, or neither: then the AWS chain is used")
    if address.session_token is not None and address.access_key is None:
        raise InvalidOption("`sessionToken` belongs to temporary keys: set `accessKey` and `secretKey` too")
    return address


def _topics(options: Given) -> tuple[str, ...]:
    topic, topics = options.text("topic"), options.text("topics")
    if (topic is None) == (topics is None):
        raise InvalidOption("set either `topic`, or `topics` as a comma-separated list")
    names = [topic] if topic is not None else (topics or "").split(",")
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not found:
        raise InvalidOption("`topic` and `topics` must name a topic")
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
    offsets, timestamp = f"{edge.value}Offsets", f"{edge.value}Timestamp"
    text, stamp = options.text(offsets), options.text(timestamp)
    if text is not None and stamp is not None:
        raise InvalidOption(f"set either `{offsets}` or `{timestamp}`")
    if stamp is not None:
        try:
            return Bound(default, timestamp_ms=int(stamp))
        except ValueError:
            raise InvalidOption(f"`{timestamp}` must be milliseconds since 1970, not {stamp!r}") from None
    if text is None:
        return Bound(default)
    if text.strip().lower() in ("earliest", "latest"):
        return Bound(EARLIEST if text.strip().lower() == "earliest" else LATEST)
    return Bound(default, _offsets(offsets, text))


def _offsets(name: str, text: str) -> dict[tuple[str, int], int]:
    """`{"topic": {"0": 23, "1": -2}}`: -2 is earliest, -1 latest."""
    wrong = InvalidOption(
        f'`{name}` must be earliest, latest or JSON like {{"topic":{{"0":23}}}}, not {text!r}'
    )
    try:
        document = json.loads(text)
        found = {
            (topic, int(partition)): offset
            for topic, partitions in document.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError):
        raise wrong from None
    if not all(type(offset) is int and offset >= EARLIEST for offset in found.values()):
        raise wrong
    return found
