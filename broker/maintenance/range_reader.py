"""Range reader: reads a range of a partition's log from another replica and checks every batch.

It uses the ordinary Fetch API as a consumer does: any replica serves the records that it knows to be
committed (KIP-392), and in a tiered partition also the remote ones. Each batch is checked against its CRC,
the batches before it, and the leader epochs of the log that is repaired. Called by `LogRepair`.
"""

import asyncio
from uuid import UUID

from tierlog.base.files import Buffer
from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.types import NO_EPOCH
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.continuity import HeaderRules
from tierlog.broker.storage.range_repair import CheckedPrefix, check
from tierlog.broker.storage.segment import CorruptLog
from tierlog.metadata.image import BrokerImage
from tierlog.protocol import replica_fetch
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

PART_BYTES = 128 << 10
"""Bytes per fetch. They are checked on the event loop, which takes less than a millisecond unless the batches
are tiny."""

WAIT_MS = 500
"""How long the other replica may wait until the range is committed or read from the object store."""

RESPONSE_TIMEOUT_S = 10.0
"""Time to wait for a response, in addition to WAIT_MS. After that, another replica is tried."""

THROTTLED_MAX_S = 30.0
"""Longest throttle time (KIP-219) that is waited for: consumer quotas apply here too. If it is longer,
the range is read again later, from its start.
"""


class RangeUnavailable(Exception):
    """Another replica cannot serve the whole range; the message says why."""


class RangeReader:
    def __init__(self, broker_id: int, network: Network) -> None:
        self._client_id = f"repair-{broker_id}"
        self._network = network

    async def read(
        self,
        source: BrokerImage,
        replica: Replica,
        start: int,
        end: int,
        rules: HeaderRules,
        max_bytes: int | None,
    ) -> Buffer:
        """The batches in [start, end), at most `max_bytes` bytes. With None, only checks that the range can
        be read and returns nothing. Raises RangeUnavailable.
        """
        found, checked = bytearray(), CheckedPrefix(0, start, NO_EPOCH)
        if start >= end:
            return found
        try:
            caller = await self._network.connect(source, self._client_id)
        except Unreachable as failure:
            raise RangeUnavailable(str(failure)) from None
        try:
            while checked.next_offset < end:
                before = checked
                # in the middle of a batch, Fetch returns all of it
                offset = max(before.next_offset, replica.log_start_offset)
                part = await self._fetch(caller, replica.topic_id, replica.name.partition, offset)
                checked = check(part, checked, end, rules)
                if max_bytes is not None:
                    found += part[: checked.size - before.size]
                    if len(found) > max_bytes:
                        raise RangeUnavailable(f"other batches: more than {max_bytes} bytes")
                if checked.next_offset == before.next_offset:
                    raise RangeUnavailable(f"no batch at offset {checked.next_offset}")
            return found
        except (Unreachable, CorruptLog) as failure:
            raise RangeUnavailable(str(failure)) from None
        finally:
            caller.close()

    async def _fetch(self, caller: Caller, topic_id: UUID, partition: int, offset: int) -> Buffer:
        """The records at the offset. The buffer is valid until the next call."""
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=PART_BYTES)
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=PART_BYTES,
            topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        response = await self._call(caller, request)
        if response.error_code:
            raise RangeUnavailable(ErrorCode(response.error_code).name)
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code:
                    raise RangeUnavailable(ErrorCode(data.error_code).name)
                records = data.records
                return records if isinstance(records, bytes | bytearray | memoryview) else b""
        raise RangeUnavailable("the response has no partition")

    async def _call(self, caller: Caller, request: FetchRequest) -> FetchResponse:
        """Send the request, and send it again if a consumer quota throttled it (with an empty response)."""
        timeout_s = WAIT_MS / 1000 + RESPONSE_TIMEOUT_S
        response: FetchResponse = await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s)
        throttled_s = response.throttle_time_ms / 1000
        if response.responses or response.error_code or not throttled_s:
            return response
        if throttled_s > THROTTLED_MAX_S:
            raise RangeUnavailable(f"the consumer quota delays the next read by {throttled_s:g} s")
        await asyncio.sleep(throttled_s)
        again: FetchResponse = await caller.call(FETCH_KEY, replica_fetch.VERSION, request, timeout_s)
        return again
