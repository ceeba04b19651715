"""Late heartbeat replies: a broker learns of its lease late, and then cannot reach the controller any more.

The lease counts from the moment the heartbeat was sent, because the controller fences the broker one session
after the heartbeat arrived, however late the reply is. Clients reach the broker all the time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from simulator.broker import SimBroker
from simulator.network import Network

LATE_LEASES = 0.2
"""Share of the runs with late heartbeat replies."""

EVERY_S = 0.25
ARRIVES_S = 0.27
"""A heartbeat arrives within this time: one `broker.heartbeat.interval.ms` and the delay of the network."""

LATE_S = (0.3, 0.72)
"""How long the reply waits after that. The broker waits a second for it (half of its heartbeat timeout)."""

PASSES_S = 0.005
"""Time in which the reply arrives. It is longer than the longest delay of the network."""


async def delay_heartbeat_replies(
    topic: str, brokers: Mapping[int, SimBroker], network: Network, rng: random.Random, faults: Counter[str]
) -> None:
    """Runs until cancelled. Chooses leaders of partitions of `topic` that are not the controller."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / EVERY_S))
        pairs = _controllers_and_leaders(topic, brokers, network)
        if pairs:
            controller, leader = rng.choice(pairs)
            faults["late lease"] += 1
            session_s = leader.settings.broker_session_timeout_ms / 1000
            await _delay_reply(network, controller.name, leader.name, rng.uniform(*LATE_S), session_s)


async def _delay_reply(
    network: Network, controller: str, broker: str, late_s: float, session_s: float
) -> None:
    """One heartbeat arrives at the controller, and its reply at the broker. Nothing else does until the
    session has ended."""
    network.cut(controller, broker)
    await asyncio.sleep(ARRIVES_S)
    network.cut(broker, controller)
    await asyncio.sleep(late_s)
    network.mend(controller, broker)
    await asyncio.sleep(PASSES_S)
    network.cut(controller, broker)
    await asyncio.sleep(session_s)
    network.mend(controller, broker)
    network.mend(broker, controller)


def _controllers_and_leaders(
    topic: str, brokers: Mapping[int, SimBroker], network: Network
) -> list[tuple[SimBroker, SimBroker]]:
    """Controllers that reach all brokers, each with another broker that leads a partition."""
    pairs = []
    for controller in brokers.values():
        node = controller.metadata
        if node is None or not node.is_leader:
            continue
        if not all(network.connects(controller.name, other.name) for other in brokers.values()):
            continue
        known = node.image.topic(topic)
        partitions = () if known is None else known.partitions
        pairs += [
            (controller, brokers[one.leader])
            for one in partitions
            if one.leader in brokers and one.leader != controller.node_id
        ]
    return pairs
