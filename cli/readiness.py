"""Tells the service manager of the host that the node serves: sd_notify(3), for `Type=notify` units."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """`state`: lines such as READY=1. Does nothing where no service manager asked for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # in the abstract namespace (unix(7))
    # a manager that does not listen is no reason not to serve
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
