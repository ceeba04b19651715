"""Spark leaves out tiered records of aborted transactions (guarantee 20)."""

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tier_node import ABORT, START_MS, TierNode, produce, write_transactional

from tierlog.records.writer import NewRecord
from tierlog.spark.batch import TierlogReader
from tierlog.spark.options import parse_options
from tierlog.tiering.local_store import LocalStore


@pytest.mark.parametrize("marker_tiered", [False, True])
async def test_aborted_records_are_left_out_wherever_the_marker_is(
    tmp_path: Path, marker_tiered: bool
) -> None:
    async with TierNode(tmp_path, LocalStore(tmp_path / "bucket")) as node:
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        produce(replica, 1)
        for sequence in range(2):  # over two segments, between records that stay
            record = NewRecord(START_MS, b"k", b"aborted", ())
            write_transactional(replica, [record], base_sequence=sequence)
            produce(replica, 1)
            replica.log.roll(START_MS)
        tiered = replica.log_end_offset
        write_transactional(replica, ABORT, control=True)
        produce(replica, 1)
        if marker_tiered:
            await node.log_manager.flush("t")
            tiered = replica.log_end_offset
        await node.finish_tiering()
        options = parse_options({"path": str(tmp_path / "bucket"), "topic": "t"})
        reader = TierlogReader(options, StructType([StructField("offset", LongType())]))
        found = [
            offset
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for offset in batch.column(0).to_pylist()
        ]
        hidden = {5, 11, 17}  # the two records and their marker
        assert found == [offset for offset in range(tiered) if offset not in hidden]
