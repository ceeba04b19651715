"""Readers of the latest offset: the end of a partition never goes back (KIP-207).

A reader asks the leader again and again, so that it asks an old leader just before an election and the new
one just after it. It sends the newest leader epoch that it knows, as real clients do: a deposed leader
refuses it.
"""

import asyncio

from simulator.witness import Violation
from simulator.workload import LIST_OFFSETS, RETRY_S, TOPIC, Client
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

SHARE = 0.15
"""Share of the cluster runs with such readers."""

LATEST = -1
EVERY_S = 0.02
VERSION = 7


async def play(client: Client, partitions: int) -> None:
    """Runs until cancelled."""
    client.topic = TOPIC
    await asyncio.gather(*(_read_ends(client, partition) for partition in range(partitions)))


async def _read_ends(client: Client, partition: int) -> None:
    last = 0
    while True:
        await asyncio.sleep(client.rng.expovariate(1 / EVERY_S))
        epoch, isolation = client.leader_epoch(partition), client.rng.choice((0, 1))
        if epoch < 0:
            await client.lost(partition)
            continue
        wanted = ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=LATEST)
        topics = [ListOffsetsTopic(name=TOPIC, partitions=[wanted])]
        request = ListOffsetsRequest(isolation_level=isolation, topics=topics)
        answer = await client.call_leader(partition, LIST_OFFSETS, VERSION, request)
        if answer is None:
            continue
        result = answer.topics[0].partitions[0]  # type: ignore[attr-defined]
        if result.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
            client.history.done["unknown ends"] += 1
            await asyncio.sleep(client.rng.uniform(*RETRY_S))
        elif result.error_code != ErrorCode.NONE:
            await client.lost(partition)
        elif result.offset < last:
            raise Violation(f"partition {partition} ended at {last}, and now ends at {result.offset}")
        else:
            last = result.offset
