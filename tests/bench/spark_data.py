"""The same record batches as a topic of Kafka, as a tierlog bucket in a directory, and as Parquet files.

Uncompressed batches of about 64 KiB with keys of 10 bytes and random values. Some are encoded once and
repeated at other offsets, which no checksum of a batch covers.
"""

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import raw
import wire
from kafka_process import KafkaProcess
from pyarrow.parquet import ParquetWriter
from spark_bucket import BucketWriter
from topics import Topics
from versus import JAVA

from tierlog.records.columnar import decode_columns
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = "bench"
COLUMNS = ("key", "value", "offset", "timestamp", "timestampType")
PARTITIONS = 4
FIRST_MS = 1_700_000_000_000
BATCH_BYTES = 64 << 10
SEGMENT_BYTES = 128 << 20
TEMPLATES = 16
FILL_LIMIT_S = 120
REQUESTS_IN_FLIGHT = 4
KAFKA_PROPERTIES = "log.retention.ms=-1\n"


class Shape(NamedTuple):
    """`rows` records with values of `value_bytes`."""

    name: str
    rows: int
    value_bytes: int

    @property
    def batch_rows(self) -> int:
        return BATCH_BYTES // (self.value_bytes + 20)

    @property
    def batches(self) -> int:
        """Batches of one partition."""
        return self.rows // PARTITIONS // self.batch_rows


SHAPES = (Shape("100 B", 5_000_000, 100), Shape("1 KiB", 1_000_000, 1024))


def templates(shape: Shape) -> list[bytes]:
    rng = random.Random(shape.value_bytes)
    return [
        bytes(
            encode_batch(
                [
                    NewRecord(
                        FIRST_MS + n, b"key-%06d" % rng.randrange(1_000_000), rng.randbytes(shape.value_bytes)
                    )
                    for n in range(shape.batch_rows)
                ]
            )
        )
        for _ in range(TEMPLATES)
    ]


def write_bucket(directory: Path, shape: Shape) -> None:
    writer = BucketWriter(directory, keeps_rows=False)
    writer.topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        for segment in segments(shape):
            writer.segment(TOPIC, partition, segment)
        writer.commit(TOPIC, partition)


def segments(shape: Shape) -> Iterator[list[bytes]]:
    """The batches of each segment of a partition."""
    encoded = templates(shape)
    batches, size = [], 0
    for n in range(shape.batches):
        batch = encoded[n % TEMPLATES]
        batches.append(struct.pack(">q", n * shape.batch_rows) + batch[8:])
        size += len(batch)
        if size >= SEGMENT_BYTES or n == shape.batches - 1:
            yield batches
            batches, size = [], 0


def write_parquet(directory: Path, shape: Shape) -> None:
    """A file for each segment."""
    directory.mkdir()
    for partition in range(PARTITIONS):
        for number, segment in enumerate(segments(shape)):
            with ExitStack() as stack:
                writer = None
                for columns in decode_columns(b"".join(segment), COLUMNS):
                    constants = {
                        "topic": pa.repeat(pa.scalar(TOPIC), columns.rows),
                        "partition": pa.repeat(pa.scalar(partition, pa.int32()), columns.rows),
                    }
                    table = pa.table({**columns.arrays, **constants})
                    if writer is None:
                        path = directory / f"{partition}-{number}.parquet"
                        writer = stack.enter_context(ParquetWriter(path, table.schema))
                    writer.write_table(table)


@contextmanager
def kafka_with(classpath: str, directory: Path, shape: Shape) -> Iterator[str]:
    """The bootstrap address of an Apache Kafka broker that has the topic."""
    kafka = KafkaProcess(classpath, directory, JAVA, KAFKA_PROPERTIES)
    try:
        fill(kafka.bootstrap, shape)
        yield kafka.bootstrap
    finally:
        kafka.stop()


def fill(bootstrap: str, shape: Shape) -> None:
    """Create the topic, with all records."""
    Topics(bootstrap).create(PARTITIONS, {"retention.ms": "-1"}, TOPIC)  # the records are old
    address = wire.parse_address(bootstrap)
    for partition in range(PARTITIONS):
        frames = [
            frame for batch in templates(shape) for frame in raw.produce_frames(TOPIC, [partition], batch, 1)
        ]
        sent, _, _ = raw.send_fast(address, frames, REQUESTS_IN_FLIGHT, shape.batches, FILL_LIMIT_S, 1)
        if sent != shape.batches:
            raise RuntimeError(f"the broker took only {sent} of {shape.batches} batches")
