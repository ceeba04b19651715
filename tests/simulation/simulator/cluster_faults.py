"""Faults of brokers: log directories and reads, beside the faults of any node."""

import errno
from collections.abc import Callable

from simulator.broker import SimBroker
from simulator.faults import DOWN_S, Faults

READ_FAILS_S = 1.0
"""At most one read fails within this time."""


class ClusterFaults(Faults):
    """Faults of nodes and of their log directories."""

    may_wipe: Callable[[SimBroker], bool]
    over = False

    def inject_cluster_fault(self, kind: str, node: SimBroker) -> bool:
        if kind == "directory" and self._may_fail(node):
            node.lose_directory(self._rng)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart, node)
        elif kind == "read" and self._may_fail(node):
            node.disk.fails_at["read"] = errno.EIO
            self._loop.call_later(READ_FAILS_S, node.disk.fails_at.pop, "read", None)
            self._loop.call_later(self._rng.uniform(1, DOWN_S), self._restart_lacking, node)
        elif kind == "reset" and node.is_up:
            node.reset_connections()
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
        """A failed read takes a directory offline only while its logs are opened."""
        if node.lacks_directories:
            self._restart(node)

    def _restart(self, node: SimBroker) -> None:
        if not self.over:  # after the faults, the run restarts nodes while it waits for recovery
            self.kill(node)
