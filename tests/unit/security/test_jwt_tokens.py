"""OAUTHBEARER tokens that are accepted, and every way in which a token can be wrong."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from cryptography.hazmat.primitives import serialization
from issuer import AUDIENCE, EC, ISSUER, OTHER_RSA, RSA, key_set, token
from sasl_logins import LoginBroker, authenticate, handshake, is_served, log_in
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.sasl import SASL_AUTHENTICATE_KEY
from tierlog.broker.security.jwks import KeySet, KeySetUnavailable, keys_of
from tierlog.broker.security.jwt_tokens import TokenRefused, TokenValidator
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.sasl import oauthbearer

NOW_MS = 1_700_000_000_000
NOW = NOW_MS / 1000


class Keys:
    def __init__(self, text: bytes = key_set()) -> None:
        self._found = keys_of(text)

    def find(self, key_id: str | None) -> Any:
        return self._found.get(key_id)


def validator(**changes: Any) -> TokenValidator:
    return TokenValidator(**{"keys": Keys(), "issuer": ISSUER, "audience": (AUDIENCE,), **changes})


def test_valid_tokens_are_accepted() -> None:
    claims = validator().validate(token(NOW), NOW_MS)
    assert claims == ("ada", {"read", "write"}, NOW_MS + 300_000)
    for one in (
        token(NOW, key=EC, algorithm="ES256", kid="ec"),
        token(NOW, algorithm="PS512"),
        token(NOW, aud=["other", AUDIENCE]),
        token(NOW - 320),  # expired within the skew
        token(NOW + 29),
        token(NOW, scope=["a"]),
    ):
        assert validator().validate(one, NOW_MS).subject == "ada"


def made(algorithm: str, secret: bytes | None = None) -> str:
    """A token without a signature, or with one by a secret that both sides know."""
    head = encoded(json.dumps({"alg": algorithm, "kid": "rsa"}).encode())
    signed = f"{head}.{token(NOW).split('.')[1]}"
    return f"{signed}." + ("" if secret is None else encoded(hmac.digest(secret, signed.encode(), "sha256")))


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


PUBLIC_KEY = RSA.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)

WRONG = {
    "none": made("none"),
    "none in other letters": made("nOnE"),
    "no signature": made("RS256"),
    "shared secret": made("HS256", b"x" * 32),
    "the public key as a secret": made("HS256", PUBLIC_KEY),
    "wrong key": token(NOW, key=OTHER_RSA),
    "unknown key": token(NOW, kid="else"),
    "no key id": token(NOW, kid=None),
    "key of another type": token(NOW, key=EC, algorithm="ES256", kid="rsa"),
    "another algorithm than the key's": token(NOW, kid="ec"),
    "expired": token(NOW - 331),
    "future": token(NOW + 31),
    "not before": token(NOW, nbf=NOW + 31),
    "no expiry": token(NOW, drop=("exp",)),
    "no issue time": token(NOW, drop=("iat",)),
    "no subject": token(NOW, drop=("sub",)),
    "empty subject": token(NOW, sub=" "),
    "subject of another type": token(NOW, sub=7),
    "subject with half a character": token(NOW, sub="a\ud800"),
    "nested header": encoded(b'{"alg":' + b"[" * 20_000) + ".e30.AAAA",
    "long subject": token(NOW, sub="a" * 256),
    "wrong issuer": token(NOW, iss="https://else.example"),
    "no issuer": token(NOW, drop=("iss",)),
    "wrong audience": token(NOW, aud="else"),
    "no audience": token(NOW, drop=("aud",)),
    "infinite expiry": token(NOW, exp=10**300),
    "scope of another type": token(NOW, scope=7),
    "no token": "abc",
    "too large": "a" * 70_000,
    "empty": "",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_tokens_are_refused(wrong: str) -> None:
    with pytest.raises(TokenRefused) as raised:
        validator().validate(wrong, NOW_MS)
    assert len(wrong) < 4 or wrong not in str(raised.value)


def test_changed_tokens_are_refused() -> None:
    head, body, signature = token(NOW).split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["sub"] = "admin"
    changed = encoded(json.dumps(claims).encode())
    with pytest.raises(TokenRefused):
        validator().validate(f"{head}.{changed}.{signature}", NOW_MS)


def test_names_of_claims_can_be_set() -> None:
    one = validator(subject_claim="client_id", scope_claim="scp")
    claims = one.validate(token(NOW, client_id="bob", scp=["x"]), NOW_MS)
    assert claims[:2] == ("bob", {"x"})


@pytest.fixture
async def broker() -> AsyncIterator[LoginBroker]:
    one = LoginBroker(tokens=validator())
    await one.start()
    yield one
    await one.close()
    assert one.reports == []


async def test_client_logs_in_with_a_token_until_it_expires(broker: LoginBroker) -> None:
    client = await broker.connect()
    response = await log_in(client, "OAUTHBEARER", "", token(NOW))
    assert (response.error_code, response.session_lifetime_ms) == (0, 300_000)
    assert broker.connections[0].principal == "User:ada"
    broker.clock.at_ms += 200_000
    assert await is_served(client)
    response = await log_in(client, "OAUTHBEARER", "", token(NOW + 200))
    assert response.session_lifetime_ms == 300_000
    broker.clock.at_ms += 300_000
    assert not await is_served(client)


async def test_refused_token_gets_the_answer_of_rfc_7628(broker: LoginBroker) -> None:
    client = await broker.connect()
    response = await log_in(client, "OAUTHBEARER", "", token(NOW - 1000))
    assert (response.error_code, bytes(response.auth_bytes)) == (0, b'{"status":"invalid_token"}')
    response = await authenticate(client, b"\x01")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message == '{"status":"invalid_token"}'
    assert await client.expect_close() == b""


async def test_refused_token_counts_once_and_is_logged_with_the_reason(broker: LoginBroker) -> None:
    expired = token(NOW - 1000)
    with capture_logs() as logged:
        client = await broker.connect()
        await log_in(client, "OAUTHBEARER", "", expired)
        assert broker.logins.counts.failed == 1
        await authenticate(client, b"\x01")
        assert await client.expect_close() == b""
    assert broker.logins.counts.failed == 1
    [line] = logged
    assert (line["event"], line["why"]) == ("authentication.failed", "the token has expired")
    assert expired not in str(line)


async def test_client_that_closes_at_a_refusal_has_failed(broker: LoginBroker) -> None:
    client = await broker.connect()
    await log_in(client, "OAUTHBEARER", "", token(NOW, kid="else"))
    client.writer.close()
    assert broker.logins.counts.failed == 1


async def test_refusal_of_a_token_is_delayed() -> None:
    broker = LoginBroker(tokens=validator(), delay_ms=60_000)
    await broker.start()
    client = await broker.connect()
    await handshake(client, "OAUTHBEARER")
    message = SaslAuthenticateRequest(auth_bytes=oauthbearer.encode(token(NOW - 1000)))
    client.send(SASL_AUTHENTICATE_KEY, 2, message)
    await until(lambda: broker.logins.counts.failed == 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.frame()
    await broker.close()


async def test_names_in_a_token_do_not_fill_the_log() -> None:
    with pytest.raises(TokenRefused) as raised:
        validator().validate(token(NOW, kid="k" * 10_000), NOW_MS)
    assert len(str(raised.value)) < 200


async def test_invalid_message_is_refused(broker: LoginBroker) -> None:
    client = await broker.connect()
    await handshake(client, "OAUTHBEARER")
    assert (await authenticate(client, b"n,,")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_key_sets_that_are_none_are_refused() -> None:
    for text in (b"", b"[]", b"{}", b'{"keys":[]}', b'{"keys":[{"kty":"x"}]}', b'{"keys":7}', b"\xff"):
        with pytest.raises(KeySetUnavailable):
            keys_of(text)


@pytest.mark.parametrize(
    "response",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab"],
    ids=["closed", "no HTTP", "cut"],
)
async def test_issuer_that_responds_nonsense_is_asked_again(response: bytes) -> None:
    requests: list[int] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(1)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    failures: list[BaseException] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        keys = KeySet(f"http://127.0.0.1:{port}/keys", 3_600_000, backoff_ms=1, backoff_max_ms=5)
        tasks.spawn("keys", keys.keep_fresh())
        await until(lambda: len(requests) > 2)
        await tasks.close()
    assert failures == []
    assert keys.failures >= 2


def key_files(file: Path, refresh_ms: int = 3_600_000) -> KeySet:
    return KeySet(file.as_uri(), refresh_ms, backoff_ms=1, backoff_max_ms=5)


async def test_unknown_key_makes_the_key_set_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set())
    keys = key_files(file)
    tasks = TaskGroup(lambda name, failure: None)
    tasks.spawn("keys", keys.keep_fresh())
    await until(lambda: keys.find("rsa") is not None)
    new = json.loads(key_set())["keys"][0] | {"kid": "new"}
    file.write_bytes(key_set(new=new))
    await until(lambda: keys.find("new") is not None)
    file.unlink()
    await until(lambda: keys.find("missing") is None and bool(keys.failures))
    assert keys.find("rsa") is not None
    await tasks.close()
