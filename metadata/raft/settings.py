"""Settings of a Raft core: times in ticks, and bounds."""

from dataclasses import dataclass

MIB = 1 << 20
HEARTBEATS_PER_TIMEOUT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """A follower's election timeout is random, between `election_ticks` and twice that (3.4). A leader steps
    down if no majority responds for `quorum_ticks`; 0: for `election_ticks`."""

    election_ticks: int = 10
    quorum_ticks: int = 0
    heartbeat_ticks: int = 1
    append_bytes: int = MIB  # per message
    window: int = 64  # unanswered appends per follower
    chunk_bytes: int = MIB  # size of one part of a snapshot
    snapshot_bytes: int = 1024 * MIB  # size of the largest snapshot that is accepted

    @classmethod
    def from_durations(cls, *, tick_ms: int, election_ms: int, quorum_ms: int) -> "RaftSettings":
        """Round the times up to ticks. Heartbeats are most of the cost of an idle quorum, so they are as rare
        as possible: a follower that misses four in a row does not yet campaign.
        """
        election_ticks, quorum_ticks = -(-election_ms // tick_ms), -(-quorum_ms // tick_ms)
        shortest = min(election_ticks, quorum_ticks or election_ticks)
        return cls(
            election_ticks=election_ticks,
            quorum_ticks=quorum_ticks,
            heartbeat_ticks=max(shortest // HEARTBEATS_PER_TIMEOUT, 1),
        )

    @property
    def check_quorum_ticks(self) -> int:
        """How long a leader continues without responses from a majority."""
        return self.quorum_ticks or self.election_ticks
