"""Operator of a simulated quorum: adds and removes voters while faults happen.

It sends each change to a presumed leader, which may be the node to remove, and does not retry a change with
an unknown outcome. A removed node keeps running and may be added again.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from simulator.network import Broken, Network, Refused
from simulator.peers import HasMetadata, address
from tierlog.metadata.quorum.peers import LeadershipLost, MetadataUnavailable
from tierlog.metadata.raft.membership import ChangeRefused

OPERATOR = "operator"
CHANGES_A_SECOND, HASTY_CHANGES_A_SECOND = 0.7, 6.0
MIN_VOTERS = 2
TIMEOUT_S, HASTY_TIMEOUT_S = 5.0, 0.2
RETRY_S = 0.1


def present_voters(members: Mapping[int, HasMetadata], initial: Sequence[int]) -> Sequence[int]:
    """The voters of the newest configuration that any running node has."""
    cores = [node.metadata.core for node in members.values() if node.metadata is not None]
    newest = max(cores, key=lambda core: (core.configuration_index, core.log.commit), default=None)
    return initial if newest is None else sorted(newest.voters)


async def change_voters(
    members: Mapping[int, HasMetadata],
    initial: Sequence[int],
    network: Network,
    rng: random.Random,
    done: Counter[str],
    *,
    hasty: bool = False,
) -> None:
    """Runs until cancelled, as the client `operator`. Counts completed changes in `done`.

    A `hasty` operator requests the next change before it knows the outcome of the last one, and from a leader
    that has committed nothing in its term yet.
    """
    a_second, timeout_s = (
        (HASTY_CHANGES_A_SECOND, HASTY_TIMEOUT_S) if hasty else (CHANGES_A_SECOND, TIMEOUT_S)
    )
    pause_s = rng.expovariate(a_second)
    while True:
        await asyncio.sleep(pause_s)
        leading = _leading(members, hasty)
        pause_s = rng.expovariate(a_second) if leading else RETRY_S
        if not leading:
            continue
        voters, leader = present_voters(members, initial), rng.choice(leading)
        chosen = rng.choice(sorted(members))
        if chosen in voters and len(voters) <= MIN_VOTERS:
            continue

        async def serve(leader: int = leader, chosen: int = chosen, leaves: bool = chosen in voters) -> None:
            node = members[leader].metadata
            if node is None:
                raise Broken("it has not started")
            if leaves:
                await node.membership.remove_voter(chosen, TIMEOUT_S)
            else:
                await node.membership.add_voter(chosen, address(chosen), TIMEOUT_S)

        with suppress(MetadataUnavailable, LeadershipLost, ChangeRefused, Broken, Refused, TimeoutError):
            async with asyncio.timeout(timeout_s):
                await network.call(OPERATOR, address(leader), rng.getrandbits(32), serve)
                done["voters removed" if chosen in voters else "voters added"] += 1


def _leading(members: Mapping[int, HasMetadata], hasty: bool) -> list[int]:
    """Nodes that consider themselves leader. If `hasty`, also those that have committed nothing in their
    term."""
    nodes = {number: node.metadata for number, node in members.items() if node.metadata is not None}
    return [n for n, node in nodes.items() if node.is_leader or (hasty and node.core.is_leader)]
