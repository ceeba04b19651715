"""Clients of a chaos run: idempotent producers with acks=all, and assigned and subscribed consumers.

They use librdkafka through confluent-kafka. Each client is a thread that records its operations in the
history. The times of acknowledgements are kept for figures.py.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from havoc.history import (
    FINAL,
    Acked,
    AnyEvent,
    Began,
    Broken,
    Committed,
    Ended,
    Failed,
    Marked,
    Read,
    Recorder,
    Sent,
    value_of,
)

PRODUCERS, ASSIGNED, SUBSCRIBED = 3, 2, 2
RECORDS_S = 600
"""Records per second of all producers. Nodes and clients use half of two cores for them; faults use the
rest."""
FILLER = b" " + bytes(100)
COMMIT_EVERY_S = 0.5
FLUSH_S, CATCH_UP_S, FINAL_S = 60.0, 60.0, 60.0
DEFINITE = frozenset({KafkaError._QUEUE_FULL, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
PLACE_LOST = frozenset(
    {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)

COMMON = {
    "log_level": 0,
    # A node that hangs is noticed by a time-out alone; the defaults are a minute.
    "socket.timeout.ms": 4000,
    "socket.connection.setup.timeout.ms": 3000,
    "topic.metadata.refresh.interval.ms": 2000,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 500,
}
PRODUCER = {
    **COMMON,
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "request.timeout.ms": 2000,
    "message.timeout.ms": 300_000,  # retry long enough for a definite result: an unknown one proves little
}
CONSUMER = {
    **COMMON,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
}


class Workload:
    """`client`: how clients connect. `places`: topic and partition of each; in the history and in figures a
    partition is its number here. Consumers read all of them. `others`: the last so many are written by other
    clients, in transactions. `records_s`: records per second of all producers."""

    def __init__(
        self,
        client: Mapping[str, object],
        places: Sequence[tuple[str, int]],
        recorder: Recorder,
        others: int = 0,
        records_s: float = RECORDS_S,
    ) -> None:
        self._written, self._records_s = len(places) - others, records_s
        self.acks: dict[int, list[float]] = {partition: [] for partition in range(self._written)}
        self.failures: list[str] = []
        self._client, self._recorder = client, recorder
        self._places, self._partitions = places, len(places)
        self._number_of = {place: number for number, place in enumerate(places)}
        self._begun = time.monotonic()
        self._sending, self._reading = threading.Event(), threading.Event()
        self._sending.set()
        self._reading.set()
        # (group, partition) -> one past the last offset that it got
        self._next: dict[tuple[str, int], int] = {}
        self._producers = [
            self._thread(f"p{number}", self._produce, f"p{number}") for number in range(PRODUCERS)
        ]
        self._consumers = [
            *(self._thread(f"assigned/{n}", self._read_assigned, n) for n in range(ASSIGNED)),
            *(self._thread(f"subscribed/{n}", self._read_subscribed, n) for n in range(SUBSCRIBED)),
        ]

    def now(self) -> float:
        """Seconds on the clock of the history."""
        return time.monotonic() - self._begun

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.acks.values()))

    def start(self) -> None:
        for thread in (*self._producers, *self._consumers):
            thread.start()

    def mark(self, what: str) -> float:
        moment = self.now()
        self._write(Marked(self._at(), what))
        return moment

    def finish_sending(self) -> None:
        """Wait for all delivery reports."""
        self._sending.clear()
        for thread in self._producers:
            thread.join()

    def finish(self) -> None:
        """Wait for all delivery reports, then read every log, and wait until the consumers reach the ends."""
        self.finish_sending()
        ends = self._read_all()
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline and not self._have_all(ends):
            time.sleep(0.1)
        self.stop()

    def stop(self) -> None:
        self._sending.clear()
        self._reading.clear()
        for thread in (*self._producers, *self._consumers):
            if thread.is_alive():
                thread.join(FLUSH_S)

    def _have_all(self, ends: dict[int, int]) -> bool:
        return all(
            self._next.get((group, partition), 0) >= end
            for group in ("assigned", "subscribed")
            for partition, end in ends.items()
        )

    # --- producers

    def _produce(self, name: str) -> None:
        producer = Producer({**PRODUCER, **self._client, "error_cb": partial(self._client_failed, name)})
        numbers = [0] * self._written
        begun, sent = time.monotonic(), 0
        while self._sending.is_set():
            due = int((time.monotonic() - begun) * self._records_s / PRODUCERS)
            while sent < due:
                partition = sent % self._written
                self._send(producer, name, partition, numbers[partition])
                numbers[partition] += 1
                sent += 1
            producer.poll(0.005)
        producer.flush(FLUSH_S)

    def _send(self, producer: Producer, name: str, partition: int, number: int) -> None:
        self._write(Sent(self._at(), name, partition, number))
        value = value_of(name, partition, number).encode() + FILLER
        on_delivery = partial(self._on_delivery, name, partition, number)
        topic, number_there = self._places[partition]
        try:
            producer.produce(topic, value, partition=number_there, on_delivery=on_delivery)
        except BufferError as full:
            self._write(Failed(self._at(), name, partition, number, str(full), definite=True))
        except KafkaException as refused:  # after an error that librdkafka calls fatal
            self._write(Failed(self._at(), name, partition, number, str(refused), definite=True))

    def _on_delivery(
        self, name: str, partition: int, number: int, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            offset = message.offset()
            self._write(Acked(self._at(), name, partition, number, -1 if offset is None else offset))
            self.acks[partition].append(self.now())
        else:
            definite = error.code() in DEFINITE
            self._write(Failed(self._at(), name, partition, number, error.str(), definite))

    def _client_failed(self, name: str, error: KafkaError) -> None:
        if error.fatal():
            self._write(Broken(self._at(), name, error.str()))

    # --- consumers

    def _read_assigned(self, number: int) -> None:
        mine = [partition for partition in range(self._partitions) if partition % ASSIGNED == number]
        reader = f"assigned/{number}"
        consumer = self._consumer(f"assigned-{number}", **{"auto.offset.reset": "error"})
        for partition in mine:
            self._write(Began(self._at(), reader, partition, 0))
        consumer.assign([TopicPartition(*self._places[partition], 0) for partition in mine])
        while self._reading.is_set():
            self._take(consumer, reader)
        consumer.close()

    def _read_subscribed(self, number: int) -> None:
        reader = f"subscribed/{number}"
        settings = {"auto.offset.reset": "earliest", "on_commit": self._committed}
        consumer = self._consumer("subscribed", **settings)

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            for place in partitions:
                self._write(Began(self._at(), reader, self._number_of[place.topic, place.partition], -1))

        consumer.subscribe(sorted({topic for topic, _ in self._places}), on_assign=assigned)
        committed = time.monotonic()
        while self._reading.is_set():
            self._take(consumer, reader)
            if time.monotonic() - committed > COMMIT_EVERY_S:
                committed = time.monotonic()
                try:
                    consumer.commit(asynchronous=True)
                except KafkaException:
                    continue  # nothing to commit, or no coordinator
        consumer.close()

    def _consumer(self, group: str, **settings: object) -> Consumer:
        return Consumer({**CONSUMER, **self._client, "group.id": group, **settings})

    def _take(self, consumer: Consumer, reader: str) -> None:
        found: dict[int, list[tuple[int, str]]] = {}
        for message in consumer.consume(500, 0.1):
            error, offset = message.error(), message.offset() or 0
            place = (message.topic() or "", message.partition() or 0)
            partition = self._number_of.get(place, 0)  # an error of the client as a whole is of none
            if error is None:
                found.setdefault(partition, []).append((offset, _value(message)))
            elif error.code() in PLACE_LOST:
                self._write(Broken(self._at(), reader, f"partition {partition}: {error.str()}"))
        group = reader.partition("/")[0]
        for partition, records in found.items():
            self._write(Read(self._at(), reader, partition, tuple(records)))
            key = (group, partition)
            self._next[key] = max(self._next.get(key, 0), records[-1][0] + 1)

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            if error is None and place.error is None and place.offset >= 0:
                partition = self._number_of[place.topic, place.partition]
                self._write(Committed(self._at(), "subscribed", partition, place.offset))

    # --- at the end

    def _read_all(self) -> dict[int, int]:
        """Partition -> end offset. Reads all partitions from the beginning with a new consumer."""
        consumer = self._consumer("final", **{"auto.offset.reset": "error"})
        ends = {}
        for partition in range(self._partitions):
            _, ends[partition] = consumer.get_watermark_offsets(
                TopicPartition(*self._places[partition]), FINAL_S
            )
            self._write(Ended(self._at(), partition, ends[partition]))
        consumer.assign([TopicPartition(*self._places[partition], 0) for partition in ends])
        deadline = time.monotonic() + FINAL_S
        while time.monotonic() < deadline:
            self._take(consumer, FINAL)
            if all(self._next.get(("final", partition), 0) >= end for partition, end in ends.items()):
                break
        consumer.close()
        return ends

    # --- around them

    def _thread(self, name: str, work: Callable[..., None], argument: object) -> threading.Thread:
        def run() -> None:
            try:
                work(argument)
            except Exception as failure:  # a client that ends early makes the run invalid
                self.failures.append(f"{name}: {failure!r}")

        return threading.Thread(target=run, name=name, daemon=True)

    def _at(self) -> float:
        return round(self.now(), 4)

    def _write(self, event: AnyEvent) -> None:
        self._recorder.write(event)


def _value(message: Message) -> str:
    return (message.value() or b"").partition(b" ")[0].decode(errors="replace")
