"""What the core hands its driver to do."""

from dataclasses import dataclass

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the driver, in the order in which it must be done.

    `immediate_messages` may leave before anything is written: a leader's own copy counts only after
    `persisted` (10.2.1). `snapshot`, `entries` and `hard_state` are then made durable, in this order, with
    one fsync at the end. Only when that is done: `persisted(ready)` is called, `messages` leave (votes and
    acknowledgements, which promise what was just written), and `committed` is applied. Then every question
    up to number `reads` may be answered from what is applied.
    """

    immediate_messages: tuple[m.AnyMessage, ...]
    snapshot: Snapshot | None  # replaces the log and the state machine
    entries: tuple[Entry, ...]  # overwrite whatever the log holds from entries[0].index on
    hard_state: HardState | None
    messages: tuple[m.AnyMessage, ...]
    committed: tuple[Entry, ...]
    reads: int = 0

    @property
    def writes(self) -> bool:
        return bool(self.snapshot or self.entries or self.hard_state)
