"""How long a node waits before it stands for election, counted in ticks since it last had a reason to wait.

A reason: a leader was heard, a vote was given, the role changed. The time is drawn anew with each change of
role, so that those who wait are not due together again (3.4). Called by the core.
"""

from tierlog.base.types import Rng
from tierlog.metadata.raft.settings import RaftSettings

RANK_TICKS = 2  # head start of each survivor of a dead leader before the next: an election fits into it


class Patience:
    __slots__ = ("_drawn", "_orphaned", "_rng", "_settings", "_ticks")

    def __init__(self, settings: RaftSettings, rng: Rng) -> None:
        self._settings, self._rng = settings, rng
        self._orphaned = False  # the leader's process is known to be dead
        self.renew()

    @property
    def is_over(self) -> bool:
        return self._ticks >= self._drawn

    @property
    def is_fresh(self) -> bool:
        """The reason to wait is younger than the shortest election timeout."""
        return self._ticks < self._settings.election_ticks

    @property
    def quorum_is_due(self) -> bool:
        """Of a leader: whether a majority answers is to be looked at again."""
        return self._ticks >= self._settings.patience_ticks

    def tick(self) -> None:
        self._ticks += 1

    def restart(self) -> None:
        """There is a reason to wait again."""
        self._ticks = 0

    def heard_leader(self) -> None:
        self._ticks, self._orphaned = 0, False

    def renew(self) -> None:
        """The role changed. An orphan asks again soon: the others may not have noticed the death yet."""
        ticks = RANK_TICKS if self._orphaned else self._settings.election_ticks
        self._ticks, self._drawn = 0, ticks + self._rng.randrange(ticks)

    def orphan(self) -> None:
        """The leader's process has died: until another one is heard, patience is short."""
        self._orphaned = True

    def wait_in_rank(self, rank: int) -> None:
        """An orphan's turn comes after those of so many others."""
        self._ticks, self._drawn = 0, RANK_TICKS * rank
