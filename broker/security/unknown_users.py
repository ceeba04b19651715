"""Verifiers of users that do not exist, so that neither messages nor times tell which users exist.

An unknown user has the mechanisms, iterations and salt sizes of a real one, which a keyed digest of its name
chooses. So it has the same each time, from each broker of a cluster with `controller.quorum.secret`. A real
user that lacks a mechanism looks like an unknown one that lacks it. No password matches. Called by
`security.mechanisms` and the admin API.
"""

import hashlib
import hmac
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate, islice
from typing import NamedTuple

from immutables import Map

from tierlog.config.node import NodeSettings
from tierlog.metadata.scram import ScramMechanism, ScramVerifier
from tierlog.metadata.scram_users import ScramUsers
from tierlog.protocol.sasl.scram import MIN_ITERATIONS

SAMPLE_MAX = 1_000
"""Users that are looked at after each change of users: about 2 ms of the event loop."""

_BASE_36 = bytes(b"0123456789abcdefghijklmnopqrstuvwxyz"[byte % 36] for byte in range(256))


class _Shape(NamedTuple):
    """The part of a verifier that a client sees, or can measure by the time that a check takes."""

    iterations: int = MIN_ITERATIONS
    salt_size: int = 25
    has_text: bool = True  # the salt is alphanumeric, as from Kafka's tools


_Shapes = tuple[tuple[ScramMechanism, _Shape], ...]
"""The mechanisms of a user."""


class UnknownUsers:
    def __init__(self, users: Callable[[], ScramUsers], secret: bytes) -> None:
        self._users = users
        self._secret = secret
        self._sampled: ScramUsers = Map()
        self._choices: Mapping[ScramMechanism | None, _Choices] = {None: _Choices(Counter())}

    def verifier(self, user: str, mechanism: ScramMechanism) -> ScramVerifier:
        """The verifier of a user without this mechanism."""
        self._sample()
        is_real = user in self._sampled
        shape = None if is_real else dict(self._chosen(user, None)).get(mechanism)
        if shape is None:
            shape = dict(self._chosen(user, mechanism)).get(mechanism, _Shape())
        return self._made(user, mechanism, shape)

    def best_verifier(self, user: str) -> tuple[ScramMechanism, ScramVerifier]:
        """The verifier that the admin API would use, if an unknown user existed."""
        self._sample()
        shapes = self._chosen(user, None) or ((ScramMechanism.SHA_256, _Shape()),)
        mechanism, shape = max(shapes)
        return mechanism, self._made(user, mechanism, shape)

    def _made(self, user: str, mechanism: ScramMechanism, shape: _Shape) -> ScramVerifier:
        drawn = hashlib.shake_256(self._digest(f"verifier\0{mechanism.sasl_name}\0{user}"))
        data = drawn.digest(mechanism.key_size + shape.salt_size)
        key, salt = data[: mechanism.key_size], data[mechanism.key_size :]
        return ScramVerifier(
            salt=salt.translate(_BASE_36) if shape.has_text else salt,
            stored_key=key,
            server_key=key,
            iterations=shape.iterations,
        )

    def _chosen(self, user: str, mechanism: ScramMechanism | None) -> _Shapes:
        """Those of a real user, or of a real user with this mechanism; empty without any."""
        choices = self._choices.get(mechanism)
        label = "" if mechanism is None else mechanism.sasl_name
        return () if choices is None else choices.at(self._digest(f"choice\0{label}\0{user}"))

    def _sample(self) -> None:
        users = self._users()
        if users is self._sampled:
            return
        counts = Counter(map(_shapes_of, islice(users.values(), SAMPLE_MAX)))
        self._choices = {None: _Choices(counts)} | {
            mechanism: _Choices(Counter({one: n for one, n in counts.items() if mechanism in dict(one)}))
            for mechanism in {mechanism for shapes in counts for mechanism, _ in shapes}
        }
        self._sampled = users

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(), "sha512")


class _Choices:
    """Chooses as often as users have them. The order makes most choices outlive a change of users."""

    def __init__(self, counts: Counter[_Shapes]) -> None:
        self._all = sorted(counts)
        self._ends = list(accumulate(counts[one] for one in self._all))

    def at(self, digest: bytes) -> _Shapes:
        if not self._all:
            return ()
        place = int.from_bytes(digest[:8]) * self._ends[-1] >> 64
        return self._all[bisect_right(self._ends, place)]


def cluster_secret(settings: NodeSettings, cluster_id: str) -> bytes:
    """A secret of all brokers of a cluster. A single broker may have none, and forgets this at a restart."""
    secret = settings.controller_quorum_secret or secrets.token_hex()
    return hashlib.sha256(f"{cluster_id}\0{secret}".encode()).digest()


def _shapes_of(credentials: Map[ScramMechanism, ScramVerifier]) -> _Shapes:
    return tuple(
        (mechanism, _Shape(one.iterations, len(one.salt), one.salt.isalnum()))
        for mechanism, one in sorted(credentials.items())
    )
