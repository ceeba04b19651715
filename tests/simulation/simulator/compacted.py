"""Compacted topics of a tiered run. A producer writes a few keys. A reader starts from offset 0 again and
again, and must find a valid compacted log.

One topic is tiered from its creation, and compacted in the bucket. The other (`gapped`) is compacted by the
log cleaner, and tiered later: its segments have gaps when they are uploaded.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulator.witness import Violation
from simulator.workload import FETCH, MAX_RECORDS, Client, new_producer_id, send
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = "accounts"
SHARE = 0.4
"""Share of the tiered runs with this topic."""

KEYS, TOMBSTONES = 6, 0.2
NEWEST = b"newest"
"""The key of the last record of each batch. It never has a tombstone, so a reader always reaches the end."""

DELETE_RETENTION_MS = (3000, 3_600_000)
PRODUCE_S, SCAN_S = 0.3, 1.0


Work = Callable[[Client, "CompactedHistory"], Coroutine[Any, Any, None]]


class Record(NamedTuple):
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class CompactedHistory:
    delete_retention_ms: int
    topic: str = TOPIC
    pause_s: float = PRODUCE_S  # mean of the virtual seconds between two batches
    acknowledged: dict[int, Record] = field(default_factory=dict)
    sending: list[Record] = field(default_factory=list)
    """The batch whose outcome is not known."""
    scans: int = 0
    removed: int = 0
    """Acknowledged records that the last scan did not find."""

    @property
    def end_offset(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    def last_of_keys(self) -> dict[bytes, int]:
        """Offset of the last acknowledged record of each key."""
        return {self.acknowledged[offset].key: offset for offset in sorted(self.acknowledged)}

    def check(self, found: list[tuple[int, Record]], last: dict[bytes, int], *, is_quiet: bool) -> None:
        """`last`: of the keys when the scan began. `is_quiet`: nothing was written or compacted since then.
        Raises Violation."""
        previous = -1
        for offset, record in found:
            if offset <= previous:
                raise Violation(f"{self.topic}: offset {offset} follows {previous}")
            previous = offset
            known = self.acknowledged.get(offset)
            if known != record and (known is not None or record not in self.sending):
                raise Violation(f"{self.topic}: {record} is at {offset}, {known} was acknowledged")
        found_last = {record.key: offset for offset, record in found}
        later = set() if is_quiet else self._later_keys(last)
        for key, offset in last.items():
            if found_last.get(key, -1) >= offset or key in later:
                continue
            if (
                self.acknowledged[offset].value is not None
                or self.delete_retention_ms > DELETE_RETENTION_MS[0]
            ):
                raise Violation(f"{self.topic}: {self.acknowledged[offset]} at {offset} is lost")
            if is_quiet and key in found_last:
                raise Violation(
                    f"{self.topic}: {key!r} was deleted at {offset}, and is back at {found_last[key]}"
                )
        self.scans += 1
        offsets = {offset for offset, _ in found}
        self.removed = sum(offset not in offsets for offset in self.acknowledged)

    def _later_keys(self, last: dict[bytes, int]) -> set[bytes]:
        """Keys of later records, also of unanswered ones. They may have replaced what a scan looks for, above
        the high watermark of a new leader, where it ended."""
        newest = max(last.values(), default=-1)
        later = {record.key for offset, record in self.acknowledged.items() if offset > newest}
        return later | {record.key for record in self.sending}


def draw_history(rng: random.Random) -> CompactedHistory | None:
    """None in most runs."""
    if rng.random() >= SHARE:
        return None
    return CompactedHistory(rng.choice(DELETE_RETENTION_MS))


async def produce_keys(client: Client, history: CompactedHistory) -> None:
    """Runs until cancelled."""
    producer_id, rng, sequence = await new_producer_id(client), client.rng, 0
    while True:
        records = [
            Record(
                b"%d" % rng.randrange(KEYS),
                None if rng.random() < TOMBSTONES else b"%d" % (sequence + number),
            )
            for number in range(rng.randint(1, 4))
        ]
        records.append(Record(NEWEST, b"%d" % sequence))
        now_ms = 1_750_000_000_000 + sequence
        new = [NewRecord(now_ms, key, value, ()) for key, value in records]
        batch = encode_batch(new, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        history.sending = records
        offset = await send(client, 0, bytes(batch))
        history.acknowledged.update(enumerate(records, offset))
        history.sending = []
        sequence += len(records)
        await asyncio.sleep(rng.expovariate(1 / history.pause_s))


async def scan_keys(client: Client, history: CompactedHistory) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(client.rng.expovariate(1 / SCAN_S))
        await scan(client, history)


async def scan(client: Client, history: CompactedHistory, *, is_quiet: bool = False) -> None:
    """Read the topic from offset 0 to the high watermark, also what was never acknowledged, and check it."""
    last, end_offset = history.last_of_keys(), history.end_offset
    offset, found = 0, list[tuple[int, Record]]()
    while offset < end_offset:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 16)
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=history.topic, partitions=[wanted])]
        )
        answer = await client.call_leader(0, FETCH, 12, request)
        if answer is None:
            continue
        result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
        if result.error_code != ErrorCode.NONE:
            if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset == 0:
                raise Violation(f"{history.topic}: offset 0 is out of range")
            await client.lost(0)
            continue
        records, end_offset = bytes(result.records or b""), max(end_offset, result.high_watermark)
        found += [one for one in _records(records) if one[0] >= offset]
        offset = max([offset, *(header.next_offset for _, header in iter_batches(records))])
    history.check(found, last, is_quiet=is_quiet)


async def scan_in_the_end(client: Client, history: CompactedHistory, done: Counter[str]) -> None:
    """No other client runs, and all tiering is done."""
    client.topic = history.topic
    await scan(client, history, is_quiet=True)
    where = "in the bucket" if history.topic == TOPIC else "before their upload"
    done["scans of a compacted topic"] += history.scans
    done[f"records compacted {where}"] = history.removed


def clients_of(history: CompactedHistory) -> Iterator[tuple[str, Work]]:
    """Names and work of the clients of a topic."""
    whose = "" if history.topic == TOPIC else f" of {history.topic}"
    yield f"keys{whose}", produce_keys
    yield f"scans{whose}", scan_keys


def _records(batches: bytes) -> list[tuple[int, Record]]:
    return [
        (record.offset, Record(bytes(record.key or b""), record.value))
        for at, _ in iter_batches(batches)
        for record in iter_records(batches, at, max_bytes=MAX_RECORDS)
    ]
