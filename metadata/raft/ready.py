"""Ready: the outstanding work of the core, for its driver."""

from dataclasses import dataclass

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the driver, in the order in which it must be done:

    1. Send `immediate_messages`. They need not wait for a write, because a leader counts its own copy of an
       entry only after `persisted` (thesis 10.2.1).
    2. Write `snapshot`, `entries` and `hard_state`, in this order, with one fsync at the end.
    3. Call `persisted(ready)`, send `messages` (votes and acknowledgements of what was just written), and
       apply `committed`.
    4. Serve every read request up to number `reads` from the applied state.
    """

    immediate_messages: tuple[m.AnyMessage, ...]
    snapshot: Snapshot | None  # replaces the log and the state machine
    entries: tuple[Entry, ...]  # overwrite the log from entries[0].index on
    hard_state: HardState | None  # None: need not be written now
    messages: tuple[m.AnyMessage, ...]
    committed: tuple[Entry, ...]
    reads: int = 0  # number of the last confirmed read request

    @property
    def must_persist(self) -> bool:
        """Whether step 2 has anything to write."""
        return bool(self.snapshot or self.entries or self.hard_state)
