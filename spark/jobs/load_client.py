"""Client of bulk loads at the partitions' leaders, for the driver and the executors (`/v1/tier/loads`).

A load has one lease for each partition, which the driver renews. Requests are repeated while the leader is
busy, or another one is elected.
"""

import threading
from base64 import b64decode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from tierlog.base.clock import SystemClock
from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.types import TopicIdPartition
from tierlog.client.admin import AdminRefused, AdminUnreachable, ClusterAdmin
from tierlog.metadata.records import RemoteSegment
from tierlog.records.codecs import Codec
from tierlog.spark.jobs.replacing import PUT_WITHIN_MS, UNAVAILABLE
from tierlog.spark.jobs.rewriting import Announced

T = TypeVar("T")

PATH = "/v1/tier/loads"
WAIT_S = 30.0
"""How long a request is repeated."""

BEGIN_WAIT_S = 300.0
"""How long `begin` waits until everything before the load is in the bucket."""

LEASE_TIMEOUT_S = 5.0
LEASES_AT_ONCE = 16  # leases that are renewed or given back at a time
PAUSE_S, PAUSE_MAX_S = 0.2, 2.0
UNCOMPRESSED, BY_PRODUCER = "uncompressed", "producer"


class NotLoaded(Exception):
    """The partition is not loaded into; the message says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load that was committed before."""

    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LoadBegun:
    """Start of a load in a partition, and properties of its segments. `codec`: that of the topic; None lets
    the job choose."""

    base_offset: int
    leader_epoch: int
    leader_epochs: tuple[EpochEntry, ...]
    producer_snapshot: bytes
    segment_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    codec: Codec | None
    timestamp_type: str
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class LoadClient:
    """`admin`: admin APIs of any nodes, separated by commas."""

    admin: str
    topic_id: UUID
    load_id: UUID
    lease_s: int

    def begin(self, partition: int, wait_s: float = BEGIN_WAIT_S) -> LoadBegun | Loaded:
        """Raises NotLoaded, as the other methods do."""
        found = self._call(partition, "begin", {"lease_ms": self.lease_s * 1000}, wait_s)
        if found["loaded"] is not None:
            return _loaded(found)
        return LoadBegun(
            base_offset=found["base_offset"],
            leader_epoch=found["leader_epoch"],
            leader_epochs=tuple(EpochEntry(*entry) for entry in found["leader_epochs"]),
            producer_snapshot=b64decode(found["producer_snapshot"]),
            segment_bytes=found["segment_bytes"],
            index_interval_bytes=found["index_interval_bytes"],
            max_message_bytes=found["max_message_bytes"],
            codec=_codec(found["compression_type"]),
            timestamp_type=found["message_timestamp_type"],
            retention_ms=found["retention_ms"],
            retention_bytes=found["retention_bytes"],
        )

    def announce(self, partition: int, base_offset: int, last_offset: int) -> Announced:
        found = self._call(partition, "announce", {"base_offset": base_offset, "last_offset": last_offset})
        put_until_ms = SystemClock().now_ms() + PUT_WITHIN_MS
        return Announced(UUID(found["uuid"]), found["leader_epoch"], put_until_ms)

    def commit(self, partition: int, segments: Iterable[RemoteSegment]) -> Loaded:
        """The load may have been committed although its leader has refused a later request, or has changed:
        then it says where it is."""
        body = {"segments": [msgspec.to_builtins(one) for one in segments]}
        try:
            return _loaded(self._call(partition, "commit", body))
        except NotLoaded:
            if (found := self.find(partition)) is not None:
                return found
            raise

    def find(self, partition: int) -> Loaded | None:
        """The load, if the leader knows that it was committed."""
        try:
            found = self.begin(partition, WAIT_S)
        except NotLoaded:
            return None
        if isinstance(found, Loaded):
            return found
        self.cancel(partition)
        return None

    def renew(self, partition: int, admin: ClusterAdmin) -> None:
        """A lease that is not renewed is lost; its commit says so."""
        self._quietly(partition, "renew", admin)

    def cancel(self, partition: int, admin: ClusterAdmin | None = None) -> None:
        """Give a lease back. If that fails, it ends by itself."""
        self._quietly(partition, "cancel", admin or ClusterAdmin(self.admin, LEASE_TIMEOUT_S))

    def _quietly(self, partition: int, what: str, admin: ClusterAdmin) -> None:
        try:
            admin.post(self._where(partition), f"{PATH}/{what}", self._names(partition))
        except (AdminRefused, AdminUnreachable):
            return

    def _call(self, partition: int, what: str, body: dict[str, Any], wait_s: float = WAIT_S) -> Any:
        admin, where = ClusterAdmin(self.admin), self._where(partition)
        request = {**self._names(partition), **body}
        return repeated(admin, lambda: admin.post(where, f"{PATH}/{what}", request), wait_s)

    def _where(self, partition: int) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, partition)

    def _names(self, partition: int) -> dict[str, Any]:
        return {"topic_id": str(self.topic_id), "partition": partition, "load_id": str(self.load_id)}


def repeated(admin: ClusterAdmin, call: Callable[[], T], wait_s: float) -> T:
    """The response, which may come from the next leader. Raises NotLoaded."""
    clock, waiting, pause_s = SystemClock(), threading.Event(), PAUSE_S
    until_ms = clock.monotonic_ms() + wait_s * 1000
    while True:
        try:
            return call()
        except AdminRefused as refused:
            if refused.status != UNAVAILABLE or clock.monotonic_ms() > until_ms:
                raise NotLoaded(str(refused)) from None
        except AdminUnreachable as unreachable:
            if clock.monotonic_ms() > until_ms:
                raise NotLoaded(f"{unreachable}. Check `tierlog cluster health` and --admin") from None
        waiting.wait(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        try:
            admin.refresh()
        except (AdminRefused, AdminUnreachable):
            continue  # the call reports it


class LoadLeases:
    """Renews the leases of a load in a thread, within a `with` statement."""

    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self._partitions: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="tierlog-leases", daemon=True)

    def add(self, partition: int) -> None:
        self._partitions.add(partition)

    def remove(self, partition: int) -> None:
        self._partitions.discard(partition)

    def __enter__(self) -> "LoadLeases":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give back the leases of partitions that were not committed."""
        self._ended.set()
        self._thread.join()
        self._of_all(self._client.cancel)

    def _renew(self) -> None:
        while not self._ended.wait(self._client.lease_s / 4):
            self._of_all(self._client.renew)

    def _of_all(self, call: Callable[[int, ClusterAdmin], None]) -> None:
        """Several at a time: a broker that does not respond must not end the leases of the others."""
        admin, partitions = ClusterAdmin(self._client.admin, LEASE_TIMEOUT_S), list(self._partitions)
        if not partitions:
            return
        try:
            admin.refresh()
        except (AdminRefused, AdminUnreachable):
            return  # the next time
        with ThreadPoolExecutor(LEASES_AT_ONCE) as pool:
            list(pool.map(lambda partition: call(partition, admin), partitions))


def _loaded(found: Any) -> Loaded:
    return Loaded(found["loaded"]["base_offset"], found["loaded"]["end_offset"])


def _codec(compression_type: str) -> Codec | None:
    if compression_type == BY_PRODUCER:
        return None
    return Codec.NONE if compression_type == UNCOMPRESSED else Codec[compression_type.upper()]
