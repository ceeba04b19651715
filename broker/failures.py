"""Failure log: exceptions that no code expected, each logged with its traceback, and counted.

The node goes on: a request gets an error, and a task that takes turns (`TaskGroup.repeat`) its next one. A
task that the node cannot do without ends it instead (`Foundation`).
"""

import structlog

_log = structlog.get_logger("tierlog")


class FailureLog:
    def __init__(self) -> None:
        self.count = 0

    def report(self, name: str, failure: BaseException) -> None:
        """As `TaskGroup` reports it."""
        self.count += 1
        _log.error(
            "failed",
            what=name,
            next="the node goes on; report this bug with its traceback; a restart may help if it comes again",
            exc_info=failure,
        )
