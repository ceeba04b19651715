"""Names of client certificates are the names that Java, and so Kafka, gives them: an ACL for one holds on the
other."""

import random
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from tierlog.broker.security.distinguished_name import client_certificate
from tierlog.config.principal_rules import parse_principal_rules

pytestmark = [pytest.mark.clients, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "java" / "DistinguishedNames.java"
KINDS = [
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.STREET_ADDRESS,
    NameOID.DOMAIN_COMPONENT,
    NameOID.USER_ID,
    NameOID.EMAIL_ADDRESS,
    NameOID.SERIAL_NUMBER,
]
CHARACTERS = (
    "ab7 ,=+<>#;\"\\'\0\r\n\t()/:?.-"
    "\N{LATIN SMALL LETTER E WITH ACUTE}\N{NO-BREAK SPACE}\N{GRINNING FACE}\N{COMBINING ACUTE ACCENT}"
)
TYPES = [_ASN1Type.UTF8String, _ASN1Type.UTF8String, _ASN1Type.BMPString, _ASN1Type.UniversalString]
NAMES = 3000


def random_name(rng: random.Random) -> x509.Name:
    return x509.Name([random_part(rng) for _ in range(rng.randint(1, 3))])


def random_part(rng: random.Random) -> x509.RelativeDistinguishedName:
    kinds = rng.sample(KINDS, rng.choice((1, 1, 1, 2)))
    return x509.RelativeDistinguishedName(
        [x509.NameAttribute(kind, random_value(rng), rng.choice(TYPES), _validate=False) for kind in kinds]
    )


def random_value(rng: random.Random) -> str:
    return "".join(rng.choices(CHARACTERS, k=rng.randint(1, 12)))


def certificate(name: x509.Name, key: Ed25519PrivateKey) -> bytes:
    builder = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2025, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2035, 1, 1, tzinfo=UTC))
    )
    return builder.sign(key, None).public_bytes(Encoding.DER)


def test_names_are_those_of_java() -> None:
    rng, key, rules = random.Random(1), Ed25519PrivateKey.generate(), parse_principal_rules("DEFAULT")
    names = [random_name(rng) for _ in range(NAMES)]
    text = "".join(f"{name.public_bytes().hex()}\n" for name in names)
    command = ["java", "-XX:+UseSerialGC", str(PROGRAM)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=True)
    found = [client_certificate(certificate(name, key), rules, 0).principal for name in names]
    assert found == [f"User:{bytes.fromhex(line).decode()}" for line in done.stdout.splitlines()]
