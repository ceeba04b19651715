"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84), for both ends of a connection.

As in Kafka, names and passwords are UTF-8 and are not normalised (no SASLprep), there is no channel binding,
and an authorization id must be the user's name. Called by `broker.security` and by the clients.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism, by hashlib's name."""

TOKEN_EXTENSION = "tokenauth"
"""Extension of the client's first message, with the value `true`: the name is the id of a delegation token,
and the password its HMAC in base64 (KIP-48)."""

MIN_ITERATIONS, DEFAULT_ITERATIONS, MAX_ITERATIONS = 4_096, 8_192, 16_384
"""As in Kafka: with few, guessing the password of a verifier is cheap; with many, each login is slow."""

_NAME = r"(?:[^,=]|=2C|=3D)*"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
_EXTENSIONS = r"((?:,[A-Za-z]+=[^,]*)*)"
_CLIENT_FIRST = re.compile(rf"([ny],(?:a=({_NAME}))?,)(n=({_NAME}),r=({_NONCE}){_EXTENSIONS})", re.DOTALL)
_CLIENT_FINAL = re.compile(rf"(c=({_BASE64}),r=({_NONCE}){_EXTENSIONS}),p=({_BASE64})", re.DOTALL)
_SERVER_FIRST = re.compile(rf"r=({_NONCE}),s=({_BASE64}),i=([1-9][0-9]{{0,8}}){_EXTENSIONS}", re.DOTALL)


class ScramFailed(Exception):
    """A message is invalid, or a proof is wrong. The text may be shown to the other end."""


class Verifier(Protocol):
    """The stored values that check a password."""

    @property
    def salt(self) -> bytes: ...
    @property
    def stored_key(self) -> bytes: ...
    @property
    def server_key(self) -> bytes: ...
    @property
    def iterations(self) -> int: ...


class Keys(NamedTuple):
    client_key: bytes
    stored_key: bytes
    server_key: bytes


def salted_password(hash_name: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword of RFC 5802. Its holder can log in, as with the password itself."""
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def keys_of(hash_name: str, salted: bytes) -> Keys:
    """The keys that follow from a SaltedPassword."""
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return Keys(client_key, stored_key, hmac.digest(salted, b"Server Key", hash_name))


def salt_text(number: int) -> bytes:
    """A salt in the form of Kafka's tools: a number in base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode() or b"0"


SALT_BITS = 130


class ScramServer:
    """The broker's end of one exchange. `respond` takes a message and returns the next one; after the second
    call `user` is the name of the authenticated user, or with `by_token` the id of the delegation token."""

    def __init__(
        self,
        mechanism: str,
        nonce: str,
        verifier_of: Callable[[str], Verifier],
        verifiers_of_token: Callable[[str], Sequence[Verifier]] | None = None,
    ) -> None:
        """`verifier_of` returns a verifier for unknown users as well, so that messages do not tell which
        users exist. No password matches it. `verifiers_of_token`: the same for ids of delegation tokens, with
        one salt for all that may match; None if there are no tokens."""
        self._hash = HASHES[mechanism]
        self._nonce = nonce
        self._verifier_of, self._verifiers_of_token = verifier_of, verifiers_of_token
        self.by_token = False
        self._verifiers: Sequence[Verifier] = ()
        self._header = self._first = ""
        self.claimed = ""
        """The name that the client gives, before it has proved anything."""
        self.user: str | None = None

    def respond(self, message: bytes) -> bytes:
        """Raises ScramFailed."""
        text = _text(message)
        return self._finish(text) if self._verifiers else self._start(text)

    def _start(self, text: str) -> bytes:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise ScramFailed("invalid client-first-message")
        self._header, authorization, bare, name, nonce, extensions = found.groups()
        self.claimed = _unescape(name)
        if not self.claimed:
            raise ScramFailed("the user name is empty")
        if authorization and _unescape(authorization) != self.claimed:
            raise ScramFailed("Client requested an authorization id that is different from username")
        self.by_token = _has_token(extensions)
        if not self.by_token:
            self._verifiers = (self._verifier_of(self.claimed),)
        elif self._verifiers_of_token is None:
            raise ScramFailed("this broker has no delegation tokens")
        else:
            self._verifiers = self._verifiers_of_token(self.claimed)
        verifier = self._verifiers[0]
        self._nonce = nonce + self._nonce
        salt = b64encode(verifier.salt).decode()
        reply = f"r={self._nonce},s={salt},i={verifier.iterations}"
        self._first = f"{bare},{reply}"
        return reply.encode()

    def _finish(self, text: str) -> bytes:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None or self.user is not None:
            raise ScramFailed("invalid client-final-message")
        without_proof, binding, nonce, _extensions, proof = found.groups()
        if not hmac.compare_digest(nonce, self._nonce) or _base64(binding) != self._header.encode():
            raise ScramFailed("invalid nonce or channel binding in client-final-message")
        signed = f"{self._first},{without_proof}".encode()
        matching = [one for one in self._verifiers if self._matches(one, signed, _base64(proof))]
        if not matching:
            raise ScramFailed("Invalid client credentials")
        self.user = self.claimed
        return b"v=" + b64encode(hmac.digest(matching[0].server_key, signed, self._hash))

    def _matches(self, verifier: Verifier, signed: bytes, proof: bytes) -> bool:
        client_key = _xor(hmac.digest(verifier.stored_key, signed, self._hash), proof)
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), verifier.stored_key)


class ScramClient:
    """The client's end of one exchange: `start`, then `respond` to two messages. Then `is_done`, and the
    broker has proved that it knows the verifier."""

    def __init__(
        self, mechanism: str, user: str, password: str, nonce: str, *, by_token: bool = False
    ) -> None:
        """`by_token`: the user is the id of a delegation token, and the password its HMAC in base64."""
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_escape(user)},r={nonce}"
        if by_token:
            self._bare += f",{TOKEN_EXTENSION}=true"
        self._server_signature: bytes | None = None
        self.is_done = False

    def start(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes:
        """The next message; empty after the last one. Raises ScramFailed."""
        text = _text(message)
        if self._server_signature is not None:
            expected = "v=" + b64encode(self._server_signature).decode()
            if not hmac.compare_digest(text.encode(), expected.encode()):
                raise ScramFailed("the broker does not know the password's verifier")
            self.is_done = True
            return b""
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise ScramFailed("invalid server-first-message")
        nonce, salt, iterations, _extensions = found.groups()
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramFailed("the broker changed the nonce")
        if not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
            limits = f"{MIN_ITERATIONS} to {MAX_ITERATIONS}"
            raise ScramFailed(f"the broker asks for {iterations} iterations; {limits} are allowed")
        keys = keys_of(
            self._hash, salted_password(self._hash, self._password, _base64(salt), int(iterations))
        )
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        proof = _xor(keys.client_key, hmac.digest(keys.stored_key, signed, self._hash))
        self._server_signature = hmac.digest(keys.server_key, signed, self._hash)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


def _has_token(extensions: str) -> bool:
    """As in Kafka: the name of the extension is exact, and the value in any case."""
    values = dict(pair.split("=", 1) for pair in extensions.split(",") if pair)
    return values.get(TOKEN_EXTENSION, "").lower() == "true"


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message that is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramFailed("invalid base64") from None


def _xor(one: bytes, other: bytes) -> bytes:
    """Raises ScramFailed if the lengths differ."""
    if len(one) != len(other):
        raise ScramFailed("a proof of the wrong length")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
