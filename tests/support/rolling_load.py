"""Load on a cluster whose nodes are restarted: a producer that must not see an error."""

import threading
from collections.abc import Mapping

from confluent_kafka import Producer
from deliveries import Deliveries
from waiting import until

DELIVERY_MS = 120_000
"""Long enough for a busy machine. `wait_for_progress` shows that no record waits for a stopped node."""


class Load:
    """A producer with acks=all that runs in its own thread until `stop`."""

    def __init__(self, settings: Mapping[str, object], topic: str, partitions: int) -> None:
        """`settings`: of the client, with bootstrap.servers."""
        self.deliveries = Deliveries()
        self.sent = 0
        self._topic, self._partitions = topic, partitions
        self._producer = Producer(
            {
                **settings,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": DELIVERY_MS,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,  # a node that was restarted is used again soon
            }
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            value = b"%d record" % self.sent
            self._producer.produce(
                self._topic, value, partition=self.sent % self._partitions, on_delivery=self.deliveries
            )
            self.sent += 1
            self._producer.poll(0.02)

    def wait_for_progress(self) -> None:
        """Wait until each partition has acknowledged a record sent after the call."""
        first = self.sent
        until(
            lambda: (
                {n % self._partitions for n in list(self.deliveries.acknowledged) if n >= first}
                == set(range(self._partitions))
            ),
            "every partition takes records",
        )

    @property
    def is_running(self) -> bool:
        return not self._ends.is_set()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
