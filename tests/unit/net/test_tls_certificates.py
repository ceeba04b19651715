"""Client certificates on listeners with TLS: principals, expiry, and files that are replaced."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, Broker, until
from manual_clock import ManualClock
from tls_certificates import DAYS, NAME, NOW_S, VERSIONS, Certificates, connect, principals, refusals

from tierlog.broker.handlers.context import (
    ANONYMOUS,
    Authentication,
    Connection,
)
from tierlog.broker.handlers.logins import CertificateLogin
from tierlog.broker.handlers.sasl import LoginCounts
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.security.tls_files import ListenerTls
from tierlog.cli.certificates import LocalAuthority
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataResponse


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.mark.parametrize("version", VERSIONS)
async def test_certificate_names_the_principal(
    broker: Broker, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    rules = "RULE:^CN=(.*)$/$1/U"
    trust = str(certificates.ca)
    found = await principals(broker)
    await broker.start(
        tls=certificates.tls(
            ssl_client_auth="required", ssl_truststore_location=trust, ssl_principal_mapping_rules=rules
        )
    )
    context = certificates.of_client(certificate=True)
    context.minimum_version = context.maximum_version = version
    client = await connect(broker, context)
    await client.ask(HEARTBEAT, 0, HeartbeatRequest(group_id="g", member_id="m"))
    assert found == ["User:ADA"]


@pytest.mark.parametrize(
    ("name", "rule", "principal"),
    [
        ("Ada, Inc.", r"RULE:^CN=(.*)\\, Inc\.$/$1/", "User:Ada"),
        ("a=b #1", r"RULE:^CN=(.*)\\=(.*) \\#1$/$2 of $1/", "User:b of a"),
        ("Zo\N{LATIN SMALL LETTER E WITH DIAERESIS}  two", "RULE:^CN=(.*)$/$1/L", "User:zo\xeb  two"),
        ('quo"te\\', "DEFAULT", r"User:CN=quo\"te\\"),
    ],
)
async def test_rule_maps_a_name_with_special_characters(
    broker: Broker, certificates: Certificates, name: str, rule: str, principal: str
) -> None:
    certificates.client = certificates.authority.issue(name)
    found = await principals(broker)
    trust = str(certificates.ca)
    await broker.start(
        tls=certificates.tls(
            ssl_client_auth="required", ssl_truststore_location=trust, ssl_principal_mapping_rules=rule
        )
    )
    client = await connect(broker, certificates.of_client(certificate=True))
    await client.ask(HEARTBEAT, 0, HeartbeatRequest(group_id="g", member_id="m"))
    assert found == [principal]


async def test_requested_certificate_may_be_missing(broker: Broker, certificates: Certificates) -> None:
    found = await principals(broker)
    tls = certificates.tls(ssl_client_auth="requested", ssl_truststore_location=str(certificates.ca))
    await broker.start(tls=tls)
    for has_certificate in (False, True):
        client = await connect(broker, certificates.of_client(certificate=has_certificate))
        await client.ask(HEARTBEAT, 0, HeartbeatRequest(group_id="g", member_id="m"))
    assert found == [ANONYMOUS, "User:CN=ada"]


@pytest.mark.parametrize("case", ["missing", "of another CA"])
async def test_client_without_a_trusted_certificate_is_refused(
    broker: Broker, certificates: Certificates, tmp_path: Path, case: str
) -> None:
    tls = certificates.tls(ssl_client_auth="required", ssl_truststore_location=str(certificates.ca))
    await broker.start(tls=tls)
    refused = refusals(broker)
    context = certificates.of_client()
    if case == "of another CA":
        context.load_cert_chain(LocalAuthority(tmp_path / "other", NOW_S, DAYS).issue("ada"))
    with pytest.raises((OSError, EOFError)):  # in TLS 1.3 the client learns it at its first read
        client = await connect(broker, context)
        await client.ask(METADATA, 9, MetadataRequest())
    await until(lambda: broker.listener.closed[CloseReason.TLS_HANDSHAKE] == 1)
    assert broker.listener.connections == 0
    assert len(refused) == 1 and "CERTIFICATE" in refused[0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_client_that_refuses_the_brokers_certificate_is_not_recorded_as_refused(
    broker: Broker, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    await broker.start(tls=certificates.tls())
    refused = refusals(broker)
    context = certificates.of_client()
    context.maximum_version = version

    def connect_to_another_name() -> None:  # asyncio's TLS closes without the alert
        with socket.create_connection(broker.address) as client, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(client, server_hostname="another.example")

    await asyncio.to_thread(connect_to_another_name)
    await until(lambda: broker.listener.closed[CloseReason.TLS_HANDSHAKE] == 1)
    assert "ALERT_BAD_CERTIFICATE" in broker.notes[0][1]
    assert refused == []


async def test_certificate_that_no_rule_maps_is_refused(broker: Broker, certificates: Certificates) -> None:
    tls = certificates.tls(
        ssl_client_auth="required",
        ssl_truststore_location=str(certificates.ca),
        ssl_principal_mapping_rules="RULE:^CN=bob$/bob/",
    )
    await broker.start(tls=tls)
    refused = refusals(broker)
    client = await connect(broker, certificates.of_client(certificate=True))
    assert await client.reader.read() == b""
    assert refused == ["no rule of ssl.principal.mapping.rules matches 'CN=ada'"]
    assert broker.notes == [
        (CloseReason.TLS_HANDSHAKE, "no rule of ssl.principal.mapping.rules matches 'CN=ada'")
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_expired_certificate_does_not_resume_its_session(
    broker: Broker, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """A handshake that resumes an earlier one verifies no certificate."""
    clock = ManualClock()
    settings = certificates.settings(ssl_client_auth="required", ssl_truststore_location=str(certificates.ca))
    await broker.start(tls={NAME: ListenerTls(NAME, settings, clock)})
    refused = refusals(broker)
    context = certificates.of_client(certificate=True)
    context.minimum_version = context.maximum_version = version
    request = encode_request(APIS[METADATA], 9, 1, None, MetadataRequest())

    def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection(broker.address) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as client,
        ):
            client.sendall(request)
            return client.recv(1 << 16), client.session, client.session_reused

    async def connect_with(session: ssl.SSLSession | None) -> tuple[bytes, Any, bool | None]:
        return await asyncio.to_thread(ask, session)

    _, first, _ = await connect_with(None)
    answer, second, is_resumed = await connect_with(first)
    assert is_resumed and answer
    clock.now = (NOW_S + DAYS * 86_400) * 1000
    with contextlib.suppress(OSError):  # a reset or the end
        assert (await connect_with(second))[0] == b""
    await until(lambda: refused == ["the certificate has expired"])


@pytest.mark.parametrize("ends", [True, False])
async def test_connection_ends_with_the_certificate_if_the_listener_says_so(
    broker: Broker, certificates: Certificates, ends: bool
) -> None:
    clock, counts = ManualClock(), LoginCounts()

    def begin(connection: Connection) -> Authentication | None:
        assert connection.certificate_expires_ms is not None
        return CertificateLogin(connection.certificate_expires_ms, counts, clock) if ends else None

    tls = certificates.tls(ssl_client_auth="required", ssl_truststore_location=str(certificates.ca))
    await broker.start(tls=tls, begin=begin)
    client = await connect(broker, certificates.of_client(certificate=True))
    clock.now = (NOW_S + DAYS * 86_400) * 1000 - 1
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    clock.now += 1
    client.send(METADATA, 9, MetadataRequest())
    client.send(METADATA, 9, MetadataRequest())
    if not ends:
        await client.frame()
        return
    assert await client.reader.read() == b""
    await until(lambda: broker.listener.closed[CloseReason.AUTHENTICATION] == 1)
    assert counts.expired == 1


# ---- replaced files -------------------------------------------------------------------------------


async def test_replaced_certificate_is_used_for_new_connections(
    broker: Broker, certificates: Certificates
) -> None:
    tls = certificates.tls()
    await broker.start(tls=tls)
    first = await connect(broker, certificates.of_client())
    before = first.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    certificates.authority.issue("broker", ("localhost", "127.0.0.1"))
    assert tls[NAME].reload()
    second = await connect(broker, certificates.of_client())
    assert second.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"] != before
    for client in (first, second):
        assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert not tls[NAME].reload()


@pytest.mark.parametrize("broken", [b"", b"-----BEGIN", None])
async def test_broken_file_keeps_the_old_certificate(
    broker: Broker, certificates: Certificates, broken: bytes | None
) -> None:
    tls = certificates.tls()
    await broker.start(tls=tls)
    certificates.broker.unlink()
    if broken is not None:
        certificates.broker.write_bytes(broken)
    assert not tls[NAME].reload()
    assert tls[NAME].reload_failures == 1
    client = await connect(broker, certificates.of_client())
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
