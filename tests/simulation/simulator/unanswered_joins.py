"""Unanswered joins: a leader does not learn that the controller has added a follower to the in-sync set.

The leader's request arrives, but the response and the new image do not, and then the follower cannot fetch
any more. It may be elected, so nothing that it lacks may be committed.
"""

import asyncio
import random
from collections.abc import Callable, Mapping

from simulator.broker import SimBroker
from simulator.late_cancels import NODES_MIN, controllers_of, partitions_of
from simulator.network import Network
from simulator.workload import Client
from tierlog.metadata.records import PartitionRecord

SHARE = 0.25
"""Share of the runs with unanswered joins, among those with a node that has no replica."""

EVERY_S = 0.1
POLL_S, LEAVES_WITHIN_S, JOINS_WITHIN_S = 0.01, 3.0, 1.0
"""A follower is out of sync after replica.lag.time.max.ms, which is at most two seconds."""

APART_S = (0.2, 0.8)
"""The leader has a lease for at least a second after its last heartbeat."""


def share(seed: int, nodes: int) -> float:
    """1 if the run has unanswered joins, else 0."""
    return float(nodes >= NODES_MIN and random.Random(f"unanswered joins {seed}").random() < SHARE)


async def play(client: Client, brokers: Mapping[int, SimBroker], network: Network) -> None:
    """Runs until cancelled."""
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(1 / EVERY_S))
        found = _suitable(brokers)
        if found:
            number, partition = rng.choice(found)
            followers = [node for node in partition.in_sync if node != partition.leader]
            await _join(brokers, network, number, partition.leader, rng.choice(followers), rng)


async def _join(
    brokers: Mapping[int, SimBroker],
    network: Network,
    number: int,
    leader_id: int,
    follower_id: int,
    rng: random.Random,
) -> None:
    """The follower leaves the in-sync set, joins it again, and is cut off from the leader again."""
    leader, follower = brokers[leader_id].name, brokers[follower_id].name

    def is_in_sync() -> bool:
        partitions = partitions_of(brokers)
        return number < len(partitions) and follower_id in partitions[number].in_sync

    network.cut(leader, follower)
    network.cut(follower, leader)
    has_left = await _within(LEAVES_WITHIN_S, lambda: not is_in_sync())
    controllers = [brokers[node].name for node in controllers_of(brokers)]
    if has_left and leader not in controllers:
        for controller in controllers:
            network.cut(controller, leader)
    network.mend(leader, follower)
    network.mend(follower, leader)
    if has_left and await _within(JOINS_WITHIN_S, is_in_sync):
        network.cut(leader, follower)
        network.cut(follower, leader)
        await asyncio.sleep(rng.uniform(*APART_S))
        network.mend(leader, follower)
        network.mend(follower, leader)
    for controller in controllers:
        network.mend(controller, leader)


def _suitable(brokers: Mapping[int, SimBroker]) -> list[tuple[int, PartitionRecord]]:
    """Partitions with replicas in sync on three nodes, none of which is the controller."""
    controllers = controllers_of(brokers)
    return [
        (number, partition)
        for number, partition in enumerate(partitions_of(brokers))
        if partition.leader in brokers
        and len(partition.in_sync) > 2
        and not controllers.intersection(partition.replicas)
    ]


async def _within(limit_s: float, holds: Callable[[], bool]) -> bool:
    for _ in range(int(limit_s / POLL_S)):
        if holds():
            return True
        await asyncio.sleep(POLL_S)
    return False
