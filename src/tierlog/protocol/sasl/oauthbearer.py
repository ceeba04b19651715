"""OAUTHBEARER (RFC 7628, KIP-255): the message with the token. Called by both ends."""

import re

SEPARATOR = "\x01"
INVALID_TOKEN = b'{"status":"invalid_token"}'
"""The broker's message to a client whose token it refuses. The client answers with SEPARATOR, then the
exchange fails (RFC 7628, section 3.2.3)."""

_MESSAGE = re.compile(
    r"n,(?:a=((?:[^,=]|=2C|=3D)*))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01", re.DOTALL
)
_TOKEN = re.compile(r"bearer +([-_~+/.A-Za-z0-9]+=*)", re.IGNORECASE)


class OAuthBearerFailed(Exception):
    """The message is invalid. The text may be shown to the client."""


def encode(token: str) -> bytes:
    return f"n,,{SEPARATOR}auth=Bearer {token}{SEPARATOR}{SEPARATOR}".encode()


def decode(message: bytes) -> tuple[str, str]:
    """The token, and the authorization id or "". Raises OAuthBearerFailed."""
    try:
        found = _MESSAGE.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise OAuthBearerFailed("Invalid OAUTHBEARER client first message")
    authorization, pairs = found.groups()
    values: dict[str, str] = {}
    for pair in pairs.split(SEPARATOR):
        key, _, value = pair.partition("=")
        values.setdefault(key, value)
    token = _TOKEN.fullmatch(values.get("auth", "").strip())
    if token is None:
        raise OAuthBearerFailed("Invalid OAUTHBEARER client first message: 'auth' not specified")
    return token[1], (authorization or "").replace("=2C", ",").replace("=3D", "=")
