"""Tier state machine: starts a follower at its leader's local log start, when earlier offsets are remote
(KIP-405), or an empty one at the first offset that is not remote (KIP-1023).

It gets that offset from the leader. From the remote segment before it, it restores the leader epochs
and the producer state at the segment's end: without producer state, the replica as a later leader would
append a retried batch twice. If the leader drops that offset before the follower has fetched it, the follower
starts at the end of the remote log instead, which the leader drops last. While the image does not have that
segment, or the object store is unavailable, the fetcher backs off and retries. Called by the fetchers,
through app.py.
"""

import asyncio
from collections.abc import Callable

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.network import Caller, Network
from tierlog.base.types import TopicIdPartition
from tierlog.broker.replication.core.follower import FetchPosition, StartFromTier
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import MalformedSnapshot
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tierlog.tiering.object_store import ObjectStoreError
from tierlog.tiering.remote_log import RemoteLog
from tierlog.tiering.tier_counts import RequestCounts

EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD = -4, -6
LIST_OFFSETS = BY_NAME["ListOffsets"].key
LIST_OFFSETS_VERSIONS = {EARLIEST_LOCAL: 9, EARLIEST_PENDING_UPLOAD: 11}
RESPONSE_TIMEOUT_S = 10.0
CONCURRENT_STARTS_MAX = 8
"""Replicas that one broker starts at a time. After a disk was replaced, thousands may need it."""

_log = structlog.get_logger("tierlog.fetchers")


class TierStateMachine:
    def __init__(
        self,
        broker_id: int,
        network: Network | None,
        image: Callable[[], ClusterImage],
        remote: RemoteLog,
        clock: Clock,
        *,
        skip_tiered: bool = False,
    ) -> None:
        """`skip_tiered`: follower.fetch.last.tiered.offset.enable."""
        self._skip_tiered = skip_tiered
        self._broker_id = broker_id
        self._network = network
        self._image = image
        self._remote = remote
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENT_STARTS_MAX)
        self._failing: set[TopicIdPartition] = set()
        self.starts = RequestCounts()

    async def start(self, replica: Replica, step: StartFromTier) -> bool:
        """Returns whether the replica can continue to fetch; otherwise retry later."""
        self.starts.requests.add(replica.topic_id)
        try:
            async with self._slots:
                started = await self._start(replica, step)
        except (_Rejected, ObjectStoreError, OSError, MalformedSnapshot) as failure:
            self.starts.errors.add(replica.topic_id)
            self.starts.retain(self._image().topics)
            if replica.id not in self._failing:
                _log.warning("tier.replica.start_failed", partition=str(replica.name), why=str(failure))
                topics = self._image().topics
                self._failing = {one for one in self._failing if one.topic_id in topics} | {replica.id}
            return False
        self._failing.discard(replica.id)
        return started

    async def _start(self, replica: Replica, step: StartFromTier) -> bool:
        position = replica.as_follower.fetch_position()
        if position is None:
            return False
        # not a log that was emptied above the leader's log start: it continues where it was
        skips = self._skip_tiered and replica.log.is_empty and position.offset <= step.log_start_offset
        start = await self.ask_leader(replica, position, EARLIEST_PENDING_UPLOAD if skips else EARLIEST_LOCAL)
        if start <= position.offset:
            # This leader, unlike the previous one, has the offset locally; or it does not know yet what is
            # remote.
            return not skips
        if replica.log.is_empty and position.offset > replica.log_start_offset:  # the leader was faster
            start = max(start, self._image().remote_partition(*replica.id).end_offset or 0)
        history = await self._remote.history(replica.id, start - 1)
        if replica.as_follower.fetch_position() != position:
            return False  # the leader has changed, or the replica was removed or has failed
        replica.as_follower.start_at(
            history.end_offset,
            self._clock.now_ms(),
            log_start_offset=max(step.log_start_offset, replica.log_start_offset),
            epochs=[EpochEntry(*entry) for entry in history.leader_epochs],
            producer_snapshot=history.producer_snapshot,
        )
        # The restored state must be durable first; the fsync runs in a thread, as there may be many starts.
        await asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, replica.flush)
        # if the log is not empty, an append has created the segment's file
        if replica.failed is None and replica.log.is_empty:
            replica.log.active.create()
        _log.info("tier.replica.started", partition=str(replica.name), offset=history.end_offset)
        return True

    async def ask_leader(self, replica: Replica, position: FetchPosition, wanted: int) -> int:
        """Get one of the leader's offsets, on a new connection: on the fetcher's, the request would wait
        behind a delayed Fetch."""
        leader = self._image().brokers.get(replica.leader)
        if leader is None or self._network is None:
            raise _Rejected(f"broker {replica.leader} is not registered")
        caller = await self._network.connect(leader, f"replica-{self._broker_id}")
        try:
            return await self._request(caller, replica, position, wanted)
        finally:
            caller.close()

    async def _request(self, caller: Caller, replica: Replica, position: FetchPosition, wanted: int) -> int:
        partition = ListOffsetsPartition(
            partition_index=replica.name.partition,
            current_leader_epoch=position.leader_epoch,
            timestamp=wanted,
        )
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[ListOffsetsTopic(name=replica.name.topic, partitions=[partition])],
        )
        response: ListOffsetsResponse = await caller.call(
            LIST_OFFSETS, LIST_OFFSETS_VERSIONS[wanted], request, RESPONSE_TIMEOUT_S
        )
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise _Rejected(ErrorCode(found.error_code).name)
        return found.offset


class _Rejected(Exception):
    """The leader returned an error, in particular because it is no longer the leader."""
