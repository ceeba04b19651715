"""Raft configurations: the voters and learners, and which changes are allowed (Raft thesis, chapter 4).

A configuration is stored in a log entry of a separate type. It takes effect as soon as the entry is in the
log, even before it is committed. If the entry is truncated, the previous configuration applies again. A
snapshot contains the configuration at its index.
"""

from uuid import UUID

import msgspec


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A voter or learner: its URL, and the id of the directory with its log and vote (KIP-853).

    A node that comes back with another directory has lost its vote. `directory` is None until it is known.
    """

    url: str = ""
    directory: UUID | None = None


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Members by node id. Learners receive the log but do not vote and do not count towards a majority
    (Raft thesis, 4.2.1). No node is both voter and learner."""

    voters: dict[int, Member]
    learners: dict[int, Member] = {}

    @property
    def members(self) -> dict[int, Member]:
        return {**self.voters, **self.learners}

    def includes(self, node_id: int) -> bool:
        return node_id in self.voters or node_id in self.learners

    def with_learner(self, node_id: int, member: Member) -> "Configuration":
        """Add the node as a learner. A voter becomes a learner."""
        voters = {n: m for n, m in self.voters.items() if n != node_id}
        return Configuration(voters, _sorted({**self.learners, node_id: member}))

    def with_voter(self, node_id: int, member: Member) -> "Configuration":
        """Add the node as a voter. A learner becomes a voter."""
        learners = {n: m for n, m in self.learners.items() if n != node_id}
        return Configuration(_sorted({**self.voters, node_id: member}), learners)

    def without(self, node_id: int) -> "Configuration":
        return Configuration(
            {n: m for n, m in self.voters.items() if n != node_id},
            {n: m for n, m in self.learners.items() if n != node_id},
        )

    def with_directories(self, directories: dict[int, UUID]) -> "Configuration":
        """Set the directory of each member that has none. Other directories do not change."""
        return Configuration(
            _with_directories(self.voters, directories), _with_directories(self.learners, directories)
        )


class ChangeRefused(Exception):
    """The change of the configuration is not allowed, or not allowed yet."""


def check_change(old: Configuration, new: Configuration) -> None:
    """Check that at most one voter is added or removed, so that any majority of the old voters and any
    majority of the new ones have a common member (Raft thesis, 4.1). Raises ChangeRefused."""
    changed = old.voters.keys() ^ new.voters.keys()
    if len(changed) > 1:
        raise ChangeRefused(f"voters change one at a time, not {sorted(changed)} at once")
    if not new.voters:
        raise ChangeRefused("the last voter cannot be removed")
    if both := new.voters.keys() & new.learners.keys():
        raise ChangeRefused(f"{sorted(both)} would be both voters and learners")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Configuration)


def encode_configuration(configuration: Configuration) -> bytes:
    return _encoder.encode(configuration)


def decode_configuration(payload: bytes) -> Configuration:
    """Raises msgspec.DecodeError if the payload is not a configuration."""
    return _decoder.decode(payload)


def _sorted(members: dict[int, Member]) -> dict[int, Member]:
    """Sort by node id, so that equal configurations encode to equal bytes."""
    return dict(sorted(members.items()))


def _with_directories(members: dict[int, Member], directories: dict[int, UUID]) -> dict[int, Member]:
    return {
        node: Member(member.url, member.directory or directories.get(node))
        for node, member in members.items()
    }
