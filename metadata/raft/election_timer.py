"""How long a node waits before it stands for election, counted in ticks since it last had a reason to wait.

A reason: a leader was heard, a vote was given, the role changed. The time is drawn anew with each change of
role, so that those who wait are not due together again (3.4). Called by the core.
"""

from tierlog.base.types import Rng
from tierlog.metadata.raft.settings import RaftSettings

RANK_TICKS = 2  # head start of each survivor of a dead leader before the next: an election fits into it


class ElectionTimer:
    __slots__ = ("_leader_died", "_rng", "_settings", "_ticks", "_timeout")

    def __init__(self, settings: RaftSettings, rng: Rng) -> None:
        self._settings, self._rng = settings, rng
        self._leader_died = False  # the leader's process is known to be dead
        self.reset()

    @property
    def has_expired(self) -> bool:
        return self._ticks >= self._timeout

    @property
    def leader_is_recent(self) -> bool:
        """The reason to wait is younger than the shortest election timeout."""
        return self._ticks < self._settings.election_ticks

    @property
    def quorum_check_is_due(self) -> bool:
        """Of a leader: whether a majority answers is to be looked at again."""
        return self._ticks >= self._settings.check_quorum_ticks

    def tick(self) -> None:
        self._ticks += 1

    def restart(self) -> None:
        """There is a reason to wait again."""
        self._ticks = 0

    def on_leader_contact(self) -> None:
        self._ticks, self._leader_died = 0, False

    def reset(self) -> None:
        """The role changed. An orphan asks again soon: the others may not have noticed the death yet."""
        ticks = RANK_TICKS if self._leader_died else self._settings.election_ticks
        self._ticks, self._timeout = 0, ticks + self._rng.randrange(ticks)

    def on_leader_death(self) -> None:
        """The leader's process has died: until another one is heard, timer is short."""
        self._leader_died = True

    def delay_for_rank(self, rank: int) -> None:
        """An orphan's turn comes after those of so many others."""
        self._ticks, self._timeout = 0, RANK_TICKS * rank
