"""Step 2: produces the flights with librdkafka, and kills the broker half way.

The producer is idempotent with acks=all. Each acknowledged record must therefore be in the log exactly once,
and the client retries the others by itself.
"""

import threading
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flights import FlightRecord, Flights
from report import Bar, Report

from tierlog.cli.output import size

if TYPE_CHECKING:
    from tiers import TierWatcher

    from tierlog.cli.process import TierlogBroker

FLUSH_TIMEOUT_S = 60
POLL_EVERY = 200  # records between two polls for acknowledgements


@dataclass
class Sent:
    """Acknowledged partition and offset of each flight; -1 until it is acknowledged."""

    partition: "array[int]"
    offset: "array[int]"
    acknowledged: int = 0
    errors: int = 0
    value_bytes: int = 0

    @classmethod
    def empty(cls, count: int) -> "Sent":
        return cls(array("i", [-1]) * count, array("q", [-1]) * count)


def produce(
    report: Report, broker: "TierlogBroker", watcher: "TierWatcher", topic: str, flights: Flights
) -> Sent:
    """Send all flights and return their acknowledged offsets. Kills and restarts the broker half way."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "zstd",
            "linger.ms": 20,
            "batch.num.messages": 2000,
            "queue.buffering.max.messages": 50_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,  # the lost connection is expected
        }
    )
    sent = Sent.empty(len(flights))
    crash = _Crash(report, broker, watcher)
    begin = time.monotonic()
    with report.progress("produced and acknowledged", len(flights)) as bar:
        for record in flights.records():
            _send(producer, topic, record, sent)
            if record.row % POLL_EVERY == 0:
                producer.poll(0)
                bar.reach(sent.acknowledged)
                if sent.acknowledged * 2 >= len(flights):
                    crash.start(bar)
        while producer.flush(0.2):
            bar.reach(sent.acknowledged)
            crash.start(bar)
            if time.monotonic() - begin > FLUSH_TIMEOUT_S + 60:
                break
        bar.reach(sent.acknowledged)
    crash.join()
    seconds = time.monotonic() - begin
    report.check(
        "every record was acknowledged, without errors", (len(flights), 0), (sent.acknowledged, sent.errors)
    )
    report.figure("produced", f"{len(flights):,} records, {size(sent.value_bytes)} of values")
    report.figure("produce rate, with the crash", f"{len(flights) / seconds:,.0f} records/s")
    report.figure("from SIGKILL to serving again", f"{crash.seconds:.2f} s")
    return sent


def _send(producer: Any, topic: str, record: FlightRecord, sent: Sent) -> None:
    row = record.row
    sent.value_bytes += len(record.value)

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            sent.errors += 1
            return
        sent.partition[row] = message.partition()
        sent.offset[row] = message.offset()
        sent.acknowledged += 1

    headers = [("row", b"%d" % row), ("sequence", b"%d" % record.sequence)]
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                on_delivery=delivered,
                timestamp=record.timestamp,
                headers=headers,
            )
            return
        except BufferError:  # the queue is full: wait for acknowledgements
            producer.poll(0.1)


class _Crash:
    """Kills and restarts the broker once, in its own thread, while the producer continues."""

    def __init__(self, report: Report, broker: "TierlogBroker", watcher: "TierWatcher") -> None:
        self.seconds = 0.0
        self._report = report
        self._broker = broker
        self._watcher = watcher
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, bar: Bar) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(bar,), name="crash")
            self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, bar: Bar) -> None:
        try:
            self._report.figure(
                "peak memory of the broker, until the crash", size(self._broker.memory_bytes()[1])
            )
            pid = self._broker.pid
            begin = time.monotonic()
            self._broker.kill()
            self._watcher.mark("SIGKILL")
            bar.say(f"[red]SIGKILL[/] to process {pid}; the producer continues")
            self._broker.start()
            self.seconds = time.monotonic() - begin
            self._watcher.listen(self._broker.admin_url)
            bar.say(
                f"[green]serving again[/] after {self.seconds:.2f} s, process {self._broker.pid}, same port"
            )
        except Exception as failure:
            self._failure = failure
