"""Followers fetch from leaders over the ordinary Fetch API: `num.replica.fetchers` fetchers for each broker
that leads something here, each with a connection, one request of it under way at a time, and its share of the
partitions (`followed`).

The next request leaves as soon as an answer has been carried out, in the same turn of the loop. A leader that
cannot be reached is tried again after a while that grows; the connection stays while anything is followed.
Owned by the replica manager.
"""

import asyncio
from contextlib import suppress

import structlog

from tierlog.base.network import Caller, Unreachable
from tierlog.broker.replication.fetch_session_handler import Key
from tierlog.broker.replication.fetcher_partitions import Answer, Followed, FollowerDependencies
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse

__all__ = ["FollowerDependencies", "ReplicaFetcher", "ReplicaFetchers"]

ANSWER_TIMEOUT_S = 10.0
"""Beyond replica.fetch.wait.max.ms: then the leader, or the way to it, is given up and tried anew."""

BACKOFF_MAX_S = 2.0

FLUSH_PATIENCE_S = 0.05
"""How long a request is held back for an fsync of some of its partitions; for a hanging disk, no longer."""

_log = structlog.get_logger("tierlog.fetchers")


class ReplicaFetchers:
    """The fetchers of a broker, by the broker that they fetch from and their number."""

    def __init__(self, dependencies: FollowerDependencies) -> None:
        self._deps = dependencies
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._sources: dict[Key, tuple[int, int]] = {}
        self._followed: dict[Key, Replica] = {}
        self._count = dependencies.settings.num_replica_fetchers

    def configure(self, settings: NodeSettings) -> None:
        """num.replica.fetchers may have changed: each partition goes to the fetcher that has it from now on.
        An answer that is under way for one that moves is not used."""
        if settings.num_replica_fetchers == self._count:
            return
        self._count = settings.num_replica_fetchers
        for replica in list(self._followed.values()):
            self.follow(replica)
        for source in [source for source in self._fetchers if source[1] >= self._count]:
            self._fetchers.pop(source).close()

    def follow(self, replica: Replica) -> None:
        """Fetches for the replica from the leader that it follows; or not any more, if it follows nobody."""
        key = (replica.topic_id, replica.name.partition)
        source = replica.leader, _share(key, self._count)
        before = self._sources.get(key)
        if before is not None and before != source:
            self._fetchers[before].remove(key)
            del self._sources[key], self._followed[key]
        if replica.leader < 0:
            return
        fetcher = self._fetchers.get(source)
        if fetcher is None:
            fetcher = self._fetchers[source] = ReplicaFetcher(replica.leader, self._deps)
        self._sources[key], self._followed[key] = source, replica
        fetcher.add(key, replica)

    def forget(self, replica: Replica) -> None:
        key = (replica.topic_id, replica.name.partition)
        source = self._sources.pop(key, None)
        if source is not None:
            self._fetchers[source].remove(key)
            del self._followed[key]

    def brokers_changed(self) -> None:
        """Addresses may have: who waits to try a leader again tries now."""
        for fetcher in self._fetchers.values():
            fetcher.try_again()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._sources.clear()
        self._followed.clear()


class ReplicaFetcher:
    """Fetches partitions that one other broker leads."""

    def __init__(self, source: int, dependencies: FollowerDependencies) -> None:
        self.source = source
        self._deps = dependencies
        self._settings = dependencies.settings
        self._something_due = asyncio.Event()
        self._try_now = asyncio.Event()
        self._followed = Followed(source, dependencies, self._something_due.set)
        self._caller: Caller | None = None
        self._failures = 0
        self._refusal = ErrorCode.NONE
        self._to_take: list[Answer] = []
        self._interruptible = False
        self._interrupted = False
        self._task = dependencies.tasks.spawn(f"fetch from broker {source}", self._run())

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, key: Key, replica: Replica) -> None:
        if self._followed.add(key, replica):
            self._interrupt()

    def remove(self, key: Key) -> None:
        self._followed.remove(key)

    def try_again(self) -> None:
        self._try_now.set()

    def close(self) -> None:
        self._task.cancel()
        self._followed.clear()
        self._disconnect()

    # --- the loop

    async def _run(self) -> None:
        while True:
            await self._something_due.wait()
            self._something_due.clear()
            while self._followed and self._followed.has_work:
                try:
                    caller = await self._connected()
                    await self._fetch(caller)
                except Unreachable as failure:
                    interrupted, self._interrupted = self._interrupted, False
                    if not interrupted:
                        await self._wait_for(failure)
                except Exception as failure:  # replication from this leader must not end with it
                    _log.error("a fetcher failed and begins anew", leader=self.source, exc_info=failure)
                    await self._wait_for(Unreachable(str(failure)))
            if not self._followed:
                self._disconnect()

    async def _connected(self) -> Caller:
        if self._caller is not None and self._caller.is_open:
            return self._caller
        self._followed.start_over()
        broker = self._deps.image().brokers.get(self.source)
        if broker is None:
            raise Unreachable(f"broker {self.source} is not registered")
        client_id = f"replica-{self._settings.node_id}"
        self._caller = await self._deps.network.connect(broker.host, broker.port, client_id)
        self._interrupted = False
        return self._caller

    async def _fetch(self, caller: Caller) -> None:
        """One request after the other, as long as nothing has to be waited for but answers."""
        request = self._followed.next_request()
        if request is None and self._followed.flushing:
            self._something_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_PATIENCE_S):
                    await self._something_due.wait()
            request = self._followed.next_request(patient=False)
        if request is None:
            return
        timeout_s = self._settings.replica_fetch_wait_max_ms / 1000 + ANSWER_TIMEOUT_S
        self._interruptible = True
        try:
            await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s, self._go_on)
        finally:
            self._interruptible = False
        refusal, self._refusal = self._refusal, ErrorCode.NONE
        if refusal is not ErrorCode.NONE:
            self._session_failed(refusal)
            await asyncio.sleep(self._settings.replica_fetch_backoff_ms / 1000)
        answers, self._to_take = self._to_take, []
        now_ms = self._deps.clock.now_ms()
        for answer in answers:
            self._followed.take(answer, now_ms)
            if answer.partition.replica.log.is_empty:
                await asyncio.sleep(0)

    def _go_on(self, response: FetchResponse) -> FetchRequest | None:
        """Carries an answer out; what to ask next, or None if `_fetch` has to see to something first."""
        self._failures = 0
        if response.error_code != ErrorCode.NONE:
            self._refusal = ErrorCode(response.error_code)
            return None
        answers = self._followed.answered(response)
        for answer in answers:
            if answer.partition.replica.log.is_empty:  # it may begin anew: a turn of the loop for each
                self._to_take = answers
                return None
        now_ms = self._deps.clock.now_ms()
        for answer in answers:
            self._followed.take(answer, now_ms)
        return self._followed.next_request()

    # --- what cannot go on now

    def _session_failed(self, error: ErrorCode) -> None:
        if error not in _SESSION_LOST:
            _log.warning("a leader refuses to be followed", leader=self.source, error=error.name)
        self._followed.start_over()

    async def _wait_for(self, failure: Unreachable) -> None:
        """Until the leader may be tried again: longer each time, or until its address may be another."""
        if self._failures == 0:
            _log.info("a leader cannot be reached", leader=self.source, why=str(failure))
        self._disconnect()
        backoff_s = self._settings.replica_fetch_backoff_ms / 1000
        wait_s = min(backoff_s * 2**self._failures, BACKOFF_MAX_S) * self._deps.rng.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        self._try_now.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._try_now.wait()
        except TimeoutError:
            return

    def _interrupt(self) -> None:
        """The leader may hold the request that is under way for replica.fetch.wait.max.ms: who is new (after
        a failover, above all) must not wait for that, and so the connection is given up for another.
        """
        if self._interruptible and not self._interrupted and self._caller is not None:
            self._interrupted = True
            asyncio.get_running_loop().call_soon(self._caller.close)  # all of one image together

    def _disconnect(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None
        self._followed.start_over()


_SESSION_LOST = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


def _share(key: Key, count: int) -> int:
    """Which of so many fetchers has the partition: those of one topic are spread evenly."""
    topic_id, partition = key
    return (topic_id.int + partition) % count
