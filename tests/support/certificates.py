"""A certificate authority for tests, and the certificates that it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tierlog.metadata.quorum.tls import TlsFiles

VALID_FROM = datetime.datetime(2020, 1, 1)
VALID_UNTIL = datetime.datetime(2100, 1, 1)


class Authority:
    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.certificate_file = directory / f"{name}.crt"
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _unsigned(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self._write(self.certificate_file, builder.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, host: str = "127.0.0.1") -> TlsFiles:
        """A certificate for a server at that address, which also serves as a client certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _unsigned(_named(name), self._name, key.public_key())
        addresses = [x509.IPAddress(ipaddress.ip_address(host))]
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        files = TlsFiles(
            certificate=self.directory / f"{name}.crt",
            key=self.directory / f"{name}.key",
            ca=self.certificate_file,
        )
        self._write(files.certificate, builder.sign(self._key, hashes.SHA256()))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    @staticmethod
    def _write(path: Path, certificate: x509.Certificate) -> None:
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_UNTIL)
    )
