"""TLS contexts of listeners: load keys and certificates from files or settings, and reload replaced files.

A new file takes effect for new connections, if it is valid; otherwise the old one stays, and the log says so
every time that the file changes. A key is passed to OpenSSL through memory and never
written to a disk. Called by `net.listener` for each connection, and by the metrics.
"""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from tierlog.base.clock import Clock, SystemClock
from tierlog.broker.security.distinguished_name import ClientCertificate, client_certificate
from tierlog.config.definitions import InvalidSetting
from tierlog.config.node import NodeSettings
from tierlog.config.principal_rules import parse_principal_rules
from tierlog.config.tls import NO_CLIENT_AUTH, PEM, PKCS12, REQUIRED, TLS_1_2, TLS_1_3, SslSettings

CHECK_INTERVAL_S = 5.0
FILE_BYTES_MAX = 4 << 20
"""Maximum size of a keystore or truststore: thousands of certificates."""

_log = structlog.get_logger("tierlog")
_VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {NO_CLIENT_AUTH: ssl.CERT_NONE, REQUIRED: ssl.CERT_REQUIRED}
_PEM_BEGIN = b"-----BEGIN"


class _Loaded(NamedTuple):
    context: ssl.SSLContext
    client_context: ssl.SSLContext | None  # for connections to the same listener of other brokers
    expires_at_s: int  # when the certificate expires, in seconds since 1970
    trust_expires_at_s: int | None  # when the first CA expires


class ListenerTls:
    """TLS of one listener."""

    def __init__(self, name: str, settings: SslSettings, clock: Clock | None = None) -> None:
        """Raises InvalidSetting if a file cannot be used."""
        self.name = name
        self._clock = clock or SystemClock()
        self._settings = settings
        self._rules = parse_principal_rules(settings.ssl_principal_mapping_rules)
        self._stamp = self._file_stamp()
        self._loaded = _load(settings)
        self.reload_failures = 0
        self.reload_error = ""
        """Why the newest files are not used."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._loaded.context

    @property
    def client_context(self) -> ssl.SSLContext:
        """The context for the next connection to the same listener of another broker. Raises InvalidSetting
        without a truststore."""
        context = self._loaded.client_context
        if context is None:
            raise InvalidSetting(
                f"inter.broker.listener.name: listener {self.name} needs ssl.truststore.location, by which "
                "brokers verify each other"
            )
        return context

    @property
    def expires_at_s(self) -> int:
        """When the certificate expires, in seconds since 1970."""
        return self._loaded.expires_at_s

    @property
    def trust_expires_at_s(self) -> int | None:
        """When the first CA of the truststore expires; None without a truststore."""
        return self._loaded.trust_expires_at_s

    def certificate(self, session: ssl.SSLObject) -> ClientCertificate | None:
        """The client's certificate; None: the client has none. Raises ValueError if it has expired, or if no
        rule maps its name."""
        presented = session.getpeercert(binary_form=True)
        if presented is None:
            return None
        return client_certificate(presented, self._rules, self._clock.now_ms())

    def reload(self) -> bool:
        """Load the files if one has changed. Returns whether new ones are used."""
        stamp = self._file_stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._loaded = _load(self._settings)
        except InvalidSetting as failure:
            self.reload_failures += 1
            self.reload_error = str(failure)
            _log.error(
                "certificate.listener.reload_failed",
                listener=self.name,
                error=str(failure),
            )
            return False
        self.reload_error = ""
        _log.info("certificate.listener.reloaded", listener=self.name, expires_at_s=self.expires_at_s)
        return True

    def _file_stamp(self) -> tuple[object, ...]:
        """Changes whenever a file is replaced or modified, also its owner or mode."""
        return tuple(
            _stamp_of(path)
            for path in (self._settings.ssl_keystore_location, self._settings.ssl_truststore_location)
            if path
        )


class NodeTls:
    """TLS of the listeners of a node that have it. `by_name`: of each."""

    def __init__(self, settings: NodeSettings) -> None:
        """Raises InvalidSetting if a file cannot be used."""
        self.by_name: Mapping[str, ListenerTls] = {
            listener.name: ListenerTls(listener.name, settings.for_listener(listener.name))
            for listener in settings.client_listeners
            if listener.protocol.has_tls
        }

        self._between_brokers = self.by_name.get(settings.inter_broker_listener)

    @property
    def for_brokers(self) -> Callable[[], ssl.SSLContext] | None:
        """The context for the next connection to another broker; None: brokers use no TLS. Raises
        InvalidSetting without a truststore."""
        listener = self._between_brokers
        if listener is None:
            return None
        _ = listener.client_context
        return lambda: listener.client_context

    async def reload_replaced(self) -> None:
        """Wait for a while, and check the files of all listeners. Called repeatedly."""
        await asyncio.sleep(CHECK_INTERVAL_S)
        for listener in self.by_name.values():
            listener.reload()


def _load(settings: SslSettings) -> _Loaded:
    context = _context(settings, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.verify_mode = _CLIENT_AUTH.get(settings.ssl_client_auth, ssl.CERT_OPTIONAL)
    expires_at_s = _load_key(context, settings)
    trust_expires_at_s = _load_trust(context, settings)
    client = None
    if trust_expires_at_s is not None:
        client = _context(settings, ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = bool(settings.ssl_endpoint_identification_algorithm)
        _load_key(client, settings)
        _load_trust(client, settings)
    return _Loaded(context, client, expires_at_s, trust_expires_at_s)


def _context(settings: SslSettings, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.options |= ssl.OP_NO_COMPRESSION
    enabled = [_VERSIONS[name] for name in settings.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(enabled), max(enabled)
    _set_ciphers(context, settings.ssl_cipher_suites)
    return context


def _load_key(context: ssl.SSLContext, settings: SslSettings) -> int:
    where, password = "ssl.keystore.key", settings.ssl_key_password
    pem = f"{settings.ssl_keystore_key}\n{settings.ssl_keystore_certificate_chain}\n".encode()
    if settings.ssl_keystore_location:
        where = f"ssl.keystore.location: {settings.ssl_keystore_location}"
        pem = _read(where, settings.ssl_keystore_location)
        if _format_of(pem, settings.ssl_keystore_type) == PKCS12:
            pem, password = _pem_of_pkcs12(where, pem, settings.ssl_keystore_password), ""
    file = os.memfd_create("tierlog-key", os.MFD_CLOEXEC)
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}", password=lambda: password)
        return int(x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc.timestamp())
    except (OSError, ValueError) as failure:  # ssl.SSLError is an OSError
        reason = failure.reason if isinstance(failure, ssl.SSLError) and failure.reason else failure
        raise InvalidSetting(
            f"{where}: not a usable private key with its certificate chain: {reason}"
        ) from None
    finally:
        os.close(file)


def _load_trust(context: ssl.SSLContext, settings: SslSettings) -> int | None:
    """Load the CA certificates. Returns when the first expires; None: no setting names any. A truststore
    without certificates is refused, so brokers that had one at startup always have one."""
    where, pem = "ssl.truststore.certificates", settings.ssl_truststore_certificates.encode()
    if settings.ssl_truststore_location:
        where = f"ssl.truststore.location: {settings.ssl_truststore_location}"
        pem = _read(where, settings.ssl_truststore_location)
        if _format_of(pem, settings.ssl_truststore_type) == PKCS12:
            pem = _pem_of_pkcs12(where, pem, settings.ssl_truststore_password)
    elif not pem:
        return None
    try:
        certificates = x509.load_pem_x509_certificates(pem)
        context.load_verify_locations(cadata=pem.decode())
    except (OSError, ValueError) as failure:
        raise InvalidSetting(f"{where}: not a file of CA certificates: {failure}") from None
    return min(int(one.not_valid_after_utc.timestamp()) for one in certificates)


def _pem_of_pkcs12(where: str, data: bytes, password: str) -> bytes:
    try:
        found = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError as failure:
        is_java = data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
        how = "convert it with keytool -importkeystore -deststoretype pkcs12" if is_java else str(failure)
        raise InvalidSetting(f"{where}: not a PKCS#12 file, or another password: {how}") from None
    parts = []
    if found.key is not None:
        parts.append(found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificates = [found.cert] if found.cert is not None else []
    parts += [one.certificate.public_bytes(Encoding.PEM) for one in [*certificates, *found.additional_certs]]
    return b"".join(parts)


def _format_of(data: bytes, declared: str) -> str:
    return declared or (PEM if _PEM_BEGIN in data else PKCS12)


def _read(where: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as failure:
        raise InvalidSetting(f"{where}: {failure.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidSetting(f"{where}: more than {FILE_BYTES_MAX} bytes")
    return data


def _stamp_of(path: str) -> tuple[int, ...] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    if not suites:
        context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
        return
    names = [_openssl_name(suite) for suite in suites]
    of_tls_1_2 = [name for name in names if not name.startswith("TLS_")]
    try:
        context.set_ciphers(":".join(of_tls_1_2 or ["ECDHE+AESGCM"]))
        known = {cipher["name"] for cipher in context.get_ciphers()}
    except ssl.SSLError:
        known = set()
    odd = [name for name in of_tls_1_2 if name not in known]
    if odd:
        raise InvalidSetting(f"ssl.cipher.suites: OpenSSL has no cipher suite {odd[0]}")


def _openssl_name(suite: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384 in OpenSSL."""
    if "_WITH_" not in suite:
        return suite
    exchange, cipher = suite.removeprefix("TLS_").split("_WITH_")
    plain = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    if "CHACHA20" in plain:
        plain = "CHACHA20_POLY1305"
    name = plain if exchange == "RSA" else f"{exchange}_{plain}"
    return name.replace("_", "-")
