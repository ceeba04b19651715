"""`tierlog rest`: runs the REST gateway."""

import os
import ssl
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.base.addresses import is_loopback
from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import Bootstrap, ClientConfig, Json

if TYPE_CHECKING:
    from tierlog.client.registry import RegistryAddress
    from tierlog.rest.gateway import Limits
    from tierlog.rest.sessions import KafkaSecurity

DEFAULT_PORT = 8082
CONNECTIONS_BESIDE_STREAMS = 2_000
MIB = 1 << 20


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


Host = Annotated[str, typer.Option("--host", help="Address to listen at.")]
Port = Annotated[
    int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen at. 0: a free one.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="Host name by which clients know the gateway. Addresses and this host's name are always "
        "accepted. May be repeated.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", dir_okay=False, exists=True, help="PEM file: serve HTTPS."),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", dir_okay=False, exists=True, help="PEM file with the certificate's key."),
]
ClientCa = Annotated[
    Path | None,
    typer.Option(
        "--client-ca",
        dir_okay=False,
        exists=True,
        help="PEM file: clients need a certificate of this CA, besides their login.",
    ),
]
BehindTls = Annotated[
    bool,
    typer.Option("--behind-tls", help="A proxy before the gateway ends TLS: accept logins over HTTP."),
]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="TIERLOG_REST_REGISTRY",
        metavar="URL",
        help="Schema registry for AVRO: Confluent's, Karapace or Apicurio (/apis/ccompat/v7).",
    ),
]
RegistryLogin = Annotated[
    Path | None,
    typer.Option(
        "--registry-login",
        dir_okay=False,
        exists=True,
        help="File with USER:PASSWORD for the registry.",
    ),
]
Memory = Annotated[
    int,
    typer.Option(
        "--memory", metavar="MIB", min=1, max=65536, help="Memory for all requests together, in MiB."
    ),
]
MaxBody = Annotated[
    int,
    typer.Option("--max-body", metavar="MIB", min=1, max=1024, help="Largest request or record, in MiB."),
]
LogLines = Annotated[LogFormat, typer.Option("--log-format", help="Format of the lines on standard error.")]
MaxStreams = Annotated[
    int, typer.Option("--max-streams", min=1, max=100_000, help="Streams that may be open at a time.")
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        "--max-connections",
        min=2,
        max=1_000_000,
        help="Connections of clients at a time, more than streams: a further one ends the oldest that is "
        f"idle. Default: {CONNECTIONS_BESIDE_STREAMS:,} more than --max-streams.",
    ),
]


def rest(
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    allowed_host: AllowedHosts = None,
    certificate: Certificate = None,
    key: Key = None,
    client_ca: ClientCa = None,
    behind_tls: BehindTls = False,
    registry: Registry = None,
    registry_login: RegistryLogin = None,
    memory: Memory = 64,
    max_body: MaxBody = 16,
    max_streams: MaxStreams = 2_000,
    max_connections: MaxConnections = None,
    log_format: LogLines = LogFormat.TEXT,
    as_json: Json = False,
) -> None:
    """Run the REST gateway: HTTP clients produce, consume, and manage topics and groups.

    Clients send their own login, with which the gateway logs in at the brokers, so that Kafka's ACLs apply. A
    login in --client-config is not used.
    """
    from tierlog.broker.log_output import configure_logging
    from tierlog.cli.client import cli_error
    from tierlog.cli.client_config import bootstrap_servers
    from tierlog.cli.node import notify
    from tierlog.cli.output import print_json
    from tierlog.cli.targets import bootstrap_target
    from tierlog.client.errors import ClientError
    from tierlog.rest.app import RestOptions, run

    target = bootstrap_target(bootstrap or bootstrap_servers())
    security = _kafka_security(target.addresses)
    if security.has_login and certificate is None and not behind_tls and not is_loopback(host):
        raise usage(
            f"logins would travel to {host} without TLS",
            hint="Give --certificate and --key, or --behind-tls if a proxy ends TLS.",
        )
    options = RestOptions(
        bootstrap=target.addresses,
        host=host,
        port=port,
        security=security,
        tls=_server_tls(certificate, key, client_ca),
        registry=_registry(registry, registry_login),
        hosts=allowed_host or (),
        limits=_limits(memory, max_body, max_streams, max_connections),
    )

    def announce(url: str) -> None:
        notify(f"READY=1\nSTATUS=REST gateway at {url}")
        if as_json:
            print_json({"url": url, "bootstrap": target.addresses, "pid": os.getpid()})
            return
        sys.stdout.write(f"tierlog rest serves {url} for {target} (pid {os.getpid()})\n")
        sys.stdout.flush()

    configure_logging(log_format)
    try:
        run(options, announce)
    except ClientError as failure:
        raise cli_error(failure) from None
    except OSError as failure:
        hint = "Choose another --port (0 picks a free one) or --host."
        raise CliError(f"cannot listen at {host}:{port}: {failure.strerror or failure}", hint=hint) from None


def _limits(memory: int, max_body: int, max_streams: int, max_connections: int | None) -> "Limits":
    from tierlog.rest.gateway import Limits

    if max_connections is not None and max_connections <= max_streams:
        raise usage(
            f"--max-connections {max_connections} is not above --max-streams {max_streams}",
            hint="Streams could take all connections: raise the one, or lower the other.",
        )
    most = min(memory, max_body) * MIB
    return Limits(
        memory_bytes=memory * MIB,
        body_bytes=most,
        record_bytes=most,
        streams=max_streams,
        connections=max_connections or max_streams + CONNECTIONS_BESIDE_STREAMS,
    )


def _kafka_security(addresses: str) -> "KafkaSecurity":
    from tierlog.cli.client_config import HINT, client_properties
    from tierlog.config.definitions import InvalidSetting
    from tierlog.rest.sessions import kafka_security

    try:
        return kafka_security(client_properties(addresses))
    except InvalidSetting as wrong:
        raise usage(str(wrong), hint=HINT) from None


def _server_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> ssl.SSLContext | None:
    from tierlog.rest.server import server_tls

    if certificate is None:
        if key is not None or client_ca is not None:
            raise usage("--key and --client-ca need --certificate", hint="Name the certificate, too.")
        return None
    try:
        return server_tls(
            str(certificate), None if key is None else str(key), None if client_ca is None else str(client_ca)
        )
    except (OSError, ValueError) as wrong:
        hint = "They are PEM files; the key has no password."
        raise usage(f"--certificate, --key, --client-ca: {wrong}", hint=hint) from None


def _registry(url: str | None, login: Path | None) -> "RegistryAddress | None":
    from tierlog.client.registry import RegistryAddress

    if url is None:
        if login is not None:
            raise usage("--registry-login needs --registry", hint="Name the registry's URL, too.")
        return None
    if not url.startswith(("http://", "https://")) or "@" in url:
        raise usage(
            "--registry is not a URL of HTTP without a login",
            hint="For example: --registry https://registry:8081 --registry-login FILE",
        )
    return RegistryAddress(url=url.rstrip("/"), user=None if login is None else _login_of(login))


def _login_of(file: Path) -> str:
    try:
        login = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise usage(f"--registry-login: cannot read {file}: {wrong}", hint="It has USER:PASSWORD.") from None
    if ":" not in login:
        raise usage(f"--registry-login: {file} has no USER:PASSWORD", hint="It has one such line.")
    return login
