"""Benchmark of Spark's jobs: rows that `backfill` exports to Parquet in a second.

    python tests/bench/spark_export.py [--rows 5000000] [--value-bytes 100] [--directory DIRECTORY]

The bucket is a directory in tierlog's formats, with segments of 256 MiB, batches of 64 KiB and no
compression. A first run of each job warms workers and page cache; the figures are medians of three further
runs.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import session
from tierlog.spark.jobs.arguments import NoProgress, parse
from tierlog.spark.jobs.backfill import JOB as BACKFILL

FIRST_MS = 1_700_000_000_000
BATCH_BYTES = 64 << 10
SEGMENT_BYTES = 256 << 20
PARTITIONS = 2
RUNS = 3


def write_bucket(directory: Path, rows: int, value_bytes: int) -> None:
    """Batches are encoded once and repeated at new offsets and timestamps, which no checksum of theirs
    covers but that of the chunk."""
    writer = BucketWriter(directory, keeps_rows=False)
    writer.topic("bench", PARTITIONS)
    rng = random.Random(1)
    count = max(1, BATCH_BYTES // (value_bytes + 20))
    templates = [_batch(rng, count, value_bytes) for _ in range(16)]
    for partition in range(PARTITIONS):
        offset, left = 0, rows // PARTITIONS
        while left > 0:
            batches: list[bytes] = []
            size = 0
            while left > 0 and size < SEGMENT_BYTES:
                batch = templates[len(batches) % 16]
                batches.append(struct.pack(">q", offset) + batch[8:])
                offset, left, size = offset + count, left - count, size + len(batch)
            writer.segment("bench", partition, batches)
        writer.commit("bench", partition)


def _batch(rng: random.Random, count: int, value_bytes: int) -> bytes:
    records = [
        NewRecord(FIRST_MS + i, b"key-%06d" % rng.randrange(100_000), rng.randbytes(value_bytes))
        for i in range(count)
    ]
    return bytes(encode_batch(records, leader_epoch=0))


@contextlib.contextmanager
def timed(into: list[float]) -> Iterator[None]:
    began = time.monotonic()
    yield
    into.append(time.monotonic() - began)


def export(bucket: Path, target: Path, codec: str) -> tuple[int, float]:
    """Rows, and the median of the seconds."""
    seconds: list[float] = []
    document: dict[str, Any] = {}
    for _ in range(RUNS + 1):
        shutil.rmtree(target, ignore_errors=True)
        values = parse(
            BACKFILL,
            ["--path", str(bucket), "--to", str(target), "--file-mib", "128", "--compression", codec],
        )
        with timed(seconds):
            document = BACKFILL.run(values, NoProgress())
    return document["rows"], statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--compression", default="zstd")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        bucket = Path(scratch, "bucket")
        bucket.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):
            write_bucket(bucket, options.rows, options.value_bytes)
        size = sum(file.stat().st_size for file in bucket.rglob("*.log"))
        spark = session("bench", **{"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"})
        try:
            rows, seconds = export(bucket, Path(scratch, "table"), options.compression)
        finally:
            spark.stop()
    print(
        json.dumps(
            {
                "rows": rows,
                "value_bytes": options.value_bytes,
                "history_bytes": size,
                "export_rows_per_second": round(rows / seconds),
                "export_megabytes_per_second": round(size / seconds / 1e6),
            }
        )
    )


if __name__ == "__main__":
    main()
