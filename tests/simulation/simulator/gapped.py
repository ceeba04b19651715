"""A topic that the log cleaner compacts, and that is tiered only later, with cleanup.policy=delete: its
segments have gaps between their offsets when they are uploaded.

Its clients are those of `compacted`. Replicas are compacted independently, so their logs may differ.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from simulator.broker import SimBroker
from simulator.compacted import DELETE_RETENTION_MS, CompactedHistory
from simulator.topic_settings import alter_topic
from simulator.witness import Violation
from tierlog.protocol.errors import ErrorCode

TOPIC = "ledger"
SHARE = 0.3
"""Share of the tiered runs with this topic."""

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": "300"}
TIERED = {"cleanup.policy": "delete", "remote.storage.enable": "true"}
CLEANER_BACKOFF_MS = 200
PRODUCE_S = 0.1
UNTIERED_S = (1.0, 4.0)
"""Virtual seconds for which the topic is compacted before it is tiered."""


def draw_history(rng: random.Random) -> CompactedHistory | None:
    """None in most runs."""
    if rng.random() >= SHARE:
        return None
    return CompactedHistory(rng.choice(DELETE_RETENTION_MS), TOPIC, PRODUCE_S)


async def tier_later(brokers: Mapping[int, SimBroker], rng: random.Random, done: Counter[str]) -> None:
    await asyncio.sleep(rng.uniform(*UNTIERED_S))
    await tier(brokers)
    done["compacted topics tiered"] += 1


async def tier(brokers: Mapping[int, SimBroker]) -> None:
    """Switch the topic to cleanup.policy=delete and tiering, in one request."""
    error = await alter_topic(brokers, TOPIC, TIERED)
    if error is not ErrorCode.NONE:
        raise Violation(f"{TOPIC} cannot be tiered: {error.name}")
