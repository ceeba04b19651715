"""SASL mechanisms of a listener: one `Exchange` authenticates one client.

The texts of failures are Kafka's. They tell the client nothing that depends on whether a user exists: an
unknown user has a verifier (`security.unknown_users`) and fails where a wrong password fails. Called by
`handlers.sasl`.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tierlog.broker.security.delegation_tokens import DelegationTokens
from tierlog.broker.security.jwt_tokens import TokenRefused, TokenValidator
from tierlog.broker.security.unknown_users import UnknownUsers
from tierlog.metadata.scram import (
    MECHANISMS,
    ScramMechanism,
    ScramVerifier,
)
from tierlog.metadata.scram_users import (
    ScramUsers,
)
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import ScramFailed, ScramServer, salt_text

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM = {mechanism.sasl_name: mechanism for mechanism in MECHANISMS}
SUPPORTED = (*SCRAM, PLAIN, OAUTHBEARER)
"""By the names of `sasl.enabled.mechanisms`."""

_NONCE_BITS = 130


class AuthenticationFailed(Exception):
    """The client is refused. The text is sent to it."""


class Login(NamedTuple):
    """An authenticated client. `expires_at_ms`: when its token expires, in wall clock time. `token_id`: of
    its delegation token; the user is the owner."""

    user: str
    expires_at_ms: int | None = None
    token_id: str | None = None


class Step(NamedTuple):
    """The answer to a message. `login`: None while the exchange continues. `refusal`: why the client is
    refused, for the broker's log, if the exchange ends with one more message of the client."""

    message: bytes
    login: Login | None = None
    refusal: str = ""


class Exchange(Protocol):
    @property
    def claimed(self) -> str:
        """The name that the client gives, before it has proved anything; empty if there is none yet."""

    def respond(self, message: bytes) -> Step:
        """Raises AuthenticationFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """The mechanisms of one listener. `secret` is the same for all brokers of a cluster, so that an unknown
    user gets the same salt from each."""

    enabled: tuple[str, ...]
    users: Callable[[], ScramUsers]
    secret: bytes
    random_bits: Callable[[int], int]
    """As `secrets.randbits`."""
    now_ms: Callable[[], int]
    passwords: Mapping[str, str]
    """Password by user, for PLAIN."""
    tokens: TokenValidator | None = None
    """Of OAUTHBEARER."""
    delegation_tokens: DelegationTokens | None = None
    """For SCRAM; None if the broker has none."""
    _unknown: UnknownUsers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_unknown", UnknownUsers(self.users, self.secret))

    def begin(self, mechanism: str) -> Exchange:
        """Begin an exchange of an enabled mechanism."""
        if mechanism == PLAIN:
            return _Plain(self.passwords)
        if mechanism == OAUTHBEARER and self.tokens is not None:
            return _OAuthBearer(self.tokens, self.now_ms())
        return _Scram(SCRAM[mechanism], self)

    def knows(self, user: str) -> bool:
        """Whether there is a user of this name, for a log. The answer must not reach clients."""
        return user in self.users() or user in self.passwords

    def verifier_of(self, mechanism: ScramMechanism, user: str) -> ScramVerifier:
        """The user's verifier, or one that no password matches."""
        credentials = self.users().get(user)
        found = None if credentials is None else credentials.get(mechanism)
        return found or self._unknown.verifier(user, mechanism)

    def has_token(self, token_id: str) -> bool:
        """Whether a delegation token is still valid."""
        return self.delegation_tokens is not None and self.delegation_tokens.valid(token_id) is not None


class _Scram:
    def __init__(self, mechanism: ScramMechanism, mechanisms: Mechanisms) -> None:
        self._name = mechanism.sasl_name
        nonce = salt_text(mechanisms.random_bits(_NONCE_BITS)).decode()
        self._tokens = tokens = mechanisms.delegation_tokens
        self._server = ScramServer(
            self._name,
            nonce,
            lambda user: mechanisms.verifier_of(mechanism, user),
            None if tokens is None else lambda token_id: tokens.verifiers(token_id, mechanism),
        )

    @property
    def claimed(self) -> str:
        return self._server.claimed

    def respond(self, message: bytes) -> Step:
        try:
            reply = self._server.respond(message)
        except ScramFailed as failure:
            raise AuthenticationFailed(_invalid_credentials(self._name)) from failure
        user = self._server.user
        if user is None:
            return Step(reply)
        return Step(reply, self._login_by_token(user) if self._server.by_token else Login(user))

    def _login_by_token(self, token_id: str) -> Login:
        token = None if self._tokens is None else self._tokens.valid(token_id)
        if token is None:  # it was removed, or has expired, since the first message
            raise AuthenticationFailed(_invalid_credentials(self._name))
        return Login(token.owner.partition(":")[2], token.expires_ms, token_id)


class _Plain:
    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.claimed = ""

    def respond(self, message: bytes) -> Step:
        try:
            user, password = plain.decode(message)
        except plain.PlainFailed as failure:
            raise AuthenticationFailed(str(failure)) from None
        self.claimed = user
        expected = self._passwords.get(user)
        # digests, so that the time does not depend on the length either
        is_equal = hmac.compare_digest(_digest(password), _digest(expected or ""))
        if expected is None or not is_equal:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        return Step(b"", Login(user))


class _OAuthBearer:
    def __init__(self, tokens: TokenValidator, now_ms: int) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._is_refused = False
        self.claimed = ""  # a token that is refused proves no name

    def respond(self, message: bytes) -> Step:
        refusal = oauthbearer.INVALID_TOKEN
        if self._is_refused:  # the client has read the reason
            raise AuthenticationFailed(refusal.decode())
        try:
            token, authorization = oauthbearer.decode(message)
        except oauthbearer.OAuthBearerFailed as failure:
            raise AuthenticationFailed(_invalid_credentials(OAUTHBEARER)) from failure
        try:
            claims = self._tokens.validate(token, self._now_ms)
        except TokenRefused as why:
            self._is_refused = True
            return Step(refusal, refusal=str(why) or "the token is invalid")
        if authorization and authorization != claims.subject:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id "
                f"({authorization}) that is different from the token's principal name ({claims.subject})"
            )
        return Step(b"", Login(claims.subject, claims.expires_at_ms))


def _invalid_credentials(mechanism: str) -> str:
    reason = "invalid credentials with SASL mechanism"
    return f"Authentication failed during authentication due to {reason} {mechanism}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
