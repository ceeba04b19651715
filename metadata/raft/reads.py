"""Linearizable reads with ReadIndex (thesis 6.4): confirm leadership with a round of heartbeats, not a log
entry.

Read requests are numbered. A heartbeat carries the newest number and its reply returns it. Once a majority
has returned a number, no newer leader can have committed an entry before that request. Requests that arrive
during a round share the next one.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Reads:
    """Numbers of the newest read request at each stage. Invariant: confirmed <= sent <= requested."""

    requested: int = 0
    sent: int = 0
    confirmed: int = 0

    @property
    def round_is_due(self) -> bool:
        return self.requested > self.sent == self.confirmed

    def on_majority_reply(self, majority: int) -> None:
        """A majority has returned this number."""
        self.confirmed = max(self.confirmed, min(majority, self.sent))
