"""Certificates of a broker, a client and their CA, and clients that use them, for tests of TLS."""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connection_harness import Broker, Client
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tierlog.broker.handlers.context import RequestContext
from tierlog.broker.security.tls_files import ListenerTls
from tierlog.cli.certificates import LocalAuthority
from tierlog.config.node import NodeSettings
from tierlog.config.sources import settings_from
from tierlog.protocol.messages.heartbeat import HeartbeatResponse

NOW_S, DAYS = 1_764_000_000, 3_650
NAME = "PLAINTEXT"  # the listener of the harness
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Certificates:
    def __init__(self, directory: Path) -> None:
        self.authority = LocalAuthority(directory, NOW_S, DAYS)
        self.ca = directory / "ca.pem"
        self.broker = self.authority.issue("broker", ("localhost", "127.0.0.1"))
        self.client = self.authority.issue("ada")

    def settings(self, **more: str) -> NodeSettings:
        values = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(self.broker)}
        return settings_from(values | {name.replace("_", "."): text for name, text in more.items()})

    def tls(self, **more: str) -> dict[str, ListenerTls]:
        return {NAME: ListenerTls(NAME, self.settings(**more))}

    def giant(self, size: int) -> Path:
        """A client's key, and a certificate of another CA with an extension of so many bytes."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "giant")])
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), bytes(size))
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), 1)
            .not_valid_before(datetime.fromtimestamp(NOW_S, UTC))
            .not_valid_after(datetime.fromtimestamp(NOW_S + DAYS * 86_400, UTC))
            .add_extension(extension, critical=False)
            .sign(key, hashes.SHA256())
        )
        file = self.ca.with_name("giant.pem")
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        return file

    def of_client(self, *, certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if certificate:
            context.load_cert_chain(self.client)
        return context


async def connect(broker: Broker, context: ssl.SSLContext) -> Client:
    return await Client.connect(*broker.address, ssl=context)


def refusals(broker: Broker) -> list[str]:
    """Reasons of refused certificates, as the audit log gets them."""
    found: list[str] = []
    broker.listener.tls_gate.on_refused = lambda _, why: found.append(why)
    return found


async def principals(broker: Broker) -> list[str]:
    found: list[str] = []

    def answer(context: RequestContext, _: Any) -> Any:
        found.append(context.connection.principal)
        return HeartbeatResponse()

    broker.on_heartbeat = answer
    return found
