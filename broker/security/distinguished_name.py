"""Distinguished names as text (RFC 2253), as Java's X500Principal.getName() writes them for Kafka."""

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

_ESCAPED = frozenset(',+"\\<>;')


def distinguished_name(subject: x509.Name) -> str:
    """The attributes from the last to the first, separated by commas."""
    return ",".join("+".join(_attribute(one) for one in part) for part in reversed(subject.rdns))


def certificate_principal(certificate: bytes, rules: tuple[PrincipalRule, ...]) -> str:
    """The principal of a certificate (DER). Raises ValueError if no rule maps its name."""
    subject = distinguished_name(x509.load_der_x509_certificate(certificate).subject)
    name = principal_name(rules, subject)
    if name is None:
        raise ValueError(f"no rule of ssl.principal.mapping.rules matches {subject!r}")
    return f"User:{name}"


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    name = _NAMES.get(attribute.oid.dotted_string)
    value = attribute.value
    if name is None or isinstance(value, bytes):
        return f"{name or attribute.oid.dotted_string}=#{_encoded(attribute).hex()}"
    return f"{name}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = "".join(f"\\{character}" if character in _ESCAPED else character for character in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if text.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """The attribute's value in DER."""
    single = x509.Name([attribute]).public_bytes()
    return single[_value_at(single, attribute) :]


def _value_at(name: bytes, attribute: x509.NameAttribute[str | bytes]) -> int:
    """Position of the value: after the headers of a sequence, a set and a sequence, and the object id."""
    at = 0
    for _ in range(3):
        at += 2 + (name[at + 1] & 0x7F if name[at + 1] & 0x80 else 0)
    return at + 2 + name[at + 1]
