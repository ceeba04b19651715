"""A follower begins anew where its leader's local log begins, since what lies before is remote (KIP-405).

It asks the leader where that is, and takes leader epochs and producers as of the end of the remote segment
before it: a replica that is elected later must know who wrote what, or a retry would be written twice. Until
the manifest at hand has that segment, or while the store is away, the fetcher rests and asks again. Called
by the composition root for the fetchers.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakSet

import structlog

from tierlog.base.clock import Clock
from tierlog.base.leader_epochs import EpochEntry
from tierlog.base.network import Caller, Network
from tierlog.broker.remote.remote import HistoryReader
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

LIST_OFFSETS = BY_NAME["ListOffsets"].key
LIST_OFFSETS_VERSION = 9
EARLIEST_LOCAL = -4
ANSWER_TIMEOUT_S = 10.0
STARTS_AT_ONCE = 8
"""Of one broker: one with a new disk may have thousands to do."""

_log = structlog.get_logger("tierlog.fetchers")


class TierStart:
    def __init__(
        self,
        broker_id: int,
        network: Network | None,
        image: Callable[[], ClusterImage],
        remote: HistoryReader,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._network = network
        self._image = image
        self._remote = remote
        self._clock = clock
        self._slots = asyncio.Semaphore(STARTS_AT_ONCE)
        self._waiting: WeakSet[Replica] = WeakSet()  # tried in vain

    async def begin(self, replica: Replica, step: StartFromTier) -> bool:
        """Whether the replica may fetch on; else later."""
        try:
            async with self._slots:
                began = await self._begin(replica, step)
        except (_Refused, ObjectStoreError, OSError, MalformedSnapshot) as failure:
            if replica not in self._waiting:
                _log.warning(
                    "cannot begin behind what is remote", partition=str(replica.name), why=str(failure)
                )
            self._waiting.add(replica)
            return False
        self._waiting.discard(replica)
        return began

    async def _begin(self, replica: Replica, step: StartFromTier) -> bool:
        position = replica.fetch_position()
        if position is None:
            return False
        local_start = await self._local_start(replica, position)
        if local_start <= position.offset:
            return True  # another leader, which has it
        where = replica.topic_id, replica.name.partition
        remote = self._image().remote_partition(*where)
        history = await self._remote.history(*where, remote, local_start - 1)
        if replica.fetch_position() != position:
            return False  # it follows another leader, or none; it is gone, or has failed
        replica.start_at(
            history.end_offset,
            self._clock.now_ms(),
            log_start_offset=max(step.log_start_offset, replica.log_start_offset),
            epochs=[EpochEntry(*line) for line in history.leader_epochs],
            producer_snapshot=history.producer_snapshot,
        )
        # What it knows of before is durable first; a fsync takes its time, and there may be many starts.
        await asyncio.get_running_loop().run_in_executor(replica.log_dir.threads, replica.flush)
        if replica.failed is None and replica.log.is_empty:  # else records have made it
            replica.log.active.create()
        _log.info("begins behind what is remote", partition=str(replica.name), offset=history.end_offset)
        return True

    async def _local_start(self, replica: Replica, position: FetchPosition) -> int:
        """Over a connection of its own: on that of the fetcher it would wait for records."""
        leader = self._image().brokers.get(replica.leader)
        if leader is None or self._network is None:
            raise _Refused(f"broker {replica.leader} is not registered")
        caller = await self._network.connect(leader.host, leader.port, f"replica-{self._broker_id}")
        try:
            return await self._ask(caller, replica, position)
        finally:
            caller.close()

    async def _ask(self, caller: Caller, replica: Replica, position: FetchPosition) -> int:
        asked = ListOffsetsPartition(
            partition_index=replica.name.partition,
            current_leader_epoch=position.leader_epoch,
            timestamp=EARLIEST_LOCAL,
        )
        request = ListOffsetsRequest(
            replica_id=self._broker_id, topics=[ListOffsetsTopic(name=replica.name.topic, partitions=[asked])]
        )
        response: ListOffsetsResponse = await caller.call(
            LIST_OFFSETS, LIST_OFFSETS_VERSION, request, ANSWER_TIMEOUT_S
        )
        found = response.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise _Refused(ErrorCode(found.error_code).name)
        return found.offset


class _Refused(Exception):
    """The leader does not say: above all, it leads no more."""
