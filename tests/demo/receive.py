"""Step 4: a consumer group of two aiokafka members reads all records from offset 0."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from flights import Flights
from report import Bar, Report
from send import Sent

GROUP = "flight-readers"
MEMBERS = 2
IDLE_TIMEOUT_S = 30


@dataclass
class Received:
    """Sums over both members of the group."""

    count: int = 0
    value_bytes: int = 0
    duplicates: int = 0
    misplaced: int = 0  # not the flight that was acknowledged at this offset
    out_of_order: int = 0
    members: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    next_sequence: dict[bytes, int] = field(default_factory=dict)


def consume(
    report: Report, bootstrap: str, topic: str, flights: Flights, sent: Sent, remote_share: float
) -> None:
    """Read with two members, and compare each record with its acknowledgement."""
    received = Received()
    begin = time.monotonic()
    with report.progress("consumed by two members of a group", len(flights)) as bar:
        asyncio.run(_read(bootstrap, topic, len(flights), sent, received, bar))
    seconds = time.monotonic() - begin
    report.check("number of records", len(flights), received.count)
    report.check("no lost or duplicate records", (len(flights), 0), (len(received.seen), received.duplicates))
    report.check("each record is at its acknowledged offset", 0, received.misplaced)
    report.check("records of a key are in order", 0, received.out_of_order)
    report.check("both members took part", MEMBERS, sum(count > 0 for count in received.members.values()))
    report.say(f"{remote_share:.0%} of the bytes came from the object store, the rest from local disk")
    report.figure("consume rate", f"{received.count / seconds:,.0f} records/s")
    report.figure("share of bytes read from the object store", f"{remote_share:.1%}")


async def _read(bootstrap: str, topic: str, total: int, sent: Sent, received: Received, bar: Bar) -> None:
    from aiokafka import AIOKafkaConsumer

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # rebalances are expected
    members = [
        AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            client_id=f"member-{number}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_partition_fetch_bytes=4 << 20,
        )
        for number in range(1, MEMBERS + 1)
    ]
    shares = _Shares(MEMBERS)
    try:
        for number, member in enumerate(members):
            member.subscribe([topic], listener=_listener(shares, number))
            await member.start()
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await shares.balanced.wait()
        await asyncio.gather(
            *(
                _read_until_complete(f"member-{number}", member, total, sent, received, bar)
                for number, member in enumerate(members, 1)
            )
        )
        for member in members:
            await member.commit()
    finally:
        for member in members:
            await member.stop()


async def _read_until_complete(
    name: str, member: Any, total: int, sent: Sent, received: Received, bar: Bar
) -> None:
    """Read until both members together have all records, or none arrive for IDLE_TIMEOUT_S."""
    received.members[name] = 0
    last = time.monotonic()
    while received.count < total and time.monotonic() - last < IDLE_TIMEOUT_S:
        for partition, messages in (await member.getmany(timeout_ms=200)).items():
            last = time.monotonic()
            received.members[name] += len(messages)
            for message in messages:
                _check(partition.partition, message, sent, received)
        bar.reach(received.count)


def _check(partition: int, message: Any, sent: Sent, received: Received) -> None:
    headers = dict(message.headers)
    row, sequence = int(headers["row"]), int(headers["sequence"])
    received.count += 1
    received.value_bytes += len(message.value)
    received.duplicates += row in received.seen
    received.seen.add(row)
    received.misplaced += (sent.partition[row], sent.offset[row]) != (partition, message.offset)
    received.out_of_order += received.next_sequence.get(message.key, 0) != sequence
    received.next_sequence[message.key] = sequence + 1


class _Shares:
    """Number of partitions of each member. `balanced` is set once every member has some."""

    def __init__(self, members: int) -> None:
        self.balanced = asyncio.Event()
        self._counts = [0] * members

    def update(self, member: int, count: int) -> None:
        self._counts[member] = count
        if all(self._counts):
            self.balanced.set()


def _listener(shares: _Shares, number: int) -> Any:
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            shares.update(number, 0)

        def on_partitions_assigned(self, assigned: Any) -> None:
            shares.update(number, len(assigned))

    return Listener()
