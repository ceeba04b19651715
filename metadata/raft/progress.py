"""What a leader knows of one follower, and how fast it may send to it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from tierlog.metadata.raft.messages import Snapshot


class ProgressState(Enum):
    PROBE = "probe"  # where the logs agree is not known: one message at a time
    REPLICATE = "replicate"  # agreed: entries are pipelined, up to the window
    SNAPSHOT = "snapshot"  # the entries it needs are gone: chunks, one at a time


@dataclass(slots=True)
class Progress:
    """Invariant: match_index < next_index; in PROBE and SNAPSHOT nothing is in flight but the one message."""

    next_index: int
    window: int
    match_index: int = 0
    sent_commit: int = 0  # the commit index in the newest append to it
    state: ProgressState = ProgressState.PROBE
    confirmed_read: int = 0  # the newest question that it has answered (6.4)
    round_end: int = 0  # of a learner: holding this ends its round of catching up (4.2.1)
    round_ticks: int = 0
    caught_up: bool = False
    recently_active: bool = False  # heard from since the last check of the quorum (6.2)
    probe_sent: bool = False
    in_flight: deque[int] = field(default_factory=deque)  # last index of each unanswered append
    snapshot: Snapshot | None = None
    snapshot_crc32c: int = 0
    chunk_offset: int = 0  # bytes of the snapshot that it has
    chunk_unanswered: bool = False  # no answer since the last heartbeat: send the chunk again

    @property
    def paused(self) -> bool:
        """No append may be sent now."""
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
        """An append went out that ends at last_index."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
        elif count:
            self.next_index = last_index + 1
            self.in_flight.append(last_index)

    def on_accepted(self, match_index: int) -> bool:
        """True if it is known to hold more than before."""
        while self.in_flight and self.in_flight[0] <= match_index:
            self.in_flight.popleft()
        self.next_index = max(self.next_index, match_index + 1)
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        return True

    def on_refused(self, refused_index: int, retry_index: int) -> bool:
        """Steps back to send what follows retry_index; False if the answer is old news."""
        stale = refused_index <= self.match_index
        if self.state is ProgressState.PROBE:
            stale = stale or refused_index != self.next_index - 1
        if stale or self.state is ProgressState.SNAPSHOT:
            return False
        self.probe(min(refused_index, retry_index + 1))
        return True

    def end_round(self, last_index: int, max_ticks: int) -> None:
        """Caught up: what was new when a round began took less than an election timeout to send (4.2.1)."""
        if self.match_index >= self.round_end:
            self.caught_up = self.round_ticks < max_ticks
            self.round_end, self.round_ticks = last_index, 0

    def on_tick(self, max_ticks: int) -> None:
        """Who lets a round last for so long has fallen behind again, or is away."""
        self.round_ticks += 1
        if self.round_ticks >= max_ticks:
            self.caught_up = False

    def on_heartbeat_reply(self) -> None:
        """A heartbeat was answered: whatever was lost may be tried again."""
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
        self.chunk_unanswered = False
