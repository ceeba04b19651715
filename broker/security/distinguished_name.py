"""Distinguished names as text (RFC 2253), as Java's X500Principal.getName() writes them for Kafka."""

from typing import NamedTuple

from cryptography import x509

from tierlog.config.principal_rules import PrincipalRule, principal_name

_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The attributes that RFC 2253 names in section 2.3; others are written by number and encoding."""

_TEXT_TAGS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""Types of ASN.1 whose bytes Java reads as UTF-8, whatever they are: UTF8String, PrintableString, T61String,
IA5String, GeneralString and BMPString. It writes values of other types by their encoding."""

_ESCAPES = str.maketrans({character: f"\\{character}" for character in ',=+<>#;"\\'} | {"\0": "\\00"})
_BLANKS = " \r"


def distinguished_name(subject: x509.Name) -> str:
    """The attributes from the last to the first, separated by commas."""
    return ",".join("+".join(_attribute(one) for one in part) for part in reversed(subject.rdns))


class ClientCertificate(NamedTuple):
    """A client's certificate: its principal, and when it expires, in wall clock time."""

    principal: str
    expires_ms: int


def client_certificate(
    certificate: bytes, rules: tuple[PrincipalRule, ...], now_ms: int
) -> ClientCertificate:
    """`certificate`: as DER. Raises ValueError if it has expired, or if no rule maps its name.

    A handshake verifies the expiry too, unless it resumes an earlier session.
    """
    parsed = x509.load_der_x509_certificate(certificate)
    expires_ms = int(parsed.not_valid_after_utc.timestamp() * 1000)
    if expires_ms <= now_ms:
        raise ValueError("the certificate has expired")
    return ClientCertificate(_principal(parsed, rules), expires_ms)


def _principal(certificate: x509.Certificate, rules: tuple[PrincipalRule, ...]) -> str:
    subject = distinguished_name(certificate.subject)
    name = principal_name(rules, subject)
    if name is None:
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches {subject!r}")
    return f"User:{name}"


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    name = _NAMES.get(attribute.oid.dotted_string)
    value = _encoded(attribute)
    if name is None or value[0] not in _TEXT_TAGS:
        return f"{name or attribute.oid.dotted_string}=#{value.hex()}"
    return f"{name}={_escaped(value[_content_at(value, 0) :].decode(errors='replace'))}"


def _escaped(value: str) -> str:
    """Special characters escaped, and each blank at an end."""
    inner = value.strip(_BLANKS)
    at = value.index(inner)
    before, after = value[:at], value[at + len(inner) :]
    return _blanks_escaped(before) + inner.translate(_ESCAPES) + _blanks_escaped(after)


def _blanks_escaped(blanks: str) -> str:
    return "".join(f"\\{blank}" for blank in blanks)


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """The attribute's value in DER: what follows the headers of a sequence, a set and a sequence, and the
    object id."""
    single = x509.Name([attribute]).public_bytes()
    at = 0
    for _ in range(3):
        at = _content_at(single, at)
    return single[at + 2 + single[at + 1] :]


def _content_at(encoded: bytes, at: int) -> int:
    """Position of the content of an element in DER that begins at a position."""
    length = encoded[at + 1]
    return at + 2 + (length & 0x7F if length & 0x80 else 0)
