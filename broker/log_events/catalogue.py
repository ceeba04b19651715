"""Catalogue of log events: every event that a node or the REST gateway logs, with its text and remedy.

A call of a logger names the event, as in `_log.error("log.damaged", partition=…)`. `log_output` adds text and
remedy from here, so that neither has a second copy. A name never changes, and is never used again for
something else: alerts and searches of operators depend on it. docs/reference/events.md is generated from here
and from the calls, and tests/unit/log_events compares the two.
"""

from collections.abc import Mapping
from typing import Final

from tierlog.broker.log_events.access import ACCESS
from tierlog.broker.log_events.cluster import CLUSTER
from tierlog.broker.log_events.event import Event
from tierlog.broker.log_events.gateway import GATEWAY
from tierlog.broker.log_events.storage import STORAGE
from tierlog.broker.log_events.tiering import TIERING

SECTIONS: Final[Mapping[str, Mapping[str, Event]]] = {
    "Nodes, the quorum, groups and transactions": CLUSTER,
    "Connections, logins and the audit log": ACCESS,
    "Logs, disks and replication": STORAGE,
    "Tiering and the object store": TIERING,
    "The REST gateway": GATEWAY,
}
"""Heading in the reference page -> events by name."""

EVENTS: Final[Mapping[str, Event]] = {
    name: one for events in SECTIONS.values() for name, one in events.items()
}
