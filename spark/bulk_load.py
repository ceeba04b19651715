"""Bulk load: adds the rows of a DataFrame to a topic as finished segments in the bucket (ADR 0044).

The rows pass no broker. The driver begins the load at the leader of each partition, executors write one
partition each, in order, and the driver commits each partition at once. A load has a name: if it is repeated,
partitions that it was committed to are left alone. Nothing is visible before a partition's commit.
"""

import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tierlog.base.clock import SystemClock
from tierlog.client.admin import AdminRefused, AdminUnreachable, request
from tierlog.records.codecs import Codec
from tierlog.spark.jobs.arguments import CODECS, InvalidArgument, JobFailed, NoProgress, Progress
from tierlog.spark.jobs.load_client import LoadBegun, LoadClient, Loaded, LoadLeases, NotLoaded
from tierlog.spark.jobs.loading import PARTITION, LoadPlan, PartitionWritten, encoded, route, write_partitions
from tierlog.spark.jobs.runner import reason, watched
from tierlog.spark.options import parse_options
from tierlog.spark.write import TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAMESPACE = uuid.UUID("6d0f6a8e-3a53-4a0e-9a35-0f6f5b6f7c44")
"""Namespace of the ids of loads, which are made of their names."""

NAME_MAX = 200
TASKS_A_PARTITION = 4
"""Shuffle partitions for each partition of the topic, so that few of them share a task."""

ORDER = "_tierlog_order"
LEASE_SECONDS = 60
REQUEST_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Topic:
    cluster_id: str
    name: str
    topic_id: uuid.UUID
    partitions: int


def load(
    df: "DataFrame",
    *,
    topic: str,
    path: str,
    admin: str,
    name: str,
    order_by: "Sequence[str | Column]" = (),
    compression: str = "zstd",
    allow_expired: bool = False,
    lease_seconds: int = LEASE_SECONDS,
    store_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Add the rows of `df` to a tiered topic, without passing a broker's log.

    `df` has the columns of `df.write.format("tierlog")`: value, and perhaps key, headers, partition and
    timestamp. `path`: the bucket, as for reads; `store_options`: endpoint, region and credentials, as options
    of reads. `admin`: admin API of any node. `name`: of this load. The same rows may be loaded again under
    the same name: what was committed is not added again. `order_by`: columns that order the rows of a
    partition, smallest first; then the order of Spark's partitions counts, which for files is not that of
    their names. Rows without timestamp get the time of the load. `allow_expired`: also load what
    retention.ms or retention.bytes deletes at once.

    Returns a document: `is_ok`, and for each partition its offsets. Raises JobFailed.
    """
    job = _Load(topic, path, admin, name, compression, lease_seconds, dict(store_options or {}))
    orders = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    return job.run(df, orders, allow_expired=allow_expired, progress=progress or NoProgress())


class _Load:
    def __init__(
        self,
        topic: str,
        path: str,
        admin: str,
        name: str,
        compression: str,
        lease_seconds: int,
        store_options: dict[str, str],
    ) -> None:
        if not 0 < len(name) <= NAME_MAX:
            raise InvalidArgument(f"the name of a load must have 1 to {NAME_MAX} characters")
        if compression not in CODECS:
            raise InvalidArgument(f"compression must be one of {', '.join(CODECS)}, not {compression!r}")
        if not 1 <= lease_seconds <= 600:
            raise InvalidArgument(f"the lease must be 1 to 600 seconds, not {lease_seconds}")
        self._store = parse_options({**store_options, "path": path, "topic": topic}).store
        self._topic = find_topic(admin, topic)
        self._name = name
        self._codec = Codec[compression.upper()]
        load_id = uuid.uuid5(NAMESPACE, f"{self._topic.topic_id} {name}")
        self._client = LoadClient(admin, self._topic.topic_id, load_id, lease_seconds)
        self._rows: list[dict[str, Any]] = []
        self._failures: list[str] = []

    def run(
        self, df: "DataFrame", order_by: "Sequence[str | Column]", *, allow_expired: bool, progress: Progress
    ) -> dict[str, Any]:
        check_columns(df)
        with LoadLeases(self._client) as leases:
            begun = self._begin(leases)
            written = self._write(df, order_by, begun, progress) if begun else {}
            if not allow_expired:
                self._require_kept(begun, written)
            for partition in sorted(begun):
                self._commit(partition, written.get(partition), leases)
        rows = sorted(self._rows, key=lambda row: int(row["partition"]))
        return {
            "topic": self._topic.name,
            "name": self._name,
            "records": sum(row["records"] for row in rows if row["state"] == "loaded"),
            "bytes": sum(row["bytes"] for row in rows),
            "segments": sum(row["segments"] for row in rows),
            "partitions": rows,
            "not_loaded": self._failures,
            "is_ok": not self._failures,
        }

    def _begin(self, leases: LoadLeases) -> dict[int, LoadBegun]:
        """Begin in all partitions that the load was not committed to yet. Each may wait for minutes until
        what is before the load is in the bucket."""
        begun = {}
        try:
            for partition in range(self._topic.partitions):
                found = self._client.begin(partition)
                if isinstance(found, Loaded):
                    self._add(partition, "loaded before", found)
                    continue
                begun[partition] = found
                leases.add(partition)
                if found.timestamp_type != "CreateTime":
                    raise NotLoaded(
                        f"message.timestamp.type is {found.timestamp_type}: a load needs CreateTime"
                    )
        except NotLoaded as why:
            raise JobFailed(f"cannot load into {self._topic.name}: {why}") from None
        return begun

    def _write(
        self,
        df: "DataFrame",
        order_by: "Sequence[str | Column]",
        begun: Mapping[int, LoadBegun],
        progress: Progress,
    ) -> dict[int, PartitionWritten]:
        plan = LoadPlan(
            self._store,
            self._topic.cluster_id,
            self._topic.name,
            self._client,
            begun,
            self._topic.partitions,
            self._codec,
            SystemClock().now_ms(),
        )
        tasks = TASKS_A_PARTITION * self._topic.partitions
        frame = _sorted(df, order_by, plan, tasks).mapInArrow(_writer(plan), "partition int, result binary")
        progress.begin("write segments", tasks)
        with watched(df.sparkSession, progress, 1):
            try:
                rows = frame.collect()
            except Exception as failure:
                raise JobFailed(reason(failure)) from failure
        progress.reach(tasks)
        return {row.partition: pickle.loads(bytes(row.result)) for row in rows}

    def _require_kept(self, begun: Mapping[int, LoadBegun], written: Mapping[int, PartitionWritten]) -> None:
        now_ms = SystemClock().now_ms()
        for partition, found in written.items():
            size, kept_bytes = sum(one.log_bytes for one in found.segments), begun[partition].retention_bytes
            if 0 <= kept_bytes < size:
                raise JobFailed(
                    f"nothing is loaded: retention.bytes of {self._topic.name} is {kept_bytes}, and "
                    f"partition {partition} would get {size} bytes, of which the first are deleted at once. "
                    f"{self._remedy('retention.bytes')}"
                )
            retention_ms = begun[partition].retention_ms
            newest = found.segments[0].max_timestamp if found.segments else now_ms
            if 0 <= retention_ms < now_ms - newest:
                raise JobFailed(
                    f"nothing is loaded: retention.ms of {self._topic.name} is {retention_ms}, and partition "
                    f"{partition} would begin with older records, which are deleted at once. "
                    f"{self._remedy('retention.ms')}"
                )

    def _remedy(self, setting: str) -> str:
        alter = f"tierlog topic alter {self._topic.name} --config {setting}=-1"
        return f"Raise it, as with `{alter}`, or load them nevertheless with --allow-expired"

    def _commit(self, partition: int, written: PartitionWritten | None, leases: LoadLeases) -> None:
        if written is not None and written.failure:
            if (found := self._client.find(partition)) is None:
                self._failures.append(f"partition {partition}: {written.failure}")
            else:  # by another run of the same load
                self._add(partition, "loaded before", found)
            return
        if written is None or not written.segments:
            self._add(partition, "no rows", None)
            return
        try:
            found = self._client.commit(partition, written.segments)
        except NotLoaded as why:
            self._failures.append(f"partition {partition}: {why}")
            return
        leases.remove(partition)
        self._add(partition, "loaded", found, written)

    def _add(
        self, partition: int, state: str, found: Loaded | None, written: PartitionWritten | None = None
    ) -> None:
        segments = () if written is None else written.segments
        self._rows.append(
            {
                "partition": partition,
                "state": state,
                "base_offset": None if found is None else found.base_offset,
                "end_offset": None if found is None else found.end_offset,
                "records": 0 if found is None else found.end_offset - found.base_offset,
                "bytes": sum(one.log_bytes for one in segments),
                "segments": len(segments),
            }
        )


def find_topic(admin: str, name: str) -> Topic:
    """The topic, by the admin API of a node. Raises JobFailed."""
    failure = "no admin API is given"
    for url in (one.strip().rstrip("/") for one in admin.split(",") if one.strip()):
        try:
            cluster = request("GET", f"{url}/v1/cluster", timeout_s=REQUEST_TIMEOUT_S)
        except (AdminRefused, AdminUnreachable) as refused:
            failure = str(refused)
            continue
        found = next((one for one in cluster["topics"] if one["name"] == name), None)
        if found is None:
            raise JobFailed(f"there is no topic {name!r}: create it with `tierlog topic create {name}`")
        return Topic(cluster["cluster_id"], name, uuid.UUID(found["id"]), len(found["partitions"]))
    raise JobFailed(f"{failure}. Check --admin")


def check_columns(df: "DataFrame") -> None:
    """Raises InvalidArgument if a column of records is missing or has another type. Others may order rows."""
    allowed = {name: types for name, types in TYPES.items() if name != "topic"}
    for field in df.schema.fields:
        lower = field.name.lower()
        if lower in TYPES and df.schema.names.count(field.name) > 1:
            raise InvalidArgument(f"there are several columns {field.name}: select one of them")
        if lower in TYPES and lower != field.name:
            raise InvalidArgument(f"the column {field.name} must be named {lower}, or anything else")
        kind = field.dataType.simpleString().replace("timestamp_ntz", "timestamp")
        if kind not in allowed.get(field.name, (kind,)):
            wanted = " or ".join(allowed[field.name])
            raise InvalidArgument(f"the column {field.name} is {kind}; it must be {wanted}")
    if "value" not in df.schema.names:
        raise InvalidArgument("the column `value` is missing: select the columns of records, as for a write")


def _sorted(df: "DataFrame", order_by: "Sequence[str | Column]", plan: LoadPlan, tasks: int) -> "DataFrame":
    """The columns of records, by partition and in order."""
    from pyspark.sql import functions
    from pyspark.sql.types import IntegerType, StructField, StructType

    given = [one for one in TYPES if one in df.columns and one != "topic"]
    orders = [functions.col(one) if isinstance(one, str) else one for one in order_by]
    orders.append(functions.monotonically_increasing_id())
    names = [f"{ORDER}_{number}" for number in range(len(orders))]
    rows = df.select(*given, *(one.alias(name) for one, name in zip(orders, names, strict=True)))
    schema = StructType([StructField(PARTITION, IntegerType()), *rows.schema.fields])

    def routed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return route(plan, batches)

    return (
        rows.mapInArrow(routed, schema).repartition(tasks, PARTITION).sortWithinPartitions(PARTITION, *names)
    )


def _writer(plan: LoadPlan) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return encoded(write_partitions(plan, batches))

    return write
