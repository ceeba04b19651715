"""The history of the Spark tests: all codecs, nulls, headers, pages, deleted and uncommitted segments."""

import random
from pathlib import Path

from spark_bucket import BucketWriter

from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

FIRST_MS = 1_357_034_400_000
LOG_START = 250
UNCOMMITTED = 1
SEGMENTS = 6
CHUNK_BYTES = 4_000  # about seven chunks a segment


def write_history(directory: Path, chunk_bytes: int | None = CHUNK_BYTES) -> BucketWriter:
    """Topic `flights` (3 partitions, of which the last has no uploads) and topic `weather` (1).
    `chunk_bytes`: as of BucketWriter."""
    writer = BucketWriter(directory, chunk_bytes)
    rng = random.Random(2013)
    writer.topic("flights", 3)
    writer.topic("weather", 1)
    for topic, partition in (("flights", 0), ("flights", 1), ("weather", 0)):
        offset = 0
        for number in range(SEGMENTS):
            batches = []
            for _ in range(40):
                records = [make_record(rng, offset + i) for i in range(rng.randrange(1, 12))]
                codec = rng.choice(list(Codec))
                append = FIRST_MS + offset * 1_000 if rng.random() < 0.2 else None
                batches.append(
                    bytes(
                        encode_batch(
                            records,
                            base_offset=offset,
                            leader_epoch=0,
                            codec=codec,
                            log_append_time=append,
                        )
                    )
                )
                offset += len(records)
            if topic == "flights" and partition == 1 and number == 2:
                marker = [NewRecord(FIRST_MS, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00")]
                batches.append(bytes(encode_batch(marker, base_offset=offset, leader_epoch=0, control=True)))
                offset += 1
            writer.segment(topic, partition, batches, index_bytes=1_000)
    writer.commit("flights", 0, log_start=LOG_START, paged=3)
    writer.commit("flights", 1, uncommitted=UNCOMMITTED)
    writer.commit("weather", 0)
    return writer


def make_record(rng: random.Random, offset: int) -> NewRecord:
    """Timestamps grow by a second per offset, and some are a minute late."""
    late = 60_000 if rng.random() < 0.05 else 0
    key = rng.choice([None, b"", b"UA-%d" % rng.randrange(50)])
    value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(200))
    headers = [("source", b"nycflights13"), ("null", None)] if rng.random() < 0.3 else []
    return NewRecord(FIRST_MS + offset * 1_000 - late, key, value, headers)
