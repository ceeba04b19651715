"""Load: rows of Parquet files into a topic, as finished segments in the bucket (`tierlog.spark.load`)."""

import sys
from typing import TYPE_CHECKING, Any

from tierlog.spark.bulk_load import find_topic, load
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.jobs.arguments import InvalidArgument, Job, Progress, Values, main
from tierlog.spark.jobs.runner import spark_session
from tierlog.spark.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = ("endpoint", "region")
FILE, ROW = "_tierlog_file", "_tierlog_row"
"""Columns for the place of a row in the input."""


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Load the rows. Raises JobFailed."""
    if not values["input"]:
        raise InvalidArgument("nothing to load: give --input")
    place = {name: values[name] for name in ("path", *STORE) if values[name]}
    open_bucket(parse_options({**place, "topic": values["topic"]}).store)
    find_topic(values["admin"], values["topic"])  # both before Java starts
    with spark_session("load", values) as spark:
        from pyspark.errors import AnalysisException

        try:
            return _load(spark, values, progress)
        except AnalysisException as failure:  # names of files and columns
            raise InvalidArgument(str(failure).strip().splitlines()[0].rstrip(";")) from None


def _load(spark: "SparkSession", values: Values, progress: Progress) -> dict[str, Any]:
    rows = spark.read.parquet(*values["input"])
    # Spark reads the largest files first
    place = [f"_metadata.file_path AS {FILE}", f"_metadata.row_index AS {ROW}"]
    rows = rows.selectExpr(*(values["select"] or ["*"]), *place)
    if "topic" in rows.columns and len(rows.select("topic").distinct().take(2)) > 1:
        raise InvalidArgument(
            "the rows are of several topics: choose those of one with --input, or leave the column topic "
            "out with --select"
        )
    return load(
        rows,
        topic=values["topic"],
        path=values["path"],
        admin=values["admin"],
        name=values["name"],
        order_by=(*(values["order_by"] or ()), FILE, ROW),
        compression=values["compression"],
        allow_expired=values["allow_expired"],
        lease_seconds=values["lease_seconds"],
        store_options={one: values[one] for one in STORE if values[one]},
        progress=progress,
    )


def _show(document: dict[str, Any]) -> str:
    lines = [
        f"loaded {document['records']:,} records ({document['bytes']:,} bytes) into {document['topic']} as "
        f"{document['segments']:,} segments"
    ]
    for row in document["partitions"]:
        offsets = (
            "" if row["base_offset"] is None else f" offsets {row['base_offset']} to {row['end_offset'] - 1}"
        )
        lines.append(f"partition {row['partition']}: {row['state']}{offsets}")
    lines += [f"not loaded: {why}" for why in document["not_loaded"]]
    if document["not_loaded"]:
        lines.append("start the job again with the same --name for the rest")
    return "\n".join(lines)


JOB = Job("load", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
