"""Replacing: how a job on Spark's driver hands new segments over to the cluster.

The leader of a partition announces a new segment to the quorum and gives a lease (`begin`), executors write
its objects, and the leader puts it into the manifest in place of the old segments (`commit`). If the
leader, the manifest or the lease changes in between, it refuses, and the manifest stays as it is; the
objects are deleted after the grace. `Leases` renews the leases while the executors work.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4  # noqa: TID251 (no simulated run comes here)

import msgspec

from tierlog.base.clock import SystemClock
from tierlog.base.types import TopicIdPartition
from tierlog.client.admin import AdminRefused, AdminUnreachable, ClusterAdmin
from tierlog.metadata.records import RemoteSegment
from tierlog.records.compaction import LastRecord
from tierlog.spark.jobs.arguments import JobFailed
from tierlog.spark.jobs.rewriting import Announced

PATH = "/v1/tier/replacements"
PUT_WITHIN_MS = 30 * 60_000
"""No object is put later than this after its announcement: half of the default grace, after which an
abandoned copy is deleted."""

TRIES = 6
FIRST_PAUSE_S = 0.5
UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a partition's retention sets for new segments, and its settings, by its leader."""

    bytes_max: int
    span_ms_max: int | None
    index_interval_bytes: int
    local_log_start_offset: int
    leader_epoch: int
    compaction: "CompactionSettings | None"


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Settings of a compacted topic, and the last record of each producer in its partition."""

    min_compaction_lag_ms: int
    delete_retention_ms: int
    producers: dict[int, LastRecord]


def lines_of_the_rest(document: dict[str, Any], field: str) -> list[str]:
    """Lines about the segments or partitions that a job left. Their reasons are in this field."""
    lines = [f"{field.replace('_', ' ')}: {why}" for why in document[field]]
    if lines and not document.get("dry_run"):
        lines.append("start the job again for the rest")
    return lines


class NotReplaced(Exception):
    """The manifest keeps the old segments; the message says why."""


class Replacer:
    """`lease_s`: how long the leader waits for the next renewal before it abandons the copies."""

    def __init__(self, admin: str, lease_s: int) -> None:
        self._admin = ClusterAdmin(admin)
        self._lease_ms = lease_s * 1000

    def limits(self, where: TopicIdPartition) -> Limits:
        """Raises NotReplaced if the partition's segments cannot be replaced, or JobFailed if no admin API
        responds."""
        found = self._call(where, lambda: self._admin.get(where, PATH, **_names(where)))
        return Limits(
            found["bytes_max"],
            found["span_ms_max"],
            found["index_interval_bytes"],
            found["local_log_start_offset"],
            found["leader_epoch"],
            _compaction(found["compaction"]),
        )

    def begin(
        self,
        where: TopicIdPartition,
        old: Sequence[RemoteSegment],
        *,
        compacts: bool = False,
        leader_epoch: int | None = None,
    ) -> Announced:
        """Announce one new segment in place of these. `compacts`: it may lack records of theirs.
        `leader_epoch`: None allows any. Raises NotReplaced or JobFailed."""
        body = {
            **_names(where),
            "base_offset": old[0].base_offset,
            "old": [str(entry.uuid) for entry in old],
            "ends": [old[-1].end_offset],
            "lease_ms": self._lease_ms,
            "compacts": compacts,
            "leader_epoch": leader_epoch,
            "request_id": str(uuid4()),
        }
        found = self._call(where, lambda: self._admin.post(where, f"{PATH}/begin", body))
        [new] = found["new"]
        put_until_ms = SystemClock().now_ms() + PUT_WITHIN_MS
        return Announced(UUID(new["uuid"]), new["leader_epoch"], put_until_ms)

    def commit(self, where: TopicIdPartition, old: Sequence[RemoteSegment], new: RemoteSegment) -> None:
        """Raises NotReplaced or JobFailed."""
        body = {
            **_names(where),
            "old": [str(entry.uuid) for entry in old],
            "new": [msgspec.to_builtins(new)],
        }
        self._call(where, lambda: self._admin.post(where, f"{PATH}/commit", body))

    def cancel(self, where: TopicIdPartition, new: Announced) -> None:
        """Give a lease back. If that fails, it ends by itself."""
        self._quietly(where, "cancel", [new])

    def renew(self, where: TopicIdPartition, new: Sequence[Announced]) -> None:
        """A lease that is not renewed is lost; its commit says so."""
        self._quietly(where, "renew", new)

    def _quietly(self, where: TopicIdPartition, what: str, new: Sequence[Announced]) -> None:
        try:
            self._admin.post(where, f"{PATH}/{what}", {"uuids": [str(one.uuid) for one in new]})
        except (AdminRefused, AdminUnreachable):
            return

    def _call(self, where: TopicIdPartition, call: Any) -> Any:
        """The response. Requests are repeated while the leader is busy, or another one is elected; each can
        be repeated."""
        pause_s, waiting, failure, is_busy = FIRST_PAUSE_S, threading.Event(), "", False
        for _ in range(TRIES):
            try:
                return call()
            except AdminRefused as refused:
                if refused.status != UNAVAILABLE:
                    raise NotReplaced(str(refused)) from None
                failure, is_busy = str(refused), True
            except AdminUnreachable as unreachable:
                failure, is_busy = str(unreachable), False
            waiting.wait(pause_s)
            pause_s *= 2
            try:
                self._admin.refresh()
            except (AdminRefused, AdminUnreachable) as unreachable:
                failure = str(unreachable)
        if is_busy:
            raise NotReplaced(failure)
        raise JobFailed(f"{failure}. Check `tierlog cluster health` and --admin, and start the job again")


class Leases:
    """Renews leases in a thread, within a `with` statement."""

    def __init__(self, replacer: Replacer, lease_s: int) -> None:
        self._replacer = replacer
        self._pause_s = lease_s / 4
        self._held: dict[TopicIdPartition, list[Announced]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="tierlog-leases", daemon=True)

    def add(self, where: TopicIdPartition, new: Announced) -> None:
        self._held.setdefault(where, []).append(new)

    def remove(self, where: TopicIdPartition, new: Announced) -> None:
        self._held[where].remove(new)

    def __enter__(self) -> "Leases":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(self._pause_s):
            for where, new in list(self._held.items()):
                self._replacer.renew(where, list(new))


def _compaction(found: Any) -> CompactionSettings | None:
    if found is None:
        return None
    producers = {producer_id: LastRecord(epoch, offset) for producer_id, epoch, offset in found["producers"]}
    return CompactionSettings(found["min_compaction_lag_ms"], found["delete_retention_ms"], producers)


def _names(where: TopicIdPartition) -> dict[str, Any]:
    return {"topic_id": str(where.topic_id), "partition": where.partition}
