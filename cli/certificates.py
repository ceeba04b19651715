"""Certificates for laptops and tests: a CA, and certificates of brokers and clients that it signs.

Each file of a broker or client holds its private key and its certificate, as Kafka's PEM keystores do. Keys
are ECDSA P-256, which cost less CPU time in handshakes than RSA's. Called by `tierlog certs create`, and by
tests.
"""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
CLOCK_SKEW = timedelta(minutes=5)
"""A certificate is valid this long before it is created: clocks of other machines may be behind."""


class LocalAuthority:
    """A CA in a directory, which is created if it has none. `now_s`: seconds since 1970. No certificate is
    valid for longer than the CA. Raises OSError, and ValueError if the CA has expired."""

    def __init__(self, directory: Path, now_s: int, days: int) -> None:
        self.directory = directory
        self._now = datetime.fromtimestamp(now_s, UTC)
        self._until = self._now + timedelta(days=days)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (directory / CA_FILE).exists():
            self._create()
        self._certificate = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
        key = load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise OSError(f"{directory / CA_KEY_FILE} is not a key of `tierlog certs create`")
        self._key = key
        ends = self._certificate.not_valid_after_utc
        if ends <= self._now:
            raise ValueError(
                f"its CA expired on {ends:%Y-%m-%d}. Move ca.pem and ca.key away for a new one, which all "
                "brokers and clients need"
            )
        self._until = min(self._until, ends)

    @property
    def valid_until(self) -> datetime:
        """When the certificates that it issues expire."""
        return self._until

    def issue(self, name: str, hosts: tuple[str, ...] = ()) -> Path:
        """Write `name`.pem with a new key and a certificate: with host names and addresses for a broker,
        without for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(name, key.public_key()).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
            )
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        usages += [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        certificate = builder.issuer_name(self._certificate.subject).sign(self._key, hashes.SHA256())
        file = self.directory / f"{name}.pem"
        _write(file, _private(key) + certificate.public_bytes(Encoding.PEM))
        return file

    def _create(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder("tierlog local CA", key.public_key())
        certificate = (
            builder.issuer_name(_name("tierlog local CA"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_signing(), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(self.directory / CA_KEY_FILE, _private(key))
        _write(self.directory / CA_FILE, certificate.public_bytes(Encoding.PEM))

    def _builder(self, name: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(self._until)
        )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signing() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(file: Path, data: bytes) -> None:
    """Replace the file at once, readable by its owner only."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        opened.write(data)
    new.rename(file)
