"""Settings of TLS on listeners, by Kafka's names. Part of `NodeSettings`. A listener may have values of its
own: `listener.name.<lower-case name>.<setting>`."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Self

from tierlog.config.definitions import (
    InvalidSetting,
    SettingType,
    Value,
    boolean_,
    list_,
    setting_field,
    string_,
)
from tierlog.config.listeners import ListenerSettings
from tierlog.config.principal_rules import parse_principal_rules
from tierlog.config.topic_defaults import TopicDefaults

PEM, PKCS12 = "PEM", "PKCS12"
NO_CLIENT_AUTH, REQUESTED, REQUIRED = "none", "requested", "required"
TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"
LISTENER_PREFIX = "listener.name."
OF_LISTENERS = ("ssl.", "sasl.", "plain.sasl.", "connections.max.reauth.")
"""Beginnings of the settings that a listener may have values of its own for."""

INTER_BROKER_PREFIXES = ("scram-sha-256", "scram-sha-512")
"""Mechanisms that Kafka's settings name before the one for a listener. A broker logs in by one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SslSettings(TopicDefaults):
    ssl_keystore_location: str = string_(
        "",
        "File with the private key and the certificate chain of SSL and SASL_SSL listeners. A replaced file "
        "is read again, and used for new connections. Set it for listeners with TLS.",
    )
    ssl_keystore_type: str = string_(
        "",
        "Format of ssl.keystore.location. If empty, it is recognized. Set it to refuse a file of the other "
        "format.",
        choices=("", PEM, PKCS12),
    )
    ssl_keystore_password: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Password of a PKCS#12 file in ssl.keystore.location. Set it if the file has one.",
    )
    ssl_key_password: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Password of an encrypted private key in PEM. Set it if the key is encrypted.",
    )
    ssl_keystore_certificate_chain: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Certificate chain as PEM text, in place of ssl.keystore.location. Set it together with "
        "ssl.keystore.key, for example as ${env:CHAIN}.",
    )
    ssl_keystore_key: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Private key as PEM text (PKCS#8), in place of ssl.keystore.location. Set it together with "
        "ssl.keystore.certificate.chain.",
    )
    ssl_truststore_location: str = string_(
        "",
        "File with the certificates of CAs whose client certificates are accepted. A replaced file is read "
        "again, and used for new connections. Set it if ssl.client.auth is not none.",
    )
    ssl_truststore_type: str = string_(
        "",
        "Format of ssl.truststore.location. If empty, it is recognized. Set it to refuse a file of the other "
        "format.",
        choices=("", PEM, PKCS12),
    )
    ssl_truststore_password: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Password of a PKCS#12 file in ssl.truststore.location. Set it if the file has one.",
    )
    ssl_truststore_certificates: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Certificates of CAs as PEM text, in place of ssl.truststore.location. Set it where no file can be "
        "mounted.",
    )
    ssl_client_auth: str = string_(
        NO_CLIENT_AUTH,
        "Whether clients must present a certificate: none, requested (a client without one is "
        "User:ANONYMOUS) or required. Set it to required for mutual TLS.",
        choices=(NO_CLIENT_AUTH, REQUESTED, REQUIRED),
    )
    ssl_client_auth_ends_with_certificate: bool = boolean_(
        False,
        "Whether the connection of a client with a certificate, on an SSL listener, ends when that expires. "
        "The next request closes it. Set it if certificates live briefly, so that a stolen one becomes "
        "useless. It holds between brokers too: renew their certificates in time.",
    )
    ssl_enabled_protocols: tuple[str, ...] = list_(
        (TLS_1_2, TLS_1_3),
        "Versions of TLS that clients may use. Set it to TLSv1.3 if no client needs the older version.",
        choices=(TLS_1_2, TLS_1_3),
    )
    ssl_cipher_suites: tuple[str, ...] = list_(
        (),
        "Cipher suites of TLS 1.2, by their IANA names or OpenSSL's. If empty, those of OpenSSL with forward "
        "secrecy. The suites of TLS 1.3 are always allowed. Set it if a rule of your organization names "
        "suites.",
    )
    ssl_principal_mapping_rules: str = string_(
        "DEFAULT",
        "Rules by which the distinguished name of a client certificate becomes a user name: "
        "RULE:pattern/replacement/[LU], ... The first that matches applies. DEFAULT: the name itself. Set "
        "it to RULE:^CN=([^,]+).*$/$1/ to use the common name.",
    )

    ssl_endpoint_identification_algorithm: str = string_(
        "https",
        "Whether a broker checks the host name in the certificate of another broker that it connects to: "
        "https, or empty for no check. Set it to empty only if certificates cannot name the brokers' hosts.",
        choices=("https", ""),
    )

    listener_overrides: tuple[tuple[str, str, Value], ...] = field(default=(), repr=False)
    """Lower-case name of a listener, setting and value, of each `listener.name.<name>.<setting>`."""

    def for_listener(self, name: str) -> Self:
        """The settings with the listener's own values."""
        own = {
            setting.replace(".", "_"): value
            for listener, setting, value in self.listener_overrides
            if listener == name.lower()
        }
        return replace(self, **own) if own else self  # type: ignore[arg-type]

    def check_tls(self, listeners: Collection[ListenerSettings]) -> None:
        """Check the settings of all listeners with TLS, and the names of those that have their own. Raises
        InvalidSetting."""
        names = {listener.name for listener in listeners}
        for name, setting, _ in self.listener_overrides:
            if name.upper() not in names:
                raise InvalidSetting(f"listener.name.{name}.{setting}: listeners has no {name.upper()}")
        for listener in listeners:
            if listener.protocol.has_tls:
                self.for_listener(listener.name)._check_listener(listener.name)

    def _check_listener(self, listener: str) -> None:
        has_text = bool(self.ssl_keystore_certificate_chain or self.ssl_keystore_key)
        if not has_text and not self.ssl_keystore_location:
            raise InvalidSetting(
                f"ssl.keystore.location: listener {listener} has TLS and needs a key and a certificate "
                "(`tierlog certs create` makes them for tests)"
            )
        if has_text and self.ssl_keystore_location:
            raise InvalidSetting("ssl.keystore.location: set either it or ssl.keystore.key as text")
        if has_text and not (self.ssl_keystore_certificate_chain and self.ssl_keystore_key):
            raise InvalidSetting("ssl.keystore.key and ssl.keystore.certificate.chain: set both or none")
        if self.ssl_truststore_certificates and self.ssl_truststore_location:
            raise InvalidSetting("ssl.truststore.location: set either it or ssl.truststore.certificates")
        has_trust = self.ssl_truststore_certificates or self.ssl_truststore_location
        if self.ssl_client_auth != NO_CLIENT_AUTH and not has_trust:
            raise InvalidSetting(
                f"ssl.client.auth: listener {listener} needs ssl.truststore.location with the CAs of clients"
            )
        if not self.ssl_enabled_protocols:
            raise InvalidSetting("ssl.enabled.protocols: at least one of TLSv1.2, TLSv1.3")
        parse_principal_rules(self.ssl_principal_mapping_rules)


def listener_setting(name: str) -> tuple[str, str] | None:
    """Listener and setting of `listener.name.<name>.<setting>`; None: another setting. Raises
    InvalidSetting."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, of_mechanism = setting.partition(".")
    if mechanism.lower() in INTER_BROKER_PREFIXES:
        setting = of_mechanism
    if not setting.startswith(OF_LISTENERS):
        raise InvalidSetting(f"{name}: a listener has values of its own only for ssl.* and sasl.* settings")
    return listener.lower(), setting
