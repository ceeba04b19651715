"""Login of a broker at another one, if inter.broker.listener.name is a SASL listener. Called by the network
of `broker.platform`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tierlog.base.network import Unreachable
from tierlog.broker.replication.broker_connection import BrokerConnection
from tierlog.config.node import NodeSettings
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl.client_login import HANDSHAKE_VERSION, LoginRefused, login_requests

TIMEOUT_S = 5.0
CALLS: Mapping[type, tuple[int, int]] = {
    SaslHandshakeRequest: (BY_NAME["SaslHandshake"].key, HANDSHAKE_VERSION),
    SaslAuthenticateRequest: (BY_NAME["SaslAuthenticate"].key, 2),
}
"""Key and version of each request of a login."""


RENEWED_AFTER = 0.85
"""Part of a login's lifetime after which it is renewed, the least that clients of Kafka wait."""

RENEWED_AFTER_MIN_S = 1.1
"""A broker accepts a login of the same connection once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLogin:
    mechanism: str
    user: str
    password: str = field(repr=False)

    async def log_in(self, connection: BrokerConnection, peer: str) -> None:
        """Log in, and have the connection do so again before the login expires.

        Raises Unreachable: the caller tries again later, as if the broker were down. By then the user may
        exist."""
        try:
            lifetime_ms = await self._log_in(connection, peer)
        except BaseException:
            connection.close()
            raise
        if lifetime_ms > 0:
            delay_s = max(lifetime_ms / 1000 * RENEWED_AFTER, RENEWED_AFTER_MIN_S)
            connection.renew_after(delay_s, partial(self.log_in, connection, peer))

    async def _log_in(self, connection: BrokerConnection, peer: str) -> int:
        """Returns for how many ms the login is valid; 0: for as long as the connection is open."""
        requests = login_requests(self.mechanism, self.user, self.password)
        try:
            request = next(requests)
            while True:
                key, version = CALLS[type(request)]
                request = requests.send(await connection.call(key, version, request, TIMEOUT_S))
        except StopIteration as done:
            return int(done.value)
        except LoginRefused as refusal:
            raise Unreachable(f"{peer} {refusal}") from None


def inter_broker_login(settings: NodeSettings) -> BrokerLogin | None:
    """None if brokers need no login at each other. Raises InvalidSetting."""
    between = settings.inter_broker_listener
    has_sasl = any(one.protocol.has_sasl for one in settings.client_listeners if one.name == between)
    if not has_sasl or not settings.controller_quorum_secret:
        return None
    settings = settings.for_listener(between)
    user, password = settings.inter_broker_login
    return BrokerLogin(mechanism=settings.sasl_mechanism_inter_broker_protocol, user=user, password=password)
