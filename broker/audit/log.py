"""Audit log of a node: takes entries on the event loop, and writes them in a thread.

Guarantee: an action whose response the client has received is in the file. `record` therefore waits until the
entry is on the disk, and with many entries for room in the queue. It stops waiting when nothing was written
for WRITE_TIMEOUT_S: a log that cannot be written never stops the cluster. Such entries are written as soon as
possible, or dropped and counted when QUEUE_BYTES_MAX are waiting or the disk is full. Denials
and failed actions, which strangers cause, have a file of their own, so that they do not push actions out of
the files that are kept. Called by `handlers.audited`, `handlers.sasl` and `gateway.audited`.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from tierlog.base.clock import Clock
from tierlog.base.daemon_threads import DaemonThreads
from tierlog.broker.audit.entries import ACTION, DENIED_LOGIN, FAILED_ACTION, Entry, cut, line_of
from tierlog.broker.audit.files import AuditFile
from tierlog.broker.audit.repeats import Repeats
from tierlog.broker.audit.topic_queue import TopicQueue
from tierlog.config.audit import AuditSettings

QUEUE_BYTES_MAX = 8 << 20
"""Entries that wait for the disk. A request that deletes 10,000 topics has a megabyte. Denials may use only
half, so that strangers cannot cause the loss of actions."""

WRITE_TIMEOUT_S = 1.0
"""How long the response to an action waits for its entry. A disk that hangs must not stop the cluster."""

COLLAPSE_CHECK_S = 1.0
CLOSE_TIMEOUT_S = 5.0
LOGGED_EVERY_MS = 60_000
QUEUE_FULL, WRITE_FAILED = "queue_full", "write_failed"
DROP_REASONS = (QUEUE_FULL, WRITE_FAILED)
_log = structlog.get_logger("tierlog.audit")


class Client(Protocol):
    """A connection, as handlers have it."""

    peer_host: str
    listener: str
    principal: str


@dataclass(slots=True)
class _Batch:
    """Lines that one call of the thread writes."""

    written: "asyncio.Future[None]"
    actions: list[bytes] = field(default_factory=list)
    denials: list[bytes] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class AuditCounts:
    """`entries`: by event, written or waiting. `dropped`: by DROP_REASONS. `repeated`: denials that were only
    counted. `late`: responses that did not wait any longer."""

    entries: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    late: int = 0


class AuditLog:
    """The files of a node, and what waits for them. `topic`: what waits for its topic, if it has one."""

    def __init__(
        self, settings: AuditSettings, node_id: int, clock: Clock, topic: TopicQueue | None = None
    ) -> None:
        directory = Path(settings.audit_log_dir)
        bounds = settings.audit_log_max_bytes, settings.audit_log_max_files
        self._actions = AuditFile(directory / f"audit-{node_id}.jsonl", *bounds)
        self._denials = AuditFile(directory / f"audit-{node_id}-denied.jsonl", *bounds)
        self._repeats = Repeats(settings.audit_log_repeat_ms)
        self._node_id = node_id
        self._clock = clock
        self._threads = DaemonThreads("audit", 1)
        self._waiting: _Batch | None = None
        self._writing: _Batch | None = None
        self._is_closed = False
        self._queued_bytes = 0
        self._quiet_until_ms = 0
        self.counts = AuditCounts()
        self.topic = topic

    async def record(self, entries: Iterable[Entry]) -> None:
        """Write entries of actions, and return when they are on the disk, or when nothing was written for
        WRITE_TIMEOUT_S."""
        written: asyncio.Future[None] | None = None
        in_time = True
        for entry in entries:
            if written is not None:
                await asyncio.sleep(0)  # a request may have thousands
            whole = {"event": ACTION, **entry}
            line = self._line(whole)
            while in_time and not self._has_room(ACTION, line) and (batch := self._writing or self._waiting):
                in_time = await self._is_written(batch.written)
            written = self._put(whole, line) or written
        if written is not None and in_time:
            await self._is_written(written)

    async def _is_written(self, written: "asyncio.Future[None]") -> bool:
        """Wait for WRITE_TIMEOUT_S at most."""
        _, waiting = await asyncio.wait((written,), timeout=WRITE_TIMEOUT_S)
        self.counts.late += len(waiting)
        return not waiting

    def deny(self, event: str, entry: Mapping[str, Any]) -> None:
        """Record a denial, which may be counted together with others like it."""
        found = self._repeats.add({"event": event, **cut(entry)}, self._clock.now_ms())
        if found is None:
            self.counts.repeated += 1
        else:
            self._put(found, self._line(found))

    def fail(self, entry: Mapping[str, Any]) -> None:
        """Record an action that changed nothing. It may be counted together with others like it."""
        self.deny(FAILED_ACTION, entry)

    def deny_login(
        self, client: str, listener: str, principal: str, mechanism: str, user: str | None, reason: str
    ) -> None:
        """Record a login that failed. `user`: None unless such a user exists."""
        entry = {"principal": principal, "client": client, "listener": listener, "mechanism": mechanism}
        self.deny(DENIED_LOGIN, entry | {"user": user, "reason": reason})

    def deny_certificate(self, connection: Client, why: str) -> None:
        """Record a client without a certificate that is accepted."""
        self.deny_login(connection.peer_host, connection.listener, connection.principal, "TLS", None, why)

    async def collapse(self) -> None:
        """Write the counts of windows that have ended. Called repeatedly."""
        await asyncio.sleep(COLLAPSE_CHECK_S)
        for entry in self._repeats.due(self._clock.now_ms()):
            self._put(entry, self._line(entry))

    def end_repeats(self) -> None:
        """Write what was counted, since the node stops."""
        for entry in self._repeats.all():
            self._put(entry, self._line(entry))

    async def close(self) -> None:
        """Write what is waiting, for CLOSE_TIMEOUT_S at most."""
        self.end_repeats()
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while (batch := self._waiting or self._writing) is not None:
                    await asyncio.wait((batch.written,))
        except TimeoutError:
            _log.error("audit.entries.lost", why="the disk does not respond")
        else:
            self._actions.close()
            self._denials.close()
        self._threads.shutdown()

    def _line(self, entry: Entry) -> bytes:
        return line_of(entry, self._clock.now_ms(), self._node_id)

    def _has_room(self, event: str, line: bytes) -> bool:
        bound = QUEUE_BYTES_MAX if event == ACTION else QUEUE_BYTES_MAX // 2
        return self._queued_bytes + len(line) <= bound

    def _put(self, entry: Mapping[str, Any], line: bytes) -> "asyncio.Future[None] | None":
        """A future that is done when the line is on the disk; None if it was dropped."""
        event = entry["event"]
        if self.topic is not None:
            self.topic.add(entry, line)
        if self._is_closed or not self._has_room(event, line):
            self._drop(QUEUE_FULL, 1, "too many entries wait for the disk")
            return None
        self._queued_bytes += len(line)
        self.counts.entries[event] += 1
        loop = asyncio.get_running_loop()
        if self._waiting is None:
            self._waiting = _Batch(loop.create_future())
            loop.call_soon(self._write)  # together with other entries of this turn
        batch = self._waiting
        (batch.actions if event == ACTION else batch.denials).append(line)
        batch.size += len(line)
        return batch.written

    def _write(self) -> None:
        """Write the waiting batch, unless one is being written: then its end comes back here."""
        if self._writing is not None or self._waiting is None:
            return
        batch, self._waiting = self._waiting, None
        self._writing = batch
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._append, batch)
        work.add_done_callback(self._on_written)

    def _append(self, batch: _Batch) -> int:
        """Returns the number of lost lines. Runs in the thread."""
        lost = self._actions.append(batch.actions, sync=True) if batch.actions else 0
        return lost + (self._denials.append(batch.denials, sync=False) if batch.denials else 0)

    def _on_written(self, work: "asyncio.Future[int]") -> None:
        batch, self._writing = self._writing, None
        if batch is None or work.cancelled():
            return
        self._queued_bytes -= batch.size
        failed = work.exception()
        lost = len(batch.actions) + len(batch.denials) if failed is not None else work.result()
        if lost:
            files = f"{self._actions.baseFilename} or {self._denials.baseFilename}"
            self._drop(WRITE_FAILED, lost, f"cannot write {files}")
        if not batch.written.done():
            batch.written.set_result(None)
        self._write()

    def _drop(self, reason: str, count: int, why: str) -> None:
        self.counts.dropped[reason] += count
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + LOGGED_EVERY_MS
            _log.error("audit.entries.lost", why=why, lost=sum(self.counts.dropped.values()))
