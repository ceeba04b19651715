"""Replica fetchers: copy partitions from their leaders over the ordinary Fetch API.

Each leader has `num.replica.fetchers` fetchers. Each fetcher has one connection, at most one request in
flight, and its share of the partitions (`fetcher_partitions`). The next request is sent as soon as a response
has been processed, in the same turn of the event loop. A leader that cannot be reached is retried with
exponential backoff. The connection stays open while the fetcher has partitions. Owned by the replica manager.
"""

import asyncio
from contextlib import suppress

import structlog

from tierlog.base.network import Caller, Unreachable
from tierlog.base.types import NO_LEADER
from tierlog.broker.replication.fetch_session_handler import Key
from tierlog.broker.replication.fetcher_partitions import (
    FetcherDependencies,
    FetcherPartitions,
    PartitionResponse,
)
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse

RESPONSE_TIMEOUT_S = 10.0
"""Time to wait for a response, in addition to replica.fetch.wait.max.ms. Then the fetcher reconnects."""

BACKOFF_MAX_S = 2.0

FLUSH_WAIT_MAX_S = 0.05
"""How long a request waits while some of its partitions are flushed. After that it is sent without them, so
that a disk that hangs does not delay the others."""

_log = structlog.get_logger("tierlog.fetchers")


class ReplicaFetchers:
    """The fetchers of a broker. A fetcher's id is the leader's broker id and the fetcher's number."""

    def __init__(self, dependencies: FetcherDependencies) -> None:
        self._deps = dependencies
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetcher_ids: dict[Key, tuple[int, int]] = {}
        self._partitions: dict[Key, Replica] = {}
        self._count = dependencies.settings.num_replica_fetchers

    def configure(self, settings: NodeSettings) -> None:
        """Apply num.replica.fetchers: assign the partitions to fetchers again. A response in flight for a
        partition that changes its fetcher is ignored."""
        if settings.num_replica_fetchers == self._count:
            return
        self._count = settings.num_replica_fetchers
        for replica in list(self._partitions.values()):
            self.follow(replica)
        for fetcher_id in [fetcher_id for fetcher_id in self._fetchers if fetcher_id[1] >= self._count]:
            self._fetchers.pop(fetcher_id).close()

    def follow(self, replica: Replica) -> None:
        """Fetch the replica from its current leader; stop fetching if it has none."""
        key = replica.id
        fetcher_id = replica.leader, _fetcher_number(key, self._count)
        before = self._fetcher_ids.get(key)
        if before is not None and before != fetcher_id:
            self._fetchers[before].remove(key)
            del self._fetcher_ids[key], self._partitions[key]
        if replica.leader == NO_LEADER:
            return
        fetcher = self._fetchers.get(fetcher_id)
        if fetcher is None:
            fetcher = self._fetchers[fetcher_id] = ReplicaFetcher(replica.leader, self._deps)
        self._fetcher_ids[key], self._partitions[key] = fetcher_id, replica
        fetcher.add(key, replica)

    def remove(self, replica: Replica) -> None:
        fetcher_id = self._fetcher_ids.pop(replica.id, None)
        if fetcher_id is not None:
            self._fetchers[fetcher_id].remove(replica.id)
            del self._partitions[replica.id]

    def brokers_changed(self) -> None:
        """End all backoffs: a leader's address may have changed."""
        for fetcher in self._fetchers.values():
            fetcher.end_backoff()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._fetcher_ids.clear()
        self._partitions.clear()


class ReplicaFetcher:
    """Fetches partitions from one leader."""

    def __init__(self, leader: int, dependencies: FetcherDependencies) -> None:
        self.leader = leader
        self._deps = dependencies
        self._settings = dependencies.settings
        self._something_due = asyncio.Event()
        self._backoff_ended = asyncio.Event()
        self._partitions = FetcherPartitions(leader, dependencies, self._something_due.set)
        self._caller: Caller | None = None
        self._failures = 0
        self._session_error = ErrorCode.NONE
        self._unprocessed: list[PartitionResponse] = []
        self._interruptible = False
        self._interrupted = False
        self._task = dependencies.tasks.spawn(f"fetch from broker {leader}", self._run())

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, key: Key, replica: Replica) -> None:
        if self._partitions.add(key, replica):
            self._interrupt()

    def remove(self, key: Key) -> None:
        self._partitions.remove(key)

    def end_backoff(self) -> None:
        self._backoff_ended.set()

    def close(self) -> None:
        self._task.cancel()
        self._partitions.clear()
        self._disconnect()

    # --- the loop

    async def _run(self) -> None:
        while True:
            await self._something_due.wait()
            self._something_due.clear()
            while self._partitions and self._partitions.has_work:
                try:
                    caller = await self._connected()
                    await self._fetch(caller)
                except Unreachable as failure:
                    interrupted, self._interrupted = self._interrupted, False
                    if not interrupted:
                        await self._back_off(failure)
                except Exception as failure:  # must not end replication from this leader
                    _log.error("fetch.failed", leader=self.leader, exc_info=failure)
                    await self._back_off(Unreachable(str(failure)))
            if not self._partitions:
                self._disconnect()

    async def _connected(self) -> Caller:
        if self._caller is not None and self._caller.is_open:
            return self._caller
        self._partitions.reset_session()
        broker = self._deps.image().brokers.get(self.leader)
        if broker is None:
            raise Unreachable(f"broker {self.leader} is not registered")
        client_id = f"replica-{self._settings.node_id}"
        self._caller = await self._deps.network.connect(broker, client_id)
        self._interrupted = False
        return self._caller

    async def _fetch(self, caller: Caller) -> None:
        """Send requests until there is none to send, or `_handle_response` leaves work to this task."""
        request = self._partitions.next_request()
        if request is None and self._partitions.flushing:
            self._something_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_WAIT_MAX_S):
                    await self._something_due.wait()
            request = self._partitions.next_request(wait_for_flush=False)
        if request is None:
            return
        timeout_s = self._settings.replica_fetch_wait_max_ms / 1000 + RESPONSE_TIMEOUT_S
        self._interruptible = True
        try:
            await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s, self._handle_response)
        finally:
            self._interruptible = False
        error, self._session_error = self._session_error, ErrorCode.NONE
        if error is not ErrorCode.NONE:
            if error not in _SESSION_LOST:
                _log.warning("fetch.rejected", leader=self.leader, error=error.name)
            self._partitions.reset_session()
            await asyncio.sleep(self._settings.replica_fetch_backoff_ms / 1000)
        responses, self._unprocessed = self._unprocessed, []
        now_ms = self._deps.clock.now_ms()
        for response in responses:
            self._partitions.process(response, now_ms)
            if response.partition.replica.log.is_empty:
                await asyncio.sleep(0)

    def _handle_response(self, response: FetchResponse) -> FetchRequest | None:
        """Process a response. Returns the next request, or None if `_fetch` has something to do first."""
        self._failures = 0
        if response.error_code != ErrorCode.NONE:
            self._session_error = ErrorCode(response.error_code)
            return None
        responses = self._partitions.handle_response(response)
        if any(result.partition.replica.log.is_empty for result in responses):
            # An empty log may have to start at another offset, which takes long.
            self._unprocessed = responses
            return None
        now_ms = self._deps.clock.now_ms()
        for result in responses:
            self._partitions.process(result, now_ms)
        return self._partitions.next_request()

    # --- failures

    async def _back_off(self, failure: Unreachable) -> None:
        """Wait before the next connection, longer each time, or until `end_backoff`."""
        if self._failures == 0:
            _log.info("fetch.leader.unreachable", leader=self.leader, why=str(failure))
        self._disconnect()
        backoff_s = self._settings.replica_fetch_backoff_ms / 1000
        wait_s = min(backoff_s * 2**self._failures, BACKOFF_MAX_S) * self._deps.rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        self._backoff_ended.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._backoff_ended.wait()
        except TimeoutError:
            return

    def _interrupt(self) -> None:
        """Reconnect, so that a partition that was just added is fetched at once, in particular after a
        failover.

        The leader may otherwise hold the request in flight for replica.fetch.wait.max.ms.
        """
        if self._interruptible and not self._interrupted and self._caller is not None:
            self._interrupted = True
            # At the end of this turn, so that all partitions of an image are added with one reconnection.
            asyncio.get_running_loop().call_soon(self._caller.close)

    def _disconnect(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None
        self._partitions.reset_session()


_SESSION_LOST = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


def _fetcher_number(key: Key, count: int) -> int:
    """Spreads the partitions of a topic evenly over `count` fetchers."""
    topic_id, partition = key
    return (topic_id.int + partition) % count
