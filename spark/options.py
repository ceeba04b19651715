"""Options of `spark.read.format("tierlog")`, validated once on the driver. Pure.

Options that Spark's Kafka source has too keep their name and meaning (startingOffsets, failOnDataLoss, …).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

EARLIEST, LATEST = -2, -1  # as in the JSON of Spark's Kafka source
DEFAULT_SPLIT_BYTES = 8 << 20


class InvalidOption(ValueError):
    """An unknown or invalid option; the message says which and why."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    store: StoreAddress
    cluster: str | None
    topics: tuple[str, ...]
    partitions: frozenset[int] | None
    starting: Bound
    ending: Bound
    include_headers: bool
    fail_on_data_loss: bool
    split_bytes: int
    push_filters: bool


_NAMES = (
    "path",
    "endpoint",
    "region",
    "accessKey",
    "secretKey",
    "cluster",
    "topic",
    "topics",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "failOnDataLoss",
    "splitBytes",
    "pushFilters",
)
_KNOWN = frozenset(name.lower() for name in _NAMES)


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse and validate Spark's options, whose names are case-insensitive. Raises InvalidOption."""
    options = {name.lower(): value for name, value in given.items()}
    if unknown := sorted(options.keys() - _KNOWN):
        known = ", ".join(_NAMES)
        raise InvalidOption(f"unknown option {', '.join(unknown)}; the options are {known}")
    if not options.get("path"):
        raise InvalidOption("option `path` is required: a directory, file:///directory or s3://bucket/prefix")
    return ReadOptions(
        store=StoreAddress(
            path=options["path"],
            endpoint=options.get("endpoint"),
            region=options.get("region"),
            access_key=options.get("accesskey"),
            secret_key=options.get("secretkey"),
        ),
        cluster=options.get("cluster"),
        topics=_topics(options),
        partitions=_partitions(options.get("partitions")),
        starting=_bound(options, Edge.STARTING, EARLIEST),
        ending=_bound(options, Edge.ENDING, LATEST),
        include_headers=_boolean(options, "includeHeaders", False),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        split_bytes=_positive(options, "splitBytes", DEFAULT_SPLIT_BYTES),
        push_filters=_boolean(options, "pushFilters", False),
    )


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    if ("topic" in options) == ("topics" in options):
        raise InvalidOption("set either `topic`, or `topics` as a comma-separated list")
    names = [options["topic"]] if "topic" in options else options["topics"].split(",")
    topics = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not topics:
        raise InvalidOption("`topic` and `topics` must name a topic")
    return topics


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


def _bound(options: Mapping[str, str], edge: Edge, default: int) -> Bound:
    offsets, timestamp = f"{edge.value}Offsets", f"{edge.value}Timestamp"
    text, stamp = options.get(offsets.lower()), options.get(timestamp.lower())
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


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"`{name}` must be true or false, not {text!r}")
    return text == "true"


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower(), str(default))
    if not text.strip().isdecimal() or int(text) == 0:
        raise InvalidOption(f"`{name}` must be a positive number of bytes, not {text!r}")
    return int(text)
