"""Delta tables of `backfill`, through delta-rs: the package deltalake, without Spark's Delta library.

Executors write Parquet files into the table's folder. The driver adds the files of a commit in one version.
The offsets are the transaction versions of Delta's protocol (`txn`): one application id for each partition,
whose version is the offset at which the next run begins. Executors do not need deltalake.
"""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tierlog.base.types import TopicIdPartition
from tierlog.spark.jobs.arguments import DAY, HOUR, NONE, JobFailed
from tierlog.spark.jobs.export import WrittenFile
from tierlog.spark.jobs.file_stores import FileStore
from tierlog.spark.jobs.selection import Ends
from tierlog.spark.jobs.tables import STATE, Destination, changed_meanwhile, check_values, encode_ends

PARTITIONED_BY = {NONE: [], DAY: ["date"], HOUR: ["date", "hour"]}
LAST_MS = 253_402_300_799_999
"""End of the year 9999: statistics of later timestamps (or those before 1970) are left out."""

_STORAGE_OPTIONS = {
    "endpoint_override": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}


class DeltaTable:
    def __init__(self, store: FileStore, schema: pa.Schema, by: str) -> None:
        """Open the table, or create it. Raises JobFailed."""
        try:
            import deltalake
        except ImportError:
            raise JobFailed("Delta needs deltalake: pip install 'tierlog[export]'") from None
        self._store = store
        self._by = PARTITIONED_BY[by]
        types = {"date": pa.date32(), "hour": pa.int32()}
        self._schema = deltalake.Schema.from_arrow(
            pa.schema([*schema, *(pa.field(name, types[name]) for name in self._by)])
        )
        storage = {_STORAGE_OPTIONS[name]: value for name, value in store.options if name in _STORAGE_OPTIONS}
        if storage.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            storage["AWS_ALLOW_HTTP"] = "true"
        if deltalake.DeltaTable.is_deltatable(store.url, storage):
            self._table = deltalake.DeltaTable(store.url, storage_options=storage)
        elif STATE in store.children():
            raise JobFailed(f"{store.url} has an export of --format parquet: give --to another folder")
        else:
            self._table = deltalake.DeltaTable.create(
                store.url, self._schema, partition_by=self._by, storage_options=storage
            )
        self._check()

    def ends(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        found = {where: self._table.transaction_version(application(where)) for where in partitions}
        return {where: int(end) for where, end in found.items() if end is not None}

    def destination(self) -> Destination:
        return Destination(self._store, "", in_folders=True)

    def commit(self, files: Sequence[WrittenFile], ends: Ends) -> str:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError

        properties = CommitProperties(
            custom_metadata={"tierlog.ends": encode_ends(ends)},
            app_transactions=[Transaction(application(where), end) for where, end in sorted(ends.items())],
        )
        try:
            self._table.create_write_transaction(
                [_added(file) for file in files],
                "append",
                self._schema,
                self._by,
                commit_properties=properties,
            )
        except CommitFailedError as failure:
            raise changed_meanwhile(self._store.url) from failure
        except DeltaError as failure:
            raise JobFailed(f"{self._store.url} refuses the commit: {failure}") from failure
        self._table.update_incremental()
        return str(self._table.version())

    def _check(self) -> None:
        by = self._table.metadata().partition_columns
        if by != self._by:
            raise JobFailed(f"{self._store.url} is partitioned by {by}, not {self._by}; see --partition-by")
        names = {field.name for field in self._table.schema().fields}
        if missing := {field.name for field in self._schema.fields} - names:
            raise JobFailed(f"{self._store.url} has no column {', '.join(sorted(missing))}; see --columns")
        if "value" in names and "value" in {field.name for field in self._schema.fields}:
            schemas = self._table.schema().to_arrow(), self._schema.to_arrow()
            before, now = (pa.schema(one).field("value").type for one in schemas)
            check_values(self._store.url, str(before), str(now))


def application(where: TopicIdPartition) -> str:
    """The application id of a partition. Its version is the offset at which the next run begins."""
    return f"tierlog:{where.topic_id}:{where.partition}"


def _added(file: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    least: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    for name, (first, last) in file.bounds.items():
        if name != "timestamp":
            least[name], largest[name] = first, last
        elif first >= 0 and last <= LAST_MS * 1000:
            least[name], largest[name] = _iso(first), _iso(last)
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": largest, "nullCount": {}}
    now_ms = time.time_ns() // 1_000_000
    return AddAction(file.path, file.bytes, file.values, now_ms, True, json.dumps(stats))


def _iso(microseconds: int) -> str:
    """Delta's statistics have milliseconds, as Kafka's timestamps do."""
    return f"{np.datetime64(microseconds // 1000, 'ms')}Z"
