"""The sentinel's process: waits until the broker's process has ended, and then says so to the controllers.

Started by `sentinel` as a script of its own, with the standard library alone so that it stays small. Its
standard input is a pipe of which the broker holds the other end: the kernel closes that when the last thread
of the broker has ended, however it ended, and at no other time. Each line is the newest order: whom to tell,
and the very bytes to send, which the broker has signed beforehand. This process knows no secret.
"""

import json
import signal
import socket
import ssl
import sys
import threading
import time
from typing import Any

GIVE_UP_S = 3.0
"""After that the session of the broker has mostly ended anyway."""

TRY_S = 1.0
PAUSE_S = 0.05


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after the broker, whatever its group is told
    newest = b""
    for line in sys.stdin.buffer:
        newest = line if line.endswith(b"\n") else newest  # the broker may have died in the middle of one
    order = json.loads(newest or b'{"notices": []}')
    told = [threading.Thread(target=_tell, args=(notice, order["tls"])) for notice in order["notices"]]
    for one in told:
        one.start()
    for one in told:
        one.join()


def _tell(notice: dict[str, Any], tls: dict[str, str] | None) -> None:
    """Until one answers, or it is too late."""
    until = time.monotonic() + GIVE_UP_S
    while time.monotonic() < until:
        try:
            if _send(notice, tls):
                return
        except OSError:
            pass
        time.sleep(PAUSE_S)


def _send(notice: dict[str, Any], tls: dict[str, str] | None) -> bool:
    """Whether it was taken, or never will be. Raises OSError."""
    with socket.create_connection((notice["host"], notice["port"]), TRY_S) as plain:
        connection = plain
        if notice["tls"]:
            context = ssl.create_default_context(cafile=tls["ca"] if tls else None)
            if tls is not None:
                context.load_cert_chain(tls["certificate"], tls["key"])
            connection = context.wrap_socket(plain, server_hostname=notice["host"])
        connection.sendall(notice["request"].encode("latin-1"))
        status = connection.recv(64).split(b" ")
        return len(status) > 1 and status[1][:1] in (b"2", b"4")


if __name__ == "__main__":
    main()
