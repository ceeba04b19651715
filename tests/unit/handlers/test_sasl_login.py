"""Logins on a real listener: right and wrong passwords, requests before the login, and logins that expire."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, Client, until
from immutables import Map
from sasl_logins import (
    API_VERSIONS,
    LoginBroker,
    authenticate,
    handshake,
    is_served,
    log_in,
    scram_users,
    verifier,
)

from tierlog.broker.handlers.context import CLOSE
from tierlog.broker.handlers.sasl import LOGIN_MAX_MS, MESSAGES_MAX, SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.security.mechanisms import Step
from tierlog.client.errors import AuthenticationFailed as ClientRefused
from tierlog.client.security import ClientSecurity
from tierlog.metadata.scram import ScramMechanism
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.api_versions import ApiVersionsRequest
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import plain
from tierlog.protocol.sasl.scram import ScramClient

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism"


@pytest.fixture
async def broker() -> AsyncIterator[LoginBroker]:
    one = LoginBroker()
    await one.start()
    yield one
    await one.close()
    assert one.reports == []


async def expiring(session_ms: int) -> LoginBroker:
    one = LoginBroker(session_ms=session_ms)
    await one.start()
    return one


@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_user_logs_in(broker: LoginBroker, mechanism: str, version: int) -> None:
    client = await broker.connect()
    assert (await client.ask(API_VERSIONS, 0, ApiVersionsRequest())).error_code == 0
    response = await log_in(client, mechanism, "ada", "lovelace", version)
    assert (response.error_code, response.error_message) == (0, None)
    assert await is_served(client)
    (connection,) = broker.connections
    assert (connection.principal, connection.user, connection.authentication) == ("User:ada", "ada", None)
    assert (broker.logins.counts.successful, broker.logins.counts.failed) == (1, 0)


@pytest.mark.parametrize("mechanism", [*SCRAM, "PLAIN"])
@pytest.mark.parametrize(("user", "password"), [("ada", "wrong"), ("eve", "lovelace"), ("ada", "builder")])
async def test_wrong_password_is_refused(
    broker: LoginBroker, mechanism: str, user: str, password: str
) -> None:
    client = await broker.connect()
    response = await log_in(client, mechanism, user, password)
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    expected = "Authentication failed: Invalid username or password"
    assert response.error_message == (expected if mechanism == "PLAIN" else f"{INVALID} {mechanism}")
    assert await client.expect_close() == b""
    assert broker.connections[0].principal == "User:ANONYMOUS"
    assert (broker.logins.counts.successful, broker.logins.counts.failed) == (0, 1)


async def test_unknown_user_fails_as_late_as_a_wrong_password(broker: LoginBroker) -> None:
    salts = []
    for user in ("eve", "eve", "mallory"):
        client = await broker.connect()
        await handshake(client, SCRAM[0])
        response = await authenticate(client, ScramClient(SCRAM[0], user, "x", "abc").start())
        assert response.error_code == 0
        salts.append(bytes(response.auth_bytes).split(b",")[1])
    assert salts[0] == salts[1] != salts[2]


async def test_unknown_user_gets_the_iterations_of_a_real_one(broker: LoginBroker) -> None:
    secret = verifier("sha256", "lovelace", salt=b"x" * 20, iterations=8192)
    broker.users = Map({"ada": Map({ScramMechanism.SHA_256: secret})})
    for user in ("ada", "eve"):
        client = await broker.connect()
        await handshake(client, SCRAM[0])
        response = await authenticate(client, ScramClient(SCRAM[0], user, "x", "abc").start())
        _, salt, iterations = bytes(response.auth_bytes).split(b",")
        assert (len(salt), iterations) == (30, b"i=8192")


async def test_removed_user_is_refused(broker: LoginBroker) -> None:
    broker.users = scram_users(bob="builder")
    response = await log_in(await broker.connect(), SCRAM[0], "ada", "lovelace")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("key", "version", "request_"),
    [
        (METADATA, 9, MetadataRequest()),
        (HEARTBEAT, 0, HeartbeatRequest()),
        (SASL_AUTHENTICATE_KEY, 1, SaslAuthenticateRequest(auth_bytes=b"")),
    ],
)
async def test_nothing_else_is_answered_before(
    broker: LoginBroker, key: int, version: int, request_: Any
) -> None:
    client = await broker.connect()
    client.send(key, version, request_)
    assert await client.expect_close() == b""
    assert not broker.heartbeats
    assert broker.logins.counts.failed == 1


async def test_only_messages_are_answered_after_the_handshake(broker: LoginBroker) -> None:
    for key, version, request in (
        (METADATA, 9, MetadataRequest()),
        (API_VERSIONS, 0, ApiVersionsRequest()),
        (SASL_HANDSHAKE_KEY, 1, SaslHandshakeRequest(mechanism="PLAIN")),
    ):
        client = await broker.connect()
        await handshake(client, "PLAIN")
        client.send(key, version, request)
        assert await client.expect_close() == b""


async def test_request_behind_the_last_message_waits_for_the_login(broker: LoginBroker) -> None:
    client = await broker.connect()
    await handshake(client, "PLAIN")
    for password in ("lovelace",):
        request = SaslAuthenticateRequest(auth_bytes=plain.encode("ada", password))
        client.send(SASL_AUTHENTICATE_KEY, 2, request)
        client.send(METADATA, 9, MetadataRequest(topics=[]))
    assert (await client.receive(SASL_AUTHENTICATE_KEY, 2))[1].error_code == 0
    assert (await client.receive(METADATA, 9))[1] is not None


async def test_request_behind_a_failed_login_is_not_answered(broker: LoginBroker) -> None:
    client = await broker.connect()
    await handshake(client, "PLAIN")
    client.send(SASL_AUTHENTICATE_KEY, 2, SaslAuthenticateRequest(auth_bytes=plain.encode("ada", "x")))
    client.send(METADATA, 9, MetadataRequest(topics=[]))
    assert (await client.receive(SASL_AUTHENTICATE_KEY, 2))[1].error_code
    assert await client.expect_close() == b""


async def test_mechanism_that_is_not_enabled_is_refused(broker: LoginBroker) -> None:
    for mechanism in ("GSSAPI", "OAUTHBEARER", "", "scram-sha-256"):
        client = await broker.connect()
        response = await handshake(client, mechanism)
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == [*SCRAM, "PLAIN"]
        assert await client.expect_close() == b""


async def raw(client: Client, message: bytes) -> bytes:
    client.writer.write(len(message).to_bytes(4) + message)
    return await client.frame()


async def test_raw_messages_follow_an_old_handshake(broker: LoginBroker) -> None:
    client = await broker.connect()
    await handshake(client, SCRAM[0], version=0)
    scram = ScramClient(SCRAM[0], "ada", "lovelace", "abc")
    final = scram.respond(await raw(client, scram.start()))
    scram.respond(await raw(client, final))
    assert scram.is_done
    assert await is_served(client)
    client = await broker.connect()
    await handshake(client, "PLAIN", version=0)
    assert await raw(client, plain.encode("ada", "lovelace")) == b""
    assert await is_served(client)


async def test_raw_failure_closes_without_an_answer(broker: LoginBroker) -> None:
    client = await broker.connect()
    await handshake(client, "PLAIN", version=0)
    message = plain.encode("ada", "wrong")
    client.writer.write(len(message).to_bytes(4) + message)
    assert await client.expect_close() == b""
    assert broker.logins.counts.failed == 1


async def test_large_requests_are_refused_before_and_accepted_after(broker: LoginBroker) -> None:
    client = await broker.connect()
    client.writer.write((4097).to_bytes(4) + bytes(100))
    assert await client.expect_close() == b""
    assert broker.notes[-1] == (CloseReason.MALFORMED, "a frame of 4097 bytes")
    client = await broker.connect()
    await log_in(client, "PLAIN", "ada", "lovelace")
    many = MetadataRequest(topics=[])
    client.send(METADATA, 9, many)
    await client.receive(METADATA, 9)
    client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g" * 30_000))
    await client.receive(HEARTBEAT, 0)


async def test_failure_is_answered_after_the_delay() -> None:
    broker = LoginBroker(delay_ms=60_000)
    await broker.start()
    client = await broker.connect()
    await handshake(client, "PLAIN")
    client.send(SASL_AUTHENTICATE_KEY, 2, SaslAuthenticateRequest(auth_bytes=plain.encode("ada", "x")))
    await until(lambda: broker.logins.counts.failed == 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.frame()
    await broker.close()


async def test_connection_that_never_logs_in_has_few_requests(broker: LoginBroker) -> None:
    client = await broker.connect()
    for _ in range(64):
        await client.ask(API_VERSIONS, 0, ApiVersionsRequest())
    client.send(API_VERSIONS, 0, ApiVersionsRequest())
    assert await client.expect_close() == b""


async def test_connection_that_does_not_log_in_is_closed() -> None:
    broker = LoginBroker()
    await broker.start(sweep_s=0.001)
    idle, active = await broker.connect(), await broker.connect()
    await handshake(idle, SCRAM[0])
    await log_in(active, SCRAM[0], "ada", "lovelace")
    broker.clock.at_ms += LOGIN_MAX_MS + 1
    assert await idle.expect_close() == b""
    assert broker.notes == [(CloseReason.AUTHENTICATION, "the login took too long")]
    assert await is_served(active)
    await broker.close()


async def test_strangers_do_not_shut_out_clients_that_log_in() -> None:
    broker = LoginBroker(session_ms=10_000)
    await broker.start(connections=2)
    strangers = [await broker.connect() for _ in range(2)]
    clients = []
    for stranger in strangers:
        client = await broker.connect()
        assert await stranger.expect_close() == b""
        assert (await log_in(client, "PLAIN", "ada", "lovelace")).error_code == 0
        clients.append(client)
    assert await (await broker.connect()).expect_close() == b""
    for client in clients:
        assert await is_served(client)
    assert broker.listener.closed == {CloseReason.AUTHENTICATION: 2}
    await broker.close()


async def test_login_without_a_login_listener_is_refused(broker: LoginBroker) -> None:
    client = await broker.connect()
    await log_in(client, "PLAIN", "ada", "lovelace")
    assert (await handshake(client, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert (await authenticate(client, b"x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await is_served(client)


@pytest.mark.parametrize("has_sasl", [False, True])
async def test_client_says_what_the_listener_offers(has_sasl: bool) -> None:
    class Open(LoginBroker):
        def _begin(self, connection: Any) -> Any:
            return None

    broker = LoginBroker() if has_sasl else Open()
    await broker.start()
    client = ClientSecurity(mechanism="GSSAPI", user="ada", password="lovelace")
    why = "offers SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, not GSSAPI" if has_sasl else "has no SASL on this"
    with pytest.raises(ClientRefused, match=why):
        await asyncio.to_thread(client.open_socket, broker.address, 30)
    await broker.close()


async def test_client_logs_in_again_before_its_session_ends() -> None:
    broker = await expiring(10_000)
    client = await broker.connect()
    response = await log_in(client, SCRAM[0], "ada", "lovelace")
    assert response.session_lifetime_ms == 10_000
    for _ in range(3):
        broker.clock.at_ms += 9_000
        assert await is_served(client)
        response = await log_in(client, SCRAM[0], "ada", "lovelace")
        assert (response.error_code, response.session_lifetime_ms) == (0, 10_000)
    assert (broker.logins.counts.successful, broker.logins.counts.reauthenticated) == (1, 3)
    broker.clock.at_ms += 10_000
    assert not await is_served(client)
    assert broker.logins.counts.expired == 1
    await broker.close()


async def test_client_may_log_in_again_after_its_session_has_ended() -> None:
    broker = await expiring(10_000)
    client = await broker.connect()
    await log_in(client, SCRAM[0], "ada", "lovelace")
    broker.clock.at_ms += 60_000
    assert (await log_in(client, SCRAM[0], "ada", "lovelace")).error_code == 0
    assert await is_served(client)
    await broker.close()


async def test_login_again_within_a_second_is_refused() -> None:
    broker = await expiring(10_000)
    client = await broker.connect()
    await log_in(client, SCRAM[0], "ada", "lovelace")
    broker.clock.at_ms += 999
    assert (await handshake(client, SCRAM[0])).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert await is_served(client)
    await broker.close()


@pytest.mark.parametrize("mechanism", [SCRAM[0], SCRAM[1]])
async def test_another_user_or_mechanism_is_refused_the_second_time(mechanism: str) -> None:
    broker = await expiring(10_000)
    client = await broker.connect()
    await log_in(client, SCRAM[0], "ada", "lovelace")
    broker.clock.at_ms += 5_000
    if mechanism == SCRAM[0]:
        response = await log_in(client, mechanism, "bob", "builder")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == "Cannot change principals during re-authentication"
    else:
        assert (await handshake(client, mechanism)).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert await client.expect_close() == b""
    assert broker.connections[0].principal == "User:ada"
    assert broker.logins.counts.reauthentication_failed == 1
    await broker.close()


@pytest.mark.parametrize("case", ["failed", "expired"])
async def test_earlier_request_does_not_keep_a_connection_without_login_open(case: str) -> None:
    broker = LoginBroker(session_ms=10_000)
    await broker.start(sweep_s=0.01)
    futures = broker.hold_heartbeats()
    client = await broker.connect()
    await log_in(client, "PLAIN", "ada", "lovelace")
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    await until(lambda: len(futures) == 1)
    broker.clock.at_ms += 5_000 if case == "failed" else 60_000
    if case == "failed":
        client.send(SASL_HANDSHAKE_KEY, 1, SaslHandshakeRequest(mechanism="PLAIN"))
        client.send(SASL_AUTHENTICATE_KEY, 2, SaslAuthenticateRequest(auth_bytes=plain.encode("ada", "no")))
    else:
        client.send(METADATA, 9, MetadataRequest())
    assert await client.expect_close() == b""
    assert futures[0].cancelled()
    assert broker.listener.closed == {CloseReason.AUTHENTICATION: 1}
    await broker.close()


async def test_handler_that_closes_a_connection_with_a_session_is_no_failed_login() -> None:
    broker = await expiring(10_000)
    broker.on_heartbeat = lambda *_: CLOSE
    client = await broker.connect()
    await log_in(client, "PLAIN", "ada", "lovelace")
    client.send(HEARTBEAT, 0, HeartbeatRequest())
    assert await client.expect_close() == b""
    assert broker.listener.closed == {CloseReason.UNANSWERED: 1}
    await broker.close()


async def test_other_requests_during_the_second_login_are_refused() -> None:
    broker = await expiring(10_000)
    client = await broker.connect()
    await log_in(client, SCRAM[0], "ada", "lovelace")
    broker.clock.at_ms += 5_000
    await handshake(client, SCRAM[0])
    assert not await is_served(client)
    await broker.close()


async def test_number_of_messages_is_bounded(broker: LoginBroker) -> None:
    class Endless:
        claimed = ""

        def respond(self, message: bytes) -> Any:
            return Step(b"more")

    client = await broker.connect()
    await handshake(client, "PLAIN")
    broker.connections[0].authentication._exchange = Endless()
    for _ in range(MESSAGES_MAX):
        assert (await authenticate(client, b"x")).error_code == 0
    assert (await authenticate(client, b"x")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
