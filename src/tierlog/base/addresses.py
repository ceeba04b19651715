"""Addresses of hosts: how they are written in URLs, and which of them stay within this machine."""

from ipaddress import ip_address
from urllib.parse import urlsplit


def host_port(host: str, port: int) -> str:
    """The address as in URLs: brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip_address(host: str) -> bool:
    """Whether the host is an address, with or without a zone (`fe80::1%eth0`), and not a name."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether the host is a loopback address or `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_confidential(url: str) -> bool:
    """Whether a password may be sent to the URL: over TLS, or within this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
