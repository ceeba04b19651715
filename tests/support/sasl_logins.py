"""A real listener that wants a login, and what clients of it send."""

import secrets
from base64 import b64encode
from typing import Any

from connection_harness import METADATA, Broker, Client
from immutables import Map

from tierlog.base.clock import SystemClock
from tierlog.broker.handlers.api_versions import api_versions_handler
from tierlog.broker.handlers.sasl import (
    SASL_AUTHENTICATE_KEY,
    SASL_HANDSHAKE_KEY,
    LoginListener,
    sasl_authenticate,
    sasl_handshake,
)
from tierlog.broker.net.core.bounds import Bounds
from tierlog.broker.net.listener import Listener, ListenerAddress
from tierlog.broker.security.delegation_tokens import DelegationTokens
from tierlog.broker.security.jwt_tokens import TokenValidator
from tierlog.broker.security.mechanisms import Mechanisms
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.scram import (
    MECHANISMS,
    ScramVerifier,
)
from tierlog.metadata.scram_users import (
    ScramUsers,
)
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import ScramClient, keys_of, salted_password

API_VERSIONS = 18


def scram_users(**passwords: str) -> ScramUsers:
    """Users with both mechanisms."""
    return Map(
        {
            user: Map({one: verifier(one.hash_name, text) for one in MECHANISMS})
            for user, text in passwords.items()
        }
    )


def verifier(hash_name: str, password: str, salt: bytes = b"salt", iterations: int = 4096) -> ScramVerifier:
    keys = keys_of(hash_name, salted_password(hash_name, password, salt, iterations))
    return ScramVerifier(
        salt=salt, stored_key=keys.stored_key, server_key=keys.server_key, iterations=iterations
    )


class FixedClock(SystemClock):
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.at_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


class LoginBroker(Broker):
    """Users: ada (password lovelace) and bob (password builder), by SCRAM and PLAIN. `tokens_known` are the
    delegation tokens of the image, `token` adds one."""

    def __init__(
        self,
        *,
        tokens: TokenValidator | None = None,
        delay_ms: int = 0,
        session_ms: int = 0,
        has_delegation_tokens: bool = True,
        key: bytes = b"a key of sixteen",
        other_keys: tuple[bytes, ...] = (),
    ) -> None:
        super().__init__()
        self.clock = FixedClock()
        self.users = scram_users(ada="lovelace", bob="builder")
        self.tokens_known: Map[str, DelegationToken] = Map()
        self.delegation_tokens = DelegationTokens(
            key, lambda: self.tokens_known, self.clock.now_ms, secrets.randbits, other_keys
        )
        enabled = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
        self.logins = LoginListener(
            "TEST",
            Mechanisms(
                enabled=enabled[: 3 if tokens is None else 4],
                users=lambda: self.users,
                secret=b"secret",
                random_bits=secrets.randbits,
                now_ms=self.clock.now_ms,
                passwords={"ada": "lovelace", "bob": "builder"},
                tokens=tokens,
                delegation_tokens=self.delegation_tokens if has_delegation_tokens else None,
            ),
            self.clock,
            receive_bytes_max=4096,
            delay_ms=delay_ms,
            session_ms=session_ms,
        )
        self.handlers[SASL_HANDSHAKE_KEY] = sasl_handshake
        self.handlers[SASL_AUTHENTICATE_KEY] = sasl_authenticate
        self.handlers[API_VERSIONS] = api_versions_handler([*self.handlers])

    def token(self, owner: str = "User:ada", lifetime_ms: int = 60_000) -> tuple[str, str]:
        """Id and password of a new token."""
        now, token_id = self.clock.now_ms(), self.delegation_tokens.new_id()
        token = DelegationToken(
            token_id=token_id,
            owner=owner,
            requester="User:admin",
            renewers=(),
            issued_ms=now,
            expires_ms=now + lifetime_ms,
            max_ms=now + 10 * lifetime_ms,
        )
        self.tokens_known = self.tokens_known.set(token_id, token)
        return token_id, b64encode(self.delegation_tokens.hmac_of(token_id)).decode()

    async def start(self, host: str = "127.0.0.1", **bounds: Any) -> None:
        self.connections: list[Any] = []
        self.listener = Listener(
            self.handlers, self.tasks, lambda _, failure: self.reports.append(failure),
            addresses=[ListenerAddress("TEST", host, 0)], bounds=Bounds(**bounds),
            on_close=lambda _, why, detail: self.notes.append((why, detail)),
            begin=self._begin,
        )  # fmt: skip
        self.address = (await self.listener.start())["TEST"]

    def _begin(self, connection: Any) -> Any:
        self.connections.append(connection)
        return self.logins.begin(connection)


async def handshake(client: Client, mechanism: str, version: int = 1) -> Any:
    return await client.ask(SASL_HANDSHAKE_KEY, version, SaslHandshakeRequest(mechanism=mechanism))


async def authenticate(client: Client, message: bytes, version: int = 2) -> Any:
    return await client.ask(SASL_AUTHENTICATE_KEY, version, SaslAuthenticateRequest(auth_bytes=message))


async def log_in(
    client: Client, mechanism: str, user: str, password: str, version: int = 2, *, by_token: bool = False
) -> Any:
    """The last response of a login."""
    assert (await handshake(client, mechanism)).error_code == 0
    if mechanism == "PLAIN":
        return await authenticate(client, plain.encode(user, password), version)
    if mechanism == "OAUTHBEARER":
        return await authenticate(client, oauthbearer.encode(password), version)
    scram = ScramClient(mechanism, user, password, secrets.token_hex(8), by_token=by_token)
    response = await authenticate(client, scram.start(), version)
    if response.error_code:
        return response
    response = await authenticate(client, scram.respond(bytes(response.auth_bytes)), version)
    if not response.error_code:
        scram.respond(bytes(response.auth_bytes))
        assert scram.is_done
    return response


async def is_served(client: Client) -> bool:
    """Whether the broker answers a request that needs a login; otherwise it closes the connection."""
    client.send(METADATA, 9, MetadataRequest(topics=[]))
    try:
        await client.receive(METADATA, 9)
    except (EOFError, ConnectionResetError):
        return False
    return True
