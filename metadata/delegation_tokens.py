"""Delegation tokens of the image (KIP-48): the user of its logins, and when it expires.

The HMAC of a token, its password, is not here: brokers derive it from the token's id and
`delegation.token.secret.key`, so neither the metadata log nor a snapshot lets anyone log in. Times are in
milliseconds since 1970 by the wall clocks of brokers. Spark's executors import this module with the records.
"""

import msgspec

TOKENS_MAX = 50_000
"""Every node keeps all tokens in memory, about 1 KB each."""

TOKENS_OF_REQUESTER_MAX = 10_000
"""A client needs no permission for its own tokens, so that no client may use up all of TOKENS_MAX."""

RENEWERS_MAX = 100
NAMES_CHARACTERS_MAX = 4_096
"""Characters in the names of one token together."""

TOKEN_ID_MAX = 64
"""Maximum length in characters. Ids have 22."""


class DelegationToken(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """`owner`: the principal of clients that log in by the token. `requester`: the principal that created it.
    Both, and the `renewers`, may change when it expires, which is never after `max_ms`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def is_of(self, principal: str) -> bool:
        """Whether it is the owner, the requester or a renewer."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def is_expired(self, now_ms: int) -> bool:
        return now_ms > self.expires_ms
