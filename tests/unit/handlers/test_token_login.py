"""Logins by delegation tokens, over real connections: the client's principal, and the end of its session."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from connection_harness import METADATA, Client
from immutables import Map
from msgspec.structs import replace
from sasl_logins import LoginBroker, authenticate, handshake, is_served, log_in

from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.metadata.scram import ScramMechanism
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.sasl.scram import HASHES

MECHANISM = "SCRAM-SHA-256"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
async def broker() -> AsyncIterator[LoginBroker]:
    broker = LoginBroker()
    await broker.start()
    yield broker
    await broker.close()


async def connect(broker: LoginBroker, token: tuple[str, str], mechanism: str = MECHANISM) -> Client:
    client = await broker.connect()
    response = await log_in(client, mechanism, *token, by_token=True)
    assert response.error_code == 0, response
    return client


@pytest.mark.parametrize("mechanism", HASHES)
async def test_client_is_the_owner_for_as_long_as_the_token_is_valid(
    broker: LoginBroker, mechanism: str
) -> None:
    token = broker.token("User:bob,=x", lifetime_ms=60_000)
    client = await broker.connect()
    response = await log_in(client, mechanism, *token, by_token=True)
    assert response.session_lifetime_ms == 60_000
    connection = broker.connections[-1]
    assert (connection.principal, connection.by_token) == ("User:bob,=x", True)
    broker.clock.at_ms += 59_999
    assert await is_served(client)
    broker.clock.at_ms += 1
    assert not await is_served(client)
    assert broker.logins.counts.expired == 1


@pytest.mark.parametrize("mechanism", HASHES)
async def test_token_of_another_accepted_key_logs_in(mechanism: str) -> None:
    old = LoginBroker()
    broker = LoginBroker(key=b"the next key of sixteen", other_keys=(old.delegation_tokens.secret_key,))
    await broker.start()
    token_id, by_old = old.token("User:bob")
    broker.tokens_known = old.tokens_known
    by_new = base64.b64encode(broker.delegation_tokens.hmac_of(token_id)).decode()
    for value in (by_old, by_new):
        await connect(broker, (token_id, value), mechanism)
        assert broker.connections[-1].principal == "User:bob"
    wrong = base64.b64encode(bytes(64)).decode()
    refused = await log_in(await broker.connect(), mechanism, token_id, wrong, by_token=True)
    assert refused.error_code == FAILED
    await broker.close()


async def test_login_by_password_is_none_by_token(broker: LoginBroker) -> None:
    client = await broker.connect()
    await log_in(client, MECHANISM, "ada", "lovelace")
    assert broker.connections[-1].by_token is False


async def test_wrong_hmac_and_unknown_removed_and_expired_tokens_are_refused_alike(
    broker: LoginBroker,
) -> None:
    token_id, password = broker.token()
    removed = broker.token()
    broker.tokens_known = broker.tokens_known.delete(removed[0])
    expired = broker.token(lifetime_ms=-1)
    messages = set()
    for token in ((token_id, "wrong"), ("unknown", password), ("ada", "lovelace"), removed, expired):
        client = await broker.connect()
        response = await log_in(client, MECHANISM, *token, by_token=True)
        assert response.error_code == FAILED
        messages.add(response.error_message)
        assert await client.expect_close() == b""
    assert len(messages) == 1
    assert broker.logins.counts.failed == 5


async def test_token_is_no_user(broker: LoginBroker) -> None:
    """Without the extension the id is the name of a user that does not exist."""
    client = await broker.connect()
    assert (await log_in(client, MECHANISM, *broker.token())).error_code == FAILED


@pytest.mark.parametrize(
    ("extensions", "is_accepted"),
    [
        (",tokenauth=true", True),
        (",tokenauth=TRUE", True),
        (",other=1,tokenauth=true,more=x", True),
        (",tokenauth=false", False),
        (",tokenauth=", False),
        (",TOKENAUTH=true", False),
        (",tokenauth=true ", False),
    ],
)
async def test_extension_is_read_as_by_kafka(broker: LoginBroker, extensions: str, is_accepted: bool) -> None:
    """A message without it is about a user, of which the broker tells nothing in its first answer either."""
    token_id, _ = broker.token()
    client = await broker.connect()
    await handshake(client, MECHANISM)
    response = await authenticate(client, f"n,,n={token_id},r=abc{extensions}".encode())
    [known] = broker.delegation_tokens.verifiers(token_id, ScramMechanism.SHA_256)
    assert (_salt(bytes(response.auth_bytes)) == known.salt) is is_accepted


async def test_removed_token_ends_sessions_at_their_next_request(broker: LoginBroker) -> None:
    one, other = broker.token(), broker.token()
    clients = [await connect(broker, one), await connect(broker, other)]
    broker.tokens_known = broker.tokens_known.delete(one[0])
    assert [await is_served(client) for client in clients] == [False, True]
    assert broker.notes[0][0] == CloseReason.AUTHENTICATION


async def test_token_that_expires_sooner_ends_its_sessions(broker: LoginBroker) -> None:
    token = broker.token()
    client = await connect(broker, token)
    known = broker.tokens_known[token[0]]
    broker.tokens_known = broker.tokens_known.set(
        token[0], replace(known, expires_ms=broker.clock.at_ms + 1_000)
    )
    broker.clock.at_ms += 1_000
    assert await is_served(client)
    broker.clock.at_ms += 1
    assert not await is_served(client)


async def test_renewed_token_logs_in_again_on_the_same_connection(broker: LoginBroker) -> None:
    token = broker.token()
    client = await connect(broker, token)
    known = broker.tokens_known[token[0]]
    broker.clock.at_ms += 50_000
    broker.tokens_known = broker.tokens_known.set(
        token[0], replace(known, expires_ms=broker.clock.at_ms + 60_000)
    )
    response = await log_in(client, MECHANISM, *token, by_token=True)
    assert response.session_lifetime_ms == 60_000
    broker.clock.at_ms += 59_000
    assert await is_served(client)
    assert broker.logins.counts.reauthenticated == 1


async def test_reauthentication_needs_the_same_owner(broker: LoginBroker) -> None:
    of_ada, of_bob = broker.token("User:ada"), broker.token("User:bob")
    client = await connect(broker, of_ada)
    broker.clock.at_ms += 1_001
    response = await log_in(client, MECHANISM, *of_bob, by_token=True)
    assert (response.error_code, response.error_message) == (
        FAILED,
        "Cannot change principals during re-authentication",
    )


async def test_reauthentication_by_password_is_none_by_token(broker: LoginBroker) -> None:
    client = await connect(broker, broker.token("User:ada"))
    broker.clock.at_ms += 1_001
    assert (await log_in(client, MECHANISM, "ada", "lovelace")).error_code == 0
    assert broker.connections[-1].by_token is False
    broker.tokens_known = Map()
    broker.clock.at_ms += 10**9
    client.send(METADATA, 9, MetadataRequest(topics=[]))
    await client.receive(METADATA, 9)


async def test_session_limit_of_the_listener_applies_too() -> None:
    broker = LoginBroker(session_ms=10_000)
    await broker.start()
    client = await broker.connect()
    response = await log_in(client, MECHANISM, *broker.token(), by_token=True)
    assert response.session_lifetime_ms == 10_000
    await broker.close()


async def test_broker_without_a_key_refuses_tokens() -> None:
    broker = LoginBroker(has_delegation_tokens=False)
    await broker.start()
    client = await broker.connect()
    assert (await log_in(client, MECHANISM, *broker.token(), by_token=True)).error_code == FAILED
    await broker.close()


def _salt(answer: bytes) -> bytes:
    fields: Any = dict(part.split("=", 1) for part in answer.decode().split(","))
    return base64.b64decode(fields["s"])
