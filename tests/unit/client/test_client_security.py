"""Kafka's client settings for TLS and SASL, as `--client-config` reads them."""

import tempfile
from pathlib import Path

import pytest
from certificates import Authority

from tierlog.client.properties import properties_text, read_properties
from tierlog.client.security import client_security
from tierlog.config.definitions import InvalidSetting

JAAS = 'ScramLoginModule required username="ada" password="canary";'


def properties(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "client.properties"
    file.write_text(text)
    return read_properties(file)


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    text = "\n".join(
        (
            "# comment=1",
            "! another",
            "",
            "a=1",
            "b : 2",
            "c 3",
            "  d =  with spaces ",
            "e=one, \\",
            "    two",
            "f\\=g=x\\\\y\\u00e9",
            "empty=",
            "#",
        )
    )
    assert properties(tmp_path, text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "with spaces",
        "e": "one, two",
        "f=g": "x\\yé",
        "empty": "",
    }


def test_written_properties_are_read_back(tmp_path: Path) -> None:
    values = {"a": "C:\\users\\uabcd", "b": "-----BEGIN\n\tx\u2028y", "c": "\u00e9\U0001f600=:#!", "d": ""}
    text = properties_text(values)
    assert text.isascii()
    assert properties(tmp_path, text) == values


def test_login_of_kafkas_and_of_librdkafkas_settings() -> None:
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    for login in ({"sasl.jaas.config": JAAS}, {"sasl.username": "ada", "sasl.password": "canary"}):
        made = client_security({**sasl, **login})
        assert (made.mechanism, made.user, made.password) == ("SCRAM-SHA-256", "ada", "canary")
        assert made.tls is None
        assert "canary" not in repr(made)


def test_login_by_a_delegation_token() -> None:
    by_token = JAAS.replace(";", ' tokenauth="TRUE";')
    kafkas = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    assert client_security(kafkas | {"sasl.jaas.config": by_token}).by_token
    assert not client_security(kafkas | {"sasl.jaas.config": JAAS}).by_token
    assert not client_security(kafkas | {"sasl.jaas.config": by_token.replace("TRUE", "false")}).by_token
    with pytest.raises(InvalidSetting, match="tokenauth needs SCRAM-SHA-256 or SCRAM-SHA-512, not PLAIN"):
        client_security(kafkas | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": by_token})


def test_key_of_a_client_does_not_reach_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Authority(tmp_path).issue("ada")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    made = client_security(
        {
            "security.protocol": "SSL",
            "ssl.keystore.certificate.chain": files.certificate.read_text(),
            "ssl.keystore.key": files.key.read_text(),
        }
    )
    assert made.tls is not None


def test_plain_connections_need_no_settings() -> None:
    made = client_security({"client.id": "x"})
    assert (made.tls, made.mechanism) == (None, "")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "GSSAPI"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "canary"},
            "sasl.jaas.config: expected a login module",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}, "only PEM"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "only PEM"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/missing.pem"}, "No such file"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": "canary"}, "TLS files"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why) as raised:
        client_security(settings)
    assert "canary" not in str(raised.value)
