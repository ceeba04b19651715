"""Late cancels: an operator cancels a move when only the replica that it adds is in sync with the leader.

The leader is cut off from its other followers, and the move waits for them. Without the added replica only
the leader would have all committed records, so the controller must refuse.
"""

import asyncio
import random
from collections.abc import Mapping

from simulator.broker import SimBroker
from simulator.network import Network
from simulator.operators import reassign
from simulator.workload import TOPIC, Client
from tierlog.metadata.records import PartitionRecord

SHARE, NODES_MIN = 0.2, 4
"""SHARE is the share of the runs with late cancels, among those with a node that has no replica."""

EVERY_S = 0.1
POLL_S, POLLS_MAX = 0.05, 60
"""A follower is out of sync after replica.lag.time.max.ms, which is at most two seconds."""


def share(seed: int, nodes: int) -> float:
    """1 if the run has late cancels, else 0."""
    return float(nodes >= NODES_MIN and random.Random(f"cancelled late {seed}").random() < SHARE)


async def play(client: Client, brokers: Mapping[int, SimBroker], network: Network) -> None:
    """Runs until cancelled."""
    rng = client.rng
    while True:
        await asyncio.sleep(rng.expovariate(1 / EVERY_S))
        found = _movable(brokers)
        if not found:
            continue
        number, partition = rng.choice(found)
        followers = [node for node in partition.replicas if node != partition.leader]
        added = rng.choice([node for node in client.nodes if node not in partition.replicas])
        links = [(partition.leader, node) for node in followers]
        links += [(node, partition.leader) for node in followers]
        for one, other in links:
            network.cut(brokers[one].name, brokers[other].name)
        if await reassign(client, number, [added, *followers]):
            for _ in range(POLLS_MAX):
                now = dict(enumerate(partitions_of(brokers))).get(number, partition)
                if set(now.in_sync) == {partition.leader, added} or now.leader != partition.leader:
                    break
                if controllers_of(brokers).intersection(followers):
                    break  # it is cut off from the leader
                await asyncio.sleep(POLL_S)
            if not await reassign(client, number, None):
                client.history.done["late cancels refused"] += 1
        for one, other in links:
            network.mend(brokers[one].name, brokers[other].name)


def partitions_of(brokers: Mapping[int, SimBroker]) -> tuple[PartitionRecord, ...]:
    """The partitions of the newest image; none if no node has one."""
    images = [one.metadata.image for one in brokers.values() if one.metadata is not None]
    newest = max(images, key=lambda image: image.index, default=None)
    topic = None if newest is None else newest.topic(TOPIC)
    return () if topic is None else topic.partitions


def _movable(brokers: Mapping[int, SimBroker]) -> list[tuple[int, PartitionRecord]]:
    """Partitions that can move, and whose followers are not the controller, which their leader must reach."""
    controllers = controllers_of(brokers)
    return [
        (number, partition)
        for number, partition in enumerate(partitions_of(brokers))
        if partition.leader in brokers
        and not partition.is_reassigned
        and len(partition.replicas) < len(brokers)
        and not controllers.intersection(partition.replicas).difference((partition.leader,))
    ]


def controllers_of(brokers: Mapping[int, SimBroker]) -> set[int]:
    return {node for node, one in brokers.items() if one.metadata is not None and one.metadata.is_leader}
