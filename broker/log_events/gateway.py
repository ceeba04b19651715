"""Events of the REST gateway (`tierlog rest`), a process of its own."""

from collections.abc import Mapping
from typing import Final

from tierlog.broker.log_events.event import Event

GATEWAY: Final[Mapping[str, Event]] = {
    "rest.request.failed": Event(
        "a request failed", "The gateway continues. Report this bug with its traceback."
    ),
    "rest.stopping": Event("stopping: requests and streams end"),
    "rest.task.failed": Event("a task failed", "The gateway continues. Report this bug with its traceback."),
}
