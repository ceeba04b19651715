"""Election timer: counts the ticks that a node waits for a leader before it campaigns.

The timeout is drawn at random after each change of role, so that nodes rarely campaign at the same time
(thesis 3.4). Contact with a leader or a granted vote restarts the timer. Called by the core.
"""

from tierlog.base.types import Rng
from tierlog.metadata.raft.settings import RaftSettings

RANK_TICKS = 2  # between the campaigns of two survivors of a dead leader: long enough for an election


class ElectionTimer:
    __slots__ = ("_leader_died", "_rng", "_settings", "_ticks", "_timeout")

    def __init__(self, settings: RaftSettings, rng: Rng) -> None:
        self._settings, self._rng = settings, rng
        self._leader_died = False
        self.reset()

    @property
    def has_expired(self) -> bool:
        return self._ticks >= self._timeout

    @property
    def leader_is_recent(self) -> bool:
        """Whether the timer restarted less than the shortest election timeout ago."""
        return self._ticks < self._settings.election_ticks

    @property
    def quorum_check_is_due(self) -> bool:
        """Whether the leader must check again that a majority responds (6.2)."""
        return self._ticks >= self._settings.check_quorum_ticks

    def tick(self) -> None:
        self._ticks += 1

    def restart(self) -> None:
        self._ticks = 0

    def on_leader_contact(self) -> None:
        self._ticks, self._leader_died = 0, False

    def reset(self) -> None:
        """The role changed: draw a new timeout. It is short after a leader's death, because a pre-vote fails
        while other nodes have not noticed the death yet."""
        ticks = RANK_TICKS if self._leader_died else self._settings.election_ticks
        self._ticks, self._timeout = 0, ticks + self._rng.randrange(ticks)

    def on_leader_death(self) -> None:
        """The leader's process has died: use short timeouts until the next leader contact."""
        self._leader_died = True

    def delay_for_rank(self, rank: int) -> None:
        """Campaign after `rank` other survivors have had their turn."""
        self._ticks, self._timeout = 0, RANK_TICKS * rank
