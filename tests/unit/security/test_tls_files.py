"""Keys and certificates of listeners: formats, passwords, names and messages."""

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509.oid import NameOID

from tierlog.broker.security.distinguished_name import distinguished_name
from tierlog.broker.security.tls_files import ListenerTls, NodeTls
from tierlog.cli.certificates import LocalAuthority
from tierlog.config.definitions import InvalidSetting
from tierlog.config.sources import settings_from

DAYS = 30
LISTENER = {"listeners": "SSL://127.0.0.1:0"}


@pytest.fixture
def authority(tmp_path: Path) -> LocalAuthority:
    return LocalAuthority(tmp_path, int(time.time()), DAYS)


def test_a_certificate_ends_with_its_ca_and_an_expired_ca_issues_none(
    authority: LocalAuthority, tmp_path: Path
) -> None:
    """Health looks at the certificates of listeners. Clients would refuse one whose CA has expired before."""
    ends = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()).not_valid_after_utc
    later = LocalAuthority(tmp_path, int(time.time()) + 20 * 86_400, DAYS)
    issued = x509.load_pem_x509_certificate(later.issue("broker", ("localhost",)).read_bytes())
    assert issued.not_valid_after_utc == later.valid_until == ends
    with pytest.raises(ValueError, match=rf"its CA expired on {ends:%Y-%m-%d}. Move ca.pem and ca.key away"):
        LocalAuthority(tmp_path, int(time.time()) + 40 * 86_400, DAYS)


def tls(**settings: object) -> ListenerTls:
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    return NodeTls(settings_from({**LISTENER, **texts})).by_name["SSL"]


def pkcs12_of(pem: bytes, password: bytes | None) -> bytes:
    key = load_pem_private_key(pem, None)
    certificate = x509.load_pem_x509_certificate(pem)
    encryption = BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return pkcs12.serialize_key_and_certificates(b"broker", key, certificate, None, encryption)  # type: ignore[arg-type]


@pytest.mark.parametrize("password", [b"secret", None])
def test_pkcs12_keystore_is_recognized(
    authority: LocalAuthority, tmp_path: Path, password: bytes | None
) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(pkcs12_of(authority.issue("broker", ("localhost",)).read_bytes(), password))
    found = tls(ssl_keystore_location=store, ssl_keystore_password=(password or b"").decode())
    assert abs(found.expires_at_s - time.time() - DAYS * 86_400) < 600


def test_pkcs12_truststore_has_the_certificates_of_cas(authority: LocalAuthority, tmp_path: Path) -> None:
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    trust = tmp_path / "trust.p12"
    trust.write_bytes(
        pkcs12.serialize_key_and_certificates(None, None, None, [ca], BestAvailableEncryption(b"secret"))
    )
    found = tls(
        ssl_keystore_location=authority.issue("broker", ("localhost",)),
        ssl_truststore_location=trust,
        ssl_truststore_password="secret",
        ssl_client_auth="required",
    )
    assert len(found.context.get_ca_certs()) == 1


def test_key_and_chain_as_text_with_a_password(authority: LocalAuthority) -> None:
    pem = authority.issue("broker", ("localhost",)).read_bytes()
    key = load_pem_private_key(pem, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    chain = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.PEM)
    settings = {"ssl_keystore_key": key.decode(), "ssl_keystore_certificate_chain": chain.decode()}
    assert tls(**settings, ssl_key_password="secret").expires_at_s
    with pytest.raises(InvalidSetting, match="not a usable private key") as failure:
        tls(**settings, ssl_key_password="other")
    assert "other" not in str(failure.value)


def test_key_of_another_certificate_is_refused(authority: LocalAuthority) -> None:
    other = authority.issue("ada").read_bytes()
    own = authority.issue("broker", ("localhost",))
    own.write_bytes(other[: other.index(b"-----BEGIN CERT")] + own.read_bytes().partition(b"-----END P")[2])
    own.write_bytes(own.read_bytes().replace(b"RIVATE KEY-----\n", b"", 1))
    with pytest.raises(InvalidSetting, match="not a usable private key with its certificate chain"):
        tls(ssl_keystore_location=own)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a PKCS#12 file, or another password"),
        (b"\xfe\xed\xfe\xed\x00\x00\x00\x02", "keytool -importkeystore"),
        (b"-----BEGIN CERTIFICATE-----", "not a usable private key"),
        (None, "No such file"),
    ],
)
def test_unusable_keystore_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    store = tmp_path / "store"
    if content is not None:
        store.write_bytes(content)
    with pytest.raises(InvalidSetting, match=message):
        tls(ssl_keystore_location=store)


@pytest.mark.parametrize("case", ["empty", "truncated", "second is truncated"])
def test_truststore_without_whole_certificates_is_refused(
    authority: LocalAuthority, tmp_path: Path, case: str
) -> None:
    ca, trust = (tmp_path / "ca.pem").read_bytes(), tmp_path / "trust"
    half = ca[: len(ca) // 2]
    content = {"empty": b"", "truncated": half, "second is truncated": ca + half}[case]
    texts = {
        **LISTENER,
        "ssl.keystore.location": str(authority.issue("broker", ("localhost",))),
        "ssl.truststore.location": str(trust),
        "ssl.truststore.type": "PEM",
        "ssl.client.auth": "required",
    }
    trust.write_bytes(content)
    with pytest.raises(InvalidSetting, match="not a file of CA certificates"):
        NodeTls(settings_from(texts))
    trust.write_bytes(ca)
    node = NodeTls(settings_from(texts))
    assert node.for_brokers is not None
    trust.write_bytes(content)
    listener = node.by_name["SSL"]
    assert not listener.reload()
    assert listener.reload_failures == 1
    assert len(listener.context.get_ca_certs()) == len(node.for_brokers().get_ca_certs()) == 1


def test_changed_mode_of_a_file_is_noticed(authority: LocalAuthority) -> None:
    keystore = authority.issue("broker", ("localhost",))
    found = tls(ssl_keystore_location=keystore)
    assert not found.reload()
    keystore.chmod(0o640)
    assert found.reload()


def test_cipher_suites_have_both_names(authority: LocalAuthority) -> None:
    keystore = authority.issue("broker", ("localhost",))
    suites = (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,"
        "TLS_AES_256_GCM_SHA384,ECDHE-RSA-AES128-GCM-SHA256"
    )
    found = tls(ssl_keystore_location=keystore, ssl_cipher_suites=suites)
    assert {cipher["name"] for cipher in found.context.get_ciphers()} >= {
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-CHACHA20-POLY1305",
        "ECDHE-RSA-AES128-GCM-SHA256",
    }
    with pytest.raises(InvalidSetting, match="no cipher suite ECDHE-NOTHING"):
        tls(ssl_keystore_location=keystore, ssl_cipher_suites="ECDHE-NOTHING")


def test_listener_has_settings_of_its_own(authority: LocalAuthority) -> None:
    keystore = str(authority.issue("broker", ("localhost",)))
    settings = settings_from(
        {
            "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
            "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SSL",
            "ssl.keystore.location": keystore,
            "listener.name.internal.ssl.client.auth": "required",
            "listener.name.internal.ssl.truststore.location": str(authority.directory / "ca.pem"),
        }
    )
    assert settings.for_listener("INTERNAL").ssl_client_auth == "required"
    assert settings.for_listener("EXTERNAL").ssl_client_auth == "none"
    node = NodeTls(settings)
    assert len(node.by_name["INTERNAL"].context.get_ca_certs()) == 1
    assert node.for_brokers is not None


def test_brokers_need_a_truststore_between_each_other(authority: LocalAuthority) -> None:
    settings = settings_from(
        {**LISTENER, "ssl.keystore.location": str(authority.issue("broker", ("localhost",)))}
    )
    with pytest.raises(InvalidSetting, match=r"needs ssl.truststore.location, by which brokers verify"):
        _ = NodeTls(settings).for_brokers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "has TLS and needs a key"),
        ({"ssl.keystore.key": "x"}, "set both or none"),
        ({"ssl.keystore.location": "a", "ssl.keystore.key": "x"}, "set either it or"),
        ({"ssl.keystore.location": "a", "ssl.client.auth": "required"}, "needs ssl.truststore.location"),
        ({"ssl.keystore.location": "a", "ssl.enabled.protocols": ""}, "at least one of TLSv1.2"),
        ({"ssl.keystore.location": "a", "ssl.principal.mapping.rules": "x"}, "does not begin with"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "is not one of"),
        ({"listener.name.other.ssl.client.auth": "none"}, "listeners has no OTHER"),
        ({"listener.name.ssl.log.dirs": "x"}, "only for ssl"),
        ({"listener.name.ssl.ssl.nothing": "x"}, "unknown setting"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        settings_from({**LISTENER, **settings})


# ---- names ----------------------------------------------------------------------------------------


def name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(*one) for one in attributes])


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (name((NameOID.COUNTRY_NAME, "US"), (NameOID.COMMON_NAME, "Duke")), "CN=Duke,C=US"),
        (name((NameOID.COMMON_NAME, 'a,b+c"d\\e<f>g;h')), r"CN=a\,b\+c\"d\\e\<f\>g\;h"),
        (name((NameOID.COMMON_NAME, "#x=1#")), r"CN=\#x\=1\#"),
        (name((NameOID.COMMON_NAME, "  x y \r")), "CN=\\ \\ x y\\ \\\r"),
        (name((NameOID.COMMON_NAME, "x\0y")), r"CN=x\00y"),
        (name((NameOID.COMMON_NAME, " ")), r"CN=\ "),
        (name((NameOID.COMMON_NAME, "\N{GREEK SMALL LETTER ALPHA} b")), "CN=\N{GREEK SMALL LETTER ALPHA} b"),
        (name((NameOID.STATE_OR_PROVINCE_NAME, "MD"), (NameOID.USER_ID, "u")), "UID=u,ST=MD"),
        (name((NameOID.EMAIL_ADDRESS, "a@b")), "1.2.840.113549.1.9.1=#1603614062"),
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName(
                        [
                            x509.NameAttribute(NameOID.COMMON_NAME, "a"),
                            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "b"),
                        ]
                    )
                ]
            ),
            "CN=a+O=b",
        ),
    ],
)
def test_names_are_written_as_in_java(subject: x509.Name, text: str) -> None:
    assert distinguished_name(subject) == text
