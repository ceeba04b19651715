"""Credentials of the admin HTTP API: passwords of the quorum's SCRAM users (RFC 5802), and the tokens of
OAUTHBEARER.

A SCRAM verifier needs thousands of hashes for one check, so they run in a thread, a few at a time, and the
node remembers a keyed digest of each password that was right. A password that it remembers does not wait. An
unknown user costs as much as a wrong password: the thread hashes as often as for a real one.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable

import structlog

from tierlog.base.clock import Clock
from tierlog.broker.gateway.authentication import TooManyChecks
from tierlog.broker.security.jwt_tokens import TokenRefused, TokenValidator
from tierlog.broker.security.unknown_users import UnknownUsers
from tierlog.metadata.scram import ScramVerifier
from tierlog.metadata.scram_users import (
    ScramUsers,
)

_log = structlog.get_logger("tierlog")
CHECKS_AT_ONCE = 2
WAITING_CHECKS_MAX = 100
"""Passwords that wait for their check. The last one waits 0.7 s if each check takes the longest, 14 ms."""

REMEMBERED_MAX = 1000


class ScramPasswords:
    def __init__(self, users: Callable[[], ScramUsers], secret: bytes) -> None:
        """`secret`: of the cluster, so that each node treats an unknown user alike."""
        self._users = users
        self._unknown = UnknownUsers(users, secret)
        self._key = secrets.token_bytes(32)
        self._remembered: dict[tuple[str, bytes], ScramVerifier] = {}
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0

    async def verify(self, name: str, password: str) -> bool:
        """Whether the user exists and has this password. Raises TooManyChecks."""
        credentials = self._users().get(name)
        if credentials is None:
            mechanism, verifier = self._unknown.best_verifier(name)
        else:
            mechanism = max(credentials)
            verifier = credentials[mechanism]
        digest = hmac.digest(self._key, password.encode(), "sha256")
        if self._remembered.get((name, digest)) == verifier:
            return True
        right = await self._check(mechanism.hash_name, verifier, password)
        if not right or credentials is None:
            return False
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[name, digest] = verifier
        return True

    async def _check(self, hash_name: str, verifier: ScramVerifier, password: str) -> bool:
        if self._waiting >= WAITING_CHECKS_MAX:
            raise TooManyChecks
        self._waiting += 1
        try:
            await self._checks.acquire()
        finally:
            self._waiting -= 1
        try:
            return await asyncio.to_thread(_fits, hash_name, verifier, password)
        finally:
            self._checks.release()


class JwtTokens:
    def __init__(self, validator: TokenValidator, clock: Clock) -> None:
        self._validator = validator
        self._clock = clock

    def principal_of(self, token: str) -> str | None:
        """The principal that a valid token names."""
        try:
            return f"User:{self._validator.validate(token, self._clock.now_ms()).subject}"
        except TokenRefused as why:
            _log.warning("admin.token.refused", why=str(why))
            return None


def _fits(hash_name: str, verifier: ScramVerifier, password: str) -> bool:
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), verifier.salt, verifier.iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), verifier.stored_key)
