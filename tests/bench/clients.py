"""Cases with real clients: librdkafka, and Kafka's Java producer benchmark."""

import multiprocessing
import os
import re
import struct
import subprocess
import time

from meter import Meter, percentiles
from raw import retained

MIB = 1 << 20


def rdkafka_producer(options, extra=None):
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": "all",
            "linger.ms": options.linger,
            "queue.buffering.max.messages": 200000,
            "queue.buffering.max.kbytes": 262144,
            **(extra or {}),
        }
    )


class Deliveries:
    """Counts delivery reports; keeps librdkafka's own produce-to-ack time of each."""

    def __init__(self):
        self.latencies = []
        self.failed = 0

    def __call__(self, error, message):
        if error:
            self.failed += 1
        else:
            self.latencies.append(message.latency())


def rd_produce(options, topics, pids, warm):
    topic = topics.create(options.partitions)
    payload = os.urandom(options.size)
    limit_s = options.warm_s if warm else options.seconds
    deliveries = Deliveries()
    producer = rdkafka_producer(options)
    sent = 0
    try:
        producer.list_topics(topic, 10)
        with Meter(pids) as meter:
            begin = time.perf_counter()
            if options.rate:
                slot, total = 0.001, int(options.rate * limit_s)
                while sent < total:
                    due = min(int((time.perf_counter() - begin) * options.rate) + 1, total)
                    while sent < due:
                        producer.produce(topic, payload, on_delivery=deliveries)
                        sent += 1
                    producer.poll(0)
                    pause = (
                        begin + (int((time.perf_counter() - begin) / slot) + 1) * slot - time.perf_counter()
                    )
                    if pause > 0:
                        time.sleep(pause)
            else:
                end = begin + limit_s
                while time.perf_counter() < end and sent * options.size < options.max_bytes:
                    try:
                        for _ in range(100):
                            producer.produce(topic, payload, on_delivery=deliveries)
                            sent += 1
                        producer.poll(0)
                    except BufferError:
                        producer.poll(0.01)
            producer.flush(60)
            seconds = time.perf_counter() - begin
    finally:
        topics.delete(topic)
    if deliveries.failed or len(deliveries.latencies) != sent:
        raise RuntimeError(f"{sent} sent, {len(deliveries.latencies)} delivered, {deliveries.failed} failed")
    size = sent * options.size
    return {
        "mb_s": round(size / 1e6 / seconds, 1),
        "msgs_s": round(sent / seconds),
        **percentiles(deliveries.latencies),
        **meter.report(size),
    }


def consume_stamps(options, topic, count, ready, results):
    """In a process of its own: latency of each message from the time stamp in its first 8 bytes."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "bench-e2e",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    latencies = []
    ready.set()
    while len(latencies) < count:
        for message in consumer.consume(100, 1.0) if options.batch_consume else [consumer.poll(1.0)]:
            if message is None:
                continue
            if message.error():
                raise RuntimeError(str(message.error()))
            latencies.append((time.monotonic_ns() - struct.unpack_from(">q", message.value())[0]) / 1e9)
    consumer.close()
    results.send(latencies)


def rd_e2e(options, topics, pids, warm):
    topic = topics.create(1)
    filler = os.urandom(options.size - 8)
    limit_s = options.warm_s if warm else options.seconds
    total = int(options.rate * limit_s)
    producer = rdkafka_producer(options)
    ours, theirs = multiprocessing.Pipe(False)
    ready = multiprocessing.Event()
    consumer = multiprocessing.Process(target=consume_stamps, args=(options, topic, total, ready, theirs))
    try:
        producer.list_topics(topic, 10)
        consumer.start()
        theirs.close()
        ready.wait(30)
        time.sleep(1.0)  # the consumer's first fetch is waiting at the log end by then
        with Meter(pids) as meter:
            begin = time.perf_counter()
            for index in range(total):
                pause = begin + index / options.rate - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                producer.produce(topic, struct.pack(">q", time.monotonic_ns()) + filler)
                if index % 16 == 0:
                    producer.poll(0)
            producer.flush(60)
            seconds = time.perf_counter() - begin
            latencies = ours.recv()
            consumer.join()
    finally:
        if consumer.is_alive():
            consumer.terminate()
        topics.delete(topic)
    return {"msgs_s": round(total / seconds), **percentiles(latencies), **meter.report(total * options.size)}


def rd_consume(options, topics, pids, warm):
    """Reads options.topic from offset 0 with librdkafka (batches of 1,000 messages)."""
    from confluent_kafka import Consumer, TopicPartition

    limit_s = options.warm_s if warm else options.seconds
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "bench-read",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": options.max_partition,
            "fetch.queue.backoff.ms": 10,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(options.topic, 0, 0)])
    size = count = 0
    finished = False
    with Meter(pids) as meter:
        begin = last = time.perf_counter()
        while not finished and last - begin < limit_s and size < options.max_bytes:
            for message in consumer.consume(1000, 1.0):
                if message.error():
                    finished = True
                    break
                size += len(message.value())
                count += 1
            last = time.perf_counter()
    consumer.close()
    return {
        "mb_s": round(size / 1e6 / (last - begin), 1),
        "msgs_s": round(count / (last - begin)),
        "bytes": size,
        **meter.report(size),
    }


# ---- the Java perf tool --------------------------------------------------------------------------


def java_perf(options, topics, pids, warm):
    """kafka-producer-perf-test, its JVM started for each run: its first second is part of the figure."""
    topic = topics.create(options.partitions, retained(options.retain // options.partitions))
    records = options.count // 10 if warm else options.count
    command = ["java", "-Xmx512m", "-cp", options.classpath, "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", topic, "--num-records", str(records), "--record-size", str(options.size)]
    command += [
        "--throughput",
        str(int(options.rate) or -1),
        "--command-property",
        f"bootstrap.servers={options.bootstrap}",
        f"acks={options.acks if options.acks > 0 else 'all'}",
    ]
    try:
        with Meter(pids) as meter:
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        topics.delete(topic)
    line = [text for text in output.splitlines() if "records sent" in text and "99.9th" in text][-1]
    rate, megabytes = re.search(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)", line).groups()
    quantiles = {name: float(value) for value, name in re.findall(r"(\d+) ms (50|99|99\.9)th", line)}
    return {
        "mb_s": round(float(megabytes) * MIB / 1e6, 1),
        "msgs_s": round(float(rate)),
        "p50_ms": quantiles["50"],
        "p99_ms": quantiles["99"],
        "p999_ms": quantiles["99.9"],
        "broker_cpu_s_per_million": round(meter.broker / (records / 1e6), 3),
        **meter.report(records * options.size),
    }
