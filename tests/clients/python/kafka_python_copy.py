"""kafka_python_copy.py BOOTSTRAP SOURCE SINK: copies records exactly once by kafka-python, until killed.

Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and
repeated.
"""

import itertools
import sys

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata


def main(bootstrap: str, source: str, sink: str) -> None:
    name = f"copy-{sink}"
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    producer.init_transactions()
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=6000,
        max_poll_records=50,
    )
    counts = itertools.count(1)
    while True:
        batches = consumer.poll(timeout_ms=200)
        if not batches:
            continue
        producer.begin_transaction()
        for partition, records in batches.items():
            for record in records:
                producer.send(sink, key=record.key, value=record.value, partition=partition.partition)
        next_offsets = {
            partition: OffsetAndMetadata(records[-1].offset + 1, "", -1)
            for partition, records in batches.items()
        }
        producer.send_offsets_to_transaction(next_offsets, consumer.group_metadata())
        if next(counts) % 5 == 0:
            producer.flush()
            producer.abort_transaction()
            for partition, records in batches.items():
                consumer.seek(partition, records[0].offset)
        else:
            producer.commit_transaction()


if __name__ == "__main__":
    main(*sys.argv[1:])
