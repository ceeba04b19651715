"""Mutual TLS of the quorum and of the admin API: peers without a certificate of the CA are rejected."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import aiohttp
import pytest
from awaited_image import image_when
from certificates import Authority
from cli_process import run
from confluent_kafka import Producer
from deliveries import Deliveries
from metadata_quorum import CLUSTER_ID, SECRET, Quorum, has, register, topic

from tierlog.cli.local_cluster import LocalCluster
from tierlog.metadata.quorum.api import (
    END_PATH,
    HEARTBEAT_PATH,
    LOG_PATH,
    QUORUM_PATH,
    SNAPSHOT_PATH,
    STATUS_PATH,
    STEP_PATH,
    SUBMIT_PATH,
)
from tierlog.metadata.quorum.auth import Envelope
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.tls import TlsFiles
from tierlog.protocol.errors import ErrorCode

Start = Callable[[Mapping[int, TlsFiles]], Quorum]
ROUTES = (
    ("POST", STEP_PATH),
    ("POST", SUBMIT_PATH),
    ("POST", HEARTBEAT_PATH),
    ("POST", END_PATH),
    ("GET", LOG_PATH + "?after=0&wait_ms=0"),
    ("GET", SNAPSHOT_PATH + "?index=1&offset=0"),
    ("GET", STATUS_PATH),
    ("GET", QUORUM_PATH),
    ("POST", QUORUM_PATH + "/voters"),
    ("DELETE", QUORUM_PATH + "/voters/2"),
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@pytest.fixture
def foreign(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "foreign")


@pytest.fixture
async def quorum_of(tmp_path: Path) -> AsyncIterator[Start]:
    quorums: list[Quorum] = []

    def start(certificates: Mapping[int, TlsFiles]) -> Quorum:
        quorums.append(Quorum(tmp_path / "quorum", certificates=certificates))
        return quorums[0]

    yield start
    await quorums[0].close()
    assert quorums[0].failures == []


async def test_members_and_observers_of_one_ca_communicate(quorum_of: Start, authority: Authority) -> None:
    quorum = quorum_of({n: authority.issue(f"node-{n}") for n in (1, 2, 3, 4)})
    for n in (1, 2, 3):
        await quorum.start(n)
    leader = await quorum.leader()
    follower = next(member for n, member in quorum.running.items() if n != leader)
    await follower.client.submit(register())
    assert (await follower.client.submit(topic("t"))).topics[0].error == ErrorCode.NONE
    observing = await quorum.observe(4, 1, 2, 3)
    await image_when(observing.client, has("t"))
    assert (await observing.client.submit(topic("of-an-observer"))).topics[0].error == ErrorCode.NONE


async def test_member_with_a_foreign_ca_is_isolated(
    quorum_of: Start, authority: Authority, foreign: Authority
) -> None:
    """It has the secret, and the others know its address."""
    quorum = quorum_of({1: authority.issue("1"), 2: authority.issue("2"), 3: foreign.issue("3")})
    for n in (1, 2, 3):
        await quorum.start(n)
    await quorum.leader()
    await quorum.running[1].client.submit(register())
    assert (await quorum.running[1].client.submit(topic("t"))).topics[0].error == ErrorCode.NONE
    with pytest.raises(MetadataUnavailable):
        await quorum.running[3].client.submit(topic("u"), 1.0)
    assert not has("t")(quorum.running[3].client.image)
    assert quorum.running[3].node.status().applied_index == 0
    assert 3 not in quorum.running[1].peers.connected


async def test_nothing_is_sent_in_plain_text_to_a_member_with_certificates(
    quorum_of: Start, authority: Authority
) -> None:
    quorum = quorum_of({n: authority.issue(f"node-{n}") for n in (1, 2, 3)})
    quorum.urls[3] = quorum.urls[3].replace("https", "http")
    for n in (1, 2):
        await quorum.start(n)
    await quorum.leader()
    with pytest.raises(MetadataUnavailable, match="the address of node 3"):
        await quorum.running[1].peers.status(3)


async def test_every_route_requires_a_certificate_of_the_ca(
    quorum_of: Start, authority: Authority, foreign: Authority
) -> None:
    quorum = quorum_of({n: authority.issue(f"node-{n}") for n in (1, 2, 3)})
    for n in (1, 2, 3):
        await quorum.start(n)
    await quorum.leader()
    bare = ssl.create_default_context(cafile=authority.certificate_file)
    foreign_client = ssl.create_default_context(cafile=authority.certificate_file)
    files = foreign.issue("foreign_client")
    foreign_client.load_cert_chain(files.certificate, files.key)
    async with aiohttp.ClientSession() as client:
        for method, path in ROUTES:
            url = quorum.urls[1] + path
            signed = Envelope(CLUSTER_ID, 2, 1).headers(SECRET, path, b"")
            async with client.request(method, url, headers=signed, ssl=bare) as response:
                assert (response.status, path) == (403, path)
            with pytest.raises(aiohttp.ClientError):
                await client.request(method, url, headers=signed, ssl=foreign_client)
            with pytest.raises(aiohttp.ClientError):
                await client.request(method, url.replace("https", "http"), headers=signed)


async def test_certificate_does_not_replace_the_secret(quorum_of: Start, authority: Authority) -> None:
    quorum = quorum_of({n: authority.issue(f"node-{n}") for n in (1, 2, 3)})
    await quorum.start(1)
    operator_tls = authority.issue("operator").client()
    async with aiohttp.ClientSession() as client:
        for method, path in ROUTES[:7]:
            async with client.request(method, quorum.urls[1] + path, ssl=operator_tls) as response:
                assert (response.status, path) == (401, path)
        async with client.get(quorum.urls[1] + QUORUM_PATH, ssl=operator_tls) as response:
            assert response.status == 200


def test_error_names_files_that_are_not_certificates(tmp_path: Path) -> None:
    files = TlsFiles(certificate=tmp_path / "a", key=tmp_path / "b", ca=tmp_path / "c")
    with pytest.raises(OSError, match=str(tmp_path / "a")):
        files.server()
    for file in "abc":
        (tmp_path / file).write_text("no certificate")
    with pytest.raises(OSError, match=str(tmp_path / "c")):
        files.client()


@pytest.mark.slow
def test_three_processes_and_an_operator(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = authority.issue("node")  # one certificate for all, since they share an address
    settings = {
        "controller.quorum.ssl.certificate": files.certificate,
        "controller.quorum.ssl.key": files.key,
        "controller.quorum.ssl.ca": files.ca,
    }
    with LocalCluster(tmp_path / "cluster", settings=settings) as cluster:
        deliveries = Deliveries()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        producer.produce("orders", b"0 record", on_delivery=deliveries)
        assert producer.flush(60) == 0 and list(deliveries.acknowledged) == [0]

        url = cluster.nodes[1].admin_url
        assert url.startswith("https://")
        command = ("broker", "list", "--admin", url)
        assert "CERTIFICATE_VERIFY_FAILED" in run(*command).stderr
        monkeypatch.setenv("TIERLOG_ADMIN_CA", str(files.ca))
        refused = run(*command)
        assert refused.returncode == 1 and "certificate" in refused.stderr
        operator = authority.issue("operator")
        monkeypatch.setenv("TIERLOG_ADMIN_CERTIFICATE", str(operator.certificate))
        monkeypatch.setenv("TIERLOG_ADMIN_KEY", str(operator.key))
        assert run(*command).returncode == 0
        assert run("cluster", "health", "--wait", "60", "--admin", url).returncode == 0
        cluster.nodes[2].stop()  # hands over its leaderships, and closes its servers
        assert "no other took over in time" not in cluster.nodes[2].log_tail()
