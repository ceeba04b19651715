"""The admin API with users and roles, over real sockets."""

import asyncio
import hashlib
import hmac
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import issuer
import pytest
from certificates import Authority
from controller_and_broker import controller_and_broker

from tierlog.broker.app import Broker
from tierlog.broker.gateway import admin, authentication, credentials
from tierlog.client.admin import AdminRefused, ClusterAdmin, admin_credentials, request
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.scram import ScramMechanism, ScramVerifier

SETTINGS = {
    "admin.authentication": "basic",
    "admin.viewers": "User:vera",
    "admin.operators": "User:oscar",
    "admin.admins": "User:ada",
    "super.users": "User:root",
}


def verifier_of(password: str, mechanism: ScramMechanism) -> ScramVerifier:
    name, salt = mechanism.hash_name, b"salt"
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, 4096)
    return ScramVerifier(
        salt=salt,
        stored_key=hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest(),
        server_key=hmac.digest(salted, b"Server Key", name),
        iterations=4096,
    )


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(authentication, "FAILURE_DELAY_S", 0.0)
    controller, broker = controller_and_broker(tmp_path, SETTINGS)
    await controller.start()
    await broker.start()
    users = {"vera": "SHA_256", "oscar": "SHA_512", "ada": "SHA_256", "root": "SHA_512", "nobody": "SHA_256"}
    changes = [
        c.CredentialChange(
            user=user,
            mechanism=ScramMechanism[mechanism],
            verifier=verifier_of(f"{user}-päss", ScramMechanism[mechanism]),
        )
        for user, mechanism in users.items()
    ]
    reply = await broker.metadata.submit(c.AlterUsers(changes=tuple(changes)))
    assert not any(user.error for user in reply.users)
    yield broker
    await broker.stop()
    await controller.stop()


async def status(broker: Broker, method: str, path: str, user: str = "", password: str = "") -> int:
    pair = b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}"} if user else {}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, broker.admin_url + path, json={}, headers=headers) as response,
    ):
        return response.status


async def test_each_role_may_do_what_those_below_it_may(broker: Broker) -> None:
    routes = {
        "vera": [("GET", "/metrics"), ("GET", "/v1/cluster"), ("GET", "/v1/quorum")],
        "oscar": [("POST", "/v1/scrub"), ("POST", "/v1/partitions/balance")],
        "ada": [("DELETE", "/v1/brokers/99"), ("POST", "/v1/tier/loads/begin")],
    }
    rank = {"nobody": 0, "vera": 1, "oscar": 2, "ada": 3, "root": 3}
    for needed, paths in routes.items():
        for method, path in paths:
            for user, has in rank.items():
                found = await status(broker, method, path, user, f"{user}-päss")
                assert (found == 403) == (has < rank[needed]), (user, path, found)
                assert found != 401
    assert await status(broker, "GET", "/health") == 200
    for user in ("nobody", "vera"):  # others would measure the load for ten seconds
        assert await status(broker, "POST", "/v1/partitions/balance/load", user, f"{user}-päss") == 403


@pytest.mark.parametrize(
    ("user", "password"),
    [("", ""), ("vera", "wrong"), ("vera", ""), ("Vera", "vera-päss"), ("unknown", "unknown-päss")],
)
async def test_others_learn_nothing(broker: Broker, user: str, password: str) -> None:
    reads = [("GET", path) for path in ("/v1/cluster", "/metrics", "/v1/events", "/v1/quorum")]
    for method, path in [*reads, ("POST", "/v1/scrub"), ("POST", "/v1/partitions/balance/load")]:
        assert await status(broker, method, path, user, password) == 401


async def test_body_of_a_stranger_is_not_received(broker: Broker) -> None:
    """Its memory is not the stranger's to use. Nothing of the body is ever sent."""
    url = urlsplit(broker.admin_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = "POST /v1/scrub HTTP/1.1", "Host: localhost", "Content-Type: application/json"
    writer.write("\r\n".join((*head, "Content-Length: 1000000", "", "")).encode())
    assert b" 401 " in await reader.readline()
    writer.close()


async def test_flood_of_wrong_passwords_does_not_keep_everyone_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are checked and one waits. The fourth is refused, and a password that is remembered is not."""
    assert await status(broker, "GET", "/v1/cluster", "vera", "vera-päss") == 200
    may_end = threading.Event()

    def slow(*_: object) -> bool:
        return may_end.wait() and False

    monkeypatch.setattr(credentials, "_fits", slow)
    monkeypatch.setattr(credentials, "WAITING_CHECKS_MAX", 1)
    flood = [
        asyncio.create_task(status(broker, "GET", "/v1/cluster", "vera", f"wrong-{one}")) for one in range(4)
    ]
    try:
        done, waiting = await asyncio.wait(flood, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [429]
        assert await status(broker, "GET", "/v1/cluster", "vera", "vera-päss") == 200
    finally:
        may_end.set()
    assert await asyncio.gather(*waiting) == [401, 401, 401]


async def test_a_password_that_has_changed_is_refused(broker: Broker) -> None:
    assert await status(broker, "GET", "/v1/cluster", "vera", "vera-päss") == 200
    changed = c.CredentialChange(
        user="vera", mechanism=1, verifier=verifier_of("another", ScramMechanism.SHA_256)
    )
    await broker.metadata.submit(c.AlterUsers(changes=(changed,)))
    assert await status(broker, "GET", "/v1/cluster", "vera", "vera-päss") == 401
    assert await status(broker, "GET", "/v1/cluster", "vera", "another") == 200
    gone = c.CredentialChange(user="vera", mechanism=1, verifier=None)
    await broker.metadata.submit(c.AlterUsers(changes=(gone,)))
    assert await status(broker, "GET", "/v1/cluster", "vera", "another") == 401


async def test_stream_of_events_ends_with_its_login(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "LOGIN_CHECK_S", 0.0)
    login = aiohttp.BasicAuth("vera", "vera-päss", encoding="utf-8")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{broker.admin_url}/v1/events", auth=login) as stream,
    ):
        assert (await stream.content.readuntil(b"\n\n")).startswith(b"id: ")
        gone = c.CredentialChange(user="vera", mechanism=1, verifier=None)
        await broker.metadata.submit(c.AlterUsers(changes=(gone,)))
        assert await stream.content.read() == b""


@pytest.mark.parametrize("header", ["Basic", "Basic !", "Basic dmVyYQ==", "Basic /w==", "Bearer x", "Digest"])
async def test_malformed_credentials_are_refused(broker: Broker, header: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(broker.admin_url + "/v1/cluster", headers={"Authorization": header}) as response,
    ):
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Basic ")
        assert "send a user and password" in (await response.json())["error"]


async def test_clients_take_user_and_password_from_the_environment(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("ada-päss\n", encoding="utf-8")
    monkeypatch.setenv("TIERLOG_ADMIN_USER", "ada")
    monkeypatch.setenv("TIERLOG_ADMIN_PASSWORD_FILE", str(tmp_path / "password"))
    await asyncio.to_thread(ClusterAdmin(broker.admin_url).refresh)
    monkeypatch.setenv("TIERLOG_ADMIN_USER", "nobody")
    with pytest.raises(AdminRefused) as refused:
        await asyncio.to_thread(request, "GET", f"{broker.admin_url}/v1/cluster", timeout_s=30)
    assert refused.value.status == 401


def test_a_password_does_not_travel_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_ADMIN_TOKEN", "token")
    assert admin_credentials("https://node:9644") == {"Authorization": "Bearer token"}
    assert admin_credentials("http://localhost:9644") == admin_credentials("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="only over TLS"):
        admin_credentials("http://node:9644/v1/cluster")


async def test_certificates_and_tokens(tmp_path: Path) -> None:
    """Mutual TLS: nodes still need certificates, and users have one of three ways."""
    authority, keys = Authority(tmp_path / "certificates"), tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set())
    node = authority.issue("node")
    settings = {
        "admin.authentication": "certificate,bearer",
        "admin.viewers": "User:CN=vera;User:tess",
        "admin.admins": "User:CN=ada",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": issuer.ISSUER,
        "controller.quorum.ssl.certificate": str(node.certificate),
        "controller.quorum.ssl.key": str(node.key),
        "controller.quorum.ssl.ca": str(node.ca),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "admin.listener": "127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
    }
    broker = Broker(settings_from(settings))
    await broker.start()
    tess = issuer.token(time.time(), sub="tess")
    anonymous = ssl.create_default_context(cafile=node.ca)
    contexts = {name: authority.issue(name).client() for name in ("vera", "ada", "other")}

    async def found(method: str, path: str, context: ssl.SSLContext, bearer: str = "") -> int:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, broker.admin_url + path, json={}, headers=headers, ssl=context
            ) as response,
        ):
            return response.status

    try:
        assert await found("GET", "/v1/cluster", contexts["vera"]) == 200
        assert await found("POST", "/v1/scrub", contexts["vera"]) == 403
        assert await found("POST", "/v1/scrub", contexts["ada"]) == 200
        assert await found("GET", "/v1/cluster", contexts["other"]) == 403
        assert await found("GET", "/v1/cluster", anonymous) == 401
        while await found("GET", "/v1/cluster", anonymous, tess) != 200:
            """The node is reading the issuer's keys. Each refusal takes a while."""
        assert await found("POST", "/v1/scrub", contexts["ada"], tess) == 403  # the token wins
        assert await found("GET", "/v1/cluster", contexts["ada"], tess + "x") == 401
        assert await found("GET", "/health", anonymous) == 200
    finally:
        await broker.stop()
