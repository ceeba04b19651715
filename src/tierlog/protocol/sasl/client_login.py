"""Login of a client: the SASL messages of one exchange, without what carries them.

Called by `tierlog.client`, and by brokers for their connections to each other.
"""

from collections.abc import Generator

from tierlog.protocol.sasl import plain
from tierlog.protocol.sasl.scram import HASHES, ScramClient, ScramFailed

CLIENT_MECHANISMS = (*HASHES, "PLAIN")
NONCE_BITS = 130

Messages = Generator[bytes, bytes, None]
"""Yields each message, and is sent the broker's answer to it."""


def login_messages(
    mechanism: str, user: str, password: str, nonce: str, *, by_token: bool = False
) -> Messages:
    """The messages of one of CLIENT_MECHANISMS. `by_token`: user and password are id and HMAC, in base64, of
    a delegation token. Raises ScramFailed if the broker is not genuine."""
    if mechanism == "PLAIN":
        yield plain.encode(user, password)
        return
    scram = ScramClient(mechanism, user, password, nonce, by_token=by_token)
    message = scram.start()
    while message:
        message = scram.respond((yield message))
    if not scram.is_done:
        raise ScramFailed("the exchange ended early")
