"""Settings of a Raft core: times in ticks, and bounds."""

from dataclasses import dataclass

MIB = 1 << 20
HEARTBEATS_PER_TIMEOUT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """A follower's election timeout is random, between `election_ticks` and twice that (Raft thesis, section
    3.4). A leader steps down if no majority responds for `quorum_ticks`; 0: for `election_ticks`."""

    election_ticks: int = 10
    quorum_ticks: int = 0
    heartbeat_ticks: int = 1
    max_append_bytes: int = MIB  # per message
    max_inflight_appends: int = 64  # unanswered appends per follower
    snapshot_chunk_bytes: int = MIB  # size of one part of a snapshot
    max_snapshot_bytes: int = 1024 * MIB  # size of the largest snapshot that is accepted

    @classmethod
    def from_durations(cls, *, tick_ms: int, election_ms: int, quorum_ms: int) -> "RaftSettings":
        """Round the times up to ticks. Heartbeats dominate the cost of an idle quorum, so the interval is a
        fifth of the timeout: a follower starts an election only after it has missed about five.
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
