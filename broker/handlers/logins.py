"""Logins of a node: the mechanisms of each SASL listener, by its settings. Built by app.py."""

import secrets
from collections.abc import Mapping

from tierlog.base.clock import Clock
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.context import Authentication, Connection
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.sasl import NO_LIMIT, LoginCounts, LoginListener
from tierlog.broker.security.jwks import KeySet, key_set_of
from tierlog.broker.security.jwt_tokens import TokenValidator, token_validator
from tierlog.broker.security.mechanisms import OAUTHBEARER, PLAIN, Mechanisms
from tierlog.broker.security.unknown_users import cluster_secret
from tierlog.config.listeners import ListenerSettings
from tierlog.config.node import NodeSettings
from tierlog.metadata.scram_users import (
    ScramUsers,
)


class CertificateLogin:
    """The login of a connection by its client's certificate, if it ends with that; an `Authentication` of
    handlers.context. The next request after the expiry closes the connection."""

    frame_bytes_max = NO_LIMIT
    reads_raw = is_overdue = False

    def __init__(self, expires_ms: int, counts: LoginCounts, clock: Clock) -> None:
        self._expires_ms = expires_ms
        self._counts = counts
        self._clock = clock
        self.closes = False

    def admits(self, api: int) -> bool:
        if self._clock.now_ms() < self._expires_ms:
            return True
        self._counts.expired += not self.closes
        self.closes = True
        return False


class Logins:
    """`begin` begins the login of a connection. A listener without SASL has none, unless its connections end
    with the client's certificate."""

    def __init__(self, deps: Dependencies, cluster_id: str) -> None:
        settings, tokens = deps.settings, deps.delegation_tokens
        self._audit = deps.audit
        self._clock = deps.clock
        self._metadata = deps.metadata
        self._secret = cluster_secret(settings, cluster_id)
        self._delegation_tokens = tokens if tokens.enabled else None
        self._key_sets: list[KeySet] = []
        self._by_name = {
            listener.name: self._build(listener, settings.for_listener(listener.name))
            for listener in settings.client_listeners
            if listener.protocol.has_sasl
        }
        self._ending = {
            listener.name
            for listener in settings.client_listeners
            if settings.for_listener(listener.name).ssl_client_auth_ends_with_certificate
        }
        self._counts = {listener.name: LoginCounts() for listener in settings.client_listeners}
        self._counts |= {name: listener.counts for name, listener in self._by_name.items()}

    def start(self, tasks: TaskGroup) -> None:
        for key_set in self._key_sets:
            tasks.spawn("keys of OAUTHBEARER tokens", key_set.keep_fresh())

    def begin(self, connection: Connection) -> Authentication | None:
        if (listener := self._by_name.get(connection.listener)) is not None:
            return listener.begin(connection)
        expires_ms = connection.certificate_expires_ms
        if expires_ms is None or connection.listener not in self._ending:
            return None
        return CertificateLogin(expires_ms, self._counts[connection.listener], self._clock)

    @property
    def counts(self) -> Mapping[str, LoginCounts]:
        """By the name of each listener, also of those without SASL."""
        return self._counts

    def _build(self, listener: ListenerSettings, settings: NodeSettings) -> LoginListener:
        enabled = settings.sasl_enabled_mechanisms
        return LoginListener(
            listener.name,
            Mechanisms(
                enabled=enabled,
                users=self._users,
                delegation_tokens=self._delegation_tokens,
                secret=self._secret,
                random_bits=secrets.randbits,
                now_ms=self._clock.now_ms,
                passwords=settings.plain_users if PLAIN in enabled else {},
                tokens=self._tokens(settings) if OAUTHBEARER in enabled else None,
            ),
            self._clock,
            receive_bytes_max=settings.sasl_server_max_receive_size,
            delay_ms=settings.connection_failed_authentication_delay_ms,
            session_ms=settings.connections_max_reauth_ms,
            audit=self._audit,
        )

    def _users(self) -> ScramUsers:
        return self._metadata.image.scram_users

    def _tokens(self, settings: NodeSettings) -> TokenValidator:
        keys = key_set_of(settings)
        self._key_sets.append(keys)
        return token_validator(settings, keys)
