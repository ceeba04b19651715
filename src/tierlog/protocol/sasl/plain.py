"""PLAIN (RFC 4616): the password itself, so only for listeners with TLS. Called by both ends."""

from typing import NamedTuple


class PlainFailed(Exception):
    """The message is invalid. The text may be shown to the client."""


class PlainMessage(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        """Without the password."""
        return f"PlainMessage({self.user!r})"


def encode(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def decode(message: bytes) -> PlainMessage:
    """Raises PlainFailed, with Kafka's messages."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise PlainFailed("Authentication failed: the message is not UTF-8") from None
    if len(parts) != 3:
        message_text = f"expected 3 tokens, got {len(parts)}"
        raise PlainFailed(f"Invalid SASL/PLAIN response: {message_text}")
    authorization, user, password = parts
    if not user:
        raise PlainFailed("Authentication failed: username not specified")
    if not password:
        raise PlainFailed("Authentication failed: password not specified")
    if authorization and authorization != user:
        raise PlainFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return PlainMessage(user, password)
