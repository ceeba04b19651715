"""Reads a range of a partition's log from another replica, whichever has it, and checks every batch.

Over the ordinary Fetch API, as a consumer does: any replica serves what it knows to be committed (KIP-392),
and of a tiered partition what is remote too. Each batch is held to its CRC, to the batches before it, and to
the leader epochs of the log that is repaired. Called by `LogRepair`.
"""

import asyncio
from uuid import UUID

from tierlog.base.files import Buffer
from tierlog.base.network import Caller, Network, Unreachable
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.range_repair import begin, check
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.image import BrokerImage
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

PART_BYTES = 128 << 10
"""Asked for at a time: it is checked on the event loop, in a millisecond unless the batches are tiny."""

WAIT_MS = 500
"""How long the other may wait for the range to be committed, or to come from the object store."""

ANSWER_TIMEOUT_S = 10.0
"""Beyond it; then another replica is asked."""

THROTTLED_MAX_S = 30.0
"""How long to wait where a quota of consumers says so (KIP-219): it holds for these reads too. If it says
longer, the range is read again later, from its start.
"""


class NotThere(Exception):
    """Another replica does not serve the range whole; why."""


class RangeReader:
    def __init__(self, broker_id: int, network: Network) -> None:
        self._client_id = f"repair-{broker_id}"
        self._network = network

    async def read(
        self, source: BrokerImage, replica: Replica, start: int, end: int, rules: HeaderRules, most: int
    ) -> Buffer:
        """The batches in [start, end), which are `most` bytes at most. Raises NotThere."""
        found = bytearray()
        await self._through(source, replica, start, end, rules, found, most)
        return found

    async def has(
        self, source: BrokerImage, replica: Replica, start: int, end: int, rules: HeaderRules
    ) -> None:
        """Reads the range and keeps nothing of it. Raises NotThere."""
        await self._through(source, replica, start, end, rules, None, 0)

    async def _through(
        self,
        source: BrokerImage,
        replica: Replica,
        start: int,
        end: int,
        rules: HeaderRules,
        found: bytearray | None,
        most: int,
    ) -> None:
        whole = begin(start)
        if start >= end:
            return
        try:
            caller = await self._network.connect(source.host, source.port, self._client_id)
        except Unreachable as failure:
            raise NotThere(str(failure)) from None
        try:
            while whole.next_offset < end:
                before = whole
                offset = max(before.next_offset, replica.log_start_offset)  # its batch comes whole
                part = await self._fetch(caller, replica.topic_id, replica.name.partition, offset)
                whole = check(part, whole, end, rules)
                if found is not None:
                    found += part[: whole.size - before.size]
                    if len(found) > most:
                        raise NotThere(f"other batches: more than {most} bytes")
                if whole.next_offset == before.next_offset:
                    raise NotThere(f"nothing at offset {whole.next_offset}")
        except (Unreachable, CorruptLog) as failure:
            raise NotThere(str(failure)) from None
        finally:
            caller.close()

    async def _fetch(self, caller: Caller, topic_id: UUID, partition: int, offset: int) -> Buffer:
        """What is valid until the next call."""
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=PART_BYTES)
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=PART_BYTES,
            topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
        )
        response = await self._unthrottled(caller, request)
        if response.error_code:
            raise NotThere(ErrorCode(response.error_code).name)
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.error_code:
                    raise NotThere(ErrorCode(answer.error_code).name)
                records = answer.records
                return records if isinstance(records, bytes | bytearray | memoryview) else b""
        raise NotThere("no answer")

    async def _unthrottled(self, caller: Caller, request: FetchRequest) -> FetchResponse:
        """Over a quota the first answer is empty, and says when to come back."""
        timeout_s = WAIT_MS / 1000 + ANSWER_TIMEOUT_S
        response: FetchResponse = await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s)
        throttled_s = response.throttle_time_ms / 1000
        if response.responses or response.error_code or not throttled_s:
            return response
        if throttled_s > THROTTLED_MAX_S:
            raise NotThere(f"a quota of consumers allows the next read in {throttled_s:g} s")
        await asyncio.sleep(throttled_s)
        again: FetchResponse = await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s)
        return again
