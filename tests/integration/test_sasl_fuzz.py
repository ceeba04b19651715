"""Random SASL frames on a real listener: every connection is answered or closed, no login succeeds, and
the listener still serves. SASL_FUZZ_FRAMES: how many frames."""

import asyncio
import os
import random
import secrets
from collections.abc import Callable

from connection_harness import METADATA
from sasl_logins import LoginBroker, is_served, log_in

from tierlog.broker.handlers.sasl import SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import ScramClient

FRAMES = int(os.environ.get("SASL_FUZZ_FRAMES", "4000"))
FRAMES_PER_CONNECTION = 8
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI", "")


def handshake(rng: random.Random) -> bytes:
    request = SaslHandshakeRequest(mechanism=rng.choice(MECHANISMS))
    return encode_request(APIS[SASL_HANDSHAKE_KEY], rng.randrange(2), 1, "fuzz", request)


def message(rng: random.Random) -> bytes:
    return rng.choice(
        (
            ScramClient("SCRAM-SHA-256", "ada", "wrong", "abc").start(),
            plain.encode("ada", "wrong"),
            oauthbearer.encode("a.b.c"),
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
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    broker = LoginBroker()
    await broker.start()
    for _ in range(FRAMES // FRAMES_PER_CONNECTION):
        client = await broker.connect()
        frames = [rng.choice(KINDS)(rng) for _ in range(FRAMES_PER_CONNECTION)]
        frames[0] = handshake(rng) if rng.random() < 0.8 else frames[0]
        frames = [frame if rng.random() < 0.9 else frame[:4] + changed(rng, frame[4:]) for frame in frames]
        client.writer.write(b"".join(frames))
        client.writer.write_eof()
        async with asyncio.timeout(30):
            await client.expect_close()
        client.close()
    names = {connection.principal for connection in broker.connections}
    assert names == {"User:ANONYMOUS"}, f"seed {seed}"
    assert broker.logins.counts.successful == 0, f"seed {seed}"
    assert broker.reports == [], f"seed {seed}"
    client = await broker.connect()
    assert (await log_in(client, "SCRAM-SHA-256", "ada", "lovelace")).error_code == 0
    assert await is_served(client)
    await broker.close()


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
