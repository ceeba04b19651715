"""The table of all options, and the parser of one value. Generates docs/reference/spark-options.md.

An option that is not in the table is refused, and the error names the nearest one.
"""

from collections.abc import Iterable, Mapping
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


USES = {
    Use.READ: "`spark.read`",
    Use.STREAM: "`spark.readStream`",
    Use.WRITE: "`df.write` and `df.writeStream`",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default`, `meaning` and `difference` are prose for the reference page. `in_kafka`: Spark's
    Kafka source has an option of this name; `difference`: what is different there."""

    name: str
    uses: Use
    default: str
    meaning: str
    in_kafka: bool = False
    difference: str = ""


HISTORY = Use.READ | Use.STREAM
LIVE = Use.STREAM | Use.WRITE
KAFKA_ALIASES = {
    "kafka.metadata.broker.list": "kafka.bootstrap.servers",
    "kafka.socket.timeout.ms": "kafka.request.timeout.ms",
    "kafka.fetch.message.max.bytes": "kafka.max.partition.fetch.bytes",
    "kafka.sasl.mechanisms": "kafka.sasl.mechanism",
}
"""librdkafka's name of an option -> the name in the table, which is Kafka's."""

KAFKA = "kafka."
MOST = 2**63 - 1
"""Largest number of an option, as of an offset."""
MOST_OF_KAFKA = 2**31 - 1
"""Largest number of an option that Kafka's clients keep in 32 bits."""
ANY = Use.READ | Use.STREAM | Use.WRITE
SECURITY_ROWS = (
    Option("kafka.security.protocol", LIVE, "PLAINTEXT", "also SSL, SASL_PLAINTEXT, SASL_SSL", True),
    Option("kafka.sasl.mechanism", LIVE, "", "SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN", True),
    Option("kafka.sasl.jaas.config", LIVE, "", "the login, with `username` and `password`", True),
    Option("kafka.sasl.username", LIVE, "", "librdkafka's name of the user", True),
    Option("kafka.sasl.password", LIVE, "", "librdkafka's name of the password", True),
    Option("kafka.ssl.truststore.location", LIVE, "", "PEM file of trusted CAs, on every host", True),
    Option("kafka.ssl.truststore.type", LIVE, "JKS", "PEM must be given", True),
    Option("kafka.ssl.truststore.certificates", LIVE, "", "trusted CAs as PEM text", True),
    Option("kafka.ssl.ca.location", LIVE, "", "librdkafka's name of the file of trusted CAs", True),
    Option("kafka.ssl.keystore.location", LIVE, "", "PEM file of the client's certificate and key", True),
    Option("kafka.ssl.keystore.type", LIVE, "JKS", "PEM must be given", True),
    Option("kafka.ssl.keystore.certificate.chain", LIVE, "", "the client's certificate as PEM text", True),
    Option("kafka.ssl.keystore.key", LIVE, "", "the client's key as PEM text", True),
    Option("kafka.ssl.keystore.password", LIVE, "", "password of the keystore", True),
    Option("kafka.ssl.key.password", LIVE, "", "password of the key", True),
    Option("kafka.ssl.certificate.location", LIVE, "", "librdkafka's name of the certificate's file", True),
    Option("kafka.ssl.key.location", LIVE, "", "librdkafka's name of the key's file", True),
    Option(
        "kafka.ssl.endpoint.identification.algorithm",
        LIVE,
        "https",
        "whether a broker's certificate must have its host name; empty: it need not",
        True,
    ),
)
"""Security of connections to brokers: `options.security` reads them."""

SECURITY_NAMES = frozenset(row.name.removeprefix(KAFKA) for row in SECURITY_ROWS)
"""Their names without `kafka.`."""

PARTITIONS_LEFT_OUT = "the JSON must name every partition there; here the others have the default"
OPTIONS = (
    Option("path", HISTORY, "", "the bucket: a directory, `file:///directory` or `s3://bucket/prefix`"),
    Option("endpoint", HISTORY, "AWS", "URL of another S3 server"),
    Option("region", HISTORY, "that of the environment", "region of the bucket"),
    Option("accessKey", HISTORY, "that of the environment", "access key of the bucket"),
    Option("secretKey", HISTORY, "that of the environment", "secret key of the bucket"),
    Option("sessionToken", HISTORY, "", "session token of temporary keys, with `accessKey` and `secretKey`"),
    Option("profile", HISTORY, "that of the environment", "profile of the AWS configuration files"),
    Option("cluster", HISTORY, "the only one", "id of the cluster, if the bucket has several"),
    Option("table", Use.READ, "records", "what to read: `records`, `partitions`, `segments` or `snapshots`"),
    Option("subscribe", HISTORY, "", "topics to read, separated by commas", True),
    Option(
        "subscribePattern",
        HISTORY,
        "",
        "topics to read: a regular expression that matches the whole name",
        True,
        "Java's syntax there, Python's here",
    ),
    Option("assign", HISTORY, "", 'partitions to read: JSON like `{"orders":[0,1]}`', True),
    Option(
        "topic",
        ANY,
        "",
        "one topic to read, as `subscribe`, or to write all rows to",
        True,
        "only for writes there",
    ),
    Option("topics", HISTORY, "", "the same as `subscribe`"),
    Option("partitions", HISTORY, "all", "partitions to read of every topic, separated by commas"),
    Option(
        "startingOffsets",
        HISTORY,
        "earliest",
        "first offsets: `earliest`, `latest`, or JSON, where -2 is the earliest and -1 the latest",
        True,
        f"{PARTITIONS_LEFT_OUT}; `latest` is refused in a batch read there",
    ),
    Option(
        "endingOffsets",
        Use.READ,
        "latest",
        "offsets to end before: `latest` or JSON; `latest` is the end of what is in the bucket",
        True,
        PARTITIONS_LEFT_OUT,
    ),
    Option(
        "startingTimestamp",
        HISTORY,
        "",
        "starts at the first record with this timestamp or a later one, in milliseconds since 1970; "
        "precedes `startingOffsetsByTimestamp`, which precedes `startingOffsets`",
        True,
    ),
    Option(
        "endingTimestamp",
        Use.READ,
        "",
        "ends before the first record with this timestamp or a later one, in milliseconds since 1970; "
        "precedes `endingOffsetsByTimestamp`, which precedes `endingOffsets`",
        True,
    ),
    Option(
        "startingOffsetsByTimestamp",
        HISTORY,
        "",
        'timestamps by partition: JSON like `{"orders":{"0":1700000000000}}`',
        True,
        PARTITIONS_LEFT_OUT,
    ),
    Option(
        "endingOffsetsByTimestamp",
        Use.READ,
        "",
        "timestamps by partition, as JSON",
        True,
        PARTITIONS_LEFT_OUT,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        HISTORY,
        "error",
        "if a partition has no record at or after the starting timestamp: `error`, or `latest` to start at "
        "its end",
        True,
        "partitions without records are not an error here",
    ),
    Option("includeHeaders", HISTORY, "false", "adds the column `headers`", True),
    Option(
        "value.format", HISTORY, "raw", "format of values: `json`, `avro`, `protobuf`, or `raw` for bytes"
    ),
    Option(
        "value.schema",
        HISTORY,
        "that of the registry",
        "for json, columns as in `id BIGINT, name STRING`; for avro, the schema or the path of its file; for "
        "protobuf, the path of a descriptor set",
    ),
    Option(
        "value.message",
        HISTORY,
        "the first one of the registry's schema",
        "full name of the message, for protobuf",
    ),
    Option("value.subject", HISTORY, "topic and `-value`", "subject whose newest schema the column has"),
    Option("value.schema.id", HISTORY, "", "id of the schema that the column has, instead of the newest one"),
    Option("value.malformed", HISTORY, "fail", "a value that does not follow its schema: `fail` or `null`"),
    Option(
        "schema.registry.url",
        HISTORY,
        "",
        "URL of a schema registry: each value begins with a zero byte and the id of its schema",
    ),
    Option(
        "schema.registry.basic.auth.user.info",
        HISTORY,
        "",
        "user and password for the registry, separated by a colon",
    ),
    Option("columns", HISTORY, "all", "columns to read, separated by commas; others are not decoded"),
    Option(
        "failOnDataLoss",
        HISTORY,
        "true",
        "fail if wanted offsets are no longer or not yet in the bucket; `false`: read what is there",
        True,
        "a topic that does not exist is an error in both cases",
    ),
    Option("compression", Use.WRITE, "none", "codec of record batches: `gzip`, `snappy`, `lz4` or `zstd`"),
    Option("transactional", Use.WRITE, "false", "batch writes: all tasks write in transactions"),
    Option(
        "snapshot",
        Use.READ,
        "none",
        "reads what a snapshot holds: `now` takes one, `NAME` or an id reads that one, and a time "
        "(`2026-11-28T12:00:00Z`) or `@INDEX` reads the newest one that was taken by then",
    ),
    Option(
        "snapshotLeaseMs",
        Use.READ,
        "3600000",
        "how long the snapshot of `snapshot=now` holds objects while no task starts",
    ),
    Option("splitBytes", HISTORY, "67108864", "bytes that one task reads, at most"),
    Option(
        "minPartitions",
        HISTORY,
        "none",
        "smallest number of tasks, as a hint: a chunk of a segment (up to 8 MiB) is not divided",
        True,
        "divides by offsets there, by bytes here",
    ),
    Option("maxPartitions", HISTORY, "none", "largest number of tasks; larger than `splitBytes` if need be"),
    Option(
        "maxRecordsPerPartition",
        HISTORY,
        "none",
        "largest number of records of a task, counted as offsets; tasks may share a chunk and read it again",
        True,
    ),
    Option(
        "pushFilters",
        Use.READ,
        "false",
        "prunes by filters on `topic`, `partition`, `offset` and `timestamp`; needs Spark's setting "
        "`spark.sql.python.filterPushdown.enabled`",
    ),
    Option(
        "maxLateness",
        Use.READ,
        "unlimited",
        "how much older, in milliseconds, a record may be than an earlier one of its partition. With it, a "
        "pushed filter `timestamp < …` ends the read early. Records that are later than that may be left out",
    ),
    Option("maxOffsetsPerTrigger", Use.STREAM, "no limit", "most records of a micro-batch, about", True),
    Option("minOffsetsPerTrigger", Use.STREAM, "none", "least records of a micro-batch", True),
    Option(
        "maxTriggerDelay", Use.STREAM, "15m", "longest wait for `minOffsetsPerTrigger`: `15m`, `30s`", True
    ),
    Option(
        "kafka.bootstrap.servers",
        ANY,
        "",
        "brokers, as HOST:PORT separated by commas; a batch read needs none",
        True,
        "required there",
    ),
    *SECURITY_ROWS,
    Option("kafka.client.id", LIVE, "tierlog-spark", "name of the client, for quotas and logs", True),
    Option("kafka.request.timeout.ms", LIVE, "30000", "how long a leader or a response may be missing", True),
    Option("kafka.max.partition.fetch.bytes", Use.STREAM, "8388608", "most bytes of a Fetch response", True),
    Option(
        "kafka.isolation.level",
        HISTORY,
        "read_committed",
        "nothing else is accepted: the bucket has committed records only",
        True,
        "`read_uncommitted` is the default there",
    ),
    Option("kafka.acks", Use.WRITE, "all", "nothing else is accepted", True),
    Option("kafka.enable.idempotence", Use.WRITE, "true", "nothing else is accepted", True),
    Option("kafka.batch.size", Use.WRITE, "524288", "most bytes of a record batch", True, "16384 there"),
    Option("kafka.buffer.memory", Use.WRITE, "33554432", "most bytes that wait for a response", True),
    Option("kafka.compression.type", Use.WRITE, "none", "the same as `compression`", True),
    Option("kafka.delivery.timeout.ms", Use.WRITE, "120000", "how long a batch is tried again", True),
    Option("kafka.transaction.timeout.ms", Use.WRITE, "900000", "with `transactional` only", True),
    Option("kafka.group.id", HISTORY, "", "accepted, without effect: no group is used", True),
    Option("groupIdPrefix", HISTORY, "", "accepted, without effect: no group is used", True),
    Option("kafkaConsumer.pollTimeoutMs", HISTORY, "", "accepted, without effect: no Java consumer", True),
    Option("fetchOffset.numRetries", HISTORY, "", "accepted, without effect: no Java consumer", True),
    Option("fetchOffset.retryIntervalMs", HISTORY, "", "accepted, without effect: no Java consumer", True),
)


class Given:
    """The options of one query, by names in any case."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        """Raises InvalidOption for an option that is unknown or has another use."""
        known = {option.name.lower(): option for option in OPTIONS if option.uses & use}
        others = {option.name.lower(): option for option in OPTIONS if not option.uses & use}
        lowered = {name.lower(): value for name, value in given.items()}
        self._values = {KAFKA_ALIASES.get(name, name): value for name, value in lowered.items()}
        for name in sorted(self._values.keys() - known.keys()):
            if use & Use.READ and name.startswith("kafka."):
                continue  # settings of clients: a batch read connects to no broker
            if name in others:
                raise InvalidOption(_misplaced(others[name]))
            near = get_close_matches(name, known, 1)
            hint = f" Did you mean `{known[near[0]].name}`?" if near else ""
            raise InvalidOption(f"unknown option {name}.{hint} All options: docs/reference/spark-options.md")

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

    def positive(self, name: str, default: int, what: str = "number", most: int = MOST) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.strip().isdecimal() or int(text) == 0:
            raise InvalidOption(f"`{name}` must be a positive {what}, not {text!r}")
        if int(text) > most:
            raise InvalidOption(f"`{name}` must be at most {most}, not {text}")
        return int(text)

    def positive_or_none(self, name: str) -> int | None:
        return self.positive(name, 1) if name in self else None

    def timestamp(self, name: str) -> int | None:
        """Milliseconds since 1970."""
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) > MOST:
            raise InvalidOption(
                f"`{name}` must be milliseconds since 1970, such as 1740787200000, not {text!r}"
            )
        return int(text)


def check_bootstrap(text: str) -> None:
    """Raises InvalidOption for addresses of brokers that are not HOST:PORT."""
    from tierlog.client import ClientError, Cluster

    try:
        Cluster(text)  # connects at its first request
    except ClientError as error:
        raise InvalidOption(f"`kafka.bootstrap.servers`: {error}, as in 127.0.0.1:9092") from None


def similar(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name, after a space; empty if none is near."""
    near = get_close_matches(name, sorted(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _misplaced(option: Option) -> str:
    places = " and ".join(text for use, text in USES.items() if option.uses & use)
    return f"option `{option.name}` belongs to {places}"


def reference_table() -> list[str]:
    """Markdown rows of every option, with Spark's Kafka source beside it."""
    rows = ["| option | for | default | meaning | Spark's Kafka source |", "| --- | --- | --- | --- | --- |"]
    for option in OPTIONS:
        uses = ", ".join(use.name.lower() for use in Use if option.uses & use and use.name)
        beside = (option.difference or "the same") if option.in_kafka else "has none"
        cells = (f"`{option.name}`", uses, option.default, option.meaning, beside)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows
