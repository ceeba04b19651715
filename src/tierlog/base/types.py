"""Identifiers and units of all packages.

Offsets count records in a partition; positions count bytes in a file; ends of ranges are exclusive. A broken
invariant raises `InvariantViolation` and stops the owner of the broken state.
"""

import random
import uuid
from collections.abc import Iterable
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)

Rng = random.Random
"""An injected random number generator; pure packages use this type instead of importing `random`."""

NO_EPOCH = Epoch(-1)
NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1

NO_LEADER = -1
"""Broker id of the leader while a partition has none, as in Metadata responses."""


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as in older versions of the protocol."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers of each topic, sorted, as messages and records list partitions."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id (KIP-516), which a recreated topic does not share."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class InvariantViolation(Exception):
    """An invariant of the code does not hold; the owner of the state must stop."""


def require(condition: bool, broken: str) -> None:
    """Raises InvariantViolation(broken) unless the condition holds (an assert that `python -O` keeps)."""
    if not condition:
        raise InvariantViolation(broken)


def random_uuid(rng: random.Random) -> uuid.UUID:
    """A version 4 UUID from an injected random number generator."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)
