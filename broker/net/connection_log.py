"""What the log says of connections that ended or were refused. Called by the listener, through app.py."""

import asyncio

import structlog

from tierlog.broker.handlers.context import Connection
from tierlog.broker.net.end_reasons import Why
from tierlog.broker.net.listener import Refusal

REFUSALS_LOGGED_EVERY_S = 10.0
_log = structlog.get_logger("tierlog")


def note_end(connection: Connection, why: Why, detail: str) -> None:
    """What an operator wants to know of a connection that ended; most ends are ordinary."""
    if why in (Why.MALFORMED, Why.SLOW, Why.UNANSWERED, Why.BLOCKED, Why.CROWDED):
        client = f"{connection.peer_host}:{connection.peer_port}"
        software = f"{connection.client_software} {connection.client_software_version}"
        _log.warning("closed a connection", why=why.value, detail=detail, client=client, software=software)


class RefusalNotes:
    """A line of the log for refused connections, not one for each: who is refused tries again."""

    def __init__(self) -> None:
        self._quiet_until: dict[Refusal, float] = {}

    def __call__(self, refusal: Refusal, host: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until.get(refusal, 0.0):
            self._quiet_until[refusal] = now + REFUSALS_LOGGED_EVERY_S
            _log.warning("connections are refused or wait", bound=refusal.value, client=host)
