"""Damage in the bucket: flipped bytes and missing objects, once all faults are healed.

Consumers must get every record of the other objects, a wrong one never, and all records again once the
objects are restored. The witnesses go on to see the intact bucket (object_store.Bucket).
"""

import asyncio
import random
from collections import Counter

from simulator.object_store import Bucket
from simulator.tier_witness import TierWitness
from simulator.witness import Violation
from simulator.workload import FETCH, TOPIC, Client, values_of
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.tiering.format.keys import Keys

SHARE = 0.4
"""Share of the tiered runs in which objects are damaged."""

OBJECTS_MAX = 4
MISSING = 0.25
"""Share of the damaged objects that do not exist."""

RECHECK_FIRST_MS = 1_000
REFUSALS = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR)
READ_S = 60.0
"""Virtual seconds within which a consumer must have passed the damage of a partition."""


class RemoteDamage:
    """The damaged objects of one run."""

    def __init__(self, bucket: Bucket, keys: Keys, done: Counter[str]) -> None:
        self._bucket, self._keys, self._done = bucket, keys, done
        self._damaged: dict[int, list[tuple[int, int]]] = {}  # partition -> offset ranges

    def inflict(self, witness: TierWitness, rng: random.Random) -> None:
        """Flip a byte of some logs and index bundles of the main topic, or remove them."""
        segments = list(witness.remote_segments(TOPIC))
        for where, entry in rng.sample(segments, min(len(segments), rng.randint(1, OBJECTS_MAX))):
            key = rng.choice((self._keys.log, self._keys.index))(where, entry)
            content = self._bucket.content(key)
            if not content:
                continue
            missing = rng.random() < MISSING
            self._bucket.damage[key] = None if missing else rng.randrange(len(content))
            self._damaged.setdefault(where.partition, []).append((entry.base_offset, entry.end_offset))
            self._done["objects removed" if missing else "objects flipped"] += 1

    async def restore(self) -> None:
        self._bucket.damage.clear()
        await asyncio.sleep(2 * RECHECK_FIRST_MS / 1000)

    async def read_around(self, client: Client, partition: int, start: int, end: int) -> None:
        """Consume a partition; after an error in a damaged segment, continue behind it."""
        offset, deadline = start, asyncio.get_running_loop().time() + READ_S
        while offset < end:
            if asyncio.get_running_loop().time() > deadline:
                raise Violation(f"partition {partition}: no consumer passes {offset} beside {self._damaged}")
            wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 16)
            request = FetchRequest(
                max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])]
            )
            answer = await client.call_leader(partition, FETCH, 12, request)
            if answer is None:
                continue
            result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
            if result.error_code == ErrorCode.NONE:
                shown = [one for one in values_of(bytes(result.records or b"")) if one[0] >= offset]
                client.history.note(partition, shown, "seen")
                offset = shown[-1][0] + 1 if shown else offset
                continue
            after = [last for first, last in self._damaged.get(partition, ()) if first <= offset < last]
            if after and result.error_code in REFUSALS:
                self._done["damaged objects refused"] += 1
                offset = max(after)
            else:
                await client.lost(partition)
