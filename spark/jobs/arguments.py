"""Arguments of the jobs: one table per job, for `python -m`, spark-submit and the command line of tierlog.

A job's `run` receives the values by name. Its result is one document; `is_ok` False makes the exit code 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tierlog.records.errors import RecordsError
from tierlog.spark.java import NoJava
from tierlog.spark.options import InvalidOption
from tierlog.tiering.object_store import ObjectStoreError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes, as those of the other commands (docs/reference/cli.md)."""


class JobFailed(Exception):
    """Ends a job with exit code 1; the message says why and what to do next."""


class InvalidArgument(JobFailed):
    """Ends a job with exit code 2."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An option of a job. `kind`: type of its value; bool makes it a flag. `repeats`: may be given several
    times, which makes its value a list."""

    name: str
    meaning: str
    kind: type = str
    default: Any = None
    form: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    repeats: bool = False

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    def check(self, value: Any) -> Any:
        """The value, if it is allowed. Raises InvalidArgument."""
        if self.choices and value is not None and value not in self.choices:
            raise InvalidArgument(f"--{self.name} must be {' or '.join(self.choices)}, not {value!r}")
        return value


Values: TypeAlias = Mapping[str, Any]


class Progress(Protocol):
    """Shows how far a job is. Bytes and tasks of one round after the other."""

    def begin(self, label: str, total: int) -> None: ...

    def reach(self, completed: int) -> None: ...


class NoProgress:
    def begin(self, label: str, total: int) -> None:
        """Nothing is shown."""

    def reach(self, completed: int) -> None:
        """Nothing is shown."""


@dataclass(frozen=True, slots=True)
class Job:
    """`run` raises JobFailed. `show` formats its document for people."""

    name: str
    run: Callable[[Values, Progress], dict[str, Any]]
    show: Callable[[dict[str, Any]], str]


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PATH = Argument("path", "The bucket: a directory or s3://bucket/prefix.", required=True, form="URL")
ENDPOINT = Argument("endpoint", "URL of another S3 server than AWS.", form="URL")
REGION = Argument("region", "Region of the bucket.", form="NAME")
BUCKET = (
    PATH,
    ENDPOINT,
    REGION,
    Argument("cluster", "Id of the cluster, if the bucket has several.", form="ID"),
)
TOPICS = (
    Argument("topic", "A topic. May be repeated.", repeats=True, form="NAME"),
    Argument("pattern", "All topics whose names match this regular expression completely.", form="REGEX"),
)
SPARK = (
    Argument("master", "Master of Spark. Ignored under spark-submit.", default="local[*]", form="URL"),
    Argument("remote", "Address of a Spark Connect server, instead of a master.", form="URL"),
    Argument("conf", "A setting of Spark. May be repeated.", repeats=True, form="KEY=VALUE"),
)
RANGE = (
    Argument(
        "starting-offsets",
        "earliest, or JSON as for the data source. Counts in the first run only.",
        default="earliest",
        form="OFFSETS",
    ),
    Argument("ending-offsets", "latest, or JSON as for the data source.", default="latest", form="OFFSETS"),
    Argument("starting-timestamp", "First timestamp, in milliseconds since 1970.", int, form="MS"),
    Argument("ending-timestamp", "Timestamp to end before, in milliseconds since 1970.", int, form="MS"),
    Argument(
        "allow-data-loss", "Continue if retention has deleted offsets of the range.", bool, default=False
    ),
)
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
ALL_COLUMNS = (*COLUMNS, "headers")
NONE, DAY, HOUR = "none", "day", "hour"
"""Time partitions."""

BACKFILL = (
    *BUCKET,
    *TOPICS,
    *RANGE,
    Argument(
        "to", "Folder of a Parquet or Delta table: a directory, s3://…, gs://… or abfss://….", form="URL"
    ),
    Argument("format", "Format of the table.", default="parquet", choices=("parquet", "iceberg", "delta")),
    Argument("table", "Name of an Iceberg table with its namespace, as in sales.orders.", form="TABLE"),
    Argument("catalog", "Iceberg catalog, as configured for pyiceberg.", default="default", form="NAME"),
    Argument("catalog-property", "Property of the catalog. May be repeated.", repeats=True, form="KEY=VALUE"),
    Argument(
        "store-option",
        "Option of S3 for --to: endpoint_override, region, access_key, secret_key or session_token. May be "
        "repeated.",
        repeats=True,
        form="KEY=VALUE",
    ),
    Argument("partition-by", "Time partition of the rows, in UTC.", default=DAY, choices=(NONE, DAY, HOUR)),
    Argument(
        "columns", "Columns of the table, separated by commas.", default=",".join(COLUMNS), form="NAMES"
    ),
    Argument(
        "value-option",
        "Option of the data source that decodes values into columns, as in value.format=avro. May be "
        "repeated.",
        repeats=True,
        form="KEY=VALUE",
    ),
    Argument(
        "compression", "Codec of the files.", default="snappy", choices=("snappy", "zstd", "lz4", "none")
    ),
    Argument("file-mib", "Bytes of history that one task writes, in MiB.", int, default=256, form="MIB"),
    Argument(
        "commit-mib", "Bytes of history after which the run commits, in MiB.", int, default=65536, form="MIB"
    ),
    *SPARK,
)
AUDIT = (
    *BUCKET,
    *TOPICS,
    Argument("resume", "Keep the progress in this file, and continue from it if it exists.", form="FILE"),
    Argument("html", "Write the report with plots to this file.", form="FILE"),
    Argument(
        "round-mib", "Bytes of history after which the progress is kept, in MiB.", int, 16384, form="MIB"
    ),
    *SPARK,
)
REPLAY = (
    *BUCKET,
    *TOPICS,
    *RANGE,
    Argument(
        "from-bootstrap",
        "Brokers of the source: what is not in the bucket yet is read from them.",
        form="HOST:PORT",
    ),
    Argument("to-bootstrap", "Brokers that are written to.", required=True, form="HOST:PORT"),
    Argument(
        "to-topic",
        "Topic to write to; {topic} stands for the name of the source.",
        default="{topic}",
        form="NAME",
    ),
    Argument(
        "checkpoint",
        "Directory of the progress, which the next run needs: a path or URL for Spark.",
        required=True,
        form="URL",
    ),
    Argument("filter", "Replay only rows for which this expression of Spark SQL is true.", form="EXPRESSION"),
    Argument(
        "function",
        "Python function that gets each pyarrow.RecordBatch and returns the one to write.",
        form="MODULE:NAME",
    ),
    Argument(
        "partitioning",
        "Partition of each record: that of the source, or by key as Kafka's producers do.",
        default="keep",
        choices=("keep", "key"),
    ),
    Argument(
        "compression",
        "Codec of the batches.",
        default="zstd",
        choices=CODECS,
    ),
    Argument("commit-records", "Offsets after which the run commits.", int, default=2_000_000, form="NUMBER"),
    Argument(
        "write-option",
        "Option of the write, as in kafka.batch.size=65536. May be repeated.",
        repeats=True,
        form="KEY=VALUE",
    ),
    *SPARK,
)
STATS = (
    *BUCKET,
    *TOPICS,
    *RANGE,
    Argument(
        "resume",
        "Keep the progress in this file, after every 16 GiB, and continue from it if it exists.",
        form="FILE",
    ),
    Argument("html", "Write a page of plots to this file.", form="FILE"),
    Argument(
        "manifests-only",
        "Read no records: sizes and growth from the manifests, without keys and skew.",
        bool,
        default=False,
    ),
    Argument("top", "How many of the most frequent keys to list.", int, default=20, form="NUMBER"),
    *SPARK,
)
ADMIN_URL = Argument("admin", "Admin API of any node, or several with commas.", required=True, form="URL")
LEASE_SECONDS = Argument(
    "lease-seconds",
    "Time after which the cluster gives up what the job has begun, if the job does not respond.",
    int,
    default=60,
    form="SECONDS",
)
ADMIN = (
    ADMIN_URL,
    LEASE_SECONDS,
    Argument("dry-run", "Change nothing, and print what would be done.", bool, default=False),
)
REWRITE = (
    *BUCKET,
    *ADMIN,
    *TOPICS,
    Argument(
        "codec",
        "New codec of all batches. Default: batches keep theirs.",
        choices=CODECS,
    ),
    Argument(
        "segment-mib",
        "Join successive segments up to this size, in MiB, 1 to 1024. Default: none are joined.",
        int,
        form="MIB",
    ),
    *SPARK,
)
COMPACT = (
    *BUCKET,
    *ADMIN,
    *TOPICS,
    Argument(
        "min-dirty-percent",
        "Compact a partition only if at least this share of its history is not compacted yet.",
        int,
        default=0,
        form="PERCENT",
    ),
    Argument(
        "map-mib",
        "Memory for the keys of one partition, 24 bytes each, in MiB.",
        int,
        default=512,
        form="MIB",
    ),
    *SPARK,
)
LOAD = (
    Argument("input", "Parquet files or folders to load. May be repeated.", repeats=True, form="URL"),
    Argument("topic", "The topic, which is tiered and not compacted.", required=True, form="NAME"),
    Argument(
        "name",
        "Name of this load: under the same name, what was loaded is not loaded again.",
        required=True,
        form="NAME",
    ),
    PATH,
    ENDPOINT,
    REGION,
    ADMIN_URL,
    Argument(
        "select",
        "A column by an expression of Spark SQL, as in 'to_json(struct(*)) AS value'. May be repeated. "
        "Default: the columns value, key, headers, partition and timestamp of the files.",
        repeats=True,
        form="EXPRESSION",
    ),
    Argument(
        "order-by",
        "Column that orders the rows of a partition. May be repeated. Rows that are equal in all of them "
        "are ordered by the path of their file, then by their place in it.",
        repeats=True,
        form="NAME",
    ),
    Argument(
        "compression",
        "Codec of the batches, if compression.type of the topic is producer.",
        default="zstd",
        choices=CODECS,
    ),
    Argument("allow-expired", "Also load records that retention.ms deletes at once.", bool, default=False),
    LEASE_SECONDS,
    *SPARK,
)
ARGUMENTS = {
    "backfill": BACKFILL,
    "audit": AUDIT,
    "replay": REPLAY,
    "stats": STATS,
    "rewrite": REWRITE,
    "compact": COMPACT,
    "load": LOAD,
}
MEANINGS = {
    "backfill": "Export what is new in the bucket to Parquet, Iceberg or Delta, exactly once.",
    "audit": "Read and check every byte of history in the bucket. Exit code 1: something is damaged.",
    "stats": "Show sizes, rates, keys and skew of topics, as JSON and as a page of plots.",
    "replay": "Write records of topics again, to other topics or another cluster, exactly once.",
    "compact": "Compact the history of compacted topics, while the cluster runs.",
    "load": "Add rows of Parquet files to a topic, as finished segments in the bucket.",
    "rewrite": "Give history another codec or larger segments, while the cluster runs.",
}
"""Arguments and meaning of each job, for the command line of tierlog, which imports a job only to run it."""


def pairs(argument: str, given: Sequence[str] | None) -> dict[str, str]:
    """KEY=VALUE arguments as a dictionary. Raises InvalidArgument, without the text: it may be a secret."""
    found = {}
    for number, text in enumerate(given or (), 1):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgument(f"--{argument} must be KEY=VALUE: number {number} has no key, or no `=`")
        found[name] = value
    return found


def reader_options(values: Values) -> dict[str, str]:
    """The arguments of BUCKET as options of the data source."""
    return {name: values[name] for name in ("path", "endpoint", "region", "cluster") if values[name]}


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Run a job from a shell. Returns its exit code; nothing but the result goes to stdout."""
    try:
        values = parse(job, argv)
        document = job.run(values, StderrProgress())
    except EXPECTED as failure:
        sys.stderr.write(f"{job.name}: {failure}\n")
        return USAGE if isinstance(failure, INVALID) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write((json.dumps(document) if values["json"] else job.show(document)) + "\n")
    return OK if document.get("is_ok", True) else FAILED


EXPECTED = (JobFailed, ObjectStoreError, RecordsError, NoJava, ValueError, OSError)
"""Failures whose message is enough. Options and documents in the bucket raise subclasses of ValueError."""
INVALID = (InvalidArgument, InvalidOption)
"""Those of them that are invalid arguments."""


def parse(job: Job, argv: Sequence[str] | None) -> Values:
    """The values of a command line. Exits with USAGE if it is invalid."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tierlog.spark.jobs.{job.name}", description=MEANINGS[job.name]
    )
    for one in ARGUMENTS[job.name]:
        if one.kind is bool:
            parser.add_argument(f"--{one.name}", action="store_true", help=one.meaning)
            continue
        parser.add_argument(
            f"--{one.name}",
            type=one.kind,
            default=one.default,
            required=one.required,
            choices=one.choices or None,
            metavar=None if one.choices else one.form or None,
            action="append" if one.repeats else "store",
            help=one.meaning.replace("%", "%%"),
        )
    parser.add_argument("--json", action="store_true", help="Print the result as JSON.")
    return vars(parser.parse_args(argv))


class StderrProgress:
    """Writes one line per tenth of a round to stderr, for logs of a cluster."""

    def __init__(self) -> None:
        self._label, self._total, self._tenths = "", 0, 0

    def begin(self, label: str, total: int) -> None:
        self._label, self._total, self._tenths = label, total, 0

    def reach(self, completed: int) -> None:
        tenths = min(completed * 10 // max(self._total, 1), 10)  # stages before the last count, too
        if tenths > self._tenths:
            self._tenths = tenths
            sys.stderr.write(f"{self._label}: {tenths * 10} %\n")
