"""Transactional clients of a chaos run: producers, and a loop that reads their records, writes, and commits
its offsets in the same transaction.

A quarter of the producers' transactions is aborted. A client whose transaction failed begins the next one; a
client that can do nothing more is replaced by another with its transactional id, as a process that restarts.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from havoc.history import (
    Acked,
    AnyEvent,
    Committed,
    Outcome,
    Recorder,
    Sent,
    Transaction,
    TransactionEnded,
    value_of,
)
from havoc.transaction_checker import LOOP
from havoc.workload import COMMON, CONSUMER, FILLER

PRODUCERS, LOOPS = 2, 2
RECORDS = 8
"""Records of a transaction in each partition."""

EVERY_S = 0.1
RECORDS_S = PRODUCERS * 2 * RECORDS / EVERY_S
"""Records per second that the producers offer, aborted ones included, in two partitions."""

ABORTED = 0.25
READ_MAX = 200
TIMEOUT_MS = 20_000
OF_CLASSIC_GROUPS = {"session.timeout.ms", "heartbeat.interval.ms"}
CALL_S, END_S, CATCH_UP_S = 5.0, 60.0, 90.0
PAUSE_S = 0.2

PRODUCER = {
    **COMMON,
    "linger.ms": 5,
    "request.timeout.ms": 2000,
    "transaction.timeout.ms": TIMEOUT_MS,
    "message.timeout.ms": TIMEOUT_MS,
}


class TransactionalWorkload:
    """`places`: topic and partition of each, by their numbers in the history. Producers write those in
    `written`, and the loop writes to `output` what it has read there."""

    def __init__(
        self,
        client: Mapping[str, object],
        places: Sequence[tuple[str, int]],
        written: Sequence[int],
        output: int,
        recorder: Recorder,
        now: Callable[[], float],
    ) -> None:
        self.failures: list[str] = []
        self._client, self._places, self._written, self._output = client, places, written, output
        self._number_of = {place: number for number, place in enumerate(places)}
        self._recorder, self._now = recorder, now
        self._sending, self._looping = threading.Event(), threading.Event()
        self._sending.set()
        self._looping.set()
        self._producers = [self._thread(self._produce, f"t{number}") for number in range(PRODUCERS)]
        self._loops = [self._thread(self._loop, f"l{number}") for number in range(LOOPS)]

    def start(self) -> None:
        for thread in (*self._producers, *self._loops):
            thread.start()

    def finish(self) -> None:
        """Wait until the loop has processed all records. Then each partition ends with a record outside of
        transactions: a reader of committed records gets it last."""
        self._stop(self._sending, self._producers)
        ends = {number: self._close(number) + 1 for number in self._written}
        offsets = self._await_loop(ends)
        self._stop(self._looping, self._loops)
        for number, offset in offsets.items():
            self._write(Committed(self._at(), LOOP, number, offset))
        self._close(self._output)

    def stop(self) -> None:
        self._stop(self._sending, self._producers)
        self._stop(self._looping, self._loops)

    def _stop(self, running: threading.Event, threads: list[threading.Thread]) -> None:
        running.clear()
        for thread in threads:
            if thread.is_alive():
                thread.join(2 * END_S)

    # --- producers

    def _produce(self, name: str) -> None:
        client, chance, numbers = _TransactionalProducer(self, name), random.Random(name), Counter[int]()
        while self._sending.is_set():
            begun = time.monotonic()
            wanted = [number for number in self._written for _ in range(RECORDS)]
            client.run(wanted, numbers, commit=chance.random() >= ABORTED)
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - begun)))

    def _close(self, number: int) -> int:
        """Send a last record to a partition, once no transaction is open. Returns its offset."""
        self._await_markers(number)
        producer = Producer({**COMMON, **self._client, "enable.idempotence": True})  # a retry would double it
        name, found = "end", list[int]()
        self._write(Sent(self._at(), name, number, 0))

        def delivered(error: KafkaError | None, message: object) -> None:
            if error is None:
                found.append(message.offset())  # type: ignore[attr-defined]

        topic, partition_number = self._places[number]
        value = value_of(name, number, 0).encode() + FILLER
        producer.produce(topic, value, partition=partition_number, on_delivery=delivered)
        producer.flush(END_S)
        if not found:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the end of {topic}-{partition_number}"))
        self._write(Acked(self._at(), name, number, 0, found[0]))
        return found[0]

    def _await_markers(self, number: int) -> None:
        """Wait until all transactions of the partition have their markers, which may follow the response to
        their end. A reader would never get past one behind the last record."""
        place, deadline = TopicPartition(*self._places[number]), time.monotonic() + END_S
        admin = AdminClient({**self._client, "log_level": 0})

        def end(isolation: IsolationLevel) -> int:
            wanted = {place: OffsetSpec.latest()}
            found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=END_S)
            return int(found[place].result().offset)

        while True:
            with suppress(KafkaException):  # the leader may just change
                if end(IsolationLevel.READ_COMMITTED) >= end(IsolationLevel.READ_UNCOMMITTED):
                    return
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"an open transaction in {place}"))
            time.sleep(PAUSE_S)

    # --- the loop

    def _loop(self, name: str) -> None:
        client, numbers = _TransactionalProducer(self, name), Counter[int]()
        consumer = self._consumer()
        consumer.subscribe([self._places[self._written[0]][0]])
        while self._looping.is_set():
            messages = [each for each in consumer.consume(READ_MAX, PAUSE_S) if each.error() is None]
            if not messages:
                continue
            reads = tuple(
                (self._number_of[each.topic() or "", each.partition() or 0], each.offset() or 0)
                for each in messages
            )
            inputs = sorted({number for number, _ in reads})
            if client.run(
                [self._output for _ in inputs], numbers, commit=True, consumer=consumer, reads=reads
            ):
                continue
            with suppress(KafkaException):
                self._return_to_committed(consumer)
                continue
            consumer.close()
            consumer = self._consumer()
            consumer.subscribe([self._places[self._written[0]][0]])
        consumer.close()

    def _return_to_committed(self, consumer: Consumer) -> None:
        for place in consumer.committed(consumer.assignment(), CALL_S):
            consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))

    def _await_loop(self, ends: dict[int, int]) -> dict[int, int]:
        """The offsets that the loop has committed, once they have reached the ends or time is up."""
        consumer = self._consumer()
        deadline = time.monotonic() + CATCH_UP_S
        wanted = [TopicPartition(*self._places[number]) for number in ends]
        found: dict[int, int] = {}
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                found = {
                    self._number_of[each.topic, each.partition]: max(each.offset, 0)
                    for each in consumer.committed(wanted, CALL_S)
                }
                if all(found[number] >= end for number, end in ends.items()):
                    break
            time.sleep(PAUSE_S)
        else:
            self.failures.append(f"the loop has committed {found}, the ends are {ends}")
        consumer.close()
        return found

    def _consumer(self) -> Consumer:
        """A member of the consumer protocol (KIP-848): its broker decides the session timeout."""
        settings = {name: value for name, value in CONSUMER.items() if name not in OF_CLASSIC_GROUPS}
        settings |= {"group.protocol": "consumer", "group.id": LOOP, "auto.offset.reset": "earliest"}
        return Consumer({**settings, **self._client})

    # --- around them

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except Exception as failure:  # a client that ends early makes the run invalid
                self.failures.append(f"{name}: {failure!r}")

        return threading.Thread(target=run, name=name, daemon=True)

    def _at(self) -> float:
        return round(self._now(), 4)

    def _write(self, event: AnyEvent) -> None:
        self._recorder.write(event)


class _TransactionalProducer:
    """A transactional id, and the client that has it now: None after one that can do nothing more."""

    def __init__(self, workload: TransactionalWorkload, name: str) -> None:
        self._workload, self._name = workload, name
        self._client: Producer | None = None
        self._transactions = 0

    def run(
        self,
        wanted: Sequence[int],
        numbers: Counter[int],
        *,
        commit: bool,
        consumer: Consumer | None = None,
        reads: tuple[tuple[int, int], ...] = (),
    ) -> bool:
        """One transaction with a record for each of the `wanted` partitions. True if it was committed."""
        try:
            client = self._client or self._initialized()
            client.begin_transaction()
        except KafkaException:
            self._client = None
            time.sleep(PAUSE_S)
            return False
        workload, name, number = self._workload, self._name, self._transactions
        self._transactions += 1
        records: list[tuple[int, int]] = []
        try:
            for partition in wanted:
                self._send(client, partition, numbers[partition])
                records.append((partition, numbers[partition]))
                numbers[partition] += 1
            if consumer is not None:
                _send_offsets(client, consumer)
        except (BufferError, KafkaException):
            commit = False
        workload._write(Transaction(workload._at(), name, number, tuple(records), reads))
        outcome = self._end(client, commit)
        workload._write(TransactionEnded(workload._at(), name, number, outcome))
        return outcome == "committed"

    def _initialized(self) -> Producer:
        settings = {**PRODUCER, "transactional.id": self._name}
        client = Producer({**settings, **self._workload._client})
        deadline = time.monotonic() + END_S
        while True:
            try:
                client.init_transactions(CALL_S)
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                self._client = client
                return client

    def _send(self, client: Producer, partition: int, number: int) -> None:
        workload = self._workload
        workload._write(Sent(workload._at(), self._name, partition, number))
        topic, partition_number = workload._places[partition]
        value = value_of(self._name, partition, number).encode() + FILLER
        client.produce(topic, value, partition=partition_number)

    def _end(self, client: Producer, commit: bool) -> Outcome:
        requested, deadline = commit, time.monotonic() + END_S
        end = partial(client.commit_transaction if commit else client.abort_transaction, CALL_S)
        while True:
            try:
                end()
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.txn_requires_abort():
                    end, commit = partial(client.abort_transaction, CALL_S), False
                elif error.fatal() or not error.retriable() or time.monotonic() > deadline:
                    self._client = None
                    return "unknown" if requested else "aborted"
            else:
                return "committed" if commit else "unknown" if requested else "aborted"


def _send_offsets(client: Producer, consumer: Consumer) -> None:
    """The positions of the consumer, committed with the transaction. Raises KafkaException."""
    positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
    deadline = time.monotonic() + END_S
    while True:
        try:
            client.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), CALL_S)
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return
