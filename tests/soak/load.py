"""Load of a soak run: real clients in a process of its own.

Group members, which may hang, run in a child process (members.py). Every INTERVAL_S it writes one JSON line
with latencies and counts since the last one. Client errors are counted, and the first of each kind is kept.
Started by soak.py; ends when its standard input is closed.
"""

import argparse
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tally import Tally
from worker_process import WorkerProcess

MIB = 1 << 20
INTERVAL_S = 5.0
RECORDS_S = 500
"""Records per second for each of three topics. With 1 KiB records, one core has time left for the other
load."""
TOPICS = {
    "soak-plain": {"segment.bytes": 4 * MIB, "retention.bytes": 16 * MIB},
    "soak-compacted": {
        "cleanup.policy": "compact",
        "segment.bytes": 1 * MIB,
        "segment.ms": 10_000,
        "min.cleanable.dirty.ratio": 0.3,
    },
    "soak-tiered": {
        "remote.storage.enable": True,
        "segment.bytes": 1 * MIB,
        "local.retention.bytes": 2 * MIB,
        "retention.bytes": 24 * MIB,
    },
}
PARTITIONS = 2
KEYS = 2000
SENT = struct.Struct(">4sq")
STAMPED = b"sent"
"""Prefix of the values of measured records: a marker and the time of the produce() call."""

MEMBERS = Path(__file__).parent / "members.py"


class Load:
    def __init__(self, bootstrap: str, settings: dict[str, object]) -> None:
        self._bootstrap = bootstrap
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 0, **settings}
        self._lock = threading.Lock()
        self._latencies_s: list[float] = []
        self._end_to_end_s: list[float] = []
        self._tally = Tally()
        self._members = WorkerProcess("group members", [sys.executable, str(MEMBERS), bootstrap], self._tally)

    def start(self) -> None:
        self._create_topics()
        workers: list[Callable[[], None]] = [
            *(lambda topic=topic: self._produce(topic) for topic in TOPICS),
            self._tail,
            lambda: self._consume("soak-compacted"),
            self._read_history,
            self._members.live,
            self._python_clients,
            self._topics,
            self._connections,
        ]
        for worker in workers:
            threading.Thread(target=self._forever, args=(worker,), daemon=True).start()

    def take(self) -> dict[str, object]:
        with self._lock:
            latencies, self._latencies_s = self._latencies_s, []
            end_to_end, self._end_to_end_s = self._end_to_end_s, []
        reported = {**_percentiles("", latencies), **_percentiles("e2e_", end_to_end)}
        return {**reported, **self._tally.take()}

    # -- the workers --

    def _produce(self, topic: str) -> None:
        """Produce at a steady rate. Latency is the time from produce() to the acknowledgement."""
        producer = Producer({**self._settings, "acks": "all", "enable.idempotence": True, "linger.ms": 2})
        rng, number, filler = random.Random(topic), 0, bytes(1000)
        begin = time.monotonic()
        while True:
            due = int((time.monotonic() - begin) * RECORDS_S)
            while number < due:
                key = b"key-%d" % rng.randrange(KEYS)
                stamp = SENT.pack(STAMPED, time.monotonic_ns())
                value = None if rng.random() < 0.02 else stamp + rng.randbytes(20) + filler
                producer.produce(topic, value, key, on_delivery=self._delivered)
                number += 1
            producer.poll(0)
            time.sleep(0.005)

    def _delivered(self, error: object, message: object) -> None:
        if error:
            self._tally.fault("produce", str(error))
            return
        self._tally.count("produced")
        with self._lock:
            self._latencies_s.append(message.latency())  # type: ignore[attr-defined]

    def _tail(self) -> None:
        """A consumer at the end of the log. Latency is the time from produce() to the consumer, by one
        clock in one process.
        """
        consumer = Consumer({**self._settings, "group.id": "soak-tail", "auto.offset.reset": "latest"})
        consumer.subscribe(["soak-plain"])
        while True:
            message = consumer.poll(1.0)
            if message is None:
                continue
            now_ns, value = time.monotonic_ns(), message.value() or b""
            self._tally.took([message])
            if value.startswith(STAMPED):
                with self._lock:
                    self._end_to_end_s.append((now_ns - SENT.unpack_from(value)[1]) / 1e9)

    def _consume(self, topic: str) -> None:
        """A group with one permanent member."""
        consumer = Consumer({**self._settings, "group.id": f"soak-{topic}", "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        while True:
            self._tally.took(consumer.consume(500, 1.0))

    def _read_history(self) -> None:
        """Repeatedly read from the first offset, which is in the object store."""
        consumer = Consumer({**self._settings, "group.id": "soak-history"})
        while True:
            for partition in range(PARTITIONS):
                start = TopicPartition("soak-tiered", partition)
                low, high = consumer.get_watermark_offsets(start, 10)
                start.offset = low
                consumer.assign([start])
                seen = low
                while seen < high - 1:
                    messages = consumer.consume(500, 2.0)
                    self._tally.took(messages)
                    if not messages:
                        break
                    seen = max(message.offset() or 0 for message in messages)
            time.sleep(3)

    def _python_clients(self) -> None:
        """kafka-python connects, produces, reads a little, and closes."""
        while True:
            producer = KafkaProducer(bootstrap_servers=self._bootstrap)
            for _ in range(20):
                producer.send("soak-plain", b"from python").get(10)
            producer.close()
            consumer = KafkaConsumer(
                "soak-plain",
                bootstrap_servers=self._bootstrap,
                group_id="soak-python",
                consumer_timeout_ms=500,
            )
            self._tally.count("read", sum(1 for _, _ in zip(range(500), consumer, strict=False)))
            consumer.close()
            time.sleep(1)

    def _topics(self) -> None:
        """Create topics, write to them, and delete them."""
        admin = AdminClient(self._settings)
        number = 0
        while True:
            number += 1
            name = f"soak-short-{number}"
            admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
            producer = Producer(self._settings)
            for at in range(30):
                producer.produce(name, b"short-lived", partition=at % 3)
            producer.flush(10)
            admin.delete_topics([name])[name].result(30)
            self._tally.count("topics")
            time.sleep(1)

    def _connections(self) -> None:
        """Drop connections in the middle of a frame, before a response, and after it."""
        host, port = self._bootstrap.rsplit(":", 1)
        versions = struct.pack(">ihhih", 10, 18, 0, 7, -1)
        rng = random.Random(5)
        while True:
            opened = [socket.create_connection((host, int(port)), 10) for _ in range(20)]
            for each in opened:
                match rng.randrange(4):
                    case 0:
                        each.sendall(versions[: rng.randrange(14)])
                    case 1:
                        each.sendall(versions)
                    case 2:
                        each.sendall(versions)
                        each.recv(4096)
                    case 3:
                        each.sendall(rng.randbytes(40))
            for each in opened:
                each.close()
            self._tally.count("connections", len(opened))
            time.sleep(0.5)

    # -- around them --

    def _create_topics(self) -> None:
        admin = AdminClient(self._settings)
        wanted = [
            NewTopic(name, PARTITIONS, 1, config={key: str(value).lower() for key, value in configs.items()})
            for name, configs in TOPICS.items()
        ]
        for created in admin.create_topics(wanted).values():
            created.result(30)

    def _forever(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except (KafkaException, OSError) as failure:
                self._tally.fault(type(failure).__name__, str(failure))
            except Exception as failure:
                self._tally.fault(f"unexpected {type(failure).__name__}", str(failure))
            time.sleep(0.5)


def _percentiles(prefix: str, latencies_s: list[float]) -> dict[str, float]:
    """Percentiles; None without measurements."""
    ordered = sorted(latencies_s)
    return {
        f"{prefix}{name}": round(ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3, 3)
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))
        if ordered
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    load = Load(parser.parse_args().bootstrap, {})
    load.start()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(INTERVAL_S):
        print(json.dumps(load.take()), flush=True)


if __name__ == "__main__":
    main()
