"""Progress of one follower, as its leader knows it, and the flow control of what is sent to it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from tierlog.metadata.raft.messages import Snapshot


class ProgressState(Enum):
    PROBE = "probe"  # the leader does not know where the logs agree: one append at a time
    REPLICATE = "replicate"  # the logs agree: appends are pipelined, up to the window
    SNAPSHOT = "snapshot"  # the next entries were compacted away: snapshot chunks, one at a time


@dataclass(slots=True)
class Progress:
    """Invariant: match_index < next_index; in PROBE and SNAPSHOT at most one message is in flight."""

    next_index: int
    window: int
    match_index: int = 0
    sent_commit: int = 0  # the commit index in the newest append
    state: ProgressState = ProgressState.PROBE
    confirmed_read: int = 0  # the newest read request that the follower confirmed (thesis 6.4)
    round_end: int = 0  # a learner's round of catching up ends at this index (thesis 4.2.1)
    round_ticks: int = 0
    caught_up: bool = False
    recently_active: bool = False  # replied since the last check-quorum (thesis 6.2)
    probe_sent: bool = False
    in_flight: deque[int] = field(default_factory=deque)  # last index of each unanswered append
    snapshot: Snapshot | None = None
    snapshot_crc32c: int = 0
    chunk_offset: int = 0  # bytes of the snapshot that the follower has
    chunk_unacknowledged: bool = False  # no reply since the last heartbeat: send the chunk again

    @property
    def paused(self) -> bool:
        """Whether no append may be sent now."""
        if self.state is ProgressState.PROBE:
            return self.probe_sent
        return self.state is ProgressState.SNAPSHOT or len(self.in_flight) >= self.window

    def probe(self, next_index: int) -> None:
        self._enter(ProgressState.PROBE)
        self.next_index = max(next_index, self.match_index + 1)

    def replicate(self) -> None:
        self._enter(ProgressState.REPLICATE)
        self.next_index = self.match_index + 1

    def send_snapshot(self, snapshot: Snapshot, checksum: int) -> None:
        self._enter(ProgressState.SNAPSHOT)
        self.snapshot, self.snapshot_crc32c = snapshot, checksum
        self.next_index = snapshot.index + 1

    def on_append_sent(self, last_index: int, count: int) -> None:
        """An append of `count` entries up to `last_index` was sent."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
        elif count:
            self.next_index = last_index + 1
            self.in_flight.append(last_index)

    def on_accepted(self, match_index: int) -> bool:
        """Returns whether `match_index` advanced."""
        while self.in_flight and self.in_flight[0] <= match_index:
            self.in_flight.popleft()
        self.next_index = max(self.next_index, match_index + 1)
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        return True

    def on_refused(self, refused_index: int, retry_index: int) -> bool:
        """Probe from `retry_index + 1`. Returns False if the reply is stale."""
        stale = refused_index <= self.match_index
        if self.state is ProgressState.PROBE:
            stale = stale or refused_index != self.next_index - 1
        if stale or self.state is ProgressState.SNAPSHOT:
            return False
        self.probe(min(refused_index, retry_index + 1))
        return True

    def end_round(self, last_index: int, max_ticks: int) -> None:
        """End a learner's round if it has reached `round_end`. The learner is caught up if the round took
        less than an election timeout (thesis 4.2.1)."""
        if self.match_index >= self.round_end:
            self.caught_up = self.round_ticks < max_ticks
            self.round_end, self.round_ticks = last_index, 0

    def on_tick(self, max_ticks: int) -> None:
        """A round longer than an election timeout means that the learner has fallen behind or is down."""
        self.round_ticks += 1
        if self.round_ticks >= max_ticks:
            self.caught_up = False

    def on_heartbeat_reply(self) -> None:
        """The follower is reachable: messages that may be lost can be sent again."""
        self.recently_active = True
        self.probe_sent = False
        if len(self.in_flight) >= self.window:
            self.in_flight.popleft()

    def _enter(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self.in_flight.clear()
        self.snapshot = None
        self.chunk_offset = 0
        self.chunk_unacknowledged = False
