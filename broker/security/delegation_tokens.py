"""Delegation tokens of a broker (KIP-48): their HMACs, which are their passwords, and logins by them.

The HMAC of a token is HMAC-SHA512 of its id with `delegation.token.secret.key`, as in Kafka. It is derived
whenever it is needed and kept nowhere: this object keeps digests of HMACs to find tokens, and SCRAM
verifiers, whose holder cannot log in. While keys change, a token has an HMAC by each of them
(`delegation.token.secret.key.previous`), and responses have that of the current one. Called by
`security.mechanisms` and `handlers.delegation_tokens`.
"""

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64encode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from immutables import Map

from tierlog.base.clock import Clock
from tierlog.config.node import NodeSettings
from tierlog.metadata.delegation_tokens import TOKEN_ID_MAX, DelegationToken
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.scram import ScramMechanism, ScramVerifier
from tierlog.protocol.sasl.scram import MIN_ITERATIONS, keys_of, salted_password

ID_BITS = 128
SALT_BYTES = 20
VERIFIERS_MAX = 10_000
"""Verifiers that are kept, about 400 bytes each. To derive one takes the event loop about 3 ms."""

INDEXED_PER_TURN = 1_000
"""Tokens whose HMACs are derived in one turn of the event loop."""

Tokens = Map[str, DelegationToken]


@dataclass(slots=True)
class DelegationTokens:
    """`secret_key`: empty if the broker has no tokens. `tokens`: those of the image. `random_bits`: as
    `secrets.randbits`. `other_keys`: whose HMACs are accepted, too."""

    secret_key: bytes = field(repr=False)
    tokens: Callable[[], Tokens]
    now_ms: Callable[[], int]
    random_bits: Callable[[int], int]
    other_keys: tuple[bytes, ...] = field(default=(), repr=False)
    _lock: asyncio.Lock = field(init=False, repr=False, default_factory=asyncio.Lock)
    _indexed: Tokens = field(init=False, repr=False, default_factory=Map)
    _digests: dict[str, list[bytes]] = field(init=False, repr=False, default_factory=dict)
    _ids: dict[bytes, str] = field(init=False, repr=False, default_factory=dict)
    _verifiers: "OrderedDict[tuple[str, ScramMechanism], list[ScramVerifier]]" = field(
        init=False, repr=False, default_factory=OrderedDict
    )

    @property
    def enabled(self) -> bool:
        return bool(self.secret_key)

    def new_id(self) -> str:
        """A random id in the form of Kafka's: 22 characters, the first of which is not `-`,
        so that tools take it for no option."""
        while True:
            data = self.random_bits(ID_BITS).to_bytes(ID_BITS // 8)
            token_id = urlsafe_b64encode(data).decode().rstrip("=")
            if not token_id.startswith("-"):
                return token_id

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self.secret_key, token_id.encode(), "sha512")

    def _hmacs_of(self, token_id: str) -> list[bytes]:
        """By each key, that of `hmac_of` first."""
        keys = (self.secret_key, *self.other_keys)
        return [hmac.digest(key, token_id.encode(), "sha512") for key in keys]

    async def find(self, value: bytes) -> DelegationToken | None:
        """The token with this HMAC. The look-up is by a digest, so that its time tells nothing about the
        HMACs of tokens."""
        async with self._lock:
            await self._index()
        token_id = self._ids.get(_digest(value))
        if token_id is None or not any(hmac.compare_digest(value, one) for one in self._hmacs_of(token_id)):
            return None
        return self.tokens().get(token_id)

    def valid(self, token_id: str) -> DelegationToken | None:
        """The token, if it may be used now."""
        token = self.tokens().get(token_id)
        return None if token is None or token.is_expired(self.now_ms()) else token

    def verifiers(self, token_id: str, mechanism: ScramMechanism) -> list[ScramVerifier]:
        """Verifiers of a login by the token, one for each key. A token that does not exist, or has expired,
        has as many that no password matches, with the same salt each time as if it existed."""
        if len(token_id) > TOKEN_ID_MAX or self.valid(token_id) is None:
            key = self._derived("unknown", token_id, mechanism)[: mechanism.key_size]
            unknown = ScramVerifier(
                salt=self._salt(token_id, mechanism),
                stored_key=key,
                server_key=key,
                iterations=MIN_ITERATIONS,
            )
            return [unknown] * (1 + len(self.other_keys))
        known = self._verifiers.get((token_id, mechanism))
        if known is None:
            known = self._verifiers[token_id, mechanism] = self._derive(token_id, mechanism)
            if len(self._verifiers) > VERIFIERS_MAX:
                self._verifiers.popitem(last=False)
        return known

    def _derive(self, token_id: str, mechanism: ScramMechanism) -> list[ScramVerifier]:
        salt, hash_name = self._salt(token_id, mechanism), mechanism.hash_name
        found = []
        for value in self._hmacs_of(token_id):
            password = salted_password(hash_name, b64encode(value).decode(), salt, MIN_ITERATIONS)
            keys = keys_of(hash_name, password)
            found.append(
                ScramVerifier(
                    salt=salt,
                    stored_key=keys.stored_key,
                    server_key=keys.server_key,
                    iterations=MIN_ITERATIONS,
                )
            )
        return found

    def _salt(self, token_id: str, mechanism: ScramMechanism) -> bytes:
        return self._derived("salt", token_id, mechanism)[:SALT_BYTES]

    def _derived(self, purpose: str, token_id: str, mechanism: ScramMechanism) -> bytes:
        """64 bytes that only the holder of the key knows. No id of a token has NUL in it, so that this is
        never the HMAC of one."""
        text = f"{purpose}\0{mechanism.sasl_name}\0{token_id}"
        return hmac.digest(self.secret_key, text.encode(), "sha512")

    async def _index(self) -> None:
        """Follow the image. A token that is added costs about 3 µs, one look at all of 50,000 some ms."""
        tokens = self.tokens()
        if tokens is self._indexed:
            return
        for gone in [token_id for token_id in self._digests if token_id not in tokens]:
            for digest in self._digests.pop(gone):
                del self._ids[digest]
            for mechanism in ScramMechanism:
                self._verifiers.pop((gone, mechanism), None)
        added = [token_id for token_id in tokens if token_id not in self._digests]
        for number, token_id in enumerate(added, 1):
            digests = self._digests[token_id] = [*map(_digest, self._hmacs_of(token_id))]
            self._ids |= dict.fromkeys(digests, token_id)
            if number % INDEXED_PER_TURN == 0:
                await asyncio.sleep(0)
        self._indexed = tokens


def delegation_tokens_of(settings: NodeSettings, metadata: MetadataClient, clock: Clock) -> DelegationTokens:
    """Those of a broker with these settings."""
    key = settings.delegation_token_secret_key.encode()
    others = tuple(one.encode() for one in settings.other_token_keys)
    return DelegationTokens(key, lambda: metadata.image.tokens, clock.now_ms, secrets.randbits, others)


def no_delegation_tokens() -> DelegationTokens:
    """Those of a broker without a key."""
    return DelegationTokens(b"", Map, lambda: 0, secrets.randbits)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
