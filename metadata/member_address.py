"""Member addresses: which URLs a member of the quorum may have, and what their names may resolve to.

Every node sends requests to the members' URLs. Whoever may add a voter must not be able to point them at
link-local addresses, where clouds serve credentials. Names are checked when a voter is added, and again
whenever a connection is opened, as they may resolve to something else by then. Called by the admin API and
by the transport.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

RESOLVE_TIMEOUT_S = 5.0
"""A name that takes longer to resolve is not checked before its voter is added, only when it is used."""


class InvalidMemberUrl(Exception):
    """Says why the URL cannot be a member's."""


class ForbiddenAddress(OSError):
    """The name resolves to addresses only that no member can have."""


class MemberResolver(AbstractResolver):
    """Resolves names to addresses that a member can have; made within an event loop."""

    def __init__(self, resolver: AbstractResolver | None = None) -> None:
        self._resolver = resolver or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        allowed = [each for each in found if not _is_forbidden(ip_address(each["host"].partition("%")[0]))]
        if found and not allowed:
            raise ForbiddenAddress(None, f"{host} resolves to {found[0]['host']}, which no member can have")
        return allowed

    async def close(self) -> None:
        await self._resolver.close()


async def check_resolved(url: str, resolver: AbstractResolver | None = None) -> None:
    """Raises InvalidMemberUrl if the name resolves to what no member can have; it need not resolve yet."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            await MemberResolver(resolver).resolve(parts.hostname or "", parts.port or 0)
    except ForbiddenAddress as forbidden:
        raise InvalidMemberUrl(f"{forbidden.strerror}: give its address in your network") from None
    except (OSError, TimeoutError):
        return


def check_url(url: str, members: Iterable[str]) -> None:
    """Raises InvalidMemberUrl for what cannot be a member's URL.

    Whether a member answers there is known only once it votes. Refused are link-local addresses, loopback
    unless the whole quorum is on this machine, and spellings of addresses that only resolvers understand
    (`0x7f.1`).
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        raise InvalidMemberUrl(f"{url!r} is not of the form http://host:port") from None
    host = parts.hostname or ""
    if not is_address or url.rstrip("/") != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
        raise InvalidMemberUrl(f"{url!r} is not of the form http://host:port")
    if not _may_be_member(host, [urlsplit(member).hostname or "" for member in members]):
        raise InvalidMemberUrl(f"{host!r} cannot be a voter's: give its address in your network")


def _may_be_member(host: str, members: Sequence[str]) -> bool:
    try:
        address = ip_address(host)
    except ValueError:  # a name
        last = host.rstrip(".").rpartition(".")[2]
        if _is_loopback(host):
            return any(map(_is_loopback, members))
        return not (last.isdecimal() or last.startswith("0x"))
    return not _is_forbidden(address) and (not address.is_loopback or any(map(_is_loopback, members)))


def _is_forbidden(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
