"""The bounds and times of a Raft core."""

from dataclasses import dataclass

MIB = 1 << 20
HEARTBEATS_PER_TIMEOUT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """Times in ticks. A follower waits for election_ticks to twice that; drawn anew each time (3.4).
    `quorum_ticks`: a leader that no majority answers for so long steps down; 0: as election_ticks."""

    election_ticks: int = 10
    quorum_ticks: int = 0
    heartbeat_ticks: int = 1
    append_bytes: int = MIB  # per message
    window: int = 64  # unanswered appends per follower
    chunk_bytes: int = MIB  # of a snapshot
    snapshot_bytes: int = 1024 * MIB  # the largest that is accepted

    @classmethod
    def from_durations(cls, *, tick_ms: int, election_ms: int, quorum_ms: int) -> "RaftSettings":
        """Times rounded up to ticks. Heartbeats as often as an election timeout bears the loss of four in a
        row: two requests for each follower are most of what an idle quorum costs.
        """
        election_ticks, quorum_ticks = -(-election_ms // tick_ms), -(-quorum_ms // tick_ms)
        timer = min(election_ticks, quorum_ticks or election_ticks)
        return cls(
            election_ticks=election_ticks,
            quorum_ticks=quorum_ticks,
            heartbeat_ticks=max(timer // HEARTBEATS_PER_TIMEOUT, 1),
        )

    @property
    def check_quorum_ticks(self) -> int:
        """Of a leader with its quorum."""
        return self.quorum_ticks or self.election_ticks
