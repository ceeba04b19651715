"""ReadIndex (thesis 6.4): proof that a leader still led after a question came, without a log entry.

Questions are numbered. A number goes out with heartbeats and comes back with their answers; once a majority
has answered a heartbeat that carried it, no newer leader can have committed anything before it was asked.
Questions that come while a round is under way share the next one.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Reads:
    """Invariant: confirmed <= sent <= asked."""

    requested: int = 0
    sent: int = 0
    confirmed: int = 0

    @property
    def round_is_due(self) -> bool:
        return self.requested > self.sent == self.confirmed

    def on_majority_answered(self, majority: int) -> None:
        """A majority has answered rounds up to this number."""
        self.confirmed = max(self.confirmed, min(majority, self.sent))
