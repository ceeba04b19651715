"""Identifiers and units that all rooms share.

Offsets count records within a partition; positions count bytes within a file; both ends of a range are
exclusive above. A broken invariant raises `InvariantViolation` and stops the owner of the broken state.
"""

import random
import uuid
from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
Position = NewType("Position", int)

Rng = random.Random
"""An injected source of chance; pure rooms name this instead of importing `random`."""

NO_EPOCH = Epoch(-1)
NO_OFFSET = Offset(-1)
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """A partition by the topic's name; what the older versions of the protocol address."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by the topic's id (KIP-516): a topic deleted and created again shares nothing."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class InvariantViolation(Exception):
    """A promise that the code makes to itself does not hold; the owner of the state must stop."""


def require(condition: bool, broken: str) -> None:
    """Raises InvariantViolation(broken) unless the condition holds (an assert that `python -O` keeps)."""
    if not condition:
        raise InvariantViolation(broken)


def random_uuid(rng: random.Random) -> uuid.UUID:
    """A version 4 UUID from an injected source of chance."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)
