"""Queue of the audit topic: lines that wait to be produced, of bounded size.

`audit.log` adds each line, whether the disk takes it or not, and `handlers.audit_topic` produces them in
their order. Lines beyond QUEUE_BYTES_MAX are counted as lost: the files have them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

QUEUE_BYTES_MAX = 8 << 20
"""Lines that wait for the topic, as many as may wait for the disk (`audit.log`)."""

BATCH_BYTES = 256 << 10
"""Lines in one batch, well below the default of max.message.bytes."""

GROWTH = 16
"""After a batch that was too large, each written one raises the size by this part, up to BATCH_BYTES."""

QUEUE_FULL, TOO_LARGE, STOPPED = "queue_full", "too_large", "stopped"
TOPIC_DROP_REASONS = (QUEUE_FULL, TOO_LARGE, STOPPED)


class TopicQueue:
    """`written` and `dropped`: numbers of lines, the latter by TOPIC_DROP_REASONS. A refused write to the
    topic is left out, or a broker without rights would cause entries about its entries."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.waiting_bytes = 0
        self.written = 0
        self.dropped: Counter[str] = Counter()
        self.has_lines, self.is_empty = asyncio.Event(), asyncio.Event()
        self.is_empty.set()
        self._lines: deque[bytes] = deque()
        self._batch_bytes = BATCH_BYTES
        self._is_closed = False

    def add(self, entry: Mapping[str, Any], line: bytes) -> None:
        if entry.get("api") == "Produce" and entry.get("resource_name") == self.topic:
            return
        if self._is_closed or self.waiting_bytes + len(line) > QUEUE_BYTES_MAX:
            self.dropped[STOPPED if self._is_closed else QUEUE_FULL] += 1
            return
        self._lines.append(line)
        self.waiting_bytes += len(line)
        self.has_lines.set()
        self.is_empty.clear()

    def batch(self) -> list[bytes]:
        """The first lines that fit into a batch: at least one, unless none waits."""
        size = count = 0
        for line in self._lines:
            size += len(line)
            if count and size > self._batch_bytes:
                break
            count += 1
        return list(islice(self._lines, count))

    def on_written(self, batch: Sequence[bytes]) -> None:
        self.written += len(batch)
        grown = self._batch_bytes + max(1, self._batch_bytes // GROWTH)
        self._batch_bytes = min(grown, BATCH_BYTES)
        self._remove(len(batch))

    def on_too_large(self, batch: Sequence[bytes]) -> None:
        """The topic takes no batch of this size: try smaller ones, and leave out a line that is too large
        alone."""
        if len(batch) > 1:
            self._batch_bytes = max(1, sum(map(len, batch)) // 2)
            return
        self.dropped[TOO_LARGE] += 1
        self._remove(1)

    def close(self) -> None:
        """Give up what waits, and what comes later."""
        self._is_closed = True
        self.dropped[STOPPED] += len(self._lines)
        self._remove(len(self._lines))

    def _remove(self, count: int) -> None:
        for _ in range(count):
            self.waiting_bytes -= len(self._lines.popleft())
        if not self._lines:
            self.has_lines.clear()
            self.is_empty.set()
