"""aiokafka_copy.py BOOTSTRAP SOURCE SINK: copies records exactly once with aiokafka, until it is killed.

Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and
repeated.
"""

import asyncio
import itertools
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(bootstrap: str, source: str, sink: str) -> None:
    name = f"copy-{sink}"
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await producer.start()
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        session_timeout_ms=6000,
    )
    await consumer.start()
    for count in itertools.count(1):
        batches = await consumer.getmany(timeout_ms=10_000, max_records=50)
        if not batches:
            continue
        await producer.begin_transaction()
        for partition, records in batches.items():
            for record in records:
                await producer.send(sink, key=record.key, value=record.value, partition=partition.partition)
        next_offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        await producer.send_offsets_to_transaction(next_offsets, name)
        if count % 5 == 0:
            await producer.flush()
            await producer.abort_transaction()
            for partition, records in batches.items():
                consumer.seek(partition, records[0].offset)
        else:
            await producer.commit_transaction()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
