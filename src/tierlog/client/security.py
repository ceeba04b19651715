"""Security of a client's connections: TLS and SASL, by the names of Kafka's client settings.

PEM files only: `ssl.truststore.*` and `ssl.keystore.*` with the type PEM, or librdkafka's `ssl.ca.location`,
`ssl.certificate.location` and `ssl.key.location`. The login is in `sasl.jaas.config`, or in librdkafka's
`sasl.username` and `sasl.password`. With `tokenauth="true"` in the former it is that of a delegation token.
Called by the command line for `--client-config`.
"""

import os
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tierlog.client.errors import AuthenticationFailed, InvalidResponse
from tierlog.config.definitions import InvalidSetting
from tierlog.config.jaas import parse_jaas
from tierlog.protocol.api import BY_NAME, decode_response, encode_request
from tierlog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tierlog.protocol.sasl.client_login import (
    CLIENT_MECHANISMS,
    HANDSHAKE_VERSION,
    LoginRefused,
    login_requests,
)
from tierlog.protocol.sasl.scram import HASHES

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
ANSWER_MAX_BYTES = 1 << 20
"""Maximum bytes of an answer before the login. Another server than a broker may be at the address."""

AUTHENTICATE_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """`tls`: None for connections that are not encrypted. `mechanism`: "" for connections without a login.
    `by_token`: user and password are id and HMAC of a delegation token."""

    tls: ssl.SSLContext | None = None
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False

    def open_socket(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """An encrypted and authenticated connection. Raises OSError and AuthenticationFailed."""
        opened = socket.create_connection(address, timeout_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                opened = self.tls.wrap_socket(opened, server_hostname=address[0])
            if self.mechanism:
                self._log_in(opened, f"{address[0]}:{address[1]}")
        except BaseException:
            opened.close()
            raise
        return opened

    def _log_in(self, opened: socket.socket, name: str) -> None:
        requests = login_requests(self.mechanism, self.user, self.password, by_token=self.by_token)
        try:
            request = next(requests)
            while True:
                request = requests.send(_exchange(opened, name, request))
        except StopIteration:
            return
        except LoginRefused as refusal:
            raise AuthenticationFailed(f"{name} {refusal}") from None


def _exchange(opened: socket.socket, name: str, request: Any) -> Any:
    is_handshake = isinstance(request, SaslHandshakeRequest)
    api = BY_NAME["SaslHandshake" if is_handshake else "SaslAuthenticate"]
    version = HANDSHAKE_VERSION if is_handshake else AUTHENTICATE_VERSION
    opened.sendall(encode_request(api, version, 0, "tierlog", request))
    size = struct.unpack(">i", _read(opened, 4))[0]
    if not 0 < size <= ANSWER_MAX_BYTES:
        raise InvalidResponse(
            name, f"{name} does not speak the Kafka protocol: invalid response size {size:,}"
        )
    return decode_response(api, version, memoryview(_read(opened, size)))[1]


def _read(opened: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = opened.recv(count - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection during the login")
        data += part
    return data


# ---- Kafka's settings -----------------------------------------------------------------------------


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """Settings of a client. Others than those of security are ignored. Raises InvalidSetting."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise InvalidSetting(f"security.protocol: {protocol!r} is not one of {', '.join(PROTOCOLS)}")
    tls = _tls(properties) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return ClientSecurity(tls=tls)
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    if mechanism not in CLIENT_MECHANISMS:
        raise InvalidSetting(f"sasl.mechanism: {mechanism!r} is not one of {', '.join(CLIENT_MECHANISMS)}")
    user, password, by_token = _login(properties)
    if by_token and mechanism not in HASHES:
        raise InvalidSetting(f"sasl.jaas.config: tokenauth needs {' or '.join(HASHES)}, not {mechanism}")
    return ClientSecurity(tls=tls, mechanism=mechanism, user=user, password=password, by_token=by_token)


def _login(properties: Mapping[str, str]) -> tuple[str, str, bool]:
    """User and password, and whether they are those of a delegation token."""
    by_token = False
    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    if "sasl.jaas.config" in properties:
        try:
            options = parse_jaas(properties["sasl.jaas.config"])
        except InvalidSetting as fault:
            raise InvalidSetting(f"sasl.jaas.config: {fault}") from None
        user, password = options.get("username", ""), options.get("password", "")
        by_token = options.get("tokenauth", "").lower() == "true"
    if not user or not password:
        raise InvalidSetting('a SASL client needs sasl.jaas.config with username="..." and password="..."')
    return user, password, by_token


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() != "https":
        context.check_hostname = False
    for kind in ("truststore", "keystore"):
        default = "JKS" if f"ssl.{kind}.location" in properties else "PEM"
        if properties.get(f"ssl.{kind}.type", default).upper() != "PEM":
            raise InvalidSetting(f"ssl.{kind}.type: only PEM is supported; convert the store to PEM files")
    try:
        authorities = properties.get("ssl.truststore.certificates")
        file = properties.get("ssl.truststore.location") or properties.get("ssl.ca.location")
        if authorities or file:
            context = _only_trusting(context, authorities, file)
        _load_certificate(context, properties)
    except (OSError, ValueError) as failure:  # SSLError is an OSError
        reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
        raise InvalidSetting(f"TLS files of the client: {reason}") from None
    return context


def _only_trusting(like: ssl.SSLContext, text: str | None, file: str | None) -> ssl.SSLContext:
    """A context that trusts these authorities and not those of the machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = like.minimum_version
    context.check_hostname = like.check_hostname
    context.load_verify_locations(cafile=file, cadata=text)
    return context


def _load_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> None:
    password = properties.get("ssl.key.password") or properties.get("ssl.keystore.password") or None
    chain, key = properties.get("ssl.keystore.certificate.chain"), properties.get("ssl.keystore.key")
    if chain and key:  # OpenSSL reads files only, and a key must not reach a disk
        with os.fdopen(os.memfd_create("tierlog-key", os.MFD_CLOEXEC), "w", encoding="utf-8") as both:
            both.write(f"{chain}\n{key}\n")
            both.flush()
            context.load_cert_chain(f"/proc/self/fd/{both.fileno()}", password=password)
        return
    store = properties.get("ssl.keystore.location") or properties.get("ssl.certificate.location")
    if store:
        context.load_cert_chain(store, properties.get("ssl.key.location"), password=password or "")
