"""An operator of a simulated quorum: nodes are taken in and let go while everything else goes wrong.

It asks whoever it takes for the leader, which may be the one to go, and leaves what it does not know the
outcome of. A node that is let go runs on, and may be taken in again.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from simulator.network import Broken, Network, Refused
from simulator.peers import HasMetadata, address
from tierlog.metadata.quorum.node import LeadershipLost, MetadataUnavailable
from tierlog.metadata.raft.membership import ChangeRefused

OPERATOR = "operator"
CHANGES_A_SECOND, IN_HASTE = 0.7, 6.0
FEWEST = 2
PATIENCE_S, HASTY_S = 5.0, 0.2
LOOK_AGAIN_S = 0.1


def present_voters(members: Mapping[int, HasMetadata], initial: Sequence[int]) -> Sequence[int]:
    """As the newest configuration says that any live node has."""
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
    """For ever, as the client `operator`. `done`: what is known to have come about. `hasty`: it asks for the
    next before it knows, and of a leader as soon as that takes itself for one."""
    a_second, patience_s = (IN_HASTE, HASTY_S) if hasty else (CHANGES_A_SECOND, PATIENCE_S)
    pause_s = rng.expovariate(a_second)
    while True:
        await asyncio.sleep(pause_s)
        leading = _leading(members, hasty)
        pause_s = rng.expovariate(a_second) if leading else LOOK_AGAIN_S
        if not leading:
            continue
        voters, asked = present_voters(members, initial), rng.choice(leading)
        chosen = rng.choice(sorted(members))
        if chosen in voters and len(voters) <= FEWEST:
            continue

        async def serve(asked: int = asked, chosen: int = chosen, leaves: bool = chosen in voters) -> None:
            node = members[asked].metadata
            if node is None:
                raise Broken("it has not started")
            if leaves:
                await node.remove_voter(chosen, PATIENCE_S)
            else:
                await node.add_voter(chosen, address(chosen), PATIENCE_S)

        with suppress(MetadataUnavailable, LeadershipLost, ChangeRefused, Broken, Refused, TimeoutError):
            async with asyncio.timeout(patience_s):
                await network.call(OPERATOR, address(asked), rng.getrandbits(32), serve)
                done["voters let go" if chosen in voters else "voters taken in"] += 1


def _leading(members: Mapping[int, HasMetadata], hasty: bool) -> list[int]:
    """Who takes itself for the leader; in haste, also who has committed nothing of its term yet."""
    nodes = {number: node.metadata for number, node in members.items() if node.metadata is not None}
    return [n for n, node in nodes.items() if node.is_leader or (hasty and node.core.is_leader)]
