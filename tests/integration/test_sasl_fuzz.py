"""Random SASL frames on a real listener: every connection is answered or closed, no login succeeds, no client
becomes another user, and the listener still serves. SASL_FUZZ_FRAMES and SASL_FUZZ_SEED: how many frames, and
which."""

import asyncio
import os
import random
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import issuer
import pytest
from connection_harness import METADATA, Client
from sasl_logins import FixedClock, LoginBroker, is_served, log_in

from tierlog.broker.handlers.sasl import SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY
from tierlog.broker.security import jwks
from tierlog.broker.security.jwt_tokens import TokenValidator
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import ScramClient

FRAMES = int(os.environ.get("SASL_FUZZ_FRAMES", "4000"))
SEED = int(os.environ.get("SASL_FUZZ_SEED", secrets.randbits(32)))
SESSION_MS = 60_000
FRAMES_PER_CONNECTION = 8
NOW_S = FixedClock().now_ms() / 1000
TOKENS = (
    issuer.token(NOW_S, key=issuer.OTHER_RSA),
    issuer.token(NOW_S - 1_000),
    issuer.token(NOW_S, aud="else"),
    issuer.token(NOW_S, kid="else"),
    "a.b.c",
)
TOKEN_ID = "AAAAAAAAAAAAAAAAAAAAAA"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI", "")


def handshake(rng: random.Random) -> bytes:
    request = SaslHandshakeRequest(mechanism=rng.choice(MECHANISMS))
    return encode_request(APIS[SASL_HANDSHAKE_KEY], rng.randrange(2), 1, "fuzz", request)


def message(rng: random.Random) -> bytes:
    return rng.choice(
        (
            ScramClient("SCRAM-SHA-256", "ada", "wrong", "abc").start(),
            ScramClient("SCRAM-SHA-256", TOKEN_ID, "wrong", "abc", by_token=True).start(),
            plain.encode("ada", "wrong"),
            oauthbearer.encode(rng.choice(TOKENS)),
            b"c=biws,r=abc,p=AAAA",
            rng.randbytes(rng.randrange(300)),
        )
    )


def authenticate(rng: random.Random) -> bytes:
    request = SaslAuthenticateRequest(auth_bytes=changed(rng, message(rng)))
    return encode_request(APIS[SASL_AUTHENTICATE_KEY], rng.randrange(3), 1, "fuzz", request)


def raw(rng: random.Random) -> bytes:
    body = message(rng)
    return len(body).to_bytes(4) + body


def other(rng: random.Random) -> bytes:
    return encode_request(APIS[METADATA], 9, 1, "fuzz", MetadataRequest())


def changed(rng: random.Random, data: bytes) -> bytes:
    """The data with at most two other bytes."""
    edited = bytearray(data)
    for _ in range(rng.randrange(3)):
        if edited:
            edited[rng.randrange(len(edited))] = rng.randrange(256)
    return bytes(edited)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    handshake,
    handshake,
    authenticate,
    authenticate,
    raw,
    other,
)


async def test_random_frames_let_no_client_in() -> None:
    await play(SEED, FRAMES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("frames", [20_000, pytest.param(200_000, marks=pytest.mark.nightly)])
async def test_many_random_frames_let_no_client_in(frames: int) -> None:
    await play(15, frames)


async def play(seed: int, frames: int) -> None:
    rng = random.Random(seed)
    keys: Any = SimpleNamespace(find=jwks.keys_of(issuer.key_set()).get)
    tokens = TokenValidator(keys=keys, issuer=issuer.ISSUER, audience=(issuer.AUDIENCE,))
    broker = LoginBroker(tokens=tokens, session_ms=SESSION_MS)
    await broker.start()
    users = 0
    for _ in range(frames // FRAMES_PER_CONNECTION):
        client = await broker.connect()
        if is_user := rng.random() < 0.2:  # then logs in again
            assert (await log_in(client, "PLAIN", "ada", "lovelace")).error_code == 0
            users += 1
            broker.clock.at_ms += rng.choice((999, 1_001, SESSION_MS + 1))
        await attack(client, rng)
        principal = broker.connections[-1].principal
        assert principal == ("User:ada" if is_user else "User:ANONYMOUS"), f"seed {seed}"
    counts = broker.logins.counts
    assert (counts.successful, counts.reauthenticated) == (users, 0), f"seed {seed}"
    assert broker.reports == [], f"seed {seed}"
    client = await broker.connect()
    assert (await log_in(client, "SCRAM-SHA-256", "ada", "lovelace")).error_code == 0
    assert await is_served(client)
    await broker.close()


async def attack(client: Client, rng: random.Random) -> None:
    frames = [rng.choice(KINDS)(rng) for _ in range(FRAMES_PER_CONNECTION)]
    frames[0] = handshake(rng) if rng.random() < 0.8 else frames[0]
    frames = [frame if rng.random() < 0.9 else frame[:4] + changed(rng, frame[4:]) for frame in frames]
    client.writer.write(b"".join(frames))
    client.writer.write_eof()
    async with asyncio.timeout(30):
        await client.expect_close()
    client.close()


async def test_connections_that_never_log_in_are_bounded() -> None:
    broker = LoginBroker()
    await broker.start(connections=50)
    clients = [await broker.connect() for _ in range(60)]
    for client in clients[:10]:  # the oldest make room
        assert await client.expect_close() == b""
    assert broker.listener.connections == 50
    for client in clients:
        client.close()
    await broker.close()
