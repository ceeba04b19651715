"""SCRAM credentials of the image (RFC 5802, KIP-84): what a broker needs to check a password, without it.

Mechanisms are numbered as in the Kafka protocol. Called by evolve, the controller and the broker's
authentication.
"""

from enum import IntEnum

import msgspec

USERS_MAX = 100_000
USER_NAME_MAX = 255
"""Maximum length in characters, as of quotas: every node keeps the names in memory."""

SALT_MAX = 256
"""Maximum length of a salt in bytes. Kafka's tools send about 25."""


class ScramMechanism(IntEnum):
    UNKNOWN = 0
    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-{self.hash_name.replace('sha', 'SHA-')}"

    @property
    def hash_name(self) -> str:
        """The name of the hash in hashlib."""
        return "sha512" if self is ScramMechanism.SHA_512 else "sha256"

    @property
    def key_size(self) -> int:
        return 64 if self is ScramMechanism.SHA_512 else 32


MECHANISMS = (ScramMechanism.SHA_256, ScramMechanism.SHA_512)


class ScramVerifier(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Verifies a password (RFC 5802, section 3). Its holder can check guesses, but cannot log in."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without the keys, which must not get into logs."""
        return f"ScramVerifier(iterations={self.iterations})"
