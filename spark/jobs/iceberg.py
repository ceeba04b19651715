"""Iceberg tables of `backfill`, through pyiceberg: any of its catalogs.

Executors write Parquet files below the table's location. The driver adds the files of a commit in one
snapshot, whose summary has the offsets. Executors do not need pyiceberg.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tierlog.base.types import TopicIdPartition
from tierlog.spark.jobs.arguments import HOUR, NONE, JobFailed
from tierlog.spark.jobs.export import WrittenFile
from tierlog.spark.jobs.file_stores import S3_SCHEMES, FileStore
from tierlog.spark.jobs.selection import Ends
from tierlog.spark.jobs.tables import Destination, changed_meanwhile, check_values, decode_ends, encode_ends

ENDS = "tierlog.ends"
"""Property of a snapshot and of the table. That of the newest snapshot counts, so that a rollback of the
table takes the offsets back as well. The table's is for tables whose older snapshots have expired."""

TRIES = 5
_NO_RETRY = "commit.retry.num-retries"
_S3_OPTIONS = {
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
}


class IcebergTable:
    def __init__(
        self, catalog: str, properties: dict[str, str], name: str, schema: pa.Schema, by: str
    ) -> None:
        """Open the table, or create it. Raises JobFailed."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError:
            raise JobFailed("Iceberg needs pyiceberg: pip install 'tierlog[export]'") from None
        # one warning for each column of each file: export leaves statistics of long columns out
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        self._catalog = load_catalog(catalog, **properties)
        self._name = name
        self._by = by
        if not self._catalog.table_exists(name):
            self._create(schema)
        self._table = self._catalog.load_table(name)
        self._check(schema)
        self._read: dict[TopicIdPartition, int] = self._committed()

    def ends(self, partitions: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int]:
        return {where: self._read[where] for where in partitions if where in self._read}

    def destination(self) -> Destination:
        options = {
            _S3_OPTIONS[name]: str(value)
            for name, value in self._table.io.properties.items()
            if name in _S3_OPTIONS
        }
        location = self._table.location().rstrip("/")
        given = tuple(sorted(options.items())) if location.startswith(S3_SCHEMES) else ()
        store = FileStore(location, given)
        return Destination(store, "data", in_folders=False, has_far_dates=False)  # pyiceberg knows none

    def commit(self, files: Sequence[WrittenFile], ends: Ends) -> str:
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(TRIES):
            try:
                self._add(files, ends)
                self._read = self._committed()
                return str(self._table.metadata.current_snapshot_id)
            except CommitFailedException:  # another writer was first
                self._table = self._catalog.load_table(self._name)
                committed = self._committed()
                if any(committed.get(where) != self._read.get(where) for where in ends):
                    raise changed_meanwhile(self._name) from None
                self._read = committed
        raise JobFailed(
            f"{self._name}: other writers were first in {TRIES} tries to commit; run the job again"
        )

    def _add(self, files: Sequence[WrittenFile], ends: Ends) -> None:
        """One snapshot. pyiceberg's own retries are off: they would add the files after a rival's commit."""
        self._table.metadata.properties[_NO_RETRY] = "0"
        folder = f"{self._table.location().rstrip('/')}/data"
        state = encode_ends({**self._read, **ends})
        with self._table.transaction() as transaction:
            transaction.set_properties({ENDS: state})
            transaction.add_files(
                [f"{folder}/{file.path}" for file in files],
                snapshot_properties={ENDS: state},
                check_duplicate_files=False,  # their names are random
            )
        self._table = self._catalog.load_table(self._name)

    def _committed(self) -> dict[TopicIdPartition, int]:
        metadata, snapshot = self._table.metadata, self._table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            if summary is not None and summary.additional_properties.get(ENDS):
                return decode_ends(summary.additional_properties[ENDS])
            if snapshot.parent_snapshot_id is None:
                return {}
            snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id)
            if snapshot is None:  # it has expired
                return decode_ends(metadata.properties.get(ENDS, "{}"))
        return {}

    def _create(self, schema: pa.Schema) -> None:
        from pyiceberg.transforms import DayTransform, HourTransform

        namespace = self._name.rpartition(".")[0]
        if not namespace:
            raise JobFailed(f"--table {self._name!r} has no namespace: give NAMESPACE.TABLE")
        self._catalog.create_namespace_if_not_exists(namespace)
        with self._catalog.create_table_transaction(self._name, schema) as transaction:
            if self._by != NONE:
                transform: Any = HourTransform() if self._by == HOUR else DayTransform()
                with transaction.update_spec() as spec:
                    spec.add_field("timestamp", transform, f"timestamp_{self._by}")

    def _check(self, schema: pa.Schema) -> None:
        schema_now = self._table.schema()
        fields = [
            (schema_now.find_field(field.source_id).name, str(field.transform))
            for field in self._table.spec().fields
        ]
        expected = [] if self._by == NONE else [("timestamp", self._by)]
        if fields != expected:
            raise JobFailed(f"{self._name} is partitioned by {fields}, not {expected}; see --partition-by")
        missing = set(schema.names) - {field.name for field in schema_now.fields}
        if missing:
            raise JobFailed(f"{self._name} has no column {', '.join(sorted(missing))}; see --columns")
        if "value" in schema.names:
            made = self._catalog._convert_schema_if_needed(schema)
            before, now = (str(one.as_arrow().field("value").type) for one in (schema_now, made))
            check_values(self._name, before, now)
