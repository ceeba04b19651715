"""An issuer of OAUTHBEARER tokens."""

import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://issuer.example", "tierlog"


def key_set(**extra: Any) -> bytes:
    """The public keys `rsa` and `ec`, as a JWKS."""
    keys = [
        {**json.loads(RSAAlgorithm.to_jwk(RSA.public_key())), "kid": "rsa", "use": "sig"},
        {**json.loads(ECAlgorithm.to_jwk(EC.public_key())), "kid": "ec", "alg": "ES256"},
    ]
    return json.dumps({"keys": [*keys, *extra.values()]}).encode()


def token(
    now_s: float,
    *,
    key: Any = RSA,
    algorithm: str = "RS256",
    kid: str | None = "rsa",
    drop: tuple[str, ...] = (),
    **claims: Any,
) -> str:
    """A token of ada that is valid for five minutes, with other claims on demand."""
    payload = {
        "sub": "ada", "iss": ISSUER, "aud": AUDIENCE, "scope": "read write",
        "iat": int(now_s), "exp": int(now_s) + 300, **claims,
    }  # fmt: skip
    kept = {name: value for name, value in payload.items() if name not in drop}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(kept, key, algorithm=algorithm, headers=headers)
