"""Three tiered topics whose history changes while clients read it: segments are uploaded, dropped from local
disk, merged, compacted and deleted.

Each record is made from its topic and offset, so every reader knows what it must find.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import s3_servers
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import metric

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

KEPT, EXPIRED, COMPACTED = TOPICS = ("kept", "expired", "compacted")
KEYS = 37
BATCH_RECORDS = 20
PAUSE_S = 0.2  # between two batches of each topic: the machine also runs the readers
PASSES = 3
"""Least passes of each client over each topic. More follow until all changes have been seen."""

FIRST_TIMESTAMP = 1_700_000_000_000
SETTINGS = {
    "remote.log.manager.task.interval.ms": 200,
    "remote.log.delete.grace.ms": 500,
    "remote.log.merge.min.segments": 4,
    "log.retention.check.interval.ms": 200,
    "remote.cache.bytes": 16 << 20,
}
CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
}
"""Each batch is rolled and uploaded, so there are many small segments, of which twenty make a large one."""

CONFIGS = {
    KEPT: CONFIG,
    EXPIRED: {**CONFIG, "retention.bytes": "150000"},
    COMPACTED: {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
CHANGES = (
    "tierlog_remote_merges_total",
    "tierlog_remote_compactions_total",
    "kafka_server_brokertopicmetrics_remotecopyrequests_total",
    "kafka_server_brokertopicmetrics_remotedeleterequests_total",
)
"""Counts of what must happen while clients read."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record(topic: str, offset: int) -> Record:
    """Every ninth value is null, in the compacted topic a tombstone. Every tenth key is written only once, so
    that its record must stay."""
    key: bytes | None = b"once %d" % offset if offset % 10 == 3 else b"key %d" % (offset % KEYS)
    if topic != COMPACTED and offset % 11 == 0:
        key = None
    text = b"%s %06d " % (topic.encode(), offset)
    value = None if offset % 9 == 0 else text * (offset % 17)
    headers = (("offset", b"%d" % offset), ("empty", b""), ("offset", b"again"))[: offset % 4]
    return Record(offset, FIRST_TIMESTAMP + 1000 * offset, key, value, headers)


class OutOfRange(Exception):
    """The client got OFFSET_OUT_OF_RANGE for this offset."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"offset {offset} is out of range")
        self.offset = offset


class Reader(Protocol):
    """A client that reads partition 0 of a topic once."""

    def beginning(self) -> int:
        """The first offset, from which `read_to` begins."""

    def read_to(self, end: int) -> Sequence[Record]:
        """The next records, until one has the offset `end - 1` or a higher one. Raises OutOfRange."""

    def close(self) -> None: ...


class Client(Protocol):
    def __call__(self, bootstrap: str, topic: str) -> Reader: ...


class ChangingHistory:
    """Writes to all topics in a thread of its own, until `stop`."""

    def __init__(self, broker: TierlogBroker) -> None:
        self.broker = broker
        self.ends = dict.fromkeys(TOPICS, 0)
        """End offsets of what is acknowledged."""
        self.passes = self.overtaken = 0
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 1000})
        self._compressing = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 1000, "compression.type": "gzip"}
        )
        self._api = AdminApi(broker.admin_url, timeout_s=60)
        self._failures: list[KafkaError] = []
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        new = [NewTopic(topic, 1, 1, config=CONFIGS[topic]) for topic in TOPICS]
        for created in admin.create_topics(new).values():
            created.result(60)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        assert not self._failures

    def has_changed(self) -> bool:
        """Whether everything has happened that may happen to a segment."""
        return all(metric(self.broker, name) >= PASSES for name in CHANGES)

    def _write(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            with self._writing:
                for topic in TOPICS:
                    self._write_batch(topic)
            for topic in TOPICS:
                self._api.post("/v1/tier/flush", {"topic": topic})

    def _write_batch(self, topic: str) -> None:
        producer = self._compressing if topic == COMPACTED else self._producer
        first = self.ends[topic]
        for offset in range(first, first + BATCH_RECORDS):
            new = record(topic, offset)
            producer.produce(
                topic,
                new.value,
                new.key,
                headers=list(new.headers),
                timestamp=new.timestamp,
                on_delivery=self._on_delivery,
            )
        assert producer.flush(60) == 0
        self.ends[topic] = first + BATCH_RECORDS

    def _on_delivery(self, failure: KafkaError | None, _: Message) -> None:
        if failure is not None:
            self._failures.append(failure)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        with self._writing:
            yield

    # -- what clients must find --

    def read_all(self, client: Client) -> None:
        """One pass of a client over each topic."""
        for topic in TOPICS:
            while not self._read(client, topic):
                self.overtaken += 1
            self.passes += 1

    def _read(self, client: Client, topic: str) -> bool:
        """False: retention has deleted what the client was about to read, which is the only reason for
        OFFSET_OUT_OF_RANGE."""
        reader = client(self.broker.bootstrap, topic)
        try:
            first = reader.beginning()
            found = list(reader.read_to(self.ends[topic]))
            with self._paused():  # a record that is not found has a later one of its key, which is
                end = self.ends[topic]
                found += reader.read_to(end)
        except OutOfRange as refused:
            assert topic == EXPIRED, refused
            assert self._beginning(client, topic) > refused.offset, refused
            return False
        finally:
            reader.close()
        check(topic, first, found, end)
        return True

    def _beginning(self, client: Client, topic: str) -> int:
        reader = client(self.broker.bootstrap, topic)
        try:
            return reader.beginning()
        finally:
            reader.close()


def check(topic: str, first: int, found: Sequence[Record], end: int) -> None:
    """Check the records that a client found in a topic with this first and end offset."""
    assert found == [record(topic, one.offset) for one in found]
    offsets = [one.offset for one in found]
    if topic != COMPACTED:
        assert offsets == list(range(first, end))
        assert topic == EXPIRED or first == 0
        return
    assert first == 0
    assert offsets == sorted(set(offsets)) and offsets[-1:] == ([end - 1] if end else [])
    last = {record(topic, offset).key: offset for offset in range(end)}
    assert set(last.values()) <= set(offsets), "the last record of a key is missing"


@contextmanager
def running_history(new_broker: TierlogBrokerFactory, directory: Path) -> "Iterator[ChangingHistory]":
    """A history that changes, on a broker of its own and a real S3 server."""
    with s3_servers.running("versitygw", directory) as s3:
        broker = new_broker(SETTINGS, object_store=s3.url("changing"), environment=s3_servers.CREDENTIALS)
        history = ChangingHistory(broker)
        history.start()
        yield history
        history.stop()
        broker.kill()
