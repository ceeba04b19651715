"""Options of `spark.readStream.format("tierlog")`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tierlog.spark.options.read import ReadOptions, read_options
from tierlog.spark.options.security import SecurityOptions, security_options
from tierlog.spark.options.table import (
    KAFKA,
    MOST_OF_KAFKA,
    SECURITY_NAMES,
    Given,
    InvalidOption,
    Use,
    check_bootstrap,
)

DEFAULT_FETCH_BYTES = 8 << 20
DEFAULT_TIMEOUT_MS = 30_000
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000  # as in Spark's Kafka source
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Options of the brokers (`kafka.*`). `timeout_s`: how long a leader or a response may be missing.
    `fetch_bytes`: most bytes of one Fetch response, unless one batch is larger."""

    bootstrap: str
    client_id: str
    timeout_s: float
    fetch_bytes: int
    security: SecurityOptions = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """`live` None: the stream follows the bucket. `read.store.path` empty: it reads from brokers alone."""

    read: ReadOptions
    live: LiveOptions | None
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int

    @property
    def has_history(self) -> bool:
        return bool(self.read.store.path)


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Parse and validate the options of a stream. Raises InvalidOption."""
    options = Given(given, Use.STREAM)
    read, live = read_options(options), _live(options)
    if live is None and not read.store.path:
        raise InvalidOption(
            "set `path` to follow a bucket, `kafka.bootstrap.servers` to read brokers, or both"
        )
    max_offsets = options.positive_or_none("maxOffsetsPerTrigger")
    min_offsets = options.positive_or_none("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise InvalidOption("`minOffsetsPerTrigger` must not be larger than `maxOffsetsPerTrigger`")
    return StreamOptions(
        read=read,
        live=live,
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_ms=_duration(options, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )


def _live(options: Given) -> LiveOptions | None:
    bootstrap = options.text("kafka.bootstrap.servers")
    if bootstrap is None:
        return None
    check_bootstrap(bootstrap)
    isolation = (options.text("kafka.isolation.level") or "read_committed").strip().lower()
    if isolation != "read_committed":
        raise InvalidOption(
            "`kafka.isolation.level` must be read_committed: history has nothing else, and a stream "
            "would return other records before and after an upload"
        )
    return LiveOptions(
        bootstrap=bootstrap,
        client_id=options.text("kafka.client.id") or "tierlog-spark",
        timeout_s=options.positive(
            "kafka.request.timeout.ms", DEFAULT_TIMEOUT_MS, "number of milliseconds", MOST_OF_KAFKA
        )
        / 1000,
        fetch_bytes=options.positive(
            "kafka.max.partition.fetch.bytes", DEFAULT_FETCH_BYTES, "number of bytes", MOST_OF_KAFKA
        ),
        security=security_options(
            {name: text for name in SECURITY_NAMES if (text := options.text(KAFKA + name)) is not None}
        ),
    )


def _duration(options: Given, name: str, default_ms: int) -> int:
    """A number with a unit, as Spark writes them: 15m, 30s, 500ms."""
    text = options.text(name)
    if text is None:
        return default_ms
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip()
    if not number.isdecimal() or unit not in _UNITS_MS:
        raise InvalidOption(f"`{name}` must be a duration like 15m, 30s or 500ms, not {text!r}")
    return int(number) * _UNITS_MS[unit]
