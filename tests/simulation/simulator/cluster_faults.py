"""Faults of a cluster's brokers beside those that strike any node: their log directories and reads."""

import errno
from collections.abc import Callable

from simulator.broker import SimBroker
from simulator.faults import DOWN_S, Faults

READ_FAILS_S = 1.0
"""Within that time a read fails, once, or none does."""


class ClusterFaults(Faults):
    """And those of log directories."""

    may_wipe: Callable[[SimBroker], bool]
    over = False

    def strike_further(self, kind: str, node: SimBroker) -> bool:
        if kind == "directory" and self._may_fail(node):
            node.lose_directory(self._rng)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart, node)
        elif kind == "read" and self._may_fail(node):
            node.disk.fails_at["read"] = errno.EIO
            self._loop.call_later(READ_FAILS_S, node.disk.fails_at.pop, "read", None)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart_lacking, node)
        elif kind == "reset" and node.is_up:
            node.forge_death()
        elif kind == "wipe" and self.may_wipe(node):
            self.kill(node)
            node.wipe_directory(self._rng)
        else:
            return False
        return True

    def end(self) -> None:
        self.over = True
        super().end()

    def _restart_lacking(self, node: SimBroker) -> None:
        """A read that fails takes a directory along only while its logs are opened."""
        if node.lacks_directories:
            self._restart(node)

    def _restart(self, node: SimBroker) -> None:
        if not self.over:  # else whoever waits for all to be well does it
            self.kill(node)
