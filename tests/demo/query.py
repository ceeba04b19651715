"""Steps 6 and 7: Spark reads the bucket after the broker has stopped, and exports it; pandas has the
expected results."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flights import Expected, Flights
from report import Report
from send import Sent

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Answer:
    """Spark's results for the committed remote offsets."""

    figures: Expected
    sum_of_offsets: int
    rows: int


def query(
    report: Report,
    session: Any,
    bucket: Path,
    topic: str,
    flights: Flights,
    sent: Sent,
    remote_ends: Mapping[int, int],
) -> None:
    """Compare Spark's results with those of pandas, for the committed remote offsets."""
    remote, offsets = _in_bucket(sent, remote_ends)
    expected = flights.expected(remote)
    begin = time.monotonic()
    answer = _ask(session, bucket, topic)
    report.figure("Spark's query", f"{time.monotonic() - begin:.1f} s")
    got = answer.figures
    report.check("rows in the committed remote range", int(remote.sum()), answer.rows)
    report.check("flights per carrier", expected.per_carrier, got.per_carrier)
    report.check(
        "first and last timestamp",
        (expected.first_timestamp, expected.last_timestamp),
        (got.first_timestamp, got.last_timestamp),
    )
    report.check("sum of offsets", int(offsets[remote].sum()), answer.sum_of_offsets)
    same_mean = math.isclose(expected.mean_delay, got.mean_delay, rel_tol=1e-12)
    report.check(f"mean departure delay, {got.mean_delay:.6f} minutes", True, same_mean)


def export(
    report: Report, bucket: Path, topic: str, flights: Flights, sent: Sent, remote_ends: Mapping[int, int]
) -> None:
    """Export the bucket to Parquet, twice, in the active session; pandas reads the table."""
    import pandas

    from tierlog.spark.jobs.arguments import NoProgress, parse
    from tierlog.spark.jobs.backfill import JOB

    table = bucket.parent / "table"
    command = ["--path", str(bucket), "--topic", topic, "--to", str(table)]
    with report.progress(f"tierlog spark backfill --topic {topic} --to {table.name}", 2) as bar:
        first = JOB.run(parse(JOB, command), NoProgress())
        bar.reach(1)
        second = JOB.run(parse(JOB, command), NoProgress())
        bar.reach(2)
    remote, offsets = _in_bucket(sent, remote_ends)
    expected = flights.expected(remote)
    rows = pandas.read_parquet(table)
    report.check(
        "rows of the first run, and of the second", (int(remote.sum()), 0), (first["rows"], second["rows"])
    )
    report.check("sum of offsets in the Parquet files", int(offsets[remote].sum()), int(rows["offset"].sum()))
    carriers = rows["key"].str.decode("ascii").str[:2].value_counts()
    report.check(
        "flights per carrier in the Parquet files",
        expected.per_carrier,
        {str(name): int(count) for name, count in carriers.items()},
    )


def _in_bucket(
    sent: Sent, remote_ends: Mapping[int, int]
) -> tuple["pandas.Series[bool]", "pandas.Series[int]"]:
    """For each flight: whether its record is in the bucket, and its offset."""
    import pandas

    offsets = pandas.Series(sent.offset)
    return offsets < pandas.Series(sent.partition).map(remote_ends), offsets


@contextmanager
def spark_session(log: Path) -> Iterator[Any]:
    """A session whose JVM and workers write to a log file what they would write to stderr."""
    from tierlog.spark import session

    with _stderr_to(log):
        active = session("tierlog demo", **{"spark.ui.showConsoleProgress": "false"})
        try:
            yield active
        finally:
            active.stop()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Redirect descriptor 2 to a file; the JVM and its workers inherit it."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _ask(session: Any, bucket: Path, topic: str) -> Answer:
    from pyspark.sql import functions as f

    records = session.read.format("tierlog").option("path", str(bucket)).option("topic", topic).load()
    delay = f.get_json_object(f.col("value").cast("string"), "$.dep_delay").cast("double")
    carrier = f.substring(f.col("key").cast("string"), 1, 2)  # two letters or digits, before the number
    wide = records.select(
        "offset", f.unix_millis("timestamp").alias("ms"), delay.alias("delay"), carrier.alias("key")
    )
    groups = (
        wide.groupBy("key")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.sum("delay").alias("delay"),
            f.count("delay").alias("delays"),
            f.min("ms").alias("first"),
            f.max("ms").alias("last"),
            f.sum("offset").alias("offsets"),
        )
        .collect()
    )
    figures = Expected(
        per_carrier={row["key"]: row["rows"] for row in groups},
        mean_delay=sum(row["delay"] or 0 for row in groups) / max(sum(row["delays"] for row in groups), 1),
        first_timestamp=min(row["first"] for row in groups),
        last_timestamp=max(row["last"] for row in groups),
    )
    return Answer(figures, sum(row["offsets"] for row in groups), sum(row["rows"] for row in groups))
