"""Damage in the bucket: flipped bytes and missing objects, for a while during the faults, and once all
faults are healed.

Consumers must get every record of the other objects, a wrong one never, and all records again once the
objects are restored. During the faults, pages and manifest roots are damaged too: merges, compactions,
retention and elections meet them. The witnesses still see the intact bucket (object_store.Bucket).
"""

import asyncio
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

PASSING_SHARE = 0.4
"""Share of the tiered runs in which objects are damaged during the faults."""

PASSING_A_SECOND, PASSING_S = 3.0, (0.1, 3.0)
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


async def damage_in_passing(
    bucket: Bucket, keys: Keys, witness: TierWitness, rng: random.Random, done: Counter[str]
) -> None:
    """Damage objects that a manifest lists, and restore each after a while. Runs until cancelled.

    Only segments and their indexes are missing for a while: no store loses an object and finds it again, and
    what a page lists is taken for deleted once the page is not there.
    """
    restoring: dict[str, asyncio.TimerHandle] = {}
    try:
        while True:
            await asyncio.sleep(rng.expovariate(PASSING_A_SECOND))
            kind, key = _draw(witness.listed_objects(), rng)
            content = bucket.content(key) if key and key not in bucket.damage else None
            if not content:
                continue
            missing = kind == "segments" and rng.random() < MISSING
            bucket.damage[key] = None if missing else rng.randrange(len(content))
            done[f"{kind} damaged in passing"] += 1
            restore = bucket.damage.pop
            loop = asyncio.get_running_loop()
            restoring[key] = loop.call_later(rng.uniform(*PASSING_S), restore, key, None)
    finally:
        for key, timer in restoring.items():
            timer.cancel()
            bucket.damage.pop(key, None)


def _draw(objects: list[tuple[str, str]], rng: random.Random) -> tuple[str, str]:
    """Each kind is drawn as often as the others."""
    chosen = rng.choice(sorted({kind for kind, _ in objects}) or [""])
    return rng.choice([one for one in objects if one[0] == chosen] or [("", "")])


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
