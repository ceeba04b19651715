"""Login of a client: the requests of one login, without the connection that carries them.

Called by `tierlog.client`, and by brokers for their connections to each other.
"""

import secrets
from collections.abc import Generator
from typing import Any

from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import HASHES, ScramClient, ScramFailed

CLIENT_MECHANISMS = (*HASHES, "PLAIN")
OAUTHBEARER = "OAUTHBEARER"
HANDSHAKE_VERSION = 1

Requests = Generator[SaslHandshakeRequest | SaslAuthenticateRequest, Any, int]
"""Yields each request, and is sent its response. Returns for how many ms the login is valid; 0: for as long
as the connection is open."""


class LoginRefused(Exception):
    """The text continues the broker's name: "refuses the login of ada: …"."""


def login_requests(mechanism: str, user: str, password: str, *, by_token: bool = False) -> Requests:
    """The requests of a login by one of CLIENT_MECHANISMS, or by OAUTHBEARER with the token as password.
    `by_token`: user and password are id and HMAC, in base64, of a delegation token. Raises LoginRefused, also
    if the broker is not genuine."""
    handshake = yield SaslHandshakeRequest(mechanism=mechanism)
    if handshake.error_code:
        offered = ", ".join(handshake.mechanisms)
        raise LoginRefused(
            f"offers {offered}, not {mechanism}" if offered else "has no SASL on this listener"
        )
    messages = _messages(mechanism, user, password, by_token)
    lifetime_ms = 0
    try:
        message = next(messages)
        while True:
            response = yield SaslAuthenticateRequest(auth_bytes=message)
            if response.error_code:
                why = response.error_message or "authentication failed"
                raise LoginRefused(f"refuses the login of {user or 'the token'}: {why}")
            lifetime_ms = response.session_lifetime_ms
            message = messages.send(bytes(response.auth_bytes))
    except StopIteration:
        return lifetime_ms
    except ScramFailed as failure:
        raise LoginRefused(f"cannot prove that it knows {user}: {failure}") from None


def _messages(mechanism: str, user: str, password: str, by_token: bool) -> Generator[bytes, bytes, None]:
    """The messages of the mechanism. Raises ScramFailed."""
    if mechanism == "PLAIN":
        yield plain.encode(user, password)
        return
    if mechanism == OAUTHBEARER:
        if (yield oauthbearer.encode(password)):  # the reason of a refusal (RFC 7628, section 3.2.3)
            yield oauthbearer.SEPARATOR.encode()
        return
    scram = ScramClient(mechanism, user, password, secrets.token_hex(16), by_token=by_token)
    message = scram.start()
    while message:
        message = scram.respond((yield message))
    if not scram.is_done:
        raise ScramFailed("the exchange ended early")
