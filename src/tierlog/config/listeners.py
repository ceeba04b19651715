"""Listeners: the addresses on which a broker serves clients and other brokers, each with a name and a
security protocol. Kafka's settings of the same names. Called by the node's settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tierlog.config.definitions import InvalidSetting

NAME_CHARACTERS_MAX = 64
ALL_ADDRESSES = "0.0.0.0"


class SecurityProtocol(StrEnum):
    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Port 0 stands for a free one. `advertised`: host and port
    that clients connect to; None: the bound address."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised: tuple[str, int] | None


DEFAULT_PROTOCOLS = tuple(f"{protocol}:{protocol}" for protocol in SecurityProtocol)


def parse_listeners(
    listeners: Iterable[str], advertised: Iterable[str], protocols: Iterable[str]
) -> tuple[ListenerSettings, ...]:
    """`protocols`: listener.security.protocol.map. Raises InvalidSetting."""
    by_name = _protocols(protocols)
    bound = _addresses("listeners", listeners)
    given = _addresses("advertised.listeners", advertised)
    if not bound:
        raise InvalidSetting("listeners: at least one NAME://host:port is needed, as PLAINTEXT://:9092")
    for name in given:
        if name not in bound:
            raise InvalidSetting(f"advertised.listeners: listeners has no {name}")
    for name, (_, port) in given.items():
        if port == 0:
            raise InvalidSetting(f"advertised.listeners: {name} has port 0, which cannot be connected to")
    seen: set[tuple[str, int]] = set()
    for name, address in bound.items():
        if name not in by_name:
            raise InvalidSetting(
                f"listeners: {name} has no security protocol: add {name}:PROTOCOL to "
                f"listener.security.protocol.map, with {', '.join(SecurityProtocol)}"
            )
        if address in seen and address[1] != 0:
            raise InvalidSetting(f"listeners: port {address[1]} is listed twice")
        seen.add(address)
    return tuple(
        ListenerSettings(name=name, protocol=by_name[name], host=host, port=port, advertised=given.get(name))
        for name, (host, port) in bound.items()
    )


def host_and_port(setting: str, text: str) -> tuple[str, int]:
    """An address without a host stands for all addresses of the machine. Raises InvalidSetting."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidSetting(f"{setting}: {text!r} is not host:port")
    return host.strip("[]") or ALL_ADDRESSES, int(port)


def _protocols(pairs: Iterable[str]) -> Mapping[str, SecurityProtocol]:
    found = {}
    for pair in pairs:
        name, _, protocol = pair.rpartition(":")
        try:
            found[_name("listener.security.protocol.map", name)] = SecurityProtocol(protocol.upper())
        except ValueError:
            raise InvalidSetting(
                f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL, with a protocol of "
                f"{', '.join(SecurityProtocol)}"
            ) from None
    return found


def _addresses(setting: str, texts: Iterable[str]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        if not separator:
            raise InvalidSetting(f"{setting}: {text!r} is not NAME://host:port")
        name = _name(setting, name)
        if name in found:
            raise InvalidSetting(f"{setting}: the name {name} is used twice")
        found[name] = host_and_port(setting, address)
    return found


def _name(setting: str, name: str) -> str:
    """Names are upper case, as in Kafka."""
    plain = name.strip().upper()
    if not plain or len(plain) > NAME_CHARACTERS_MAX or not plain.replace("_", "").replace("-", "").isalnum():
        raise InvalidSetting(
            f"{setting}: {name!r} is not a listener's name: letters, digits, _ and -, at most "
            f"{NAME_CHARACTERS_MAX}"
        )
    return plain
