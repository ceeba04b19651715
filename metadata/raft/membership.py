"""Configurations: the voters and learners, and which changes are allowed (thesis 4).

A configuration is the payload of a log entry of its own kind. It takes effect as soon as the entry is in the
log, committed or not. Truncation restores the one before, and a snapshot carries the one as of its index.
"""

from uuid import UUID

import msgspec


class Member(msgspec.Struct, frozen=True, array_like=True):
    """URL of a node, and id of the directory that holds its log and vote (KIP-853). A node that returns with
    another directory has forgotten its vote. None: not known yet."""

    url: str = ""
    directory: UUID | None = None


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Learners receive the log and count in no majority (thesis 4.2.1). No node is both."""

    voters: dict[int, Member]
    learners: dict[int, Member] = {}

    @property
    def members(self) -> dict[int, Member]:
        return {**self.voters, **self.learners}

    def includes(self, node_id: int) -> bool:
        return node_id in self.voters or node_id in self.learners

    def with_learner(self, node_id: int, member: Member) -> "Configuration":
        voters = {n: m for n, m in self.voters.items() if n != node_id}
        return Configuration(voters, _sorted({**self.learners, node_id: member}))

    def with_voter(self, node_id: int, member: Member) -> "Configuration":
        learners = {n: m for n, m in self.learners.items() if n != node_id}
        return Configuration(_sorted({**self.voters, node_id: member}), learners)

    def without(self, node_id: int) -> "Configuration":
        return Configuration(
            {n: m for n, m in self.voters.items() if n != node_id},
            {n: m for n, m in self.learners.items() if n != node_id},
        )

    def with_directories(self, directories: dict[int, UUID]) -> "Configuration":
        """Fill in directories that were not known. Known ones stay."""
        return Configuration(
            _with_directories(self.voters, directories), _with_directories(self.learners, directories)
        )


class ChangeRefused(Exception):
    """The change of the configuration is not allowed, or not yet."""


def check_change(old: Configuration, new: Configuration) -> None:
    """Raise ChangeRefused unless at most one voter changes: then any two majorities overlap (thesis 4.1)."""
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
    """Raises msgspec.DecodeError."""
    return _decoder.decode(payload)


def _sorted(members: dict[int, Member]) -> dict[int, Member]:
    """Sorted, so that equal configurations encode to equal bytes."""
    return dict(sorted(members.items()))


def _with_directories(members: dict[int, Member], directories: dict[int, UUID]) -> dict[int, Member]:
    return {
        node: Member(member.url, member.directory or directories.get(node))
        for node, member in members.items()
    }
