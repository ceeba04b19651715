"""Logins and ACLs through the REST gateway: the broker decides, as for any Kafka client."""

import asyncio
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from canaries import canary
from certificates import Authority
from confluent_kafka.admin import NewTopic, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from issuer import AUDIENCE, ISSUER, key_set, token
from rest_process import RestProcess
from scram_broker import ScramBroker

from tierlog.cli.errors import ExitCode
from tierlog.config.authorization import STANDARD_AUTHORIZER

ADA, BOB = f"ada:{canary('ada')}", f"bob:{canary('bob')}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScramBroker]:
    """ada may write and read the topic `hers`; bob may read it."""
    directory = tmp_path_factory.mktemp("secured")
    (directory / "keys.json").write_bytes(key_set())
    settings: dict[str, object] = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    secured = ScramBroker(directory, settings, "ada", "bob")
    with secured.broker:
        secured.admin().create_topics([NewTopic("hers", 1, 1)])["hers"].result(60)
        for user, operation in (("ada", "write"), ("ada", "read"), ("bob", "read")):
            words = ("acl", "create", "--allow-principal", user, "--operation", operation, "--topic", "hers")
            secured.tierlog(*words, "--bootstrap", secured.broker.bootstrap)
        yield secured


@pytest.fixture(scope="module")
def client_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("client") / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n")
    return file


@pytest.fixture(scope="module")
def rest(
    secured: ScramBroker, client_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RestProcess]:
    words = ("--client-config", str(client_file))
    with RestProcess(tmp_path_factory.mktemp("rest"), secured.broker.bootstrap, *words) as process:
        yield process


RECORD = {"records": [{"value": 1}]}


def test_acls_of_the_cluster_allow_and_deny(rest: RestProcess) -> None:
    produce, consume = "/v1/topics/hers/produce", "/v1/topics/hers/consume"
    assert rest.post(produce, RECORD, login=ADA).status == 200
    denied = rest.post(produce, RECORD, login=BOB)
    assert (denied.status, denied.body["error_code"]) == (403, 40301)
    for login in (ADA, BOB):
        assert rest.get(consume, login=login).body[0]["value"] == 1
    path = rest.cluster_path(ADA)
    record = {"value": {"type": "JSON", "data": 1}}
    assert rest.post(f"{path}/topics/hers/records", record, login=BOB).body["error_code"] == 40301
    assert rest.post(f"{path}/topics", {"topic_name": "new"}, login=ADA).status == 403
    assert rest.call("DELETE", f"{path}/topics/hers", login=ADA).status == 403
    change = {"data": [{"name": "retention.ms", "value": "1"}]}
    assert rest.post(f"{path}/topics/hers/configs:alter", change, login=ADA).status == 403
    assert rest.get(f"{path}/consumer-groups/hidden", login=BOB).status == 403
    assert [row["topic_name"] for row in rest.get(f"{path}/topics", login=BOB).body["data"]] == ["hers"]


@pytest.mark.parametrize(
    "login",
    [None, f"ada:{canary('wrong')}", f"x:{canary('ada')}", "Basic !", "Digest x", "Bearer", "Bearer x.y.z"],
    ids=["none", "wrong password", "unknown user", "no base64", "other scheme", "no token", "bad token"],
)
def test_requests_without_a_valid_login_are_refused(rest: RestProcess, login: str | None) -> None:
    answer = rest.get("/v3/clusters", login=login)
    assert (answer.status, answer.body["error_code"]) == (401, 40101)
    assert "Basic" in answer.headers["WWW-Authenticate"]


def test_bearer_token_is_a_login_by_oauthbearer(rest: RestProcess) -> None:
    good, expired = token(time.time()), token(time.time() - 4000)
    assert rest.post("/v1/topics/hers/produce", RECORD, login=f"Bearer {good}").status == 200
    assert rest.get("/v1/topics/hers/consume", login=f"Bearer {expired}").status == 401


def test_health_needs_no_login(rest: RestProcess) -> None:
    assert rest.get("/health").body == {"status": "serving"}
    assert rest.get("/openapi.json").status == 200
    with urllib.request.urlopen(rest.url, timeout=60) as page:
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert b"/v1/topics/{topic}/produce" in page.read()


def test_session_of_one_password_does_not_serve_another(rest: RestProcess, secured: ScramBroker) -> None:
    """A request with the right password leaves open connections behind."""
    admin = secured.admin()
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("eve", info, canary("eve").encode())
    admin.alter_user_scram_credentials([change])["eve"].result(60)
    assert rest.get("/v3/clusters", login=f"eve:{canary('eve')}").status == 200
    assert rest.get("/v3/clusters", login=f"eve:{canary('ada')}").status == 401
    assert rest.get("/v3/clusters", login=f"eve:{canary('eve')}").status == 200


async def test_first_requests_with_one_login_share_it(rest: RestProcess, secured: ScramBroker) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("crowd", info, canary("crowd").encode())
    secured.admin().alter_user_scram_credentials([change])["crowd"].result(60)
    pair = b64encode(f"crowd:{canary('crowd')}".encode()).decode()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers={"Authorization": f"Basic {pair}"}
    ) as session:

        async def attempt() -> int:
            async with session.get(f"{rest.url}/v3/clusters") as answer:
                return answer.status

        assert set(await asyncio.gather(*(attempt() for _ in range(200)))) == {200}


async def test_many_logins_at_a_time_are_bounded(rest: RestProcess) -> None:
    async with aiohttp.ClientSession() as session:

        async def attempt(number: int) -> int:
            pair = b64encode(f"guess-{number}:{canary('guess')}".encode()).decode()
            headers = {"Authorization": f"Basic {pair}"}
            async with session.get(f"{rest.url}/v3/clusters", headers=headers) as answer:
                return answer.status

        statuses = await asyncio.gather(*(attempt(number) for number in range(90)))
    assert set(statuses) == {401, 429}
    assert rest.get("/v3/clusters", login=ADA).status == 200


def test_logins_do_not_travel_over_a_network_without_tls(secured: ScramBroker, client_file: Path) -> None:
    from cli_inline import call

    ended = call(
        "rest", "--bootstrap", secured.broker.bootstrap, "--host", "0.0.0.0", "--port", "0",
        "--client-config", str(client_file),
    )  # fmt: skip
    assert ended.code == ExitCode.USAGE
    assert "without TLS" in ended.stderr


def test_gateway_serves_tls_and_may_require_client_certificates(
    secured: ScramBroker, client_file: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("gateway"), authority.issue("client")
    tls = ("--certificate", str(server.certificate), "--key", str(server.key))
    words = ["--client-config", str(client_file), *tls, "--client-ca", str(server.ca)]
    with RestProcess(tmp_path, secured.broker.bootstrap, *words) as rest:
        curl = ["curl", "-sS", "--cacert", str(server.ca), "-u", ADA, f"{rest.url}/v3/clusters"]
        assert subprocess.run(curl, capture_output=True, check=False).returncode != 0
        found = subprocess.run(
            [*curl, "--cert", str(client.certificate), "--key", str(client.key)],
            capture_output=True,
            check=True,
        )
        assert b"KafkaClusterList" in found.stdout


@pytest.mark.parametrize("content", [b"", b"user", b"user:\xff"])
def test_file_without_a_login_for_the_registry_is_refused(content: bytes, tmp_path: Path) -> None:
    from cli_inline import call

    file = tmp_path / "login"
    file.write_bytes(content)
    registry = ("--registry", "http://127.0.0.1:1", "--registry-login", str(file))
    ended = call("rest", "--bootstrap", "127.0.0.1:1", "--port", "0", *registry)
    assert ended.code == ExitCode.USAGE
    assert f"{file}" in ended.stderr and "USER:PASSWORD" in ended.stderr
