"""Producers of compacted topics: they repeat a few keys, with some tombstones.

A key belongs to one producer, so its last acknowledged record is known. The number of a record determines
its key and whether it is a tombstone, so the history needs no further fields.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from havoc.history import Acked, Broken, Failed, Recorder, Sent, value_of
from havoc.replicas import ID_HEADER
from havoc.workload import DEFINITE, FLUSH_S, PRODUCER

PRODUCERS = 2
RECORDS_S = 100
"""Records per second of each producer."""
KEYS = 40
TOMBSTONE_EVERY = 13
"""Coprime with KEYS, so that each key is deleted now and then."""
FILLER = b" " + bytes(400)
"""So that segments fill, and there is something to clean."""


def key_of(producer: str, number: int) -> bytes:
    return f"{producer}/key-{number % KEYS}".encode()


def is_tombstone(number: int) -> bool:
    return number % TOMBSTONE_EVERY == TOMBSTONE_EVERY - 1


class KeyedWorkload:
    """`places`: topic and partition of each; in the history a partition is its number here."""

    def __init__(
        self, client: Mapping[str, object], places: Sequence[tuple[str, int]], recorder: Recorder
    ) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self._client, self._places, self._recorder = client, places, recorder
        self._begun = time.monotonic()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(f"k{number}",), daemon=True)
            for number in range(PRODUCERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait for the delivery reports of all sent records, as far as they come."""
        self._ending.set()
        for thread in self._threads:
            thread.join(2 * FLUSH_S)

    def _run(self, name: str) -> None:
        try:
            self._produce(name)
        except Exception as failure:  # a client that ends unasked makes the run worthless
            self.failures.append(f"{name}: {failure!r}")

    def _produce(self, name: str) -> None:
        failed = partial(self._client_failed, name)
        producer = Producer({**PRODUCER, **self._client, "error_cb": failed})
        begun, sent = time.monotonic(), 0
        while not self._ending.is_set():
            due = int((time.monotonic() - begun) * RECORDS_S)
            while sent < due:
                self._send(producer, name, sent % len(self._places), sent // len(self._places))
                sent += 1
            producer.poll(0.005)
        producer.flush(FLUSH_S)

    def _send(self, producer: Producer, name: str, partition: int, number: int) -> None:
        topic, there = self._places[partition]
        identity = value_of(name, partition, number).encode()
        self._recorder.write(Sent(self._at(), name, partition, number))
        try:
            producer.produce(
                topic,
                None if is_tombstone(number) else identity + FILLER,
                key_of(name, number),
                partition=there,
                headers=[(ID_HEADER, identity)],
                on_delivery=partial(self._on_delivery, name, partition, number),
            )
        except (BufferError, KafkaException) as refused:
            self._recorder.write(Failed(self._at(), name, partition, number, str(refused), definite=True))

    def _on_delivery(
        self, name: str, partition: int, number: int, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            offset = message.offset()
            self._recorder.write(Acked(self._at(), name, partition, number, -1 if offset is None else offset))
            self.acknowledged += 1
        else:
            definite = error.code() in DEFINITE
            self._recorder.write(Failed(self._at(), name, partition, number, error.str(), definite))

    def _client_failed(self, name: str, error: KafkaError) -> None:
        if error.fatal():
            self._recorder.write(Broken(self._at(), name, error.str()))

    def _at(self) -> float:
        return round(time.monotonic() - self._begun, 4)
