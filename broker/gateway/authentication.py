"""Authentication of the admin HTTP API: finds the principal of each request, and checks its role.

A principal proves itself by a client certificate (with TLS), by name and password (RFC 7617), or by a token
(RFC 6750). A password or token wins over the certificate, so that an operator can act under another name.
Requests between nodes carry signatures instead (metadata.quorum.auth). Failures are counted, and each is
answered after a delay, so that passwords cannot be tried quickly.
"""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
from aiohttp import hdrs, web

from tierlog.broker.audit.entries import DENIED_ACCESS, Entry
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.gateway.requests import refused
from tierlog.broker.gateway.roles import Role, Roles, role_needed
from tierlog.broker.handlers.context import ANONYMOUS
from tierlog.metadata.quorum.tls import SIGNED_PREFIXES, certificate_has_expired, require_certificate

LISTENER = "admin"
"""Name of the admin API in the audit log."""

PRINCIPAL: Any = web.RequestKey("principal", str) if hasattr(web, "RequestKey") else "principal"
ROLE: Any = web.RequestKey("role", Role) if hasattr(web, "RequestKey") else "role"
_CHECK: Any = web.RequestKey("check", partial) if hasattr(web, "RequestKey") else "check"
"""Keys of an authenticated request's principal, role and `is_still_valid`. Older versions of aiohttp have
texts as keys."""

FAILURE_DELAY_S = 0.1
DELAYED_FAILURES_MAX = 1000
"""Failed requests that wait for their answers; more are answered at once, with status 429."""

_log = structlog.get_logger("tierlog")
TOO_MANY = "too many failed attempts: try again later"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TooManyChecks(Exception):
    """So many passwords wait for their checks that this one is not checked."""


class Passwords(Protocol):
    async def verify(self, name: str, password: str) -> bool:
        """Whether the user exists and has this password. Raises TooManyChecks."""


class Tokens(Protocol):
    def principal_of(self, token: str) -> str | None:
        """The principal that a valid token names."""


@dataclass(slots=True, kw_only=True)
class AdminAccess:
    """Authentication and roles. Ways to authenticate that are None are refused."""

    roles: Roles
    passwords: Passwords | None = None
    tokens: Tokens | None = None
    certificate: Callable[[bytes], str] | None = None
    """The principal of a certificate (DER). Raises ValueError if it has expired or maps to none."""
    nodes_have_certificates: bool = False
    """Whether requests between nodes need a certificate, too."""
    audit: AuditLog | None = None
    knows: Callable[[str], bool] = lambda user: False
    """Whether there is a user of this name, for the audit log."""
    failures: int = 0
    denied: int = 0
    _delayed: int = 0

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if path.startswith(SIGNED_PREFIXES):
            if self.nodes_have_certificates:
                return await require_certificate(request, handler)
            return await handler(request)
        needed = role_needed(request.method, path)
        if needed is Role.NONE:
            return await handler(request)
        try:
            principal = await self._principal(request)
        except TooManyChecks:
            self.failures += 1
            return refused(429, TOO_MANY)
        if principal is None:
            return await self._unauthenticated(request)
        request[PRINCIPAL] = principal
        request[ROLE] = role = self.roles.of(principal)
        if role < needed:
            self.denied += 1
            _log.warning("admin.request.denied", principal=principal, method=request.method, path=path)
            has, needs = role.name.lower(), needed.name.lower()
            if self.audit is not None:
                missing = {"operation": needs, "resource_type": "ADMIN_API", "resource_name": request.path}
                self.audit.deny(DENIED_ACCESS, origin_of(request) | missing)
            return refused(
                403, f"{principal} has the role {has}, and this needs {needs}: add it to admin.{needs}s"
            )
        request[_CHECK] = partial(self._is_still, principal, request)
        return await handler(request)

    async def _is_still(self, principal: str, request: web.Request) -> bool:
        try:
            return await self._principal(request) == principal
        except TooManyChecks:
            return True  # until a later check

    async def _principal(self, request: web.Request) -> str | None:
        header = request.headers.get(hdrs.AUTHORIZATION)
        if header is None:
            return self._principal_of_certificate(request)
        scheme, _, credentials = header.partition(" ")
        if scheme.lower() == "bearer" and self.tokens is not None:
            return self.tokens.principal_of(credentials.strip())
        pair = _basic(credentials) if scheme.lower() == "basic" and self.passwords is not None else None
        if pair is None or self.passwords is None or not await self.passwords.verify(*pair):
            return None
        return f"User:{pair[0]}"

    def _principal_of_certificate(self, request: web.Request) -> str | None:
        session = request.get_extra_info("ssl_object")
        presented = None if session is None else session.getpeercert(binary_form=True)
        if presented is None or self.certificate is None:
            return None
        try:
            return self.certificate(presented)
        except ValueError as why:
            _log.warning("admin.certificate.refused", why=str(why))
            return None

    async def _unauthenticated(self, request: web.Request) -> web.Response:
        self.failures += 1
        self._record_failure(request)
        if self._delayed >= DELAYED_FAILURES_MAX:
            return refused(429, TOO_MANY)
        if hdrs.AUTHORIZATION in request.headers:
            self._delayed += 1
            try:
                await asyncio.sleep(FAILURE_DELAY_S)
            finally:
                self._delayed -= 1
        ways = {
            "a client certificate": self.certificate,
            "a user and password": self.passwords,
            "a token": self.tokens,
        }
        accepted = " or ".join(way for way, verifier in ways.items() if verifier is not None)
        response = refused(401, f"the sender is not known: send {accepted} that is valid")
        if self.passwords is not None:
            response.headers.add(hdrs.WWW_AUTHENTICATE, 'Basic realm="tierlog", charset="UTF-8"')
        if self.tokens is not None:
            response.headers.add(hdrs.WWW_AUTHENTICATE, 'Bearer realm="tierlog"')
        return response

    def _record_failure(self, request: web.Request) -> None:
        if self.audit is None:
            return
        scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        pair = _basic(credentials) if scheme.lower() == "basic" else None
        user = pair[0] if pair is not None and self.knows(pair[0]) else None
        mechanism = scheme.lower() if scheme.lower() in ("basic", "bearer") else "none"
        reason = "wrong or unknown credentials" if credentials else "no credentials"
        self.audit.deny_login(request.remote or "", LISTENER, ANONYMOUS, mechanism, user, reason)


async def is_still_valid(request: web.Request) -> bool:
    """Whether the login of a request is still accepted, for responses that do not end by themselves. An API
    without logins checks the certificate."""
    check: Callable[[], Awaitable[bool]] | None = request.get(_CHECK)
    return not certificate_has_expired(request) if check is None else await check()


def origin_of(request: web.Request) -> Entry:
    """Fields of an entry in the audit log: the sender, and the route."""
    resource = request.match_info.route.resource
    path = request.path if resource is None else resource.canonical
    return {
        "principal": request.get(PRINCIPAL, ANONYMOUS),
        "client": request.remote,
        "listener": LISTENER,
        "api": f"{request.method} {path}",
    }


def _basic(credentials: str) -> tuple[str, str] | None:
    try:
        name, separator, password = b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if separator else None
