"""Damage in the bucket: flipped bytes and missing objects, once all faults are healed.

Consumers must get every record of the other objects, a wrong one never, and all records again once the
objects are restored. The witnesses go on to see the intact bucket (object_store.Bucket).
"""

import random
from collections import Counter
from collections.abc import Mapping

from simulator.object_store import Bucket
from simulator.tier_witness import TierWitness
from simulator.workload import TOPIC
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering import quarantine
from tierlog.tiering.format.keys import Keys

SHARE = 0.4
"""Share of the tiered runs in which objects are damaged."""

OBJECTS_MAX = 4
MISSING = 0.25
"""Share of the damaged objects that do not exist."""

RECHECK_FIRST_MS = 1_000
"""First pause before a broker reads a damaged range again, in the simulator."""

REFUSALS = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR)
READ_S = 180.0
"""Virtual seconds within which a consumer must have passed the damage of all partitions."""

RESTORED_S = 2 * quarantine.RECHECK_MAX_MS / 1000
"""Virtual seconds within which a consumer must have read all records after the objects were restored."""


class RemoteDamage:
    """The damaged objects of one run."""

    def __init__(self, bucket: Bucket, keys: Keys, done: Counter[str]) -> None:
        self._bucket, self._keys, self._done = bucket, keys, done
        self._damaged: dict[int, list[tuple[int, int]]] = {}  # partition -> offset ranges

    def inflict(self, witness: TierWitness, kept_from: Mapping[int, int], rng: random.Random) -> None:
        """Flip a byte of some logs and index bundles of the main topic, or remove them. `kept_from`: first
        offset that a broker has locally, by partition; the segments before it are chosen first."""
        listed = list(witness.remote_segments(TOPIC))
        segments = [
            one for one in listed if one[1].end_offset <= kept_from.get(one[0].partition, 0)
        ] or listed
        for where, entry in rng.sample(segments, min(len(segments), rng.randint(1, OBJECTS_MAX))):
            key = rng.choice((self._keys.log, self._keys.index))(where, entry)
            content = self._bucket.content(key)
            if not content:
                continue
            missing = rng.random() < MISSING
            self._bucket.damage[key] = None if missing else rng.randrange(len(content))
            self._damaged.setdefault(where.partition, []).append((entry.base_offset, entry.end_offset))
            self._done["objects removed" if missing else "objects flipped"] += 1

    def restore(self) -> None:
        self._bucket.damage.clear()

    def end_behind(self, partition: int, offset: int, error: int) -> int | None:
        """The offset behind the damaged segments that refused this one with an error; None if none did."""
        ends = [last for first, last in self._damaged.get(partition, ()) if first <= offset < last]
        if not ends or error not in REFUSALS:
            return None
        self._done["damaged objects refused"] += 1
        return max(ends)
