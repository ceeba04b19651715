"""The table of all options, and the parser of one value. Generates docs/reference/spark-options.md.

An option that is not in the table is refused, and the error names the nearest one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Flag, auto


class InvalidOption(ValueError):
    """An unknown or invalid option; the message says which and why."""


class Use(Flag):
    """A use of the data source, which accepts an option or not."""

    READ = auto()  # spark.read
    STREAM = auto()  # spark.readStream
    WRITE = auto()  # df.write and df.writeStream


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` and `meaning` are prose for the reference page; `in_kafka`: Spark's Kafka source
    has an option of this name."""

    name: str
    uses: Use
    default: str
    meaning: str
    in_kafka: bool = False


HISTORY = Use.READ | Use.STREAM
LIVE = Use.STREAM | Use.WRITE
KAFKA_ALIASES = {
    "kafka.metadata.broker.list": "kafka.bootstrap.servers",
    "kafka.socket.timeout.ms": "kafka.request.timeout.ms",
    "kafka.fetch.message.max.bytes": "kafka.max.partition.fetch.bytes",
}
"""librdkafka's name of an option -> the name in the table, which is Kafka's."""

SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.", "kafka.enable.sasl.", "kafka.enable.ssl.")
OPTIONS = (
    Option("path", HISTORY, "", "the bucket: a directory, `file:///directory` or `s3://bucket/prefix`"),
    Option("endpoint", HISTORY, "AWS", "URL of another S3 server"),
    Option("region", HISTORY, "that of the environment", "region of the bucket"),
    Option("accessKey", HISTORY, "that of the environment", "access key of the bucket"),
    Option("secretKey", HISTORY, "that of the environment", "secret key of the bucket"),
    Option("sessionToken", HISTORY, "", "session token of temporary keys, with `accessKey` and `secretKey`"),
    Option("profile", HISTORY, "that of the environment", "profile of the AWS configuration files"),
    Option("cluster", HISTORY, "the only one", "id of the cluster, if the bucket has several"),
    Option("topic", HISTORY, "", "the topic to read"),
    Option("topics", HISTORY, "", "topics to read, separated by commas"),
    Option("partitions", HISTORY, "all", "partitions to read, separated by commas"),
    Option("startingOffsets", HISTORY, "earliest", "first offsets: `earliest`, `latest` or JSON", True),
    Option("endingOffsets", Use.READ, "latest", "offsets to end before: `latest` or JSON", True),
    Option("startingTimestamp", HISTORY, "", "first timestamp, in milliseconds since 1970", True),
    Option("endingTimestamp", Use.READ, "", "timestamp to end before, in milliseconds since 1970", True),
    Option("includeHeaders", HISTORY, "false", "adds the column `headers`", True),
    Option("columns", HISTORY, "all", "columns to read, separated by commas; others are not decoded"),
    Option("failOnDataLoss", HISTORY, "true", "refuse offsets that are no longer there", True),
    Option("splitBytes", HISTORY, "67108864", "bytes that one task reads, at most"),
    Option("maxOffsetsPerTrigger", Use.STREAM, "no limit", "most records of a micro-batch, about", True),
    Option("minOffsetsPerTrigger", Use.STREAM, "none", "least records of a micro-batch", True),
    Option(
        "maxTriggerDelay", Use.STREAM, "15m", "longest wait for `minOffsetsPerTrigger`: `15m`, `30s`", True
    ),
    Option("kafka.bootstrap.servers", LIVE, "", "brokers, as HOST:PORT separated by commas", True),
    Option("kafka.client.id", LIVE, "tierlog-spark", "name of the client, for quotas and logs", True),
    Option("kafka.request.timeout.ms", LIVE, "30000", "how long a leader or a response may be missing", True),
    Option("kafka.max.partition.fetch.bytes", Use.STREAM, "8388608", "most bytes of a Fetch response", True),
    Option("kafka.isolation.level", Use.STREAM, "read_committed", "nothing else is accepted", True),
    Option("pushFilters", Use.READ, "false", "prunes by filters; Spark needs a setting for it"),
)


class Given:
    """The options of one query, by names in any case."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        """Raises InvalidOption for an option that is unknown or has another use."""
        known = {option.name.lower(): option for option in OPTIONS if option.uses & use}
        lowered = {name.lower(): value for name, value in given.items()}
        self._values = {KAFKA_ALIASES.get(name, name): value for name, value in lowered.items()}
        for name in sorted(self._values.keys() - known.keys()):
            if name.startswith(SECURITY):
                raise InvalidOption(
                    f"{name} is not supported: brokers have no encrypted or authenticated listeners"
                )
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean `{known[near[0]].name}`?" if near else ""
            names = ", ".join(option.name for option in known.values())
            raise InvalidOption(f"unknown option {name}{hint} The options are {names}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names separated by commas, each once; None if the option is absent."""
        text = self.text(name)
        if text is None:
            return None
        found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not found:
            raise InvalidOption(f"`{name}` must be names separated by commas, not {text!r}")
        return found

    def boolean(self, name: str, default: bool) -> bool:
        text = (self.text(name) or str(default)).strip().lower()
        if text not in ("true", "false"):
            raise InvalidOption(f"`{name}` must be true or false, not {text!r}")
        return text == "true"

    def positive(self, name: str, default: int, what: str = "number") -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.strip().isdecimal() or int(text) == 0:
            raise InvalidOption(f"`{name}` must be a positive {what}, not {text!r}")
        return int(text)
