"""Failure log: logs unexpected exceptions with their tracebacks and counts them.

The node continues: a request gets an error, and a repeated task (`TaskGroup.repeat`) runs again. The failure
of a vital task stops the node instead (`node_base`).
"""

import structlog

_log = structlog.get_logger("tierlog")


class FailureLog:
    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, failure: BaseException) -> None:
        """Called by `TaskGroup`."""
        self.count += 1
        _log.error(
            "failed",
            what=name,
            next="the node continues; report this bug with its traceback; if it recurs, a restart may help",
            exc_info=failure,
        )
