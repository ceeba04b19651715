"""The web page of a node with users and roles, over real sockets: a viewer reads, an operator acts."""

import asyncio
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from controller_and_broker import controller_and_broker
from web_page import WebPage

from tierlog.base.addresses import is_confidential
from tierlog.broker.app import Broker
from tierlog.broker.gateway import authentication
from tierlog.broker.gateway.web import fleet
from tierlog.metadata.controller import commands as c
from tierlog.metadata.scram import ScramMechanism, ScramVerifier

SETTINGS = {
    "admin.authentication": "basic",
    "admin.viewers": "User:vera",
    "admin.operators": "User:oscar",
    "super.users": "User:root",
}
PAGES = ("/", "/ui/topics", "/ui/topic?name=orders", "/ui/groups", "/ui/tiering", "/ui/quorum")


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(authentication, "FAILURE_DELAY_S", 0.0)
    controller, broker = controller_and_broker(tmp_path, SETTINGS)
    await controller.start()
    await broker.start()
    changes = [
        c.CredentialChange(
            user=user, mechanism=ScramMechanism.SHA_256, verifier=verifier_of(f"{user}-secret")
        )
        for user in ("vera", "oscar", "nina")
    ]
    await broker.metadata.submit(c.AlterUsers(changes=tuple(changes)))
    yield broker
    await broker.stop()
    await controller.stop()


def verifier_of(password: str) -> ScramVerifier:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    client, server = (hmac.digest(salted, name, "sha256") for name in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    return ScramVerifier(salt=b"salt", stored_key=stored, server_key=server, iterations=4096)


def headers_of(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{user}-secret".encode()).decode()} if user else {}


async def request(
    broker: Broker, path: str, user: str = "", method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method,
            broker.admin_url + path,
            headers={**headers_of(user), **headers},
            json={} if method == "POST" else None,
        ) as response,
    ):
        return response.status, await response.text(), dict(response.headers)


async def test_pages_need_the_role_of_a_viewer(broker: Broker) -> None:
    for path in (*PAGES, "/ui/static/app.js"):
        status, _, headers = await request(broker, path)
        assert status == 401 and headers["WWW-Authenticate"].startswith("Basic ")
        assert (await request(broker, path, "nina"))[0] == 403
    assert (await request(broker, "/", "vera"))[0] == 200


async def test_viewer_sees_no_action_and_may_not_act(broker: Broker) -> None:
    for path in ("/", "/ui/tiering", "/ui/quorum"):
        status, text, _ = await request(broker, path, "vera")
        assert status == 200
        assert WebPage(text).buttons == []
        assert "User:vera (viewer)" in text
    for path in ("/v1/scrub", "/v1/tier/scrub", "/v1/brokers/2/stop", "/v1/partitions/elect"):
        assert (await request(broker, path, "vera", "POST"))[0] == 403


async def test_operator_acts_with_what_the_page_offers(broker: Broker) -> None:
    _, text, _ = await request(broker, "/ui/tiering", "oscar")
    assert WebPage(text).buttons == ["/v1/tier/scrub", "/v1/scrub"]
    for path in WebPage(text).buttons:
        assert (await request(broker, path, "oscar", "POST", Origin=broker.admin_url))[0] == 200
        assert (await request(broker, path, "oscar", "POST", Origin="http://evil.example"))[0] == 403


async def test_pages_show_no_secret(broker: Broker) -> None:
    for path in PAGES:
        text = (await request(broker, path, "vera"))[1]
        assert "vera-secret" not in text and headers_of("vera")["Authorization"] not in text


async def test_pages_have_strict_headers(broker: Broker) -> None:
    for path in (*PAGES, "/ui/topic?name=missing"):
        status, text, headers = await request(broker, path, "vera")
        assert status == (200 if "topic?" not in path else 404)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        WebPage(text).check_escaped()


async def test_page_names_a_node_whose_address_is_not_safe_for_the_login(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "is_confidential", lambda url: False)
    text = (await request(broker, "/", "vera"))[1]
    assert "node 1: its address has no TLS, so it does not get your login" in text


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://node-2:9644", True),
        ("http://127.0.0.1:9644", True),
        ("http://[::1]:9644", True),
        ("http://localhost:9644", True),
        ("http://10.0.0.2:9644", False),
        ("http://localhost.evil.example:9644", False),
        ("http://127.0.0.1.evil.example", False),
    ],
)
def test_login_leaves_only_over_tls_or_to_this_machine(url: str, is_safe: bool) -> None:
    assert is_confidential(url) is is_safe


async def test_groups_and_offsets_are_refused_by_a_controller(broker: Broker) -> None:
    voters = broker.metadata.status().voters
    async with aiohttp.ClientSession() as session:
        for path in ("/v1/groups", "/v1/offsets?topic=x"):
            async with session.get(voters[1] + path) as response:
                assert response.status == 409
                assert "is a controller" in json.loads(await response.text())["error"]
        for path in ("/", "/ui/groups", "/ui/tiering", "/ui/quorum"):
            async with session.get(voters[1] + path) as response:
                assert response.status == 200
                WebPage(await response.text()).check_escaped()


async def test_requests_at_once_share_what_was_gathered(broker: Broker) -> None:
    found = await asyncio.gather(*(request(broker, "/", "vera") for _ in range(5)))
    assert {status for status, _, _ in found} == {200}
