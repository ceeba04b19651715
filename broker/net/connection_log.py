"""Connection log: logs connections that were closed for a fault or refused. Called by the listener."""

import asyncio

import structlog

from tierlog.broker.handlers.context import Connection
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Refusal

REFUSALS_LOGGED_EVERY_S = 10.0
_log = structlog.get_logger("tierlog")


def log_close(connection: Connection, why: CloseReason, detail: str) -> None:
    """Log connections that the broker closed for a fault; most ends are ordinary."""
    if why in (
        CloseReason.MALFORMED,
        CloseReason.SLOW,
        CloseReason.UNANSWERED,
        CloseReason.BLOCKED,
        CloseReason.CROWDED,
    ):
        client = f"{connection.peer_host}:{connection.peer_port}"
        software = f"{connection.client_software} {connection.client_software_version}"
        _log.warning("closed a connection", why=why.value, detail=detail, client=client, software=software)


class RefusalLog:
    """Logs refusals at most every REFUSALS_LOGGED_EVERY_S: refused clients reconnect."""

    def __init__(self) -> None:
        self._quiet_until: dict[Refusal, float] = {}

    def __call__(self, refusal: Refusal, host: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until.get(refusal, 0.0):
            self._quiet_until[refusal] = now + REFUSALS_LOGGED_EVERY_S
            _log.warning("connections are refused or wait", bound=refusal.value, client=host)
