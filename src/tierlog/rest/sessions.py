"""Sessions: finds out by whose login a request is made, and keeps that principal's connections.

The gateway knows no users. HTTP's basic authentication (RFC 7617) becomes a login by SCRAM or PLAIN at the
broker, and a bearer token (RFC 6750) one by OAUTHBEARER. A session has the credentials that the broker has
accepted: a request with the same ones uses its connections, and one with others logs in itself.
"""

import asyncio
import binascii
import ssl
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tierlog.base.tasks import TaskGroup
from tierlog.client.connection import Address
from tierlog.client.errors import AuthenticationFailed
from tierlog.client.security import client_security
from tierlog.config.definitions import InvalidSetting
from tierlog.protocol.sasl.client_login import CLIENT_MECHANISMS, OAUTHBEARER
from tierlog.rest.cluster import Cluster
from tierlog.rest.connection import ANONYMOUS, Login
from tierlog.rest.errors import (
    NOT_AUTHENTICATED,
    RETRY_AFTER_S,
    TOO_MANY,
    UNAVAILABLE,
    RestError,
)
from tierlog.rest.producer import Producer

SESSIONS_MAX = 1_000
IDLE_S = 60.0
SWEEP_S = 10.0
LOGINS_MAX = 64
"""Logins that run at a time; more are refused, with status 429. The broker delays wrong ones, so that
passwords cannot be tried quickly."""

CREDENTIALS_CHARACTERS_MAX = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """How the gateway connects to brokers. `tls`: None for plain connections. `basic`: mechanism for names
    and passwords, "" if they are refused. `has_login`: whether brokers want a login."""

    tls: ssl.SSLContext | None = None
    has_login: bool = False
    basic: str = ""


def kafka_security(properties: Mapping[str, str]) -> KafkaSecurity:
    """From Kafka's client settings; a login in them is not used. Raises InvalidSetting."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    has_login = protocol.startswith("SASL_")
    transport = protocol.removeprefix("SASL_") if has_login else protocol
    tls = client_security({**properties, "security.protocol": transport}).tls
    if not has_login:
        return KafkaSecurity(tls=tls)
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "SCRAM-SHA-512"
    known = (*CLIENT_MECHANISMS, OAUTHBEARER)
    if mechanism not in known:
        raise InvalidSetting(f"sasl.mechanism: {mechanism!r} is not one of {', '.join(known)}")
    return KafkaSecurity(tls=tls, has_login=True, basic="" if mechanism == OAUTHBEARER else mechanism)


class Session:
    """One principal's use of the cluster."""

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer
        self.users = 0
        self.used_at = time.monotonic()


class Sessions:
    def __init__(self, seeds: Sequence[Address], security: KafkaSecurity, tasks: TaskGroup) -> None:
        self.failures = 0
        self._seeds = seeds
        self._security = security
        self._tasks = tasks
        self._sessions: dict[Login, Session] = {}
        self._beginning: dict[Login, asyncio.Future[Session]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def login_of(self, authorization: str | None) -> Login:
        """The login in a header Authorization. Raises RestError."""
        if not self._security.has_login:
            if authorization is not None:
                raise RestError(
                    NOT_AUTHENTICATED,
                    "the brokers want no login (security.protocol): send no Authorization",
                )
            return ANONYMOUS
        if authorization is None:
            raise RestError(NOT_AUTHENTICATED, "a login is needed: send the header Authorization")
        if len(authorization) > CREDENTIALS_CHARACTERS_MAX:
            raise RestError(NOT_AUTHENTICATED, "the header Authorization is too long")
        scheme, _, credentials = authorization.partition(" ")
        credentials = credentials.strip()
        if scheme.lower() == "bearer" and credentials.isascii() and credentials:
            return Login(mechanism=OAUTHBEARER, password=credentials)
        if scheme.lower() == "basic" and self._security.basic:
            user, password = _basic(credentials)
            return Login(mechanism=self._security.basic, user=user, password=password)
        ways = "Basic or Bearer" if self._security.basic else "Bearer"
        raise RestError(NOT_AUTHENTICATED, f"the header Authorization is invalid: send {ways} credentials")

    def challenges(self) -> list[str]:
        """Headers WWW-Authenticate of responses with status 401."""
        basic = ['Basic realm="tierlog", charset="UTF-8"'] if self._security.basic else []
        return [*basic, 'Bearer realm="tierlog"'] if self._security.has_login else []

    @asynccontextmanager
    async def session(self, login: Login) -> AsyncIterator[Session]:
        """The session with this login, for the time of a request. Raises RestError and ClientError."""
        session = self._sessions.get(login)
        if session is None:
            session = await self._begin(login)
        session.users += 1
        try:
            try:
                await session.cluster.authenticate()
            except AuthenticationFailed:  # the password has changed, or the token has expired
                self.failures += 1
                if self._sessions.get(login) is session:
                    del self._sessions[login]
                raise
            yield session
        finally:
            session.users -= 1
            session.used_at = time.monotonic()
            if session.users == 0 and self._sessions.get(login) is not session:
                session.cluster.close()

    async def _begin(self, login: Login) -> Session:
        """Log in. Requests with the same login that come meanwhile share the outcome."""
        beginning = self._beginning.get(login)
        if beginning is None:
            if len(self._beginning) >= LOGINS_MAX:
                raise RestError(TOO_MANY, "too many logins at a time", retry_after_s=RETRY_AFTER_S)
            beginning = self._beginning[login] = asyncio.ensure_future(self._log_in(login))
            beginning.add_done_callback(lambda _: self._beginning.pop(login))
        return await asyncio.shield(beginning)

    async def _log_in(self, login: Login) -> Session:
        cluster = Cluster(self._seeds, login, self._security.tls, self._tasks)
        try:
            await cluster.authenticate()
            self._make_space()
        except BaseException as failure:
            cluster.close()
            self.failures += isinstance(failure, AuthenticationFailed)
            raise
        session = self._sessions[login] = Session(cluster, Producer(cluster, self._tasks))
        return session

    def _make_space(self) -> None:
        if len(self._sessions) < SESSIONS_MAX:
            return
        idle = [login for login, session in self._sessions.items() if not session.users]
        if not idle:
            raise RestError(UNAVAILABLE, f"{SESSIONS_MAX} principals are in use", retry_after_s=RETRY_AFTER_S)
        oldest = min(idle, key=lambda login: self._sessions[login].used_at)
        self._sessions.pop(oldest).cluster.close()

    async def sweep(self) -> None:
        """Close sessions that no request has used for IDLE_S. Repeated until cancelled."""
        await asyncio.sleep(SWEEP_S)
        now = time.monotonic()
        for login, session in list(self._sessions.items()):
            if not session.users and now > session.used_at + IDLE_S:
                del self._sessions[login]
                session.cluster.close()

    def close(self) -> None:
        for session in self._sessions.values():
            session.cluster.close()
        self._sessions.clear()


def _basic(credentials: str) -> tuple[str, str]:
    try:
        user, colon, password = b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        user, colon, password = "", "", ""
    if not colon or not user or not password or "\0" in user + password:
        raise RestError(NOT_AUTHENTICATED, "the header Authorization has no name and password in base64")
    return user, password
