"""JSON web tokens of clients (RFC 7519), checked by PyJWT with the keys of the issuer (RFC 7517, KIP-768).

Only signatures with a private key are accepted: neither `none` nor a shared secret. PyJWT is imported where
OAUTHBEARER is enabled. `broker.security.jwks` refreshes the keys. Called by `security.mechanisms`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tierlog.config.sasl import SaslSettings

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures with a private key. A shared secret would let each broker make tokens."""

TOKEN_MAX_BYTES = 64 << 10
SUBJECT_MAX = 255
"""Maximum length of a user's name in characters, as of SCRAM users."""


class TokenRefused(Exception):
    """The token is invalid. The text is for the broker's log; the client does not get it."""


class Claims(NamedTuple):
    subject: str
    scopes: frozenset[str]
    expires_at_ms: int


class Keys(Protocol):
    """The issuer's keys."""

    def find(self, key_id: str | None) -> "PyJWK | None":
        """The key of this id; without an id, the only key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenValidator:
    """`issuer` and `audience`: "" and () accept all."""

    keys: Keys
    issuer: str = ""
    audience: tuple[str, ...] = ()
    skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"

    def validate(self, token: str, now_ms: int) -> Claims:
        """Raises TokenRefused."""
        import jwt

        if len(token) > TOKEN_MAX_BYTES:
            raise TokenRefused(f"a token of {len(token)} characters")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key = header.get("alg"), self.keys.find(header.get("kid"))
            if algorithm not in ALGORITHMS:
                raise TokenRefused(f"tokens signed by {algorithm!r:.100} are not accepted")
            if key is None:
                raise TokenRefused(f"the issuer has no key {header.get('kid')!r:.100}")
            options: Any = {
                "require": ["exp", "iat"],
                "verify_aud": bool(self.audience),
                "verify_exp": False,  # by `_check_times`, with the broker's clock
                "verify_iat": False,
                "verify_nbf": False,
                "verify_sub": False,
            }
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm] if _fits(key, algorithm) else [],
                audience=list(self.audience) or None,
                issuer=self.issuer or None,
                options=options,
            )
        except jwt.InvalidTokenError as failure:
            raise TokenRefused(f"{type(failure).__name__}: {failure}") from None
        except (TypeError, ValueError) as failure:  # a key of another type than the algorithm
            raise TokenRefused(str(failure)) from None
        return self._claims(claims, now_ms)

    def _claims(self, claims: dict[str, Any], now_ms: int) -> Claims:
        expires_at_ms = self._check_times(claims, now_ms)
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not 0 < len(subject.strip()) <= SUBJECT_MAX:
            raise TokenRefused(f"the claim {self.subject_claim} is no name")
        try:
            subject.encode()
        except UnicodeEncodeError:  # JSON has escapes for halves of characters
            raise TokenRefused(f"the claim {self.subject_claim} is no valid Unicode") from None
        scopes = claims.get(self.scope_claim, ())
        names = scopes.split() if isinstance(scopes, str) else scopes
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise TokenRefused(f"the claim {self.scope_claim} is no list of names")
        return Claims(subject.strip(), frozenset(names), expires_at_ms)

    def _check_times(self, claims: dict[str, Any], now_ms: int) -> int:
        """When the token expires, in ms. Raises TokenRefused if it is not valid now."""
        now, skew = now_ms / 1000, self.skew_s
        expires, issued, begins = (_number(claims, name) for name in ("exp", "iat", "nbf"))
        if expires is None or expires + skew <= now:
            raise TokenRefused("the token has expired")
        if issued is None or issued - skew > now or (begins is not None and begins - skew > now):
            raise TokenRefused("the token is not valid yet")
        return int(expires * 1000)


def token_validator(settings: SaslSettings, keys: Keys) -> TokenValidator:
    """The validator of OAUTHBEARER logins and of the admin API."""
    return TokenValidator(
        keys=keys,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        audience=settings.sasl_oauthbearer_expected_audience,
        skew_s=settings.sasl_oauthbearer_clock_skew_seconds,
        subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
    )


def _number(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise TokenRefused(f"the claim {name} is no time")
    return value


def _fits(key: "PyJWK", algorithm: str) -> bool:
    """Whether the key is meant for the algorithm. A key set may name it, or only the type of the key."""
    families = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("Ed",)}
    named = key._jwk_data.get("alg")
    if named is not None and named != algorithm:
        return False
    return key.key_type is not None and algorithm[:2] in families.get(key.key_type, ())
