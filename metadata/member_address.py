"""Member addresses: the URLs that a quorum member may have, and the addresses that they may resolve to.

Every node sends requests to the members' URLs. A user who may add a voter must not be able to direct them at
link-local addresses, where clouds serve credentials. Host names are checked when a voter is added, and again
for each connection, because they may resolve differently by then. Called by the admin API and the transport.
"""

import asyncio
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

from tierlog.base.addresses import is_loopback

RESOLVE_TIMEOUT_S = 5.0
"""A name that takes longer to resolve is checked only when it is used, not before its voter is added."""


class InvalidMemberUrl(Exception):
    """The URL cannot be a member's; the message says why."""


class ForbiddenAddress(OSError):
    """The name resolves only to addresses that no member can have."""


class MemberResolver(AbstractResolver):
    """Resolves names to addresses that a member can have. Create it within an event loop."""

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
    """Raise InvalidMemberUrl if the name resolves to an address that no member can have. It need not resolve
    yet."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            await MemberResolver(resolver).resolve(parts.hostname or "", parts.port or 0)
    except ForbiddenAddress as forbidden:
        raise InvalidMemberUrl(f"{forbidden.strerror}: give its address in your network") from None
    except (OSError, TimeoutError):
        return


def check_url(url: str, members: Iterable[str]) -> None:
    """Raise InvalidMemberUrl for a URL that cannot be a member's.

    Refuses link-local addresses, loopback unless the whole quorum is on this machine, and spellings of
    addresses that only resolvers understand (`0x7f.1`). Whether a member responds there is known only once it
    votes.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        raise InvalidMemberUrl(f"{url!r} is not of the form http://host:port") from None
    host = parts.hostname or ""
    if not is_address or url.rstrip("/") != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
        raise InvalidMemberUrl(f"{url!r} is not of the form http://host:port")
    if not _is_allowed_host(host, [urlsplit(member).hostname or "" for member in members]):
        raise InvalidMemberUrl(f"{host!r} cannot be a voter's: give its address in your network")


def _is_allowed_host(host: str, members: Sequence[str]) -> bool:
    try:
        address = ip_address(host)
    except ValueError:  # a name
        last = host.rstrip(".").rpartition(".")[2]
        if _is_on_this_machine(host):
            return any(map(_is_on_this_machine, members))
        return not (last.isdecimal() or last.startswith("0x"))
    return not _is_forbidden(address) and (not address.is_loopback or any(map(_is_on_this_machine, members)))


def _is_forbidden(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved


def _is_on_this_machine(host: str) -> bool:
    return is_loopback(host) or host.endswith(".localhost")
