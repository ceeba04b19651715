"""SaslHandshake (v0-1) and SaslAuthenticate (v0-2): the login of a connection, as Kafka's
SaslServerAuthenticator.

Until a client has logged in, `SaslLogin.admits` lets only these and ApiVersions pass. After SaslHandshake v0,
SASL messages follow without request headers. A login may expire (KIP-368): then the client must log in again
on the same connection, as the same user with the same mechanism. A failed login is answered after a delay,
so that guessing passwords takes long, and closes the connection. An unexpected request, or one after the
session has expired, closes it at once and without an answer. So does one after the delegation token of the
login was removed or has expired.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from tierlog.base.clock import Clock
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.handlers.context import (
    CLOSE,
    Connection,
    Handler,
    Pending,
    RawReply,
    Reply,
    RequestContext,
)
from tierlog.broker.security.mechanisms import AuthenticationFailed, Exchange, Login, Mechanisms
from tierlog.protocol.api import API_VERSIONS_KEY, BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

SASL_HANDSHAKE_KEY = BY_NAME["SaslHandshake"].key
SASL_AUTHENTICATE_KEY = BY_NAME["SaslAuthenticate"].key
NO_LIMIT = 2**31 - 1
REQUESTS_MAX = 64
"""Requests of a client that is not authenticated. A login takes four, after a few of ApiVersions."""

LOGIN_MAX_MS = 30_000
"""A connection whose login takes longer is closed: clients that never log in must not use up the connections.
A login takes a few round trips."""

MESSAGES_MAX = 8
"""SASL messages of one login. Each mechanism needs at most three."""

REAUTHENTICATION_MIN_MS = 1_000
"""A client logs in again at most once a second, as in Kafka."""

FAILURES_LOGGED_EVERY_MS = 1_000
_log = structlog.get_logger("tierlog.security")


@dataclass(slots=True)
class LoginCounts:
    """Logins of a listener, by the names of Kafka's metrics."""

    successful: int = 0
    failed: int = 0
    reauthenticated: int = 0
    reauthentication_failed: int = 0
    expired: int = 0  # connections that were closed because they did not log in again
    without_reauthentication: int = 0  # the client cannot log in again


class LoginListener:
    """Settings and counts of all logins on one listener."""

    def __init__(
        self,
        name: str,
        mechanisms: Mechanisms,
        clock: Clock,
        *,
        receive_bytes_max: int,
        delay_ms: int,
        session_ms: int,
        audit: AuditLog | None = None,
    ) -> None:
        """`session_ms`: how long a login is valid; 0: no limit."""
        self.name = name
        self.mechanisms = mechanisms
        self.clock = clock
        self.receive_bytes_max = receive_bytes_max
        self.delay_ms = delay_ms
        self.session_ms = session_ms
        self._audit = audit
        self.counts = LoginCounts()
        self._quiet_until_ms = 0

    def begin(self, connection: Connection) -> "SaslLogin":
        return SaslLogin(connection, self)

    def on_failure(self, connection: Connection, why: str, mechanism: str, claimed: str) -> None:
        """Log the failure, at most one a second, and record it in the audit log. `claimed`: the name that the
        client gave, which is recorded only if such a user exists."""
        if self._audit is not None:
            known = claimed if self.mechanisms.knows(claimed) else None
            client = connection.peer_host
            self._audit.deny_login(client, self.name, connection.principal, mechanism, known, why)
        now = self.clock.monotonic_ms()
        if now < self._quiet_until_ms:
            return
        self._quiet_until_ms = now + FAILURES_LOGGED_EVERY_MS
        _log.warning(
            "authentication.failed",
            listener=self.name,
            client=connection.peer_host,
            why=why,
            failures=self.counts.failed + self.counts.reauthentication_failed,
        )


class LoginState(Enum):
    HANDSHAKE = auto()
    """The client has to choose a mechanism."""
    MESSAGES = auto()
    """SASL messages are exchanged."""
    DONE = auto()
    FAILED = auto()


class SaslLogin:
    """The login of one connection; an `Authentication` of handlers.context."""

    def __init__(self, connection: Connection, listener: LoginListener) -> None:
        self._connection = connection
        self._listener = listener
        self.frame_bytes_max = listener.receive_bytes_max
        self.reads_raw = self.closes = False
        self.state = LoginState.HANDSHAKE
        self._requests = self._messages = 0
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._is_refused = False  # the client knows, and its last message is missing
        self._user: str | None = None  # by the latest login
        self._begun_ms = listener.clock.monotonic_ms()  # the latest login
        self._expires_ms: int | None = None  # by the broker's monotonic clock
        self._token_id: str | None = None  # the delegation token that the latest login used

    # ---- which requests are answered ------------------------------------------------------------

    def admits(self, api: int) -> bool:
        if self.state is LoginState.DONE:
            return self._admits_authenticated(api)
        self._requests += 1
        is_expected = api == SASL_HANDSHAKE_KEY or (api == API_VERSIONS_KEY and self._user is None)
        if self.state is LoginState.MESSAGES:
            is_expected = api == SASL_AUTHENTICATE_KEY
        if self.state is LoginState.FAILED or not is_expected or self._requests > REQUESTS_MAX:
            if self.state is not LoginState.FAILED:
                self._fail(f"unexpected request with API key {api} during authentication")
            return False
        return True

    @property
    def is_overdue(self) -> bool:
        is_pending = self.state in (LoginState.HANDSHAKE, LoginState.MESSAGES)
        return is_pending and self._listener.clock.monotonic_ms() - self._begun_ms > LOGIN_MAX_MS

    def _admits_authenticated(self, api: int) -> bool:
        now = self._listener.clock.monotonic_ms()
        if api == SASL_HANDSHAKE_KEY:
            if now - self._begun_ms >= REAUTHENTICATION_MIN_MS:
                self.state, self._requests, self._messages = LoginState.HANDSHAKE, 1, 0
                self._begun_ms = now
            return True
        if self._expires_ms is not None and now >= self._expires_ms:
            self._listener.counts.expired += 1
            return False
        if self._token_id is not None and not self._listener.mechanisms.has_token(self._token_id):
            self._listener.counts.expired += 1
            return False
        return True

    # ---- SaslHandshake ----------------------------------------------------------------------------

    def handshake(self, version: int, mechanism: str) -> Reply | Pending:
        if self.state is not LoginState.HANDSHAKE:
            return _illegal_handshake()
        enabled = self._listener.mechanisms.enabled
        if mechanism not in enabled or (self._user is not None and mechanism != self._mechanism):
            self._fail(f"mechanism {mechanism[:64]!r} is not enabled")
            return self._delayed(_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled))
        self._mechanism = mechanism
        self._exchange = self._listener.mechanisms.begin(mechanism)
        self._begun_ms = self._listener.clock.monotonic_ms()
        self.state = LoginState.MESSAGES
        self.reads_raw = version == 0
        return _handshake(ErrorCode.NONE, enabled)

    # ---- SaslAuthenticate -------------------------------------------------------------------------

    def authenticate(self, version: int, message: bytes) -> Reply | Pending:
        """`version`: below 0 for a message without a request header."""
        if self.state is not LoginState.MESSAGES or self._exchange is None:
            return _illegal_message()
        self._messages += 1
        try:
            if self._messages > MESSAGES_MAX:
                raise AuthenticationFailed("too many SASL messages")
            step = self._exchange.respond(message)
            lifetime_ms = 0 if step.login is None else self._log_in(step.login, version)
        except AuthenticationFailed as failure:
            self._fail(str(failure))
            if version < 0:
                return self._delayed(CLOSE)
            return self._delayed(
                SaslAuthenticateResponse(
                    error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                    error_message=str(failure),
                    auth_bytes=b"",
                )
            )
        reply: Reply = RawReply([step.message])
        if version >= 0:
            reply = SaslAuthenticateResponse(
                error_message=None, auth_bytes=step.message, session_lifetime_ms=lifetime_ms
            )
        if not step.refusal:
            return reply
        self._count_failure(step.refusal)
        self._is_refused = True
        return self._refused(reply)

    def _log_in(self, login: Login, version: int) -> int:
        """The client is authenticated. Returns for how many ms; 0: for as long as it is connected. Raises
        AuthenticationFailed if it is not the same user as before."""
        listener, counts = self._listener, self._listener.counts
        if self._user is not None and login.user != self._user:
            raise AuthenticationFailed("Cannot change principals during re-authentication")
        lifetime_ms = self._lifetime_ms(login)
        if lifetime_ms is not None and lifetime_ms <= 0:
            raise AuthenticationFailed("the credentials have expired")
        if self._user is None:
            counts.successful += 1
            counts.without_reauthentication += version < 1
        else:
            counts.reauthenticated += 1
        self._user, self._exchange, self._token_id = login.user, None, login.token_id
        self.state, self.reads_raw, self.frame_bytes_max = LoginState.DONE, False, NO_LIMIT
        connection = self._connection
        connection.principal = f"User:{login.user}"
        connection.by_token = login.token_id is not None
        if lifetime_ms is None:
            self._expires_ms, connection.authentication = None, None
            return 0
        self._expires_ms = listener.clock.monotonic_ms() + lifetime_ms
        connection.authentication = self
        return lifetime_ms

    def _lifetime_ms(self, login: Login) -> int | None:
        listener = self._listener
        limits = [listener.session_ms] if listener.session_ms else []
        if login.expires_at_ms is not None:
            limits.append(login.expires_at_ms - listener.clock.now_ms())
        return min(limits, default=None)

    # ---- failures ---------------------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        self.state = LoginState.FAILED
        if not self._is_refused:
            self._count_failure(why)
        self._exchange = None

    def _count_failure(self, why: str) -> None:
        counts = self._listener.counts
        if self._user is None:
            counts.failed += 1
        else:
            counts.reauthentication_failed += 1
        claimed = "" if self._exchange is None else self._exchange.claimed
        self._listener.on_failure(self._connection, why, self._mechanism, claimed)

    def _refused(self, reply: Reply) -> Pending:
        """The answer to a failure after which the client may send one more message. It may also close."""

        async def answer() -> Reply:
            await asyncio.sleep(self._listener.delay_ms / 1000)
            return reply

        return Pending(answer())

    def _delayed(self, reply: Reply) -> Pending:
        """The answer to a failure. The connection closes after it."""

        async def answer() -> Reply:
            await asyncio.sleep(self._listener.delay_ms / 1000)
            self.closes = True
            return reply

        return Pending(answer())


def sasl_handshake(context: RequestContext, request: SaslHandshakeRequest) -> Reply | Pending:
    login = context.connection.authentication
    if not isinstance(login, SaslLogin):
        return _illegal_handshake()
    return login.handshake(context.version, request.mechanism)


def sasl_authenticate(context: RequestContext, request: SaslAuthenticateRequest) -> Reply | Pending:
    login = context.connection.authentication
    if not isinstance(login, SaslLogin):
        return _illegal_message()
    return login.authenticate(context.version, bytes(request.auth_bytes))


def sasl_handlers() -> dict[str, Handler]:
    return {"SaslHandshake": sasl_handshake, "SaslAuthenticate": sasl_authenticate}


def _handshake(error: ErrorCode, mechanisms: Sequence[str]) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error, mechanisms=list(mechanisms))


def _illegal_handshake() -> Reply:
    return _handshake(ErrorCode.ILLEGAL_SASL_STATE, ())


def _illegal_message() -> Reply:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
