"""A long outage of the object store: the store fails for an hour of virtual time while producers write and
consumers read old records. No other fault happens.

Nothing may grow with the length of the outage except the local logs: tasks, queued jobs and waiting readers,
the metadata log, the delete queue and the lines that brokers log are sampled.
"""

import asyncio
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from simulator.cluster import ClusterRun
from simulator.loop import Process
from simulator.tiering import read_back
from simulator.workload import Client, Timestamps, consume, produce
from tierlog.config.node import NodeSettings

SEED = 1
BEFORE_S, SAMPLE_S = 10.0, 60.0
COMPLETION_S = 600.0
"""Virtual seconds within which all is uploaded after the outage."""

AFTER_S, DELETIONS_S = 30.0, 15.0
"""Clients continue for AFTER_S after the outage. The delete queue is empty DELETIONS_S after the last upload:
the grace lasts a second and a half."""

OF_THE_SIMULATOR = ("loop.blocked",)
"""Virtual time jumps."""

PAUSE_S = 10.0
"""Mean of the seconds between two batches of a producer."""


class Sample(NamedTuple):
    """Sums over all brokers."""

    tasks: int
    jobs: int
    readers: int
    metadata_index: int
    deletions: int
    started: int
    log_lines: int
    remote_end: int


class OutageRun(ClusterRun):
    def __init__(self, directory: Path, outage_s: float) -> None:
        super().__init__(SEED, directory)
        self.tiering.keep_all_records()
        self._outage_s = outage_s
        self.lines = Counter[str]()
        self.before: Sample | None = None
        self.samples: list[Sample] = []
        self.after: Sample | None = None

    def _settings(self, number: int, voters: range) -> NodeSettings:
        """Fewer idle requests, since an hour of them is long."""
        return replace(
            super()._settings(number, voters),
            broker_heartbeat_interval_ms=3000,
            broker_session_timeout_ms=20_000,
            replica_fetch_wait_max_ms=5000,
            replica_lag_time_max_ms=15_000,
            log_retention_check_interval_ms=30_000,
            remote_log_manager_task_interval_ms=5000,
        )

    async def _main(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        clients = Process(self.loop, "clients")
        names = [f"{kind}-{n}" for kind in ("producer", "consumer") for n in range(3)]
        for name in names:
            self.network.listen(name, clients)
        await self._create_topic()
        for name in names:
            number = int(name[-1])
            client = Client(name, self.network, self.brokers, self.history, self._fork())
            work = (
                produce(client, number, number, PAUSE_S, Timestamps(self._fork()))
                if name.startswith("producer")
                else consume(client, number, PAUSE_S)
            )
            clients.watch(work, self._violations)
        await asyncio.sleep(BEFORE_S)
        self.before = self._sample()
        await self._outage()
        await asyncio.sleep(AFTER_S)
        clients.kill()
        await self.tiering.await_completion(self._raise_violation, COMPLETION_S)
        await asyncio.sleep(DELETIONS_S)
        self.after = self._sample()
        await self._read_back()
        self._check()
        self._check_end()

    async def _outage(self) -> None:
        bucket, ends = self.tiering.bucket, self.loop.time() + self._outage_s
        bucket.is_down = True
        while self.loop.time() < ends:
            await asyncio.sleep(SAMPLE_S)
            self._raise_violation()
            self._check()
            self.samples.append(self._sample())
        bucket.is_down = False

    async def _read_back(self) -> None:
        reader = Process(self.loop, "reader")
        self.network.listen("reader", reader)
        client = Client("reader", self.network, self.brokers, self.history, self._fork())
        for partition, known in self.history.acknowledged.items():
            await reader.spawn(read_back(client, partition, max(known) + 1))

    def _sample(self) -> Sample:
        brokers = [broker for broker in self.brokers.values() if broker.tiering is not None]
        image = max((b.metadata.image for b in brokers if b.metadata is not None), key=lambda one: one.index)
        remote = [image.remote_partition(*where) for where in image.remote]
        return Sample(
            tasks=len(asyncio.all_tasks()),
            jobs=sum(len(b.tiering.log_manager.jobs()) for b in brokers if b.tiering is not None),
            readers=sum(b.node.tier.log.readers for b in brokers if b.node is not None),
            metadata_index=image.index,
            deletions=len(image.delete_queue),
            started=sum(len(one.started) for one in remote),
            log_lines=sum(self.lines.values()),
            remote_end=sum(one.end_offset or 0 for one in remote),
        )

    def count_line(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        """A processor of structlog."""
        if level in ("warning", "error", "critical") and event.get("event") not in OF_THE_SIMULATOR:
            self.lines[str(event.get("event"))] += 1
        raise structlog.DropEvent
