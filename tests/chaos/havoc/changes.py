"""Operator changes during faults: reassigns partitions and alters topic settings.

A thread makes one change after the other, drawn from a seed. Failed changes are counted. `held` suspends the
changes and waits until all replicas are in place. No change weakens a guarantee: `min.insync.replicas` stays.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from havoc.nodes import ChaosFailed, Cluster, until
from havoc.workload import COMMON
from tierlog.cli.errors import CliError

EVERY_S = 2.0
WHOLE_WITHIN_S = 120.0
ADMIN_TIMEOUT_S = 5.0

FLIPS: dict[str, dict[str, Sequence[str]]] = {
    "plain": {
        "segment.bytes": ("65536", "262144", "1073741824"),
        "compression.type": ("producer", "lz4", "zstd", "gzip"),
        "message.timestamp.type": ("CreateTime", "LogAppendTime"),
        "index.interval.bytes": ("1024", "4096"),
        "flush.messages": ("1", "9223372036854775807"),
    },
    "compacted": {
        "segment.bytes": ("65536", "262144"),
        "min.cleanable.dirty.ratio": ("0.01", "0.5"),
        "delete.retention.ms": ("0", "3000"),
        "compression.type": ("producer", "lz4"),
    },
    "compacted and tiered": {
        "min.cleanable.dirty.ratio": ("0.01", "0.5"),
        "delete.retention.ms": ("0", "3000"),
        "local.retention.ms": ("1000", "20000"),
        "compression.type": ("producer", "zstd"),
    },
    "tiered": {
        "segment.bytes": ("32768", "65536"),
        "local.retention.ms": ("1000", "20000"),
        "compression.type": ("producer", "zstd"),
        "index.interval.bytes": ("1024", "4096"),
    },
}
"""By kind of topic: the settings that change, and what to."""


class Changes:
    """`topics`: name -> kind of each. `held` and `stop` leave every partition with all of the brokers."""

    def __init__(self, cluster: Cluster, topics: Mapping[str, str], rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._cluster, self._topics, self._rng = cluster, topics, rng
        self._admin = AdminClient({**COMMON, **cluster.client()})
        self._turn = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop making changes."""
        self._ending.set()
        self._thread.join(ADMIN_TIMEOUT_S * 4)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No change happens within the block, and all replicas are in place and in sync. Raises
        ChaosFailed."""
        with self._turn:
            until(self._is_whole, "every partition has all of its replicas again", WHOLE_WITHIN_S)
            yield

    def _run(self) -> None:
        while not self._ending.wait(EVERY_S):
            with self._turn:
                change = self._rng.choice((self._reassign, self._flip))
                try:
                    change()
                    self.done[change.__name__.strip("_")] += 1
                except (CliError, ChaosFailed, KafkaException, OSError):
                    self.done["refused"] += (
                        1  # the node that was asked, or the quorum, is what a fault is about
                    )

    def _rows(self) -> list[dict[str, Any]]:
        return [row for topic in self._topics for row in self._cluster.partitions(topic)]

    def _reassign(self) -> None:
        """Move a partition to two or three of the brokers, in another order. A replica that leaves and
        returns later is built from scratch."""
        row = self._rng.choice(self._rows())
        brokers = list(self._cluster.brokers)
        self._move([(row, self._rng.sample(brokers, self._rng.choice((2, len(brokers)))))])

    def _is_whole(self) -> bool:
        brokers = list(self._cluster.brokers)
        rows = self._rows()
        missing = [
            (row, [*row["replicas"], *(b for b in brokers if b not in row["replicas"])]) for row in rows
        ]
        missing = [(row, wanted) for row, wanted in missing if sorted(row["replicas"]) != sorted(wanted)]
        moving = self._cluster.ask("/v1/partitions", condition="moving")["partitions"]
        if missing:
            self._move(missing)
        return not missing and not moving and all(set(row["in_sync"]) == set(brokers) for row in rows)

    def _move(self, wanted: Sequence[tuple[dict[str, Any], list[int]]]) -> None:
        moves = [
            {"topic": row["topic"], "partition": row["partition"], "replicas": replicas}
            for row, replicas in wanted
        ]
        self._cluster.controller().admin.post("/v1/partitions/move", {"moves": moves})

    def _flip(self) -> None:
        topic = self._rng.choice(sorted(self._topics))
        name, values = self._rng.choice(sorted(FLIPS[self._topics[topic]].items()))
        value = self._rng.choice(values)
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(ADMIN_TIMEOUT_S)
