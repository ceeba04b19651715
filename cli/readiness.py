"""Readiness notification to the service manager: sd_notify(3), for `Type=notify` units."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Send `state`, lines such as READY=1. Does nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # abstract namespace (unix(7))
    # the node serves even if the service manager does not listen
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
