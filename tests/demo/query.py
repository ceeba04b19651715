"""Step 5: Spark reads the bucket after the broker has stopped; its results must equal those of pandas."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flights import Expected, Flights
from report import Report
from send import Sent


@dataclass(frozen=True, slots=True)
class Answer:
    """Spark's results for the committed remote offsets."""

    figures: Expected
    sum_of_offsets: int
    rows: int


def query(
    report: Report, bucket: Path, topic: str, flights: Flights, sent: Sent, remote_ends: Mapping[int, int]
) -> None:
    """Compare Spark's results with those of pandas, for the committed remote offsets."""
    import pandas

    partitions, offsets = pandas.Series(sent.partition), pandas.Series(sent.offset)
    remote = offsets < partitions.map(remote_ends)
    expected = flights.expected(remote)
    begin = time.monotonic()
    with report.progress("read by Spark", 2) as bar, _stderr_to(bucket.parent / "spark.log"):
        session = _session()
        try:
            bar.reach(1)
            started = time.monotonic()
            answer = _ask(session, bucket, topic)
            bar.reach(2)
        finally:
            session.stop()
    report.figure(
        "Spark: start, then the query", f"{started - begin:.1f} s, {time.monotonic() - started:.1f} s"
    )
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


def _session() -> Any:
    from tierlog.spark import session

    return session("tierlog demo", **{"spark.ui.showConsoleProgress": "false"})


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
