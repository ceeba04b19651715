"""The sentinel's process: waits until the broker's process has ended, and then notifies the controllers.

Started by `sentinel` as a script that uses only the standard library, so that it stays small. The broker
holds the other end of the pipe on standard input. The kernel closes that end when the last thread of the
broker has ended, however it ended, and never earlier. Each line of input contains instructions that replace
the previous ones: the addresses, and the exact bytes to send, which the broker has signed in advance.
Therefore this process needs no secret.
"""

import json
import signal
import socket
import ssl
import sys
import threading
import time
from typing import Any

SEND_TIMEOUT_S = 3.0
"""How long to try. After that the broker's session has usually expired anyway."""

ATTEMPT_TIMEOUT_S = 1.0
RETRY_S = 0.05

RETRIED_STATUSES = (b"408", b"429")
"""Statuses to retry: the controller was too busy to read the request (408) or to accept it (429)."""


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it has to outlive the broker
    latest = b""
    for line in sys.stdin.buffer:
        # a line without an end: the broker died while it wrote it
        latest = line if line.endswith(b"\n") else latest
    instructions = json.loads(latest or b'{"notices": []}')
    tls = instructions.get("tls")
    threads = [threading.Thread(target=_notify, args=(notice, tls)) for notice in instructions["notices"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _notify(notice: dict[str, Any], tls: dict[str, str] | None) -> None:
    """Send until the controller gives a final response or SEND_TIMEOUT_S has passed."""
    deadline_s = time.monotonic() + SEND_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            if _send(notice, tls):
                return
        except OSError:
            pass
        time.sleep(RETRY_S)


def _send(notice: dict[str, Any], tls: dict[str, str] | None) -> bool:
    """Send the notice once. Returns True if no retry is needed: it was accepted (2xx) or permanently rejected
    (4xx). Raises OSError."""
    with socket.create_connection((notice["host"], notice["port"]), ATTEMPT_TIMEOUT_S) as plain:
        connection = plain
        if notice["tls"]:
            context = ssl.create_default_context(cafile=tls["ca"] if tls else None)
            if tls is not None:
                context.load_cert_chain(tls["certificate"], tls["key"])
            connection = context.wrap_socket(plain, server_hostname=notice["host"])
        connection.sendall(notice["request"].encode("latin-1"))
        status_line = connection.recv(64).split(b" ")
        if len(status_line) < 2 or status_line[1] in RETRIED_STATUSES:
            return False
        return status_line[1][:1] in (b"2", b"4")


if __name__ == "__main__":
    main()
