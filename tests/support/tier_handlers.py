"""Dependencies of the request handlers, made of the parts of a TierNode."""

import random

from tier_node import TierNode

from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.config.node import NodeSettings
from tierlog.tiering.remote_log import RemoteLog


def dependencies(node: TierNode, remote: RemoteLog | None = None, *, wait_ms: int = 10_000) -> Dependencies:
    """`wait_ms`: how long a Fetch waits for remote data."""
    return Dependencies(
        settings=NodeSettings(remote_fetch_max_wait_ms=wait_ms),
        metadata=node.metadata,
        replicas=node,  # type: ignore[arg-type]
        purgatory=Purgatory(10),
        fetch_sessions=FetchSessions(0, random.Random(1)),
        clock=node.clock,
        tasks=node.tasks,
        recently_fenced=RecentlyFencedBrokers(node.clock),
        remote=remote or node.remote_log,
    )
