"""Replay: writes records of topics again, to other topics or another cluster, exactly once.

A streaming query with Trigger.AvailableNow: its checkpoint has the offsets at which the next run begins, and
each micro-batch is committed by the transactions of a streaming write (`tierlog.spark.live.transactions`). A
run that is killed at any moment can simply be started again. One task reads a partition and writes its rows,
so that they keep their order (`replay_stream`).
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tierlog.client import ClientError
from tierlog.spark import offsets as stream_offsets
from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.jobs.arguments import (
    InvalidArgument,
    Job,
    JobFailed,
    Progress,
    Values,
    main,
    pairs,
    reader_options,
)
from tierlog.spark.jobs.runner import reason, spark_session
from tierlog.spark.jobs.selection import cluster_keys
from tierlog.spark.live.produce import open_cluster
from tierlog.spark.offsets import Offsets
from tierlog.spark.options import parse_options
from tierlog.spark.options.write import parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tierlog.spark.jobs.replay_stream import Function

TOPIC = "{topic}"
KEEP = "keep"
POLL_SECONDS = 1
COUNTED = "tierlog_replay"
OWN_OPTIONS = ("topic", "kafka.bootstrap.servers", "checkpointLocation")
"""Options of the write that arguments of the job set: others would pass its checks."""


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Replay what is new. Raises JobFailed."""
    from pyspark.sql.types import StructType

    from tierlog.spark.jobs.replay_stream import replay_reader

    source, target = _source_options(values), _target_options(values)
    function = load_function(values["function"]) if values["function"] else None
    reader = replay_reader(source, StructType())  # before Java starts, which takes seconds
    try:
        first, end = reader.bounds()
    finally:
        reader.stop()
    _check_target(values, target, end)
    with spark_session("replay", values) as spark:
        frame = _rows(spark, source, values, function)
        progress.begin("replay", max(stream_offsets.count(first, end), 1))
        writer = _to_target(frame, values).writeStream.format("tierlog").queryName("tierlog replay")
        for name, value in {**target, "checkpointLocation": values["checkpoint"]}.items():
            writer = writer.option(name, value)
        return _follow(writer.trigger(availableNow=True).start(), first, progress)


def load_function(name: str) -> "Function":
    """The function of MODULE:NAME. Executors get its module with the job, and need not have it. Raises
    JobFailed."""
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, for other commands too
    try:
        module = importlib.import_module(module_name)
        function: Function = getattr(module, attribute)
    except (ImportError, AttributeError, ValueError) as failure:
        raise JobFailed(f"--function must be MODULE:NAME of an importable function: {failure}") from None
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function


def _source_options(values: Values) -> dict[str, str]:
    names = values["topic"] or []
    if not names and values["pattern"] is None:
        raise JobFailed("say which topics to replay: --topic NAME or --pattern REGEX")
    options = {
        **reader_options(values),
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": str(not values["allow_data_loss"]),
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(values["commit_records"]),
        "startingOffsets": values["starting_offsets"],
        "arguments": json.dumps(
            {name: values[name] for name in ("to_topic", "partitioning", "filter", "function")}
        ),
    }
    if values["pattern"] is None:
        options["subscribe"] = ",".join(names)
    else:
        options["subscribePattern"] = "|".join((*map(re.escape, names), f"(?:{values['pattern']})"))
    if values["from_bootstrap"]:
        options["kafka.bootstrap.servers"] = values["from_bootstrap"]
    if values["starting_timestamp"] is not None:
        options["startingTimestamp"] = str(values["starting_timestamp"])
    if values["ending_timestamp"] is not None:
        options["endingTimestamp"] = str(values["ending_timestamp"])
    else:
        options["endingOffsets"] = values["ending_offsets"]
    return options


def _target_options(values: Values) -> dict[str, str]:
    """Raises InvalidArgument."""
    given = pairs("write-option", values["write_option"])
    for own in OWN_OPTIONS:
        if own.lower() in {name.lower() for name in given}:
            raise InvalidArgument(
                f"--write-option must not set {own}: use --to-topic, --to-bootstrap and --checkpoint"
            )
    return {
        "kafka.bootstrap.servers": values["to_bootstrap"],
        "compression": values["compression"],
        **given,
    }


def _rows(
    spark: "SparkSession", source: Mapping[str, str], values: Values, function: "Function | None"
) -> "DataFrame":
    """The source's columns, after the filter and the function. Raises JobFailed for an invalid filter."""
    from pyspark.errors import PySparkException

    from tierlog.spark.jobs.replay_stream import NAME, ReplaySource, on_batches

    spark.dataSource.register(ReplaySource)
    frame = spark.readStream.format(NAME).options(**source).load()
    if values["filter"]:
        try:
            frame = frame.filter(values["filter"])
            frame.schema  # noqa: B018 (Spark Connect finds errors only now)
        except PySparkException as failure:
            raise JobFailed(
                f"--filter {values['filter']!r}: {str(failure).strip().splitlines()[0]}"
            ) from None
    if function is not None:
        frame = frame.mapInArrow(on_batches(function, frame.schema.names), frame.schema)
    return frame


def _to_target(frame: "DataFrame", values: Values) -> "DataFrame":
    """The columns that are written."""
    from pyspark.sql import functions as F  # noqa: N812 (the name everyone knows it by)

    topic = F.replace(F.lit(values["to_topic"]), F.lit(TOPIC), F.col("topic")).alias("topic")
    columns = ["key", "value", "headers", "timestamp"]
    if values["partitioning"] == KEEP:
        columns.append("partition")
    return frame.select(topic, *columns).observe(COUNTED, F.count(F.lit(1)).alias("records"))


def _check_target(values: Values, target: Mapping[str, str], end: Offsets) -> None:
    """The topics that are written exist, have enough partitions, and are not those that are read. Raises
    JobFailed. A function may name other topics: the write finds those that do not exist."""
    partitions: dict[str, int] = {}
    for source in end:
        partitions[source.topic] = max(partitions.get(source.topic, 0), source.partition + 1)
    bucket = open_bucket(parse_options({**reader_options(values), "topic": "any"}).store)
    read_cluster = cluster_keys(bucket, values).cluster_id
    options = replace(parse_write_options(target), topic=None)
    with open_cluster(options) as cluster:
        try:
            is_same = cluster.metadata([]).cluster_id == read_cluster
            if is_same:
                check_names(values["to_topic"], partitions)
            for topic, count in partitions.items():
                name = values["to_topic"].replace(TOPIC, topic)
                found = len(cluster.topic(name).partitions)
                if values["partitioning"] == KEEP and found < count:
                    raise JobFailed(
                        f"topic {topic} has {count} partitions, but {name} only {found}: add partitions, or "
                        "use --partitioning key"
                    )
        except ClientError as failure:
            raise JobFailed(f"{values['to_bootstrap']}: {failure}") from failure


def check_names(to_topic: str, topics: Collection[str]) -> None:
    """Raises JobFailed if the records of one of the topics would be written to one of them."""
    for topic in topics:
        name = to_topic.replace(TOPIC, topic)
        if name in topics:
            raise JobFailed(
                f"topic {topic} would be written to {name}, which this replay reads: give --to-topic another "
                f"name, as in --to-topic '{TOPIC}.replayed', or select fewer topics"
            )


def _follow(query: "StreamingQuery", first: Offsets, progress: Progress) -> dict[str, Any]:
    """Wait for the end of the query. Raises JobFailed."""
    from pyspark.errors import PySparkException

    done: dict[int, tuple[int, int]] = {}
    try:
        while not query.awaitTermination(POLL_SECONDS):
            _report(query, first, progress, done)
        _report(query, first, progress, done)
    except PySparkException as failure:
        text, option, _ = reason(failure).partition("; set failOnDataLoss")
        advice = "; --allow-data-loss continues with the records that exist" if option else ""
        raise JobFailed(text + advice) from failure
    except KeyboardInterrupt:
        query.stop()
        raise
    return {
        "query": str(query.id),
        "batches": len(done),
        "records_read": sum(read for read, _ in done.values()),
        "records_written": sum(written for _, written in done.values()),
        "is_ok": True,
    }


def _report(
    query: "StreamingQuery", first: Offsets, progress: Progress, done: dict[int, tuple[int, int]]
) -> None:
    """Show the end of the newest micro-batch, and count its rows."""
    for each in query.recentProgress:
        observed = each.observedMetrics.get(COUNTED)
        if each.numInputRows or observed is not None:
            done[each.batchId] = (each.numInputRows, observed["records"] if observed is not None else 0)
        end = each.sources[0].endOffset if each.sources else None
        if end:
            progress.reach(stream_offsets.count(first, stream_offsets.decode(json.loads(end))))


def _show(document: dict[str, Any]) -> str:
    if not document["records_read"]:
        return "nothing new to replay"
    return (
        f"replayed {document['records_written']:,} of {document['records_read']:,} records in "
        f"{document['batches']:,} commits"
    )


JOB = Job("replay", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
